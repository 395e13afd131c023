"""Evaluation of category discovery after each epoch, with labels that are hidden from the method."""

import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit.algorithms.clustering import kmeans, semi_supervised_kmeans
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.views.spec import ViewSpec
from labelkit.formatting import percent
from labelkit.metrics.clustering import cluster_accuracy
from labelkit.training.method import Method, Monitor, PassSettings, ScoreTable, TrainState

#: Function that returns the views of teacher and student for an epoch of the run.
PairOfViews: TypeAlias = Callable[[int], tuple[ViewSpec, ViewSpec]]


class _CategoryMonitor(Monitor):
    """Base class of monitors that report accuracy on old and new classes."""

    #: Origin of the groups, appended to the title of the table.
    groups_from = ""

    def describe(self, metrics: Mapping[str, float]) -> list[str]:
        """Return the available accuracies and the number of clusters in use for the progress line."""
        names = [name for name in ("all", "old", "new") if not math.isnan(metrics.get(f"{name}_accuracy", math.nan))]
        parts = [f"{name} {percent(metrics[f'{name}_accuracy'])}" for name in names]
        return [*parts, f"clusters {int(metrics['used_clusters'])}"] if "used_clusters" in metrics else parts

    def table(self, metrics: Mapping[str, float]) -> ScoreTable | None:
        """Return the accuracies on the unlabeled training images whose class is known."""
        if "all_accuracy" not in metrics:
            return None
        accuracies = [percent(metrics[f"{name}_accuracy"]) for name in ("all", "old", "new")]
        return ScoreTable(
            f"unlabeled training images, accuracy v2 in %{self.groups_from}",
            ("All", "Old", "New", "clusters"),
            (*accuracies, int(metrics["used_clusters"])),
        )


