"""Expand a small set of labels: label the images of a store that are the most confident or the most informative."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.embeddings import find_split_rows, load_finite_embeddings
from labelkit.commands.common.labels import UsableLabels, read_usable_labels
from labelkit.commands.common.outputs import check_output
from labelkit.commands.common.results import Cell, CommandResult, Table, to_json_types
from labelkit.commands.discover.few_options import DiscoverFewConfig, DiscoverLMCSConfig, DiscoverSnowballConfig
from labelkit.commands.discover.tables import DiscoveredImage, format_discovered_table
from labelkit.data.splits import ClassLabels, make_few_labels_split
from labelkit.errors import DatasetError, Mismatch
from labelkit.formatting import join_first_few, percent
from labelkit.methods.few_labels.critical_samples import CriticalDiscovery, discover_critical_samples
from labelkit.methods.few_labels.pseudo_label_selection import Count, Discovery
from labelkit.methods.few_labels.snowball_search import discover_confident_samples
from labelkit.metrics.discovered import discovery_errors
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import check_new_result, write_result

RESULT_KIND = "discovered"

SOURCES = ("unlabeled", "given", "discovered")
"""Names of the values in the result's array ``sources``."""


@dataclass(frozen=True)
class _Task:
    store: EmbeddingStore
    rows: NDArray[np.int64]
    given: UsableLabels
    count: Count
    table_path: Path
    name: str


def discover_snowball(config: DiscoverSnowballConfig) -> CommandResult:
    """Assign each class to the unlabeled images nearest to its mean, in one or more rounds.

    Raises:
        StoreError: a store cannot be used, or the stores contain different images.
        DatasetError: there are no labels, all labels belong to one class, or a class has no labels.
        ConfigError: files would be overwritten.
    """
    task = _prepare(config)
    stores = [task.store, *(_same_images(path, task.store) for path in config.fuse_with)]
    features = [load_finite_embeddings(store, task.rows) for store in stores]
    with current_progress().task("searching for images to label", total=None):
        found = discover_confident_samples(
            features,
            task.given.labels,
            task.count,
            config.rounds,
            select=config.select,
            fusion=config.fusion,
            seed=config.seed,
            num_classes=len(task.given.class_names),
            balance=config.balance,
            class_names=task.given.class_names,
        )
    score = "mean rank" if config.fusion == "rank" else "distance"
    params = {"fused": [store.content_digest for store in stores[1:]]}
    return _finish(config, task, found, found.distance, score, params, {})


def discover_lmcs(config: DiscoverLMCSConfig) -> CommandResult:
    """Label ambiguous unlabeled images near the labeled classes, in one or more rounds.

    Raises:
        StoreError: the store cannot be used.
        DatasetError: there are no labels, all labels belong to one class, or a class has no labels.
        ConfigError: files would be overwritten.
    """
    task = _prepare(config)
    features = load_finite_embeddings(task.store, task.rows)
    labeled_classes = len(np.unique(task.given.labels[task.given.labeled]))
    with current_progress().task("searching for images to label", total=None):
        found = discover_critical_samples(
            features,
            task.given.labels,
            task.count,
            config.rounds,
            criterion=config.criterion,
            confine=config.confine,
            num_classes=len(task.given.class_names),
            balance=config.balance,
            class_names=task.given.class_names,
        )
    score = "distance" if config.criterion == "min_distance" else "entropy"
    params = {"beta": 1 / labeled_classes, "disagreement": to_json_types(found.disagreement)}
    arrays: dict[str, NDArray[Any]] = {"discovered_entropy": found.entropy, "discovered_soft": found.soft}
    return _finish(config, task, found, getattr(found, score), score, params, arrays)


def _prepare(config: DiscoverFewConfig) -> _Task:
    store = open_store(config.index)
    name = config.result or config.command[1]
    table_path = config.csv or store.path.with_name(f"{store.path.stem}.{name}.csv")
    check_output(config, table_path, "csv", "--csv", "--result")
    stage, params = " ".join(config.command), config.to_yaml_dict(operational=False)
    check_new_result(store, name, overwrite=config.overwrite, kind=RESULT_KIND, stage=stage, params=params)
    rows = find_split_rows(store, config.split)
    given = _given_labels(config, store, rows)
    sizes = np.bincount(given.labels[given.labeled], minlength=len(given.class_names))
    _check_classes(config, given, sizes)
    count: Count = config.count
    if config.per_class is not None:
        count = [config.per_class if size else 0 for size in sizes.tolist()]
    return _Task(store, rows, given, count, table_path, name)


