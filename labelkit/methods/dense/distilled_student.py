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

#: Of the mean that the target's outputs for patches are measured from.
PATCH_CENTER_DECAY: Final = 0.9

DistillationConfigT = TypeVar("DistillationConfigT", bound=SelfDistillationConfig)


class DistilledStudent(SlowTarget[DistillationConfigT, DistillationNetwork]):
    """Base of DINO and iBOT: a student, its EMA target and the centers of the target's outputs.

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
        """Return the running center of the target's outputs for class tokens or patches."""
        center = self.centers[of]
        assert isinstance(center, RunningCenter)
        return center

    def _named_centers(self) -> dict[CenterOf, RunningCenter]:
        return {of: self.center(of) for of in ("image", "patch") if of in self.centers}

    @property
    def step(self) -> int:
        """Return the number of finished updates, or 0 outside of a run."""
        return self._state.step

    # ------------------------------------------------------------------ the run

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the single training phase, which mixes both data sets in each batch."""
        views = distillation_views(self.config, self.data, self.network.input_spec.size)
        return (self.mixed_phase(rows, views),)

    def on_step_start(self, state: TrainState) -> None:
        """Reset the outputs collected for the centers."""
        super().on_step_start(state)
        for center in self._named_centers().values():
            center.reset()

    def on_gradients(self, state: TrainState) -> None:
        """Drop the gradients of the last layer in the first steps, so that the optimizer does not move it."""
        if state.step < self.config.freeze_last_layer_steps:
            for parameter in self.network.last_layer.parameters():
                parameter.grad = None

    def on_step_end(self, state: TrainState) -> None:
        """Update the target network and the centers."""
        super().on_step_end(state)
        for center in self._named_centers().values():
            center.update(state)

    # ------------------------------------------------------------------ the step

    @torch.no_grad()
    def image_targets(self, class_tokens: Tensor) -> Tensor:
        """Compute the target's assignments (n, k) of its class tokens (n, d), and collect its outputs."""
        outputs = self.target.outputs(class_tokens)
        self.center("image").collect(outputs)
        return centered_targets(outputs, self.center("image").value, self._temperature(self.step))

    def collapse_diagnostics(self, targets: Tensor, outputs: Tensor) -> dict[str, Tensor]:
        """Return the collapse diagnostics at a logged step, warning once of a collapse."""
        state = self._state
        if not state.log_now:
            return {}
        found = watch_targets(targets, outputs, self.config.student_temperature)
        self.warn_of_collapse(found)
        return found

    # ------------------------------------------------------------------ weights

    def take_parts(self, tensors: Mapping[str, Tensor], where: str) -> str | None:
        """Load backbones and projectors of both networks from a run of CoTAP, DINO or iBOT."""
        projector = self.config.projector_init == "checkpoint"
        if not copy_branches(self.network, self.target, tensors, where, projector=projector):
            return None
        return "both backbones and projectors; last layers start anew" if projector else "both backbones"

    def on_backbone_taken(self) -> None:
        """Load the head stored with the backbone, or make both networks equal if there is no pair."""
        source = self.config.init_from
        path = source if source is not None and source.is_file() else None
        self._notes = load_start_weights(self.config, self.network, self.target, self._named_centers(), path)