@dataclass(eq=False)
class ClusteringMonitor(_CategoryMonitor):
    """Monitor of the All/Old/New accuracy of semi-supervised k-means on the embeddings (GCD).

    It is used for methods without a classifier. The groups equal those of ``cluster ss-kmeans`` on a store of the same
    images, with the same seed and its defaults; without labels, those of ``cluster k-means``.

    Attributes:
        rows: (m,) int64, rows of readable images.
        labels: (n,) int64 training labels, -1 = unlabeled.
        truth: (n,) int64 class of each image, -1 = unknown.
        old_classes: (k,) bool, whether each class is old.
        num_clusters: number of clusters, one per class.
        seed: seed of the clustering.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    truth: NDArray[np.int64]
    old_classes: NDArray[np.bool_]
    _: KW_ONLY
    num_clusters: int
    seed: int

    def __post_init__(self) -> None:
        self._labels = self.labels[self.rows]
        algorithm = "ss-kmeans" if (self._labels >= 0).any() else "k-means"
        seeded = f" --seed {self.seed}" if self.seed else ""
        self.groups_from = f", groups as by `labelkit cluster {algorithm} --num-clusters {self.num_clusters}{seeded}`"

    def __call__(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Cluster all images on the main process, and score the unlabeled ones whose class is known."""
        features = torch.nn.functional.normalize(
            state.full_pass(method.network.embed, self.rows, PassSettings(by_network=True)), dim=1
        ).numpy()
        labeled = self._labels >= 0
        found = torch.zeros(int((~labeled).sum()), dtype=torch.int64)
        if state.is_main:  # on all processes, equal clusterings would compete for the CPU
            found = torch.from_numpy(self._cluster(features, labeled).astype(np.int64))
        cluster_ids = state.combine(found, "sum").numpy()
        metrics = {
            "used_clusters": float(len(np.unique(cluster_ids))),
            "feature_concentration": float(np.linalg.norm(features.mean(axis=0))),
        }
        return metrics | accuracy_metrics(self.truth[self.rows][~labeled], cluster_ids, self.old_classes)

    def _cluster(self, features: NDArray[np.float32], labeled: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the cluster ids of the unlabeled rows."""
        generator = keyed_generator(self.seed, "cluster")
        if not labeled.any():
            return kmeans(features, self.num_clusters, generator=generator).cluster_ids
        return semi_supervised_kmeans(
            features[~labeled],
            features[labeled],
            self._labels[labeled],
            self.num_clusters,
            generator=generator,
            exchange=True,
        ).unlabeled_ids


def accuracy_metrics(
    truth: NDArray[np.int64], cluster_ids: NDArray[np.int64], old_classes: NDArray[np.bool_]
) -> dict[str, float]:
    """Compute clustering accuracy (v2) and error rates on the rows whose class is known; empty without such rows."""
    known = truth >= 0
    if not known.any():
        return {}
    score = cluster_accuracy(truth[known], cluster_ids[known], old_classes)
    return {name: value for name, value in asdict(score).items() if isinstance(value, float)}


@dataclass(eq=False)
class DiscoveryMonitor(_CategoryMonitor):
    """Monitor of the All/Old/New accuracy on unlabeled training images.

    Attributes:
        rows: (m,) int64, rows of readable, unlabeled images.
        truth: (n,) int64 class of each image, -1 = unknown.
        old_classes: (k,) bool, whether each class is old.
        num_old_outputs: number of classifier outputs for old classes, which come first.
        views: if set, teacher and student are also evaluated on their own views (FlipClass, Fig. 1, 9 and 11).
    """

    rows: NDArray[np.int64]
    truth: NDArray[np.int64]
    old_classes: NDArray[np.bool_]
    num_old_outputs: int
    views: PairOfViews | None = None

    def __call__(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Classify the unlabeled images and score those whose class is known."""
        pseudo_labels, unit = self._classify(method, state, PassSettings(by_network=True))
        shares = np.bincount(pseudo_labels, minlength=method.network.num_outputs) / max(1, len(pseudo_labels))
        seen = shares[shares > 0]
        metrics = {
            "used_clusters": float(len(seen)),
            "predicted_old_share": float((pseudo_labels < self.num_old_outputs).mean()),
            "assignment_entropy": float(-(seen * np.log(seen)).sum() / math.log(max(2, method.network.num_outputs))),
            # length of the mean unit feature: 1 if all features are equal
            "feature_concentration": float(unit.mean(dim=0).norm()),
        }
        metrics |= accuracy_metrics(self.truth[self.rows], pseudo_labels, self.old_classes)
        if self.views is not None:
            metrics |= self._measure_view_gap(method, state, self.views(state.epoch))
        return metrics

    def _classify(
        self, method: Method[Any], state: TrainState, how: PassSettings
    ) -> tuple[NDArray[np.int64], torch.Tensor]:
        """Return the class of each row, (m,) int64, and its normalized features (m, d)."""

        def network(images: torch.Tensor) -> torch.Tensor:
            features = method.network.embed(images)
            logits = method.network.classify(features)
            unit = torch.nn.functional.normalize(features.float(), dim=-1)
            return torch.cat([logits.float(), unit], dim=1)

        table = state.full_pass(network, self.rows, how)
        num_outputs = method.network.num_outputs
        return table[:, :num_outputs].argmax(dim=1).numpy(), table[:, num_outputs:]

    def _measure_view_gap(
        self, method: Method[Any], state: TrainState, views: tuple[ViewSpec, ViewSpec]
    ) -> dict[str, float]:
        """Return the accuracies on the teacher's and student's views, and the distances of their features, in [0, 2].

        Predictions are matched to the classes separately for each view. As in every evaluation, attention is unaligned.
        """
        metrics: dict[str, float] = {}
        seen, truth = [], self.truth[self.rows]
        for draw, (name, view) in enumerate(zip(("teacher", "student"), views, strict=True)):
            pseudo_labels, unit = self._classify(method, state, PassSettings(view=view, draw=draw, by_network=True))
            found = accuracy_metrics(truth, pseudo_labels, self.old_classes)
            metrics |= {f"{name}_{key}": value for key, value in found.items() if key.endswith("_accuracy")}
            seen.append((pseudo_labels, unit))
        (teacher_labels, teacher), (student_labels, student) = seen
        distances = (teacher - student).norm(dim=1).numpy().astype(np.float64)
        metrics["view_agreement"] = float((teacher_labels == student_labels).mean())
        metrics["view_distance"] = float(distances.mean())
        known = truth >= 0
        old = known & self.old_classes[truth]
        for name, group in (("old", old), ("new", known & ~old)):
            if group.any():
                metrics[f"view_distance_{name}"] = float(distances[group].mean())
        return metrics
