"""Evaluation of retrieval among held-out images, of classes not used for training, after each epoch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from labelkit.formatting import percent
from labelkit.metrics.retrieval import score_retrieval
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, Monitor, PassSettings, ScoreTable, TrainState
from labelkit.training.monitors.representation import format_nmi, representation_table, score_clusterings

COLLAPSED = 0.02


@dataclass(frozen=True, eq=False)
class RetrievalMonitor(Monitor):
    """Monitor of Recall@K and MAP@R for held-out images, each used as a query against all others."""

    compares_with_start: ClassVar[bool] = True

    inputs: MonitorInputs  # images and classes; clusterings are also scored, and alone if there are no held-out images
    ks: Sequence[int]  # values of K for Recall@K; those not below the number of images are ignored

    def __call__(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Score clusterings and embeddings; empty if no class is known or none has two images."""
        metrics = score_clusterings(method, self.inputs.known_rows, self.inputs.truth[self.inputs.known_rows])
        found, embeddings = self._search(method.network.embed, state)
        metrics |= found
        if embeddings is None:
            return metrics
        return metrics | {"similarity_sd": compute_similarity_spread(embeddings)}

    def score_before_training(self, method: Method[Any], state: TrainState) -> Mapping[str, float]:
        """Score the pooled features of the backbone, since the embedding layer starts from random weights."""
        return self._search(getattr(method.network, "features", method.network.embed), state)[0]

    def _search(
        self, embed: Callable[[Tensor], Tensor], state: TrainState
    ) -> tuple[dict[str, float], NDArray[np.float32] | None]:
        """Score retrieval among the held-out images; empty if no class is known or none has two images."""
        held_out = self.inputs.held_out
        classes = np.zeros(0, dtype=np.int64) if held_out is None else held_out.labels[held_out.known_rows]
        if held_out is None or not len(classes) or np.bincount(classes).max() < 2:
            return {}, None
        embeddings = state.full_pass(embed, held_out.known_rows, PassSettings(bank=held_out.bank)).numpy()
        if not state.is_main:
            return {}, None
        scores = score_retrieval(embeddings, classes, ks=[k for k in self.ks if k < len(classes)])
        found = {f"recall_at_{k}": value for k, value in scores.recall_at.items()}
        return found | {"map_at_r": scores.map_at_r}, embeddings

    def describe(self, metrics: Mapping[str, float]) -> list[str]:
        """Return Recall@1 and the NMI of the clusterings for the progress line."""
        recall = [f"R@1 {percent(metrics['recall_at_1'])}"] if "recall_at_1" in metrics else []
        return recall + format_nmi(metrics)

    def table(self, metrics: Mapping[str, float]) -> ScoreTable | None:
        """Return the retrieval scores of held-out images, or the clustering scores if there are none."""
        if "map_at_r" not in metrics:
            return representation_table(metrics)
        recall = [name for name in metrics if name.startswith("recall_at_")]
        return ScoreTable(
            "held-out images, in %: recall at K (R@K), mean average precision at R (MAP@R)",
            (*(f"R@{name.removeprefix('recall_at_')}" for name in recall), "MAP@R"),
            (*(percent(metrics[name]) for name in recall), percent(metrics["map_at_r"])),
        )


def compute_similarity_spread(embeddings: NDArray[np.float32]) -> float:
    """Return the standard deviation of the pairwise cosines of at most 1,000 evenly spaced embeddings."""
    step = -(-len(embeddings) // 1000)
    unit = embeddings[::step].astype(np.float64)
    unit /= np.maximum(np.linalg.norm(unit, axis=1, keepdims=True), 1e-12)
    cosines = (unit @ unit.T)[~np.eye(len(unit), dtype=bool)]
    return float(cosines.std()) if len(cosines) else 0.0
