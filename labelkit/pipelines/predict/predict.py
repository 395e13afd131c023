"""Predict labels of photos that are not in a store, by the prediction rule of one of the store's results."""

import codecs
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.answer_rule import PredictionRule, build_nearest_mean_rule
from labelkit.algorithms.confidences import Predictions, join_predictions
from labelkit.algorithms.row_blocks import StoredRows, square_roots
from labelkit.commands.common.apply import apply_to_rows
from labelkit.commands.common.embeddings import is_nonnegative, load_finite_embeddings, normalize_embeddings
from labelkit.commands.common.label_files import LabelFileImages, read_csv_labels
from labelkit.commands.common.results import CommandResult, Table
from labelkit.commands.common.search_queries import Queries, embed_query_images, is_store, load_other_store_queries
from labelkit.commands.common.stored_predictions import group_names, is_new_group, read_stored_predictions
from labelkit.data.datasets import FileSource, build_dataset, sort_by_bytes
from labelkit.data.folders import walk_images
from labelkit.data.tables import is_folder, path_exists
from labelkit.errors import ConfigError, DatasetError, StoreError
from labelkit.files import missing_path_remedy
from labelkit.formatting import join_first_few, percent
from labelkit.pipelines.predict.options import PredictConfig
from labelkit.pipelines.start.record import RECORD, StartRecord, find_last_finished_round
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes
from labelkit.store.csv_table import csv_text
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.reader import LazyRows
from labelkit.store.results import Result, find_newest_name, list_results, read_result
from labelkit.training.run_dir import SPLIT


def load_prediction_source(location: Path, result: str | None) -> tuple[EmbeddingStore, Result, PredictionRule]:
    """Open a store and its predictions or groups (default: the newest predictions), with their rule for new photos.

    Raises:
        ConfigError: ``location`` is neither a store nor an output folder of ``start``.
        StoreError: the store has no such result, or the result cannot be used.
    """
    path, name = (location, result) if is_store(location) else _find_last_round(location, result)
    store = open_store(path)
    if name is None:
        name = find_newest_name(list_results(store), "answer")
        if name not in list_results(store):
            problem = "contains no predictions, which are required to predict labels of new images"
            raise StoreError(str(path), problem, f"Run `labelkit discover answer --index {path}` first.")
    found = read_result(store, name)
    return store, found, _load_rule(store, found)


def _find_last_round(folder: Path, result: str | None) -> tuple[Path, str | None]:
    """Return the store and the result of the last finished round in an output folder of ``start``."""
    remedy = "Pass an output folder of `labelkit start`, or a store (NAME.h5)."
    if (folder / SPLIT).is_file():
        commands = (
            f"Run `labelkit embed --dataset NEW --checkpoint {folder} --out new.h5`, `labelkit discover head --index "
            "new.h5` and `labelkit export --index new.h5 --what result --result head --out new.csv`, where NEW is the "
            "folder with the new photos."
        )
        raise ConfigError("--from", f"{folder} is a training run, which is applied by other commands", commands)
    if not (folder / RECORD).is_file():
        raise ConfigError("--from", f"{folder} is neither a store nor an output folder of `labelkit start`", remedy)
    last = find_last_finished_round(StartRecord.read(folder).rounds, folder, "answer", "groups")
    if last is None:
        raise ConfigError("--from", f"{folder} has no finished results", "Run `labelkit start` again.")
    return folder / str(last["store"]), result or str(last["answer"] or last["groups"])


def _load_rule(store: EmbeddingStore, result: Result) -> PredictionRule:
    """Return the rule of the predictions, or a rule built from groups."""
    if result.kind == "answers":
        rule = PredictionRule.from_arrays(result.arrays, result.params)
        if rule is None:
            problem = "was created by a version of labelkit that could not predict labels of new images"
            raise StoreError(result.where, problem, f"Run `labelkit {result.stage} ... --overwrite` again.")
        return rule
    groups = result.group_ids(best_guess=False)
    if groups is None:
        remedy = "Pass a result of `labelkit discover answer`, or of a command that groups images."
        raise StoreError(result.where, f"contains {result.kind}, from which labels cannot be predicted", remedy)
    rows = np.flatnonzero(groups >= 0)
    features = load_finite_embeddings(store, rows)
    is_unit = result.params.get("normalize") is not False
    is_tree = result.stage == "discover categories" and result.params.get("criterion") != "published"
    roots = is_tree and is_nonnegative(store)
    features = square_roots(features) if roots else features
    features = normalize_embeddings(features) if is_unit else features
    return build_nearest_mean_rule(features, groups[rows], is_new_group(result), unit_rows=is_unit, square_roots=roots)


COLUMNS = ("path", "label", "kind", "confidence", "note")
"""Columns of the table. kind: given (the user's label), known (a labeled class), new (an unnamed group), unsure (the
label is the best guess). confidence: probability that the label is correct, in [0, 1]; empty if unknown. note:
additional information; may be empty."""

