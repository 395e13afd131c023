"""A student that learns the assignments of its own moving average: all events of DINO and iBOT but the step itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import DataInfo
from labelkit.methods.dense.distillation import (
    CenterOf,
    MultiViewDistillationLoss,
    RunningCenter,
    build_student,
    centered_targets,
    distillation_views,
    load_start_weights,
    warmup_temperature,
)
from labelkit.methods.dense.distillation_options import SelfDistillationConfig
from labelkit.methods.dense.distilled_network import DistillationNetwork
from labelkit.methods.dense.recipe import SlowTarget, copy_branches, watch_targets
from labelkit.training.method import Phase, TrainState
from labelkit.training.timing import RunSize, Scheduled

#: Of the mean that the target's outputs for patches are measured from.
PATCH_CENTER_DECAY: Final = 0.9

DistillationConfigT = TypeVar("DistillationConfigT", bound=SelfDistillationConfig)


class DistilledStudent(SlowTarget[DistillationConfigT, DistillationNetwork]):
    """Student, target and center of the target's outputs for class tokens.

    Args:
        config: the options.
        data: facts about the training set.
        hides_patches: patches have targets too, and a center of their own.
    """

    remedy = "a lower --teacher-temperature, "

    def __init__(self, config: DistillationConfigT, data: DataInfo, *, hides_patches: bool = False) -> None:
        super().__init__(config, data, build_student(config, data, hides_patches=hides_patches))
        self.centers = nn.ModuleDict({"image": RunningCenter(config.num_outputs, config.center_decay)})
        if hides_patches:
            self.centers["patch"] = RunningCenter(config.num_outputs, PATCH_CENTER_DECAY)
        self.equal_buffers = tuple(f"centers.{of}.value" for of in self.centers)
        self.loss = MultiViewDistillationLoss(config.student_temperature)
        self._temperature = warmup_temperature(
            config.teacher_temperature_start, config.teacher_temperature, config.teacher_warmup_steps
        )
        self._notes = load_start_weights(config, self.network, self.target, self._named_centers(), config.weights)

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
        return (self.mixed_phase(rows, views),)

    @classmethod
    def scheduled(cls, config: DistillationConfigT, size: RunSize) -> Mapping[str, Scheduled]:
        """Decay and temperature of the target."""
        temperature = warmup_temperature(
            config.teacher_temperature_start, config.teacher_temperature, config.teacher_warmup_steps
        )
        return {**super().scheduled(config, size), "teacher_temperature": lambda now: temperature(now.step)}

    def on_step_start(self, state: TrainState) -> None:
        """Begin to collect outputs for the centers."""
        super().on_step_start(state)
        for center in self._named_centers().values():
            center.forget()

    def on_gradients(self, state: TrainState) -> None:
        """Leave the last layer alone in the first steps: without a gradient the optimizer does not move it."""
        if state.step < self.config.freeze_last_layer_steps:
            for parameter in self.network.last_layer.parameters():
                parameter.grad = None

    def on_step_end(self, state: TrainState) -> None:
        """Move the target and the centers."""
        super().on_step_end(state)
        for center in self._named_centers().values():
            center.move(state)

    # ------------------------------------------------------------------ the step

    @torch.no_grad()
    def image_targets(self, class_tokens: Tensor) -> Tensor:
        """What the target assigns class tokens (n, d) of its own to, (n, k)."""
        outputs = self.target.outputs(class_tokens)
        self.center("image").see(outputs)
        return centered_targets(outputs, self.center("image").value, self._temperature(self.step))

    def watched(self, targets: Tensor, outputs: Tensor) -> dict[str, Tensor]:
        """Signs of a collapse, at a step whose logs are written; warns once."""
        state = self._state
        if state is None or not state.log_now:
            return {}
        found = watch_targets(targets, outputs, self.config.student_temperature)
        self.warn_of_collapse(found)
        return found

    # ------------------------------------------------------------------ weights

    def take_parts(self, tensors: Mapping[str, Tensor], where: str) -> str | None:
        """Backbones and projectors of both networks of a run of CoTAP, DINO or iBOT."""
        projector = self.config.projector_init == "checkpoint"
        if not copy_branches(self.network, self.target, tensors, where, projector=projector):
            return None
        return "both backbones and projectors; last layers start anew" if projector else "both backbones"

    def on_backbone_taken(self) -> None:
        """Take what came with a backbone, and start both networks equal where that is no pair."""
        source = self.config.init_from
        path = source if source is not None and source.is_file() else None
        self._notes = load_start_weights(self.config, self.network, self.target, self._named_centers(), path)
