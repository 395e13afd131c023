"""``labelkit label``: merge labels from a CSV with earlier labels into a named result, or serve the labeling page."""

import contextlib
import importlib.util
import os
import re
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.embeddings import find_split_rows, warn_of_newer_store
from labelkit.commands.common.images.read import open_source_dataset
from labelkit.commands.common.label_files import LABELS_KIND
from labelkit.commands.common.labels import TYPICAL
from labelkit.commands.common.results import CommandResult, Table
from labelkit.data.path_rule import escape_path
from labelkit.errors import BusyError, ConfigError, DatasetError, Interrupted, OutputExistsError, output_exists_error
from labelkit.options.shared import find_newest_store
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes
from labelkit.store.csv_table import csv_bytes
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.parts import hold_lock
from labelkit.store.results import Result, list_results, read_result, results_folder, write_result
from labelkit.studio.label.actions import choose_training_labels, find_changed_rows_and_groups
from labelkit.studio.label.asking import BackgroundPredictor
from labelkit.studio.label.browser import load_store_for_labeling, open_session
from labelkit.studio.label.options import LabelConfig
from labelkit.studio.label.rounds import StoreLabels, add_labels, add_predictions, drop_unused_classes, initial_labels
from labelkit.studio.label.session import LabelingSession, is_session, restore_session
from labelkit.studio.label.sets import check_label_set, write_label_set
from labelkit.studio.report.images import choose_images


def label_images(config: LabelConfig) -> CommandResult:
    """Merge labels from a CSV into those of a store, and write them as a result, a CSV or a label set.

    The result, kind ``labels``, contains ``labels`` (n,) int64, ``labeled`` (n,) uint8, ``class_names`` and
    ``label_rounds`` (n,) int64: the round in which each label was added, 0 = from the store, -1 = none.

    Raises:
        StoreError: the store, or the earlier result, cannot be used.
        DatasetError: the CSV cannot be used, lists unknown images, or contradicts existing labels.
        ConfigError: files would be overwritten, or the split does not exist.
    """
    if config.serve:
        return serve_labels(config)
    check_label_set(config)
    warn_of_newer_store(config.index)
    store = open_store(config.index)
    find_split_rows(store, config.split)  # rejects an unknown split before anything is written
    base = initial_labels(config, store)
    values: dict[str, object] = {"index": config.index}
    made: list[Path] = []
    tables: list[Table] = []
    final = base
    if config.from_ is not None:
        final, told = add_labels(config, config.from_, store, base)
        name = config.result or f"labels-{final.round}"
        path = _write(config, store, name, final, told)
        made.append(path)
        values |= {"result": name, "path": path, **told}
        tables += _build_label_tables(told)
        in_start = config.from_.resolve().parent == config.index.resolve().parent  # such as given.csv
        if find_newest_store(config.index.parent) is not None and not in_start:
            advice = f"`labelkit start` does not use these labels; to add them there, pass it --labels {config.from_}"
            current_progress().warning(advice)
    if config.predictions is not None:
        given = int((final.labels >= 0).sum())
        final = add_predictions(config.predictions, config.labels, store, final)
        values["predicted"] = int((final.labels >= 0).sum()) - given
    final = drop_unused_classes(final)
    counts, table = _class_counts(final.labels, final.class_names)
    values |= {"classes": counts, "labels": int((final.labels >= 0).sum()), "rows": store.n}
    tables.append(table)
    if config.export is not None and not (final.labels >= 0).any():
        current_progress().warning("no image is labeled; to export predictions, pass --predictions RESULT")
    if config.csv is not None:
        commit_bytes(config.csv, _table(config, config.csv, store, final))
        made.append(config.csv)
        values["csv"] = config.csv
    if config.export is not None and config.out is not None:
        count = write_label_set(config, store, final)
        values |= {"export": config.export, "out": config.out, "exported": count}
        made.append(config.out)
        tables.append(Table("label set", ["format", "images", "path"], [[config.export, count, config.out]]))
    return CommandResult(values, tuple(made), tuple(tables))


