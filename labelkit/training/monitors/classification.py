"""Evaluation of a classifier's accuracy on held-out images."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labelkit.formatting import percent
from labelkit.metrics.classification import top_k_accuracy
from labelkit.models.inference import InferenceNetwork
from labelkit.training.inputs import HeldOutImages
from labelkit.training.method import Method, Monitor, PassSettings, ScoreTable, TrainState


class ClassificationMonitor(Monitor):
    """Monitor of classification accuracy on held-out images, for the current and the best epoch.

    Args:
        held_out: images to classify; ``None``: nothing is measured.
        class_order: dataset class of each classifier output; further outputs have none.
    """

    def __init__(self, held_out: HeldOutImages | None, class_order: Sequence[int]) -> None:
        self._held_out = held_out
        self._column = {label: column for column, label in enumerate(class_order)}
        self._best = 0.0

    def __call__(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Classify the held-out images with a known class; images whose class has no output count as wrong."""
        if self._held_out is None:
            return {}
        bank, labels, rows = self._held_out.bank, self._held_out.labels, self._held_out.known_rows
        if not len(rows):
            return {}
        columns = np.array([self._column.get(int(label), -1) for label in labels[rows]], dtype=np.int64)

        def judge(network: InferenceNetwork) -> dict[str, float]:
            named = state.full_pass(
                lambda images: network.classify(network.embed(images)), rows, PassSettings(bank=bank)
            )
            scores = named.numpy()
            possible = (columns >= 0) & (columns < scores.shape[1])
            share = float(possible.mean())
            found = {"accuracy": 0.0}
            if possible.any():
                found["accuracy"] = share * top_k_accuracy(scores[possible], columns[possible])
                if scores.shape[1] > 5:
                    found["top5_accuracy"] = share * top_k_accuracy(scores[possible], columns[possible], 5)
            return found

        headline = method.main_network()
        metrics = judge(headline)
        for name, network in method.evaluated_networks().items():
            metrics[f"{name}_accuracy"] = metrics["accuracy"] if network is headline else judge(network)["accuracy"]
        self._best = max(self._best, metrics["accuracy"])
        metrics["best_accuracy"] = self._best
        return metrics

    def describe(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the accuracy for the progress line."""
        return [f"accuracy {percent(metrics['accuracy'])}"] if "accuracy" in metrics else []

    def table(self, metrics: Mapping[str, float]) -> ScoreTable | None:
        """Return the accuracies on held-out images; the best epoch is chosen on the same images."""
        if "accuracy" not in metrics:
            return None
        names = ("accuracy", "best_accuracy", "top5_accuracy")
        return ScoreTable(
            "held-out images, accuracy in %: last epoch, best epoch, and top 5",
            ("top 1", "best", "top 5"),
            tuple(percent(metrics[name]) if name in metrics else None for name in names),
        )

    def extra_state(self) -> dict[str, Any]:
        """Return the best accuracy so far."""
        return {"best_accuracy": self._best}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the best accuracy so far."""
        self._best = float(state["best_accuracy"])
