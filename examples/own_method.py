"""A method of your own: the classifier of ``labelkit train softmax`` with a custom loss, smoothed targets.

    LABELKIT_METHODS=examples/own_method.py labelkit train smooth --dataset digits --smoothing 0.2

Copy this file, and change what you need. labelkit provides presets, data, networks, checkpoints and evaluation.
"""

from __future__ import annotations

from typing import ClassVar

from labelkit.data.batch import DataInfo
from labelkit.methods.prototypes.losses import WeightedCrossEntropy
from labelkit.methods.prototypes.options import SoftmaxConfig
from labelkit.methods.prototypes.softmax import Softmax
from labelkit.methods.spec import MethodSpec
from pydantic import Field
from torch import Tensor
from torch.nn.functional import cross_entropy


class SmoothConfig(SoftmaxConfig):
    """``labelkit train smooth``."""

    command: ClassVar[tuple[str, ...]] = ("train", "smooth")

    smoothing: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of each target that is spread evenly over all classes.",
        json_schema_extra={"panel": "Loss"},
    )


class SmoothedCrossEntropy(WeightedCrossEntropy):
    """Cross-entropy with smoothed targets, averaged over the batch.

    Args:
        smoothing: fraction of each target that is spread evenly over all classes, in [0, 1).
    """

    def __init__(self, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing

    def forward(self, logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the weighted mean loss of logits (b, c), labels (b,) and weights (b,)."""
        terms = cross_entropy(logits.float(), labels, reduction="none", label_smoothing=self.smoothing)
        return (terms if weights is None else weights * terms).mean()


class Smooth(Softmax):
    """Softmax with another loss."""

    def __init__(self, config: SmoothConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        self.loss = SmoothedCrossEntropy(config.smoothing)


METHODS = {"smooth": MethodSpec("Classification: cross-entropy to smoothed targets.", SmoothConfig, Smooth)}