_STANDARD_INPUT = Path("-")
_BLOCK = 256
_SHOWN = 5


class Prediction(NamedTuple):
    """Predicted label of one photo, with its path as passed by the user; see ``COLUMNS``."""

    path: str
    label: str
    kind: str
    confidence: float | None
    note: str


def predict_photos(config: PredictConfig) -> CommandResult:
    """Predict labels for new photos, folders of photos, and embeddings in other stores.

    Raises:
        DatasetError: there are no photos, or none can be read.
        StoreError: the store or its result cannot be used.
        CheckpointError: the model of the store is not on this machine, or another model was specified.
        ConfigError: the source is neither a folder nor a store, or the output file exists.
    """
    stores = [path for path in config.new if path != _STANDARD_INPUT and is_store(path)]
    photos = list(dict.fromkeys(_list_photos(config, stores)))
    if not photos and not stores:
        remedy = "Write one path per line, or separate paths with NUL."
        raise DatasetError("standard input", "contains no photo paths", remedy)
    store, result, rule = load_prediction_source(config.from_, config.result)
    min_confidence = config.min_confidence
    if min_confidence is None:
        min_confidence = float(result.params.get("min_confidence", 0.0))  # not set for groups
    query_sets = [load_other_store_queries(store, path) for path in stores]
    truth: dict[str, str] = {}
    if config.labels is not None:
        names = [*map(str, photos), *(name for queries in query_sets for name in queries.names)]
        images = LabelFileImages("this run", names, None)
        texts = read_csv_labels(config.labels, images, config.label_column, min_found=0)
        truth = {names[place]: text for place, text in texts.items()}
    if photos:
        ids = tuple(sort_by_bytes({str(photo) for photo in photos}))
        unknown = [None] * len(ids)
        dataset = build_dataset("photos", Path(), ids, unknown, unknown, FileSource(Path(), ids))
        found = embed_query_images(dataset, store, checkpoint=config.checkpoint, device=config.device, where="predict")
        query_sets.insert(0, found)
    predictions = [
        line
        for queries in query_sets
        for line in _predict_queries(config, store, result, rule, queries, min_confidence)
    ]
    order = {str(path): place for place, path in enumerate(photos)}
    predictions.sort(key=lambda line: order.get(line.path, len(order)))
    skipped = [entry for queries in query_sets for entry in queries.skipped]
    return _build_result(config, store, result, predictions, skipped, min_confidence, truth)


def _list_photos(config: PredictConfig, stores: list[Path]) -> Iterator[Path]:
    """Yield the photos in the order specified, and those in a folder by name."""
    for path in config.new:
        if path in stores:
            continue
        given = [path] if path != _STANDARD_INPUT else [Path(line) for line in _read_standard_input() if line]
        for entry in given:
            if not is_folder(entry):
                if config.new == (entry,) and not path_exists(entry):
                    raise DatasetError(str(entry), "does not exist", missing_path_remedy(entry))
                yield entry
                continue
            names = sort_by_bytes(walk_images(entry, exclude=config.exclude))
            if not names:
                raise DatasetError(str(entry), "contains no images", "Pass a folder of photos.")
            yield from (entry / name for name in names)


def _read_standard_input() -> list[str]:
    """Read paths from standard input, separated by NUL or line breaks; bytes that are not UTF-8 are preserved."""
    content = sys.stdin.buffer.read()
    is_wide = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))  # from PowerShell
    text = content.decode("utf-16", "replace") if is_wide else content.decode("utf-8-sig", "surrogateescape")
    return re.split(r"\0" if "\0" in text else r"[\r\n]", text)


def _predict_queries(
    config: PredictConfig,
    store: EmbeddingStore,
    result: Result,
    rule: PredictionRule,
    queries: Queries,
    min_confidence: float,
) -> Iterator[Prediction]:
    stored, names = read_stored_predictions(result, min_confidence), group_names(result)
    # without labels to calibrate confidences, all predictions are unsure, for stored and for new images
    unchecked = json.loads(result.arrays.get("metrics", "{}")).get("calibration", {}).get("labels") == 0
    row_of: dict[bytes, int] = {}
    if queries.sha256 is not None and store.has_images:
        digests = np.ascontiguousarray(store.sha256)
        # if files are identical, the first row is used
        row_of = {digests[row].tobytes(): row for row in range(store.n - 1, -1, -1)}
    predict = partial(_predict, rule, store.lazy_embeddings)
    rows = StoredRows(queries.embeddings, in_blocks=True)
    parts = apply_to_rows(predict, rows, config, "predicting", resumable=True)
    found = join_predictions([Predictions(*columns) for columns in parts])
    for place, name in enumerate(queries.names):
        digest = b"" if queries.sha256 is None else queries.sha256[place].tobytes()
        row = row_of.get(digest)
        if row is not None and stored.kinds[row] != "left out":
            note = f"same file as {store.sample_ids[row]}"
            yield Prediction(name, stored.labels[row], stored.kinds[row], _number(stored.confidence[row]), note)
            continue
        kind = "new" if rule.class_of_group[found.group[place]] < 0 else "known"
        # a missing confidence (groups have none) does not count as low
        if unchecked or found.confidence[place] < min_confidence:
            kind = "unsure"
        yield Prediction(name, names[int(found.group[place])], kind, _number(found.confidence[place]), "")


