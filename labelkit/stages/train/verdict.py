"""Whether training is likely to help, from cases in which it was measured: ``measured_gains.json`` beside this file.

The file is made from the measured results of the repository by ``examples/measured_gains.py``. A case has one number
before training, of the simplest thing that works on the features as they are, and one after it, on the same images
with the same labels.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from labelkit.config.train import RunConfig

Kind = Literal["rows", "rows with views", "last stages", "whole network"]
Advice = Literal["stop here", "may help", "try it", "not measured"]

_FILE: Final = Path(__file__).with_name("measured_gains.json")
_NEAR: Final = 4.0


@dataclass(frozen=True)
class MeasuredGain:
    """Training and its absence on the same images.

    Attributes:
        kind: what was trained: a head on rows of a store, or on views that it keeps; the last stages or blocks of a
            network with weights, or all of such a network.
        method: name of the method.
        data: images and the network that embeds them, in words.
        row: what sets it apart from others of the same file.
        share: of the classes that have labels; 0: no label is used.
        labels_per_class: labels of each class that has some; 0: none were used.
        before: share that is right without training, in [0, 1].
        after: with it.
        spread: standard deviation of their difference over seeds.
        score: what is counted.
        source: file of the results.
    """

    kind: Kind
    method: str
    data: str
    row: str
    share: float
    labels_per_class: float
    before: float
    after: float
    spread: float
    score: str
    source: str

    @property
    def gain(self) -> float:
        """After, less before."""
        return self.after - self.before

    @property
    def is_search(self) -> bool:
        """What is counted are neighbors, not names."""
        return self.score.startswith("Recall")

    @property
    def is_sure(self) -> bool:
        """Training gained more than the spread."""
        return self.gain > self.spread


@dataclass(frozen=True)
class Verdict:
    """What measured cases say of a training that is planned.

    Attributes:
        advice: ``stop here``: at most a third of the cases gained more than their spread, and the median lost or gained
            nothing; ``may help``: two thirds gained; ``try it``: in between; ``not measured``: there is no case.
        kind: what would be trained; ``None``: a network without weights, whose features are worth nothing before.
        cases: those that are like it, most alike first.
    """

    advice: Advice
    kind: Kind | None
    cases: tuple[MeasuredGain, ...]

    def to_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints; gains in percentage points."""
        gains = [100 * case.gain for case in self.cases]
        return {
            "advice": self.advice,
            "trained": self.kind,
            "cases": len(gains),
            "gained": sum(case.is_sure for case in self.cases),
            "median_gain": round(statistics.median(gains), 1) if gains else None,
            "measured_on": sorted({case.data for case in self.cases}),
        }

    def describe(self) -> str:
        """Say it in words."""
        if self.kind is None:
            return "not measured: the network starts without weights"
        if not self.cases:
            return "not measured for this method"
        found = self.to_json()
        return (
            f"{self.advice}: {found['gained']} of {found['cases']} measured cases of this method gained more than "
            f"their spread, median {found['median_gain']:+} points ({'; '.join(found['measured_on'])})"
        )


def measured_gains() -> list[MeasuredGain]:
    """Read all cases."""
    return [MeasuredGain(**case) for case in json.loads(_FILE.read_text())["cases"]]


def training_verdict(
    method: str, config: RunConfig, labels: NDArray[np.int64], num_classes: int, *, num_row_views: int = 0
) -> Verdict:
    """Find the measured cases that are like a training: as many labels, up to a factor, in all classes or in some.

    Args:
        method: its name.
        config: its options.
        labels: (n,) int64 training labels, -1 = none.
        num_classes: classes in all, as far as it is known; 0: not.
        num_row_views: views of each image that a head is trained on; 0: none.
    """
    kind = trained_kind(config, num_row_views)
    if kind is None:
        return Verdict("not measured", None, ())
    cases = [case for case in measured_gains() if (case.kind, case.method) == (kind, method)]
    uses_labels = getattr(config, "mode", None) != "unsupervised"
    return verdict_of_cases(kind, cases, labels if uses_labels else labels[:0], num_classes)


def heads_verdict(labels: NDArray[np.int64], num_classes: int) -> Verdict:
    """Find the measured cases of heads on rows of a store, of all methods, that are like these labels.

    Args:
        labels: (n,) int64 labels of the rows, -1 = none.
        num_classes: classes in all, as far as it is known; 0: not.
    """
    cases = [case for case in measured_gains() if case.kind == "rows" and not case.is_search]
    return verdict_of_cases("rows", cases, labels, num_classes)


def verdict_of_cases(kind: Kind, found: Sequence[MeasuredGain], labels: NDArray[np.int64], num_classes: int) -> Verdict:
    """Say what some cases tell of labels: those with as many a class, up to a factor; or else all that fit at all.

    Args:
        kind: what would be trained.
        found: cases of that.
        labels: (n,) int64 labels that training would use, -1 = none.
        num_classes: classes in all, as far as it is known; 0: not.
    """
    _, counts = np.unique(labels[labels >= 0], return_counts=True)
    per_class = float(counts.mean()) if len(counts) else 0.0
    partly = 0 < len(counts) < num_classes

    def distance(case: MeasuredGain) -> float:
        if (case.share > 0) != (len(counts) > 0):
            return math.inf
        if not len(counts):
            return 0.0
        others = (0 < case.share < 1) != partly
        return abs(math.log(max(case.labels_per_class, 1.0) / max(per_class, 1.0))) + others * 2 * math.log(_NEAR)

    near = [case for case in found if distance(case) <= math.log(_NEAR)]
    cases = tuple(sorted(near or [case for case in found if distance(case) < math.inf], key=distance))
    if not cases:
        return Verdict("not measured", kind, ())
    gained = sum(case.is_sure for case in cases)
    if 3 * gained <= len(cases) and statistics.median(case.gain for case in cases) <= 0:
        return Verdict("stop here", kind, cases)
    return Verdict("may help" if 3 * gained >= 2 * len(cases) else "try it", kind, cases)


def starts_from_weights(config: RunConfig) -> bool:
    """Whether the features that training starts from mean something: rows of a store, or a network with weights."""
    return any(getattr(config, name, None) for name in ("index", "pretrained", "weights", "init_from"))


def trained_kind(config: RunConfig, num_row_views: int = 0) -> Kind | None:
    """Return what a run would train; ``None``: a network that starts without weights."""

    def option(name: str) -> Any:
        return getattr(config, name, None)

    if option("index") is not None:
        return "rows with views" if num_row_views else "rows"
    if not starts_from_weights(config):
        return None
    is_partly_frozen = option("freeze_stages") or option("grad_from_block") or option("linear_probe")
    return "last stages" if is_partly_frozen else "whole network"