def _write(config: LabelConfig, store: EmbeddingStore, name: str, final: StoreLabels, told: dict[str, Any]) -> Path:
    params = {"changed" if key == "conflicts" else key: value for key, value in told.items()}
    try:
        return write_result(
            store,
            name,
            kind=LABELS_KIND,
            arrays={
                "labels": final.labels,
                "labeled": final.labels >= 0,
                "class_names": list(final.class_names),
                "label_rounds": final.rounds,
            },
            params=params,
            stage="label",
            overwrite=config.overwrite,
        )
    except OutputExistsError as error:
        if config.labels is None and name in list_results(store):
            replaceable = name not in store.packed_results
            raise output_exists_error(
                error.where, "--result", instead=f"--labels {name} to add to it", replaceable=replaceable
            ) from error
        raise


def _build_label_tables(told: dict[str, Any]) -> list[Table]:
    columns = ["round", "labels before", "added", "confirmed", "in conflict", "by"]
    row = [told[key] for key in ("round", "labels_before", "added", "confirmed")]
    tables = [Table("labels", columns, [[*row, len(told["conflicts"]), told["by"] or None]])]
    if told["conflicts"]:
        kept = "the new label is used" if told["conflict_rule"] == "new" else "the old label is kept"
        rows = [list(one.values()) for one in told["conflicts"]]
        tables.append(Table(f"conflicting labels: {kept}", ["path", "old", "new"], rows))
    return tables


def _class_counts(labels: NDArray[np.int64], names: Sequence[str]) -> tuple[list[dict[str, object]], Table]:
    """Count the labels of each class that has any, for JSON and as a table."""
    counts = np.bincount(labels[labels >= 0], minlength=len(names)).tolist()
    cells = [[name, count] for name, count in zip(names, counts, strict=True) if count]
    values: list[dict[str, object]] = [{"class": name, "images": count} for name, count in cells]
    return values, Table("labels per class", ["class", "images"], cells)


def _table(config: LabelConfig, path: Path, store: EmbeddingStore, final: StoreLabels) -> bytes:
    """Return a CSV of all images of the store: paths, relative to its folder or absolute, and labels or empty cells.

    Labels that are predictions have a confidence.
    """
    images = open_source_dataset(store, config.dataset, config.data_root)
    if images.root is None:
        raise DatasetError(images.name, "its images are not files, so a CSV cannot list them", "Remove --csv.")
    folder, root = path.absolute().parent, images.root.absolute()
    there = set(images.sample_ids)
    missing = [name for name in store.sample_ids if name not in there]
    if missing:
        problem = f"{len(missing)} of the {store.n} images in {store.path} are missing, first: {missing[0]}"
        raise DatasetError(str(root), problem, "Pass --dataset (and --data-root).")
    has_splits = store.splits is not None and bool(store.split_names)
    lines, unwritable = [], 0
    for row, name in enumerate(store.sample_ids):
        place = root / name
        text = os.fspath(place.relative_to(folder) if place.is_relative_to(folder) else place)
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            unwritable += 1
            continue
        label = int(final.labels[row])
        line = [text, final.class_names[label] if label >= 0 else ""]
        if store.splits is not None and has_splits:
            split = int(store.splits[row])
            line.append(store.split_names[split] if split >= 0 else "")
        if final.confidence is not None:
            sure = label >= 0 and not np.isnan(final.confidence[row])
            line.append(f"{final.confidence[row]:.4f}" if sure else "")
        lines.append(line)
    if unwritable:
        current_progress().warning(f"{path}: omitted {unwritable} images whose names are not valid text")
    columns = ["path", "label", *["split"] * has_splits, *["confidence"] * (final.confidence is not None)]
    return csv_bytes(columns, lines)


