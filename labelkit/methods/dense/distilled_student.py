"""A student that learns the assignments of its own moving average: all events of DINO and iBOT but the step itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import DataInfo
from labelkit.data.views.recipes import plain_view
from labelkit.data.views.spec import ViewSpec
from labelkit.methods.dense import diagnostics
from labelkit.methods.dense.distillation import (
    CenterOf,
    RunningCenter,
    build_student,
    distillation_views,
    growing_temperature,
    hold_last_layers,
    take_start,
)
from labelkit.methods.dense.distilled_network import DistillationNetwork
from labelkit.methods.dense.losses import MultiViewDistillationLoss, centered_targets
from labelkit.methods.dense.options import SelfDistillationConfig
from labelkit.methods.dense.recipe import (
    backbone_and_head_groups,
    backbone_and_head_rates,
    cosine_pace,
    mixed_phase,
    take_branches,
    target_decay,
)
from labelkit.models.ema import EMATeacher
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, Monitor, Phase, TrainState
from labelkit.training.monitors.representation import RepresentationMonitor
from labelkit.training.timing import GroupRates, Pace, RunSize, Scheduled

DistillationConfigT = TypeVar("DistillationConfigT", bound=SelfDistillationConfig)


class DistilledStudent(Method[DistillationConfigT]):
    """Student, target and center of the target's outputs for class tokens.

    Args:
        config: the options.
        data: facts about the training set.
        patch_center: that of outputs for patches, if they have targets.
        hides_patches, num_patch_outputs: see `DistillationNetwork`.
    """

    runs_whole_backbone = False
    network: DistillationNetwork

    def __init__(
        self,
        config: DistillationConfigT,
        data: DataInfo,
        *,
        patch_center: RunningCenter | None = None,
        hides_patches: bool = False,
        num_patch_outputs: int | None = None,
    ) -> None:
        super().__init__(config, data)
        self._num_objects = data.num_samples if data.num_objects is None else data.num_objects
        self.network = build_student(config, data, hides_patches=hides_patches, num_patch_outputs=num_patch_outputs)
        self.teacher = EMATeacher(self.network, decay=0.0)
        self.centers = nn.ModuleDict({"image": RunningCenter(config.num_outputs, config.center_decay)})
        if patch_center is not None:
            self.centers["patch"] = patch_center
        self.equal_buffers = tuple(f"centers.{of}.value" for of in self.centers)
        self.loss = MultiViewDistillationLoss(config.student_temperature)
        self._ema_decay = target_decay(config)
        self._temperature = growing_temperature(
            config.teacher_temperature_start, config.teacher_temperature, config.teacher_warmup_steps
        )
        self._notes = take_start(config, self.network, self.target, self._named_centers(), config.weights)
        self._state: TrainState | None = None

    @property
    def target(self) -> DistillationNetwork:
        """The moving average of the student."""
        assert isinstance(self.teacher.module, DistillationNetwork)
        return self.teacher.module

    def center(self, of: CenterOf) -> RunningCenter:
        """The running mean of the target's outputs for class tokens or patches."""
        center = self.centers[of]
        assert isinstance(center, RunningCenter)
        return center

    def _named_centers(self) -> dict[CenterOf, RunningCenter]:
        return {of: self.center(of) for of in ("image", "patch") if of in self.centers}

    @property
    def step(self) -> int:
        """Updates finished, which schedules go by; 0 outside of a run."""
        return 0 if self._state is None else self._state.step

    # ------------------------------------------------------------------ the run

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """One phase: both sets again and again, in shares that every process gets alike."""
        views = distillation_views(self.config, self.data, self.network.input_spec.size)
        return (mixed_phase(self.config, rows, self._num_objects, views),)

    @classmethod
    def paces(cls, config: DistillationConfigT, size: RunSize) -> tuple[Pace, ...]:
        """One phase."""
        return (cosine_pace(config),)

    @classmethod
    def group_rates(cls, config: DistillationConfigT) -> GroupRates:
        """Backbone and head."""
        return backbone_and_head_rates(config)

    @classmethod
    def scheduled(cls, config: DistillationConfigT, size: RunSize) -> Mapping[str, Scheduled]:
        """Decay and temperature of the target."""
        decay = target_decay(config)
        temperature = growing_temperature(
            config.teacher_temperature_start, config.teacher_temperature, config.teacher_warmup_steps
        )
        return {"ema_decay": lambda now: decay(now.step), "teacher_temperature": lambda now: temperature(now.step)}

    def on_train_start(self, state: TrainState) -> None:
        """Say what the weights lack."""
        for note in self._notes:
            state.warn(note)

    def on_step_start(self, state: TrainState) -> None:
        """Remember where the run is."""
        self._state = state
        for center in self._named_centers().values():
            center.forget()

    def on_gradients(self, state: TrainState) -> None:
        """Leave the last layers alone in the first steps."""
        hold_last_layers(self.network, self.config, state.step)

    def on_step_end(self, state: TrainState) -> None:
        """Move the target and the centers."""
        self.teacher.decay = self._ema_decay(state.step)
        self.teacher.update(self.network)
        for center in self._named_centers().values():
            center.move(state)

    # ------------------------------------------------------------------ the step

    @torch.no_grad()
    def image_targets(self, class_tokens: Tensor) -> Tensor:
        """What the target assigns class tokens (n, d) of its own to, (n, k)."""
        outputs = self.target.image_outputs(class_tokens)
        self.center("image").see(outputs)
        return centered_targets(outputs, self.center("image").value, self._temperature(self.step))

    def watched(self, targets: Tensor, outputs: Tensor) -> dict[str, Tensor]:
        """Signs of a collapse, at a step whose logs are written; warns once."""
        state = self._state
        if state is None or not state.log_now:
            return {}
        found = diagnostics.of_targets(targets, outputs, self.config.student_temperature)
        problem = diagnostics.collapse(found)
        if problem is not None and problem.split(":")[-1] not in self._notes:
            self._notes.append(problem.split(":")[-1])  # once is enough, the log has every number
            state.warn(f"warning: {problem}; try a lower --teacher-temperature, a lower --lr or another --seed")
        return found

    # ------------------------------------------------------------------ weights

    @property
    def takes_whole_runs(self) -> bool:
        """Unless the head is to start anew."""
        return self.config.projector_init == "checkpoint"

    def take_parts(self, tensors: Mapping[str, Tensor], where: str) -> str | None:
        """Backbones and projectors of both networks of a run of CoTAP, DINO or iBOT."""
        projector = self.config.projector_init == "checkpoint"
        if not take_branches(self.network, self.target, tensors, where, projector=projector):
            return None
        return "both backbones and projectors; last layers start anew" if projector else "both backbones"

    def on_backbone_taken(self) -> None:
        """Take what came with a backbone, and start both networks equal where that is no pair."""
        source = self.config.init_from
        path = source if source is not None and source.is_file() else None
        self._notes = take_start(self.config, self.network, self.target, self._named_centers(), path)

    def headline(self) -> DistillationNetwork:
        """The branch that was asked for."""
        return self.target if self.config.branch == "target" else self.network

    def parameter_groups(self) -> Iterator[dict[str, Any]]:
        """Head and backbone, with and without weight decay."""
        return backbone_and_head_groups(self, self.config)

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Features of held-out images."""
        return RepresentationMonitor.of(inputs, self.config, num_classes=len(self.data.class_names))

    def eval_view(self) -> ViewSpec:
        """The center of the image; all of it if it is small."""
        return plain_view(self.network.input_spec.size)