def _predict(rule: PredictionRule, stored: LazyRows, rows: StoredRows) -> tuple[NDArray[Any], ...]:
    """Predict rows by a rule that averages over the nearest stored embeddings; return the columns."""
    parts = [rule.predict(rows[start : start + _BLOCK], stored) for start in range(0, len(rows), _BLOCK)]
    return tuple(vars(join_predictions(parts)).values())


def _number(confidence: float) -> float | None:
    return None if np.isnan(confidence) else float(confidence)


def _build_result(
    config: PredictConfig,
    store: EmbeddingStore,
    result: Result,
    predictions: list[Prediction],
    skipped: list[tuple[str, str]],
    min_confidence: float,
    truth: dict[str, str],
) -> CommandResult:
    counts = Counter(line.kind for line in predictions)
    values: dict[str, object] = {
        "from": config.from_,
        "store": store.path,
        "result": result.name,
        "min_confidence": min_confidence,
        "counts": {kind: counts[kind] for kind in ("given", "known", "new", "unsure")},
        "images": [line._asdict() for line in predictions],
        "skipped": [{"path": name, "reason": reason} for name, reason in skipped],
    }
    if truth:
        values["judged"] = _compare_with_labels(result, predictions, truth)
    rows = [
        ["" if cell is None else f"{cell:.4f}" if isinstance(cell, float) else cell for cell in line]
        for line in predictions
    ]
    table, text = Table("", COLUMNS, rows), ""
    if config.output_format == "csv":
        text = csv_text(COLUMNS, rows)
    elif config.output_format == "jsonl":
        text = "".join(json.dumps(line._asdict()) + "\n" for line in predictions)
    made: tuple[Path, ...] = ()
    if config.out is not None:
        commit_bytes(config.out, text.encode("utf-8", "backslashreplace"))
        made, text = (config.out,), ""
        table = Table("predictions", list(counts), [list(counts.values())])
    total, fault = len(predictions) + len(skipped), None
    if len(skipped) > config.max_bad * total:
        named = join_first_few((f"{name}: {reason}" for name, reason in skipped), _SHOWN, "; ")
        problem = f"{len(skipped)} of {total} cannot be read (allowed: {percent(config.max_bad)}%): {named}"
        fault = DatasetError("photos", problem, "Repair or remove these photos, or raise --max-bad.")
    return CommandResult(values, made, (table,), text=text, fault=fault)


def _compare_with_labels(result: Result, predictions: list[Prediction], truth: dict[str, str]) -> dict[str, int]:
    """Compare predictions with ground-truth labels, show the number of correct predictions, and return the counts.

    Photos whose labels the predictions are based on are excluded from the comparison.
    """
    names = np.array(group_names(result), dtype=object)
    known, unnamed = set(names[~is_new_group(result)]), set(names[is_new_group(result)])
    compared = [line for line in predictions if line.path in truth and line.kind != "given"]
    known_lines = [line for line in compared if truth[line.path] in known]
    unknown_lines = [line for line in compared if truth[line.path] not in known]
    # an unlabeled class cannot be predicted, so these predictions are wrong
    sure = [line for line in compared if line.kind != "unsure"]
    counts = {
        "labels": len(known_lines) + len(unknown_lines),
        "right": sum(line.label == truth[line.path] for line in known_lines),
        "answered": len(sure),
        "answered_right": sum(line.label == truth[line.path] for line in sure),
        "of_new_classes": len(unknown_lines),
        "of_new_classes_in_new_groups": sum(line.label in unnamed for line in unknown_lines),
    }
    if not compared:
        current_progress().message("no predictions to check: all photos with a label were already labeled in the store")
        return counts
    sentences = [
        f"of {counts['labels']} photos with a label, {counts['right']} have a correct prediction "
        f"({percent(counts['right'] / counts['labels'])}%)",
        f"of the {len(sure)} confident predictions, {counts['answered_right']} are correct",
    ]
    if unknown_lines:
        inside = counts["of_new_classes_in_new_groups"]
        sentences.append(
            f"photos of classes without labels in the store: {len(unknown_lines)} (their predictions count as wrong), "
            f"{inside} of them in unnamed groups"
        )
    current_progress().message("; ".join(sentences))
    return counts
