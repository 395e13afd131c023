"""An estimate of the number of classes, the curves of evidence that it rests on, and the numbers to look at."""

from __future__ import annotations

from dataclasses import dataclass

# Numbers up to this one are all looked at, larger ones in steps of this percentage.
_EVERY_NUMBER, _STEP_PERCENT = 100, 2


@dataclass(frozen=True, slots=True)
class CriterionCurve:
    """What one criterion says of each number of classes.

    Attributes:
        name: the criterion.
        numbers: numbers looked at, increasing.
        scores: score of each; the higher, the better, at most 1.
        errors: standard error of each; 0 where scores are likelihoods.
        best: the number that it favors.
        low: smallest number that it cannot tell from the best.
        high: largest such number.
        best_of_draws: counts of groups that it rests on, if any.
    """

    name: str
    numbers: tuple[int, ...]
    scores: tuple[float, ...]
    errors: tuple[float, ...]
    best: int
    low: int
    high: int
    best_of_draws: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ClassNumberChoice:
    """The number of classes that was chosen, and why.

    Attributes:
        best: the number.
        low: smallest number that cannot be told from it.
        high: largest such number.
        numbers: numbers looked at, increasing.
        scores: score of each, as a share of the highest.
        criteria: what each criterion says.
    """

    best: int
    low: int
    high: int
    numbers: tuple[int, ...]
    scores: tuple[float, ...]
    criteria: tuple[CriterionCurve, ...]


def class_numbers(low: int, high: int) -> list[int]:
    """Return the numbers to look at: every one up to 100, then in steps of 2 percent; ``high`` is the last.

    Raises:
        ValueError: not ``1 <= low <= high``.
    """
    if not 1 <= low <= high:
        raise ValueError(f"needs 1 <= low <= high, got low={low}, high={high}")
    numbers = [low]
    while numbers[-1] < high:
        step = 1 if high - low <= _EVERY_NUMBER else max(1, numbers[-1] * _STEP_PERCENT // 100)
        numbers.append(min(high, numbers[-1] + step))
    return numbers
