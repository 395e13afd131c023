"""SimGCD: contrastive learning and a self-distilled cosine classifier over old and new classes.

Source: X. Wen, B. Zhao, X. Qi, "Parametric Classification for Generalized Category Discovery: A Baseline Study"
(ICCV 2023) and its released code.
Each step, on two views of every image (labeled or not):
    1. backbone, projector, classifier over both views            (2b, p), (2b, c)
    2. contrastive loss, unsupervised on all, supervised on labeled images
    3. each view's sharpened prediction is the other view's target; the mean prediction is kept spread out
    4. cross-entropy on labeled images
Departure: ``--views weak-strong --no-symmetric`` trains on FlipClass's views and direction without its alignment.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.samplers import BalancedSampler
from labelkit.data.views.recipes import simgcd_view, strong_view, test_view, weak_view
from labelkit.data.views.spec import ViewSpec
from labelkit.methods.backbone import row_views
from labelkit.methods.discovery.networks import DiscoveryNetwork
from labelkit.methods.discovery.options import SimGCDConfig
from labelkit.methods.discovery.recipe import (
    build_discovery_loss,
    build_discovery_network,
    check_backbone,
    check_discovery_data,
    discovery_monitor,
    teacher_temperature,
    unused_classes,
)
from labelkit.models.frozen_part import FrozenPart
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, Monitor, Phase, StepOutput, TrainState
from labelkit.training.timing import RunSize, Scheduled


class SimGCD(Method[SimGCDConfig]):
    """Two views of one network, symmetric self-distillation."""

    runs_whole_backbone = False
    network: DiscoveryNetwork

    def __init__(self, config: SimGCDConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        num_classes = check_discovery_data(config, data)
        if data.row_dim is None:
            check_backbone(config)
        self.network = build_discovery_network(config, data, num_classes)
        self.loss = build_discovery_loss(config, symmetric=config.symmetric)
        self._temperatures = teacher_temperature(config)
        self._teacher_temperature = self._temperatures[0]

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """One phase: two views, half of a batch labeled in expectation."""
        sampler = BalancedSampler(self.data.labels >= 0, seed=self.config.seed, rows=rows)
        return (Phase(self.config.epochs, self._views(0), sampler),)

    @classmethod
    def scheduled(cls, config: SimGCDConfig, size: RunSize) -> Mapping[str, Scheduled]:
        """The teacher's temperature."""
        temperatures = teacher_temperature(config)
        return {"teacher_temperature": lambda now: temperatures[now.epoch]}

    def _views(self, epoch: int) -> tuple[ViewSpec, ViewSpec]:
        """The two views, the same in every epoch."""
        size, domain, chiral = self.network.input_spec.size, self.config.augmentation, self.data.chiral
        of_rows = row_views(self.config, self.data)
        if of_rows is not None:
            return of_rows[1], of_rows[1]
        if self.config.views == "simgcd":
            return simgcd_view(size, domain, chiral=chiral), simgcd_view(size, domain, chiral=chiral)
        return weak_view(size, domain, chiral=chiral), strong_view(size, domain, chiral=chiral)

    def on_epoch_start(self, state: TrainState) -> None:
        """Sharpen the teacher on schedule."""
        self._teacher_temperature = self._temperatures[state.epoch]

    def training_step(self, batch: Batch) -> StepOutput:
        """Both views through the network, then the loss."""
        projections, logits = self.network.forward_pair(batch.views[0], batch.views[1])
        loss, parts = self.loss(projections, logits, batch.labels, teacher_temperature=self._teacher_temperature)
        return StepOutput(loss, parts)

    def reuse_frozen(self) -> FrozenPart:
        """The blocks before the first one that is trained."""
        return self.network.reuse_frozen()

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Old and new classes of the unlabeled images, and signs of collapse."""
        return discovery_monitor(self.config, self.data, inputs, self._views)

    def remarks(self, metrics: Mapping[str, float]) -> list[str]:
        """Say when many classes stayed unused."""
        return unused_classes(metrics, self.network.num_outputs)

    def eval_view(self) -> ViewSpec:
        """The center of the image, unchanged."""
        return test_view(self.network.input_spec.size, self.config.augmentation)
