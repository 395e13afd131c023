"""What a result of answers or groups says of each row of its store."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelkit.store.results import Result


@dataclass(frozen=True)
class StoredAnswers:
    """Of all n rows of a store.

    Attributes:
        labels: n names of classes or groups; of an unsure row the best guess, of one left out the empty text.
        kinds: n words: given, known, new, unsure, or left out.
        confidence: (n,) float64 in [0, 1]; not a number where nothing is known of it.
        expected: (n, 2) float64 in [0, 1], chances to be right that add up to the ends of the range of how many are;
            ``None`` of groups, of answers of an earlier version, and of answers that were calibrated on labels that the
            network was trained with.
    """

    labels: list[str]
    kinds: list[str]
    confidence: NDArray[np.float64]
    expected: NDArray[np.float64] | None = None

    def expected_right(self, kinds: Collection[str]) -> tuple[int, int] | None:
        """Return between how many labels of these kinds are expected to be right; ``None``: not known."""
        if self.expected is None:
            return None
        low, high = self.expected[np.isin(self.kinds, list(kinds))].sum(axis=0).tolist()
        return round(low), round(high)


def stored_answers(result: Result, min_confidence: float | None = None) -> StoredAnswers:
    """Read answers, or groups, which have no confidence but for rows with a label that may be used.

    Args:
        result: of answers or groups.
        min_confidence: below it an answer is unsure; ``None``: as when the answers were made.
    """
    arrays = result.arrays
    ids, names = _group_ids(result), group_names(result)
    labels = [names[group] if group >= 0 else "" for group in ids.tolist()]
    kinds = np.where(new_groups(result)[ids], "new", "known").astype("<U8")
    if "decisions" not in arrays:
        given = np.asarray(arrays["labeled"], dtype=bool) if "labeled" in arrays else np.zeros(len(ids), dtype=bool)
        kinds[given] = "given"
        kinds[ids < 0] = "left out"
        return StoredAnswers(labels, kinds.tolist(), np.where(given, 1.0, np.nan))
    confidence = np.asarray(arrays["confidence"], dtype=np.float64)
    expected = expected_chances(result)
    decided = np.array(arrays["decision_names"])[arrays["decisions"]]
    before = float(result.params["min_confidence"])
    if min_confidence is None or min_confidence == before:
        return StoredAnswers(labels, decided.tolist(), confidence, expected)
    # one that was unsure in spite of its confidence stays so, whatever limit is asked for
    kept = np.isin(decided, ("given", "left out")) | ((decided == "unsure") & (confidence >= before))
    kinds[confidence < min_confidence] = "unsure"
    return StoredAnswers(labels, np.where(kept, decided, kinds).tolist(), confidence, expected)


def expected_chances(result: Result) -> NDArray[np.float64] | None:
    """Return the chances to be right of ``StoredAnswers.expected``."""
    if "expected_low" not in result.arrays:
        return None
    ends = [np.asarray(result.arrays[f"expected_{end}"], dtype=np.float64) for end in ("low", "high")]
    return np.stack(ends, axis=1)


def group_names(result: Result) -> list[str]:
    """Return the name of each group: its number, where it was given none."""
    count = int(_group_ids(result).max(initial=-1)) + 1
    return list(result.arrays["names"]) if "names" in result.arrays else [str(group) for group in range(count)]


def new_groups(result: Result) -> NDArray[np.bool_]:
    """Say of each group whether it is new, (k,): no class with labels."""
    return np.asarray(result.arrays.get("new_classes", np.ones(len(group_names(result)))), dtype=bool)


def _group_ids(result: Result) -> NDArray[np.int64]:
    keys = ("group_ids", "pseudo_labels", "cluster_ids")
    return np.asarray(result.arrays[next(key for key in keys if key in result.arrays)], dtype=np.int64)