def check_server() -> None:
    """Raise a ``ConfigError`` unless Starlette and uvicorn, which ``--serve`` requires, are installed."""
    for name in ("starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            problem = f"requires Starlette and uvicorn, but {name} is not installed"
            raise ConfigError("--serve", problem, "Run `pip install starlette uvicorn`.")


def serve_labels(config: LabelConfig, predict: Callable[[BackgroundPredictor], Result] | None = None) -> CommandResult:
    """Serve the labeling page until interrupted, and return the result with the labels.

    Args:
        config: options of the command.
        predict: function that predicts again; see :class:`~labelkit.studio.label.asking.BackgroundPredictor`.

    Raises:
        ConfigError: Starlette or uvicorn is not installed.
        StoreError: the store or a result cannot be used.
        BusyError: another server is running on this store.
        ResourceError: the server cannot listen on the address.
    """
    check_server()
    from labelkit.studio.label.server import LabelServer, serve

    store = open_store(config.index)
    results_folder(store.path).mkdir(exist_ok=True)
    with contextlib.ExitStack() as held:
        _lock_results_folder(held, results_folder(store.path))
        browsed = load_store_for_labeling(config, store)
        session = open_session(config, store, browsed.grouping)
        server = LabelServer(session, browsed, by=config.by, predict=predict)
        if predict is None and (folder := store.path.parent).joinpath("start.json").is_file():
            current_progress().warning(
                f"{folder} was created by `labelkit start`, but labels entered here do not update its tables. To do so "
                f"later, run `labelkit label --index {store.path} --labels {session.name} --csv mine.csv` "
                f"and `labelkit start PHOTOS --out {folder} --labels mine.csv`"
            )

        try:
            serve(server, config.host, config.port, open_browser=config.open)
        except Interrupted as interrupted:
            if interrupted.signum != signal.SIGINT:
                raise
        finally:
            server.asking.stop()
    return _summarize_session(config, session)


def read_session_labels(
    store: EmbeddingStore, name: str, after_round: int | None
) -> tuple[int, list[tuple[str, str, str]], list[tuple[str, str, str]]]:
    """Read the last round of a labeling session, all labels, and those that changed after ``after_round``.

    A label is a tuple of an image's path, label and SHA-256 in hex, for individually labeled images and the most
    typical images of named groups. Among the changes, the label is empty if it was removed or the image rejected.

    Raises:
        StoreError: the session does not exist or cannot be used.
    """
    session = restore_session(store, read_result(store, name))
    work = session.work
    learned = choose_training_labels(work, choose_images(store, store.n, 0).features)
    after_round = session.first_round if after_round is None else after_round
    rows, _ = find_changed_rows_and_groups(
        [step for done in session.actions_since(after_round) for step in done.steps if step.do in ("label", "reject")]
    )
    fresh = (learned >= 0) & (session.label_rounds > after_round)
    fresh[sorted(rows)] = True
    labels, by_group = work.labels()
    # an image keeps its label even if others become more typical of its group
    kept = (learned >= 0) | ((labels >= 0) & (session.label_rounds <= after_round))
    if predicted := int((by_group & (learned < 0) & (session.label_rounds > after_round)).sum()):
        current_progress().message(
            f"only the labels of the {TYPICAL} most typical images of each named group are used; those of the other "
            f"{predicted} images are predicted again"
        )
    names = [*work.classes, ""]  # -1: none
    every, new = (
        [
            (escape_path(store.sample_ids[row]), names[int(given[row])], store.sha256[row].tobytes().hex())
            for row in np.flatnonzero(listed).tolist()
        ]
        for listed, given in ((kept, labels), (fresh, learned))
    )
    return session.round, every, new


def read_ruled_out_classes(stores: Sequence[EmbeddingStore]) -> set[tuple[str, str]]:
    """Return (SHA-256 in hex, class) for each image and class that at least one labeling session ruled out."""
    found = set()
    for store in stores:
        for name in list_results(store):
            if re.fullmatch(r"labels(-\d+)?", name) and is_session(result := read_result(store, name)):
                pairs, names = np.asarray(result.arrays["refused"]).tolist(), result.arrays["class_names"]
                found |= {(store.sha256[row].tobytes().hex(), names[label]) for row, label in pairs}
    return found


def _lock_results_folder(held: contextlib.ExitStack, folder: Path) -> None:
    try:
        held.enter_context(hold_lock(folder))
    except BusyError as error:
        problem = "another `labelkit label --serve` is running on this store"
        raise BusyError(str(folder), problem, "Use its link, or stop it with Ctrl-C first.") from error


def _summarize_session(config: LabelConfig, session: LabelingSession) -> CommandResult:
    labels, by_group = session.work.labels()
    counts, table = _class_counts(labels, session.work.classes)
    path = results_folder(session.store.path) / f"{session.name}.h5"
    values = {
        "index": config.index,
        "result": session.name,
        "path": path if session.log else None,
        "actions": len(session.log),
        "labels": int((labels >= 0).sum()),
        "by_group": int(by_group.sum()),
        "rows": session.store.n,
        "classes": counts,
    }
    return CommandResult(values, (path,) if session.log else (), (table,))
