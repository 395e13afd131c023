"""Evaluation of features by kNN accuracy on held-out images, and of the method's own clusterings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.feature_probes import knn_probabilities
from labelkit.formatting import percent
from labelkit.metrics.classification import top_k_accuracy
from labelkit.metrics.clustering import majority_accuracy
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, Monitor, PassSettings, ScoreTable, TrainState

MAX_TABLE = 50_000_000


@dataclass(frozen=True, eq=False)
class RepresentationMonitor(Monitor):
    """Monitor of the features' kNN accuracy and of the agreement between the method's clusterings and true classes.

    Features are the main network's embeddings in evaluation mode; the gallery consists of the training images whose
    class is known.

    Attributes:
        inputs: images and classes; without held-out images, only the clusterings are scored.
        num_classes: number of classes in the dataset.
        k, temperature: number of neighbors and temperature of the kNN vote.
    """

    inputs: MonitorInputs
    num_classes: int
    k: int = 10
    temperature: float = 0.1

    def __call__(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Score clusterings and features; empty if no class is known."""
        known, held_out = self.inputs.known_rows, self.inputs.held_out
        classes = self.inputs.truth[known]
        metrics = score_clusterings(method, known, classes)
        if held_out is None or not len(known) or not len(held_out.known_rows):
            return metrics
        embed = method.main_network().embed
        gallery = state.full_pass(embed, known, PassSettings(by_network=True)).numpy()
        queries = state.full_pass(embed, held_out.known_rows, PassSettings(bank=held_out.bank)).numpy()
        if not state.is_main:
            return metrics
        num_classes, k = self.num_classes, self.k
        votes = knn_probabilities(queries, gallery, classes, num_classes=num_classes, k=k, temperature=self.temperature)
        metrics["knn_accuracy"] = top_k_accuracy(votes, held_out.labels[held_out.known_rows])
        return metrics

    def describe(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the kNN accuracy and the NMI of the clusterings for the progress line."""
        accuracy = [f"kNN {percent(metrics['knn_accuracy'])}"] if "knn_accuracy" in metrics else []
        return accuracy + format_nmi(metrics)

    def table(self, metrics: Mapping[str, float]) -> ScoreTable | None:
        """Return the table of kNN accuracy and clustering scores."""
        return representation_table(metrics)


def format_nmi(metrics: Mapping[str, float]) -> list[str]:
    """Format the NMI of the clusterings for the progress line; empty if no clustering was scored."""
    return [f"NMI {metrics['nmi']:.3f}"] if "nmi" in metrics else []


def representation_table(metrics: Mapping[str, float]) -> ScoreTable | None:
    """Return a table of kNN accuracy (held-out images) and clustering scores (training images), or ``None``."""
    if "knn_accuracy" not in metrics and "nmi" not in metrics:
        return None
    groups = [metrics.get(name) for name in ("nmi", "ari", "majority_accuracy")]
    if "knn_accuracy" not in metrics:
        title = "clusters of the training images against true classes; without held-out images, features are not scored"
        return ScoreTable(title, ("NMI", "ARI", "purity"), tuple(groups))
    return ScoreTable(
        "held-out images: kNN accuracy in %; clusters of training images against true classes: NMI, ARI, purity",
        ("kNN", "NMI", "ARI", "purity"),
        (percent(metrics["knn_accuracy"]), *groups),
    )


def score_clusterings(method: Method[Any], rows: NDArray[np.int64], truth: NDArray[np.int64]) -> dict[str, float]:
    """Score a method's ``groupings`` against the true classes (m,) of rows (m,), and average the scores."""
    from sklearn import metrics

    scores: dict[str, float] = {}
    parts: dict[str, list[float]] = {"nmi": [], "ami": [], "ari": [], "majority_accuracy": []}
    for name, table in method.groupings().items():
        groups = table.cpu().numpy()[rows].astype(np.int64)
        classes = truth[groups >= 0]
        groups = groups[groups >= 0]
        # a larger contingency table would not fit into memory
        if not len(groups) or (int(groups.max()) + 1) * (int(classes.max()) + 1) > MAX_TABLE:
            continue
        found = (
            float(metrics.normalized_mutual_info_score(classes, groups)),
            float(metrics.adjusted_mutual_info_score(classes, groups)),
            float(metrics.adjusted_rand_score(classes, groups)),
            majority_accuracy(classes, groups),
        )
        for part, value in zip(parts, found, strict=True):
            parts[part].append(value)
            scores[f"{name}/{part}"] = value
    return {part: float(np.mean(values)) for part, values in parts.items() if values} | scores
