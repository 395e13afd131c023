"""Read the predictions for each image of a store from a result."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import StoreError
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import Result, find_newest_name, list_results, read_result

DECISIONS = ("known", "new", "unsure", "given", "left out")
"""Names of the values in the result's array ``decisions``; given: has a label; left out: not in the grouping."""

KNOWN, NEW, UNSURE, GIVEN, LEFT_OUT = range(len(DECISIONS))


@dataclass(frozen=True)
class StoredPredictions:
    """Predictions for all n images of a store.

    Attributes:
        labels: predicted class or group of each image; the best guess if unsure, empty if left out.
        kinds: one of given, known, new, unsure and left out for each image.
        confidence: (n,) float64 in [0, 1]; NaN where unknown.
        expected: (n,) float64 in [0, 1], probability that each prediction is correct; its sum is the expected number of
            correct predictions. ``None`` for groups, and if calibrated on labels that the network was trained on.
        best_classes: most probable labeled class of each image; empty where unknown.
        best_confidence: (n,) float64 in [0, 1], probability of that class; NaN where unknown.
        groups: group of each image; empty where unknown.
        new_chance: (n,) float64 in [0, 1], total probability of the new groups; NaN where unknown.
    """

    labels: list[str]
    kinds: list[str]
    confidence: NDArray[np.float64]
    expected: NDArray[np.float64] | None
    best_classes: list[str]
    best_confidence: NDArray[np.float64]
    groups: list[str]
    new_chance: NDArray[np.float64]

    def expected_correct(self, kinds: Collection[str]) -> int | None:
        """Return the expected number of correct predictions of the given kinds; ``None`` if unknown."""
        if self.expected is None:
            return None
        return round(float(self.expected[np.isin(self.kinds, list(kinds))].sum()))


def read_answer(store: EmbeddingStore, name: str | None) -> Result:
    """Read a result of ``discover answer``, by default the newest one.

    Raises:
        StoreError: the result does not exist, or does not contain predictions.
    """
    result = read_result(store, name or find_newest_name(list_results(store), "answer"))
    if result.kind != "answers":
        problem = f"contains {result.kind} (from {result.stage}), not predictions"
        raise StoreError(result.where, problem, "Pass a result of `labelkit discover answer` as --answer.")
    return result


def read_stored_predictions(result: Result, min_confidence: float | None = None) -> StoredPredictions:
    """Read a result's predictions or groups; with groups, only labeled images have a confidence.

    Predictions below ``min_confidence`` are unsure; the default is the limit with which the result was created.
    """
    arrays = result.arrays
    ids, names = _group_ids(result), group_names(result)
    labels = [names[group] if group >= 0 else "" for group in ids.tolist()]
    kinds = np.where(is_new_group(result)[ids], "new", "known").astype("<U8")
    if "decisions" not in arrays:
        given = np.asarray(arrays["labeled"], dtype=bool) if "labeled" in arrays else np.zeros(len(ids), dtype=bool)
        kinds[given] = "given"
        kinds[ids < 0] = "left out"
        sure = np.where(given, 1.0, np.nan)
        best = [label if own else "" for label, own in zip(labels, given, strict=True)]
        return StoredPredictions(labels, kinds.tolist(), sure, None, best, sure, labels, 1 - sure)
    confidence = np.asarray(arrays["confidence"], dtype=np.float64)
    named = [*names, ""]  # -1: none
    unknown = np.full(len(ids), -1)
    details = (
        read_correctness_probabilities(result),
        [named[group] for group in np.asarray(arrays.get("best_class", unknown)).tolist()],
        np.asarray(arrays.get("best_confidence", np.full(len(ids), np.nan)), dtype=np.float64),
        [named[group] for group in np.asarray(arrays.get("grouped_ids", unknown)).tolist()],
        np.asarray(arrays.get("new_chance", np.full(len(ids), np.nan)), dtype=np.float64),
    )
    decided = np.array(arrays["decision_names"])[arrays["decisions"]]
    before = float(result.params["min_confidence"])
    if min_confidence is None or min_confidence == before:
        return StoredPredictions(labels, decided.tolist(), confidence, *details)
    # predictions that were unsure despite high confidence remain unsure
    kept = np.isin(decided, ("given", "left out")) | ((decided == "unsure") & (confidence >= before))
    kinds[confidence < min_confidence] = "unsure"
    return StoredPredictions(labels, np.where(kept, decided, kinds).tolist(), confidence, *details)


def read_correctness_probabilities(result: Result) -> NDArray[np.float64] | None:
    """Read the probability that each prediction is correct, if stored; see ``StoredPredictions.expected``."""
    expected = result.arrays.get("expected")
    return None if expected is None else np.asarray(expected, dtype=np.float64)


def group_names(result: Result) -> list[str]:
    """Return the names of the groups in a result, or their numbers if they have no names."""
    count = int(_group_ids(result).max(initial=-1)) + 1
    return list(result.arrays["names"]) if "names" in result.arrays else [str(group) for group in range(count)]


def is_new_group(result: Result) -> NDArray[np.bool_]:
    """Return a mask (k,) of the groups in a result that are new, i.e. not labeled classes."""
    return np.asarray(result.arrays.get("new_classes", np.ones(len(group_names(result)))), dtype=bool)


def _group_ids(result: Result) -> NDArray[np.int64]:
    ids = result.group_ids(best_guess=True)
    assert ids is not None
    return ids


def find_group_classes(store: EmbeddingStore, result: Result, class_names: Sequence[str]) -> NDArray[np.int64]:
    """Find the class (k,) int64 with the same name as each group in a result; -1 for new groups.

    Raises:
        StoreError: a known group has a name that is not among ``class_names``.
    """
    number = {text: label for label, text in enumerate(class_names)}
    classes = np.full(len(result.arrays["names"]), -1, dtype=np.int64)
    for group, (text, is_new) in enumerate(zip(result.arrays["names"], result.arrays["new_classes"], strict=True)):
        if is_new:
            continue
        if text not in number:
            problem = f"contains the class {text!r}, which {store.path} does not have"
            raise StoreError(result.where, problem, "Recreate the result from this store.")
        classes[group] = number[text]
    return classes
