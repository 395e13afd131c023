"""Softmax: a linear classifier learned with the network; the paper's PSC, the baseline of DL2PA.

Source: "Hyperspherical Classification with Dynamic Label-to-Prototype Assignment" (CVPR 2024), Sec. 2 and Table 8.
Each step:
    1. embed the images, multiply by the class vectors                   (b, d), (b, c)
    2. cross-entropy                                                     Eq. 10 of its supplement
    3. ``--uniformity-weight``: spread the directions of the class vectors, Eq. 5 (PSC* of Table 8)
A method of its own and not a switch of ``dl2pa``, since nothing of that one's state is in it: no fixed prototypes, no
class means, no assignment. Network, data and views are the same.
Departure: the released code's baseline normalizes both sides without a temperature; its text
does not, and we follow the text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from labelkit.data.batch import Batch, DataInfo, mixup
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.samplers import UniformSampler
from labelkit.data.views.spec import ViewSpec
from labelkit.methods.prototypes.losses import UniformityLoss, WeightedCrossEntropy
from labelkit.methods.prototypes.options import SoftmaxConfig
from labelkit.methods.prototypes.recipe import (
    ClassWeights,
    build_classifier,
    check_supervised_data,
    eval_view,
    labeled_rows,
    reuse_stages,
    train_view,
)
from labelkit.models.classifier_network import ClassifierNetwork
from labelkit.models.frozen_part import KeptPart
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, Monitor, Phase, StepOutput, TrainState
from labelkit.training.monitors.classification import ClassificationMonitor
from labelkit.training.timing import Pace, RunSize


class Softmax(Method[SoftmaxConfig]):
    """Class vectors are parameters like all others; needs labels."""

    network: ClassifierNetwork[nn.Linear]

    def __init__(self, config: SoftmaxConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        num_classes = check_supervised_data(config, data)
        self.network = build_classifier(config, data, num_classes, lambda dim: nn.Linear(dim, num_classes))
        self.loss = WeightedCrossEntropy()
        self.uniformity = UniformityLoss()
        self._class_weights = ClassWeights(config, data, num_classes)
        self._state: TrainState | None = None

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """One phase: one augmented view, every labeled image once."""
        config, view = self.config, train_view(self.config, self.data, self.network.input_spec.size)
        return (Phase(config.epochs, (view,), UniformSampler(labeled_rows(rows, self.data), seed=config.seed)),)

    @classmethod
    def paces(cls, config: SoftmaxConfig, size: RunSize) -> tuple[Pace, ...]:
        """Every labeled image once in an epoch."""
        return (Pace(config.epochs, size.known_labels()),)

    def on_step_start(self, state: TrainState) -> None:
        """Remember where the run is."""
        self._state = state

    def training_step(self, batch: Batch) -> StepOutput:
        """Cross-entropy, and the spread of the class vectors."""
        step = 0 if self._state is None else self._state.step
        mixed = mixup(batch, self.config.mixup_alpha, keyed_generator(self.config.seed, "mixup", step))
        logits = self.network.classify(self.network.embed(mixed.images))
        weights = self._class_weights.of_classes(mixed.labels, self._state)
        loss = logits.new_zeros(())
        for labels, share in ((mixed.labels, mixed.share), (mixed.other_labels, 1 - mixed.share)):
            if share > 0:
                loss = loss + share * self.loss(logits, labels, None if weights is None else weights[labels])
        if self.config.uniformity_weight == 0:
            return StepOutput(loss)
        uniformity = self.uniformity(self.network.head.weight)
        total = loss + self.config.uniformity_weight * uniformity
        return StepOutput(total, {"cross_entropy": loss.detach(), "uniformity": uniformity.detach()})

    def reuse_frozen(self) -> KeptPart:
        """The frozen stages."""
        return reuse_stages(self.config, self.network)

    def parameter_groups(self) -> Any:
        """Weight decay on everything, as in the released code."""
        yield {"params": list(self.parameters()), "weight_decay": self.config.weight_decay}

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Names given to held-out images."""
        return ClassificationMonitor(inputs.held_out, self.data.class_order)

    def eval_view(self) -> ViewSpec:
        """The image without augmentation."""
        return eval_view(self.config, self.network.input_spec.size)
