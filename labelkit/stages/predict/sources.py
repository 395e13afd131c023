"""What ``predict`` answers by: a store, one of its results, and the rule of that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelkit.errors import ConfigError, StoreError
from labelkit.stages.discover.rule import AnswerRule, group_rule
from labelkit.stages.discover.stored_answers import group_names, new_groups
from labelkit.stages.read.rows import check_features, unit_rows
from labelkit.stages.retrieve.queries import is_store
from labelkit.stages.start.record import RECORD, Record, last_finished
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import Result, list_results, newest_name, read_result


@dataclass(frozen=True)
class Source:
    """Where answers come from.

    Attributes:
        store: rows that answers are known for.
        result: these answers, or groups.
        rule: for other images.
        names: of the groups, by number.
        min_confidence: that the answers were made with; 0 for groups.
    """

    store: EmbeddingStore
    result: Result
    rule: AnswerRule
    names: list[str]
    min_confidence: float

    def rows_by_digest(self) -> dict[bytes, int]:
        """Return the row of each image file by its digest; empty where the store does not know the files."""
        if not self.store.has_images:
            return {}
        digests = np.ascontiguousarray(self.store.sha256)
        # of equal files the first row counts
        return {digests[row].tobytes(): row for row in range(self.store.n - 1, -1, -1)}


def open_source(place: Path, result: str | None) -> Source:
    """Open what is to be answered by.

    Args:
        place: folder of ``start``, or a store.
        result: name of answers or groups; ``None``: the newest.

    Raises:
        ConfigError: it is neither.
        StoreError: it has no such result, or one that cannot be used.
    """
    path, name = (place, result) if is_store(place) else _of_start(place, result)
    store = open_store(path)
    if name is None:
        name = newest_name(store, "answer")
        if name not in list_results(store):
            problem = "has no answers to predict by"
            raise StoreError(str(path), problem, f"Make some: `labelkit discover answer --index {path}`.")
    found = read_result(store, name)
    rule = _rule(store, found)
    return Source(store, found, rule, group_names(found), float(found.params.get("min_confidence", 0.0)))


def _of_start(folder: Path, result: str | None) -> tuple[Path, str | None]:
    """Store and result of the last round of a folder of ``start``.

    Raises:
        ConfigError: it is no such folder, or nothing is finished in it.
    """
    remedy = "Give a folder that `labelkit start` made, or a store (NAME.h5)."
    if not (folder / RECORD).is_file():
        raise ConfigError("--from", f"{folder} is neither a store nor a folder of `labelkit start`", remedy)
    last = last_finished(Record.read(folder).rounds, folder, "answer", "groups")
    if last is None:
        raise ConfigError("--from", f"nothing is finished in {folder}", "Call `labelkit start` again.")
    return folder / str(last["store"]), result or str(last["answer"] or last["groups"])


def _rule(store: EmbeddingStore, result: Result) -> AnswerRule:
    """Return the rule of answers, or one made of groups.

    Raises:
        StoreError: the result holds neither.
    """
    if result.kind == "answers":
        rule = AnswerRule.of_arrays(result.arrays, result.params)
        if rule is None:
            problem = "was made by a labelkit that kept no rule for new images"
            raise StoreError(result.where, problem, f"Make it again: `labelkit {result.stage} ... --overwrite`.")
        if "rule_threshold" in result.arrays:
            problem = "was made with --coverage, a rule that labelkit has no more"
            raise StoreError(result.where, problem, f"Make it again: `labelkit {result.stage} ... --overwrite`.")
        return rule
    ids = next((result.arrays[key] for key in ("pseudo_labels", "cluster_ids") if key in result.arrays), None)
    if ids is None:
        remedy = "Name a result of `labelkit discover answer`, or of a command that groups."
        raise StoreError(result.where, f"holds {result.kind}, which says nothing of new images", remedy)
    groups = np.asarray(ids, dtype=np.int64)
    rows = np.flatnonzero(groups >= 0)
    features = check_features(store, rows)
    is_unit = result.params.get("normalize") is not False
    features = unit_rows(features) if is_unit else features
    return group_rule(features, groups[rows], new_groups(result), scaled=is_unit)