def _check_classes(config: DiscoverFewConfig, given: UsableLabels, sizes: NDArray[np.int64]) -> None:
    """Reject labels of a single class and, unless ``--missing-class skip``, classes without labels."""
    where = given.where
    there, missing = np.flatnonzero(sizes), np.flatnonzero(sizes == 0)
    if len(there) == 1:
        problem = f"all {int(sizes.sum())} usable labels belong to the same class, {given.class_names[there[0]]!r}"
        raise DatasetError(where, problem, "Label images of at least two classes.")
    if len(missing) and config.missing_class == "error":
        names = join_first_few((repr(given.class_names[label]) for label in missing), 5)
        raise DatasetError(
            where,
            f"{len(missing)} of {len(sizes)} classes have no usable labels: {names}",
            "Label an image of each class (--labels FILE), or pass --missing-class skip to ignore these classes.",
        )
    low, high = int(sizes[there].min()), int(sizes[there].max())
    if low < high and config.per_class is None and config.balance != "global":
        current_progress().message(
            f"classes have {low} to {high} labels each; discovered images are divided among the classes in the same "
            "proportions (for equal numbers, pass --per-class)"
        )


def _same_images(path: Path, first: EmbeddingStore) -> EmbeddingStore:
    store = open_store(path)
    mine, theirs = set(first.sample_ids), set(store.sample_ids)
    if mine != theirs:
        only = [(name, first.path) for name in sorted(mine - theirs)[:1]]
        only += [(name, store.path) for name in sorted(theirs - mine)[:1]]
        examples = ", ".join(f"{name} only in {holder}" for name, holder in only)
        problem = f"does not contain the same images as {first.path}: {len(mine & theirs)} images are in both, out of "
        problem += f"{store.n} and {first.n} ({examples})"
        raise Mismatch(str(store.path), problem, "Embed the same dataset and split with both networks.")
    return store  # rows are sorted by name, so row i is the same image in both stores


def _finish(
    config: DiscoverFewConfig,
    task: _Task,
    found: Discovery,
    scores: NDArray[np.float64],
    score_name: str,
    params: Mapping[str, object],
    arrays: Mapping[str, NDArray[Any]],
) -> CommandResult:
    given = task.given
    for warning in found.warnings:
        current_progress().warning(warning)
    if found.exhausted:
        wanted = sum(report["quota"] for report in found.per_class if report["quota"] is not None)
        asked = f" of {wanted}" if config.balance == "balanced" else ""
        current_progress().warning(
            f"only {len(found.indices)}{asked} images were found, because there were no further candidates"
        )
    store, rows = task.store, task.rows
    pseudo_labels, sources = np.full(store.n, -1, dtype=np.int64), np.zeros(store.n, dtype=np.uint8)
    pseudo_labels[rows] = found.fill_in(given.labels)
    sources[rows[given.labeled]] = SOURCES.index("given")
    sources[rows[found.indices]] = SOURCES.index("discovered")
    path = write_result(
        store,
        task.name,
        kind=RESULT_KIND,
        arrays={
            "pseudo_labels": pseudo_labels,
            "names": list(given.class_names),
            "sources": sources,
            "source_names": list(SOURCES),
            "discovered_rows": rows[found.indices],
            "discovered_labels": found.labels,
            "discovered_scores": scores,
            "discovered_distance": found.distance,
            "discovered_round": found.round,
            "discovered_rank": found.rank,
            **arrays,
        },
        params={
            **config.to_yaml_dict(operational=False),
            "given": int(given.labeled.sum()),
            "label_source": "drawn" if config.num_labels is not None else next(iter(given.source), "store"),
            **({"labels": given.source} if given.source else {}),
            "exhausted": found.exhausted,
            "per_class_report": [to_json_types(report) for report in found.per_class],
            "score": score_name,
            **params,
        },
        stage=" ".join(config.command),
        overwrite=config.overwrite,
    )
    columns = (rows[found.indices], found.labels, scores, found.rank, found.round)
    table = [
        DiscoveredImage(store.sample_ids[row], given.class_names[label], score, rank, number)
        for row, label, score, rank, number in zip(*(column.tolist() for column in columns), strict=True)
    ]
    commit_bytes(task.table_path, format_discovered_table(table))
    errors, truth, num_given = None, given.truth[found.indices], int(given.labeled.sum())
    if (truth >= 0).any():
        labels = (found.labels, truth, found.round, found.rank)
        errors = discovery_errors(*labels, num_given=num_given, class_names=given.class_names)
    values: dict[str, object] = {
        "index": config.index,
        "result": task.name,
        "path": path,
        "csv": task.table_path,
        "rows": len(rows),
        "labels": num_given,
        "discovered": len(found.indices),
        "exhausted": found.exhausted,
        "score": score_name,
        "warnings": list(found.warnings),
        "per_class": [{"class": given.class_names[report["label"]], **report} for report in found.per_class],
        "truth": errors,
    }
    return CommandResult(values, (path, task.table_path), tuple(_tables(task, found, errors)))


