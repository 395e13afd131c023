"""A label set that grows during training: discovered labels, the state of the growth, and its evaluation.

All state is in buffers of fixed size, so that checkpoints include it and all processes share it. The buffers contain
only given and discovered labels, never the true classes of unlabeled images. Only the monitor sees the ground truth,
which reaches neither discovery nor training.
Source: snowball, specification 3.6 and 3.8.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import DataInfo
from labelkit.methods.few_labels.pseudo_label_selection import Discovery
from labelkit.store.csv_table import csv_text
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, TrainState
from labelkit.training.monitors.classification import ClassificationMonitor

D = TypeVar("D", bound=Discovery)

#: Networks used for discovery; the table stores their index.
NETWORKS: Final = ("student", "teacher", "master")


@dataclass(frozen=True, slots=True)
class GrowthRules:
    """Rules that determine how fast the label set grows, and up to which size."""

    factor: float  # ratio of the number of labels after a discovery to that before, > 1
    cap: float  # maximum number of labels, as a multiple of the given ones, >= 1
    generations: int  # number of times that labels grow from the given ones

    def next_discovery_size(self, num_labels: int, num_given: int, num_unlabeled: int) -> int:
        """Return the number of labels to discover next.

        It is ``min((f - 1) |L|, cap |given| - |L|, |unlabeled| / 2)``, rounded down, at least 0.
        """
        wanted = min(int((self.factor - 1) * num_labels), int(self.cap * num_given) - num_labels, num_unlabeled // 2)
        return max(0, wanted)

    def max_label_counts(self, num_given: int, num_images: int) -> list[int]:
        """Return the number of labels after each discovery of a generation if every discovery reaches its limit."""
        found, labels = [], num_given
        while count := self.next_discovery_size(labels, num_given, num_images - labels):
            labels += count
            found.append(labels)
        return found


class GrowingLabelSet(nn.Module):
    """The original labels and those discovered during training.

    Args:
        given: (n,) int64 labels, -1 = none; they never change.
        rules: rules of the growth.

    Attributes:
        generation: () int64, from 1.
        iteration: () int64, number of discoveries in this generation so far.
        num_found: () int64, number of rows in the table.
        predictions: (2, n) int64, classes predicted at the end of the last phase and of the last generation;
            -1 = not yet.
    """

    def __init__(self, given: NDArray[np.int64], rules: GrowthRules) -> None:
        super().__init__()
        self.given = given.copy()
        self.rules = rules
        count = int((given >= 0).sum())
        sizes = rules.max_label_counts(count, len(given))
        capacity = rules.generations * max(0, (sizes[-1] if sizes else count) - count)
        self.generation: Tensor = nn.Buffer(torch.ones((), dtype=torch.int64))
        self.iteration: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.num_found: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.found: Tensor = nn.Buffer(torch.zeros((capacity, 6), dtype=torch.int64))
        # float32: some devices have no float64
        self.scores: Tensor = nn.Buffer(torch.zeros(capacity))
        self.predictions: Tensor = nn.Buffer(torch.full((2, len(given)), -1, dtype=torch.int64))

    def labels(self, iteration: int | None = None) -> NDArray[np.int64]:
        """Return the original labels and this generation's discoveries up to an iteration, (n,) int64, -1 = none."""
        labels = self.given.copy()
        found, _ = self.table()
        found = found[found[:, 3] == int(self.generation)]
        if iteration is not None:
            found = found[found[:, 4] <= iteration]
        labels[found[:, 0]] = found[:, 1]
        return labels

    def num_to_discover(self, rows: NDArray[np.int64]) -> int:
        """Return the number of rows (m,) that the next discovery should label; 0 ends the generation."""
        labels = self.labels()
        unlabeled = int((labels[rows] < 0).sum())
        return self.rules.next_discovery_size(int((labels >= 0).sum()), int((self.given >= 0).sum()), unlabeled)

    def add(self, discovery: Discovery, network: str) -> None:
        """Add the discovered labels as the next iteration."""
        self.iteration += 1
        start = int(self.num_found)
        stop = start + len(discovery.indices)
        moment = np.broadcast_to(
            [int(self.generation), int(self.iteration), NETWORKS.index(network)], (stop - start, 3)
        )
        rows = np.column_stack([discovery.indices, discovery.labels, discovery.rank, moment]).astype(np.int64)
        self.found[start:stop] = torch.from_numpy(rows).to(self.found.device)
        self.scores[start:stop] = torch.from_numpy(discovery.distance.astype(np.float32)).to(self.scores.device)
        self.num_found.fill_(stop)

    def next_generation(self) -> None:
        """Start a new generation without the discovered labels, but keep the last predictions for comparison."""
        self.generation += 1
        self.iteration.fill_(0)
        self.predictions[1] = self.predictions[0]

    def describe(self) -> dict[str, float]:
        """Return the generation, iteration and number of labels for the log."""
        labeled = float((self.labels() >= 0).sum())
        return {"generation": float(self.generation), "iteration": float(self.iteration), "labeled": labeled}

    def record_predictions(self, classes: Tensor, rows: NDArray[np.int64]) -> tuple[float | None, float | None]:
        """Store the classes (m,) predicted for rows (m,) at the end of a phase; return the fractions that changed.

        Returns:
            Share of the rows without a given label whose class has changed since the end of the last phase, and since
            the end of the last generation; ``None`` if there was none.
        """
        free = self.given[rows] < 0
        now = torch.full((len(self.given),), -1, dtype=torch.int64)
        now[torch.from_numpy(rows)] = classes.cpu().to(torch.int64)
        where = torch.from_numpy(rows[free])
        changed: list[float | None] = []
        for before in self.predictions.cpu():
            known = len(where) > 0 and int(before[where].max()) >= 0
            changed.append(float((now[where] != before[where]).double().mean()) if known else None)
        self.predictions[0] = now.to(self.predictions.device)
        return changed[0], changed[1]

    def table(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the discoveries of all generations, in the order of discovery.

        Returns:
            (s, 6) int64: dataset row, training class, rank in its discovery from 1, generation and iteration from 1,
            index in ``NETWORKS`` of the network whose features were used; and (s,) float32, the selection criterion:
            distance to the class mean, or entropy in bits (critical samples).
        """
        count = int(self.num_found)
        return self.found[:count].cpu().numpy(), self.scores[:count].cpu().numpy()


def broadcast_discovery(discovery: D, rows: NDArray[np.int64], state: TrainState) -> D:
    """Send the main process's discovery among ``rows`` to all processes, whose own may differ in the last bits.

    Warnings are forwarded. Indices of the result are dataset rows.
    """
    columns = np.stack([rows[discovery.indices], discovery.labels, discovery.rank]).astype(np.float64)
    table = torch.from_numpy(np.concatenate([columns, discovery.distance[None]]))
    table = state.combine(table if state.is_main else torch.zeros_like(table), "sum")
    indices, labels, rank = (table[i].to(torch.int64).numpy() for i in range(3))
    for warning in discovery.warnings:
        state.warn(f"{warning}")
    return replace(discovery, indices=indices, labels=labels, rank=rank, distance=table[3].numpy())


def add_discovered_labels(
    growth: GrowingLabelSet, discovery: Discovery, network: str, state: TrainState, num_classes: int, **more: float
) -> None:
    """Add discovered labels to the label set and log their number."""
    growth.add(discovery, network)
    counts = np.bincount(discovery.labels, minlength=num_classes)
    state.log(
        "growth",
        {
            **growth.describe(),
            "discovered": float(len(discovery.indices)),
            "exhausted": float(discovery.exhausted),
            **more,
            **{f"class_{label}": float(count) for label, count in enumerate(counts)},
        },
    )


DISCOVERED: Final = "discovered.csv"
_HEADER: Final = ("sample_index", "path", "label", "score", "rank", "generation", "iteration", "network")


class GrowthMonitor(ClassificationMonitor):
    """Monitor of held-out accuracy and of the discovered labels, which it writes and evaluates."""

    def __init__(self, growth: GrowingLabelSet, data: DataInfo, inputs: MonitorInputs) -> None:
        super().__init__(inputs.held_out, data.class_order)
        self._growth, self._inputs, self._names = growth, inputs, data.class_names
        self._order = np.array(data.class_order, dtype=np.int64)

    def __call__(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Evaluate the networks and the discovered labels, and write the table of discoveries."""
        metrics = dict(super().__call__(method, state))
        self._inputs.write_text(DISCOVERED, self.discoveries_csv())
        return metrics | self._error_rates()

    def discoveries_csv(self) -> str:
        """Return the table of discovered images as CSV, with true classes if known."""
        known = bool((self._inputs.truth >= 0).any())
        lines: list[list[object]] = []
        found, scores = self._growth.table()
        for (index, label, *moment, network), score in zip(found.tolist(), scores.tolist(), strict=True):
            name, text = self._name(int(self._order[label])), f"{score:.9g}"
            row = [index, self._inputs.sample_ids[index], name, text, *moment, NETWORKS[network]]
            lines.append([*row, self._name(int(self._inputs.truth[index]))] if known else row)
        return csv_text([*_HEADER, "truth"] if known else _HEADER, lines)

    def _name(self, label: int) -> str:
        if label < 0:
            return ""
        return self._names[label] if self._names else str(label)

    def _error_rates(self) -> dict[str, float]:
        """Return the shares of wrong labels in this generation: among all, discovered and newest labels."""
        growth, truth = self._growth, self._inputs.truth
        labels = growth.labels()
        classes = np.where(labels >= 0, self._order[labels], -1)
        is_known = (labels >= 0) & (truth >= 0)
        discovered = is_known & (growth.given < 0)
        if not discovered.any():
            return {}
        wrong = classes != truth
        metrics = {"label_error": float(wrong[is_known].mean()), "discovered_error": float(wrong[discovered].mean())}
        found, _ = growth.table()
        rows = found[(found[:, 3:5] == [int(growth.generation), int(growth.iteration)]).all(axis=1), 0]
        rows = rows[is_known[rows]]
        if len(rows):
            metrics["newest_error"] = float(wrong[rows].mean())
        return metrics
