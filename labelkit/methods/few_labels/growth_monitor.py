"""What labels grew into: a table of every discovered image, and how many labels are wrong where that is known.

The truth is used here and nowhere else; it reaches neither discovery nor training.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.engine.method import Method, TrainState
from labelkit.engine.monitors.classification import ClassificationMonitor
from labelkit.methods.few_labels.growth import LabelGrowth

DISCOVERED: Final = "discovered.csv"
_HEADER: Final = ("sample_index", "path", "label", "score", "rank", "generation", "iteration", "network")


class GrowthMonitor:
    """Judges like ``ClassificationMonitor``, and writes and scores the discovered images of a method.

    Args:
        judge: accuracy on held-out images.
        sample_ids: (n,) names of the images.
        truth: (n,) int64 class of each row of the data set, -1 = unknown.
        class_order: data set class of each training class.
        class_names: names of the data set's classes; may be empty.
        write: commits a file of the run: name and text.
    """

    def __init__(
        self,
        judge: ClassificationMonitor,
        sample_ids: Sequence[str],
        truth: NDArray[np.int64],
        class_order: Sequence[int],
        class_names: Sequence[str],
        write: Callable[[str, str], None],
    ) -> None:
        self._judge = judge
        self._sample_ids = sample_ids
        self._truth = truth
        self._order = np.array(class_order, dtype=np.int64)
        self._names = class_names
        self._write = write

    def __call__(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Score the networks and the labels; write the table."""
        metrics = dict(self._judge(method, state))
        growth = getattr(method, "growth", None)
        assert isinstance(growth, LabelGrowth)
        self._write(DISCOVERED, self.table(growth))
        return metrics | self._errors(growth, state)

    def table(self, growth: LabelGrowth) -> str:
        """Return the table as CSV, in the order of discovery; with the truth if any is known."""
        known = bool((self._truth >= 0).any())
        buffer = io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow([*_HEADER, "truth"] if known else _HEADER)
        for sample in growth.samples():
            row = [
                sample.sample_index,
                self._sample_ids[sample.sample_index],
                self._name(int(self._order[sample.label])),
                f"{sample.score:.9g}",
                sample.rank,
                sample.generation,
                sample.iteration,
                sample.network,
            ]
            writer.writerow([*row, self._name(int(self._truth[sample.sample_index]))] if known else row)
        return buffer.getvalue()

    def _name(self, label: int) -> str:
        if label < 0:
            return ""
        return self._names[label] if self._names else str(label)

    def _errors(self, growth: LabelGrowth, state: TrainState) -> dict[str, float]:
        """Shares of wrong labels in this generation: of all, of those discovered, of the latest discovery."""
        labels = growth.labels()
        classes = np.where(labels >= 0, self._order[labels], -1)
        judged = (labels >= 0) & (self._truth >= 0)
        discovered = judged & (growth.given < 0)
        if not discovered.any():
            return {}
        wrong = classes != self._truth
        metrics = {
            "label_error": float(wrong[judged].mean()),
            "discovered_error": float(wrong[discovered].mean()),
        }
        latest = [s for s in growth.samples() if s.generation == int(growth.generation)]
        rows = np.array([s.sample_index for s in latest if s.iteration == int(growth.iteration)], dtype=np.int64)
        rows = rows[judged[rows]]
        if len(rows):
            metrics["newest_error"] = float(wrong[rows].mean())
        counts = {
            f"{kind}_{label}": float((discovered & chosen & (labels == label)).sum())
            for label in range(len(self._order))
            for kind, chosen in (("discovered", np.ones_like(wrong)), ("wrong", wrong))
        }
        state.log("growth_truth", {"generation": float(growth.generation), **counts})
        return metrics

    def extra_state(self) -> dict[str, Any]:
        """State of the judge."""
        return self._judge.extra_state()

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``extra_state`` gave."""
        self._judge.load_extra_state(state)
