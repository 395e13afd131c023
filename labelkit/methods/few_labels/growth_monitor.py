"""What labels grew into: a table of every discovered image, and how many labels are wrong where that is known.

The truth is used here and nowhere else; it reaches neither discovery nor training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from labelkit.data.batch import DataInfo
from labelkit.engine.inputs import MonitorInputs
from labelkit.engine.method import Method, TrainState
from labelkit.engine.monitors.classification import ClassificationMonitor
from labelkit.methods.few_labels.growth import LabelGrowth
from labelkit.store.csv_table import csv_text

DISCOVERED: Final = "discovered.csv"
_HEADER: Final = ("sample_index", "path", "label", "score", "rank", "generation", "iteration", "network")


class GrowthMonitor(ClassificationMonitor):
    """Judges on held-out images, and writes and scores the images that a method discovered.

    Args:
        growth: the labels of the method.
        data: names and order of the classes.
        inputs: the truth, names of the images, what they are judged by, and where the table goes.
    """

    def __init__(self, growth: LabelGrowth, data: DataInfo, inputs: MonitorInputs) -> None:
        super().__init__(inputs.held_out, data.class_order)
        self._growth = growth
        self._sample_ids = inputs.sample_ids
        self._truth = inputs.truth
        self._order = np.array(data.class_order, dtype=np.int64)
        self._names = data.class_names
        self._write = inputs.write_text

    def __call__(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Score the networks and the labels; write the table."""
        metrics = dict(super().__call__(method, state))
        self._write(DISCOVERED, self.discovered())
        return metrics | self._errors(self._growth, state)

    def discovered(self) -> str:
        """Return the table as CSV, in the order of discovery; with the truth if any is known."""
        known = bool((self._truth >= 0).any())
        lines: list[list[object]] = []
        for sample in self._growth.samples():
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
            lines.append([*row, self._name(int(self._truth[sample.sample_index]))] if known else row)
        return csv_text([*_HEADER, "truth"] if known else _HEADER, lines)

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