def _tables(task: _Task, found: Discovery, errors: dict[str, Any] | None) -> list[Table]:
    given, names = task.given, task.given.class_names
    sizes = np.bincount(given.labels[given.labeled], minlength=len(names))
    wrong_of = {} if errors is None else {share["class"]: share for share in errors["per_class"]}
    critical = isinstance(found, CriticalDiscovery)
    columns = ["class", "labels", "candidates", *(["confined", "ambiguous"] if critical else [])]
    columns += ["wanted", "found", "distance", *(["wrong", "error %"] if errors else [])]
    cells: list[list[Cell]] = []
    for label in np.flatnonzero(sizes).tolist():
        reports = [report for report in found.per_class if report["label"] == label]
        near, far = ([report[key] for report in reports] for key in ("nearest", "farthest"))
        taken = sum(report["taken"] for report in reports)
        row: list[Cell] = [names[label], int(sizes[label]), reports[0]["candidates"]]
        if critical:
            row += [sum(report[key] for report in reports) for key in ("confined", "disagreeing")]
        quotas = [report["quota"] for report in reports if report["quota"] is not None]
        row += [sum(quotas) if quotas else None, taken]
        row.append(f"{np.nanmin(near):.3g} - {np.nanmax(far):.3g}" if taken else None)
        if errors is not None:
            share = wrong_of.get(names[label])
            row += [None, None] if share is None else [share["wrong"], percent(share["error"])]
        cells.append(row)
    tables = [Table("classes", columns, cells)]
    held = int(sizes.sum())
    rounds: list[list[Cell]] = []
    wrong_in = {} if errors is None else {share["round"]: share for share in errors["per_round"]}
    for number in range(1, max((report["round"] for report in found.per_class), default=0) + 1):
        size = int((found.round == number).sum())
        held += size
        line: list[Cell] = [number, size, held]
        if errors is not None:
            share = wrong_in.get(number)
            line += [None, None] if share is None else [share["wrong"], percent(share["error"])]
        rounds.append(line)
    tables.append(Table("rounds", ["round", "found", "labels then", *(["wrong", "error %"] if errors else [])], rounds))
    if errors is not None and errors["precision_of_first"]:
        first = {str(number): percent(share) for number, share in errors["precision_of_first"].items()}
        tables.append(Table.from_row("% correct among the first images by rank", first))
    return tables


def _given_labels(config: DiscoverFewConfig, store: EmbeddingStore, rows: NDArray[np.int64]) -> UsableLabels:
    """Return the usable labels of the given rows (at least one), or ``--num-labels`` of them, drawn at random."""
    given = read_usable_labels(config, store, rows)
    if config.num_labels is not None:
        truth, class_names = given.truth, given.class_names
        if not (truth >= 0).any():
            raise DatasetError(
                str(store.path), "has no labels to sample", "Embed a dataset with labels, or pass --labels FILE."
            )
        classes = ClassLabels(truth, truth >= 0, len(class_names), class_names)
        split = make_few_labels_split(classes, total=config.num_labels, seed=config.label_seed)
        return UsableLabels(np.where(split.labeled, truth, -1), truth, class_names, str(store.path), {})
    if not given.labeled.any():
        raise DatasetError(
            given.where,
            "has no usable labels, but this command requires labels for every class",
            "Write a CSV with columns path,label for some images of each class and pass it as --labels FILE"
            + (", or pass --num-labels N to sample labels for an evaluation." if (given.truth >= 0).any() else "."),
        )
    return given
