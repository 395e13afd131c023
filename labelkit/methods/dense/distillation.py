"""Parts of DINO and iBOT: both networks and where they start, the center of outputs, temperatures that grow."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from labelkit.data.batch import DataInfo
from labelkit.data.views.recipes import crop_views
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import ConfigError
from labelkit.methods.backbone import backbone_options
from labelkit.methods.dense.distilled_network import DistillationNetwork, distilled_branches, distilled_center
from labelkit.methods.dense.options import SelfDistillationConfig
from labelkit.methods.dense.recipe import check_crops
from labelkit.models.weights.files import load_weights_file
from labelkit.training.method import TrainState
from labelkit.training.schedules import GrowingWeight

CenterOf = Literal["image", "patch"]


class RunningCenter(nn.Module):
    r"""Running mean of a target's outputs: :math:`c \leftarrow m c + (1 - m) \bar t` after each step.

    Args:
        num_outputs: k.
        decay: m in [0, 1).

    Attributes:
        value: (k,) float32, equal on all processes.
    """

    def __init__(self, num_outputs: int, decay: float) -> None:
        super().__init__()
        self.value: Tensor = nn.Buffer(torch.zeros(num_outputs))
        self._decay = decay
        self._seen: list[tuple[Tensor, int]] = []

    def forget(self) -> None:
        """Begin a step."""
        self._seen = []

    @torch.no_grad()
    def see(self, outputs: Tensor) -> None:
        """Remember outputs (n, k) until the end of the step."""
        self._seen.append((outputs.float().sum(dim=0), len(outputs)))

    @torch.no_grad()
    def move(self, state: TrainState) -> None:
        """Move toward the mean of what all processes saw in this step."""
        sums = torch.stack([total for total, _ in self._seen]).sum(dim=0)
        count = sums.new_full((1,), float(np.sum([n for _, n in self._seen])))
        both = state.combine(torch.cat((sums, count)), "sum")
        self.value.lerp_((both[:-1] / both[-1]).to(self.value), 1 - self._decay)
        self._seen = []


def growing_temperature(start: float, full: float, steps: int) -> Callable[[int], float]:
    """Linear growth from the first step on, then constant; constant throughout without steps."""
    share = GrowingWeight(1.0, steps)
    return lambda step: start + (full - start) * share(step)


def build_student(
    config: SelfDistillationConfig,
    data: DataInfo,
    *,
    hides_patches: bool = False,
    num_patch_outputs: int | None = None,
) -> DistillationNetwork:
    """Build the student with the backbone that the options name; see `DistillationNetwork`."""
    network = DistillationNetwork(
        config.backbone,
        drop_path=config.drop_path,
        projector_dims=config.projector_dims,
        num_outputs=config.num_outputs,
        learn_lengths=not config.norm_last_layer,
        hides_patches=hides_patches,
        num_patch_outputs=num_patch_outputs,
        **backbone_options(config, data),
        seed=config.seed,
    )
    check_crops(config, network)
    return network


def take_start(
    config: SelfDistillationConfig,
    network: DistillationNetwork,
    target: DistillationNetwork,
    centers: Mapping[CenterOf, RunningCenter],
    path: Path | None,
) -> list[str]:
    """Let both networks start from a file whose backbone the student has; from the student alone without a file.

    A full checkpoint gives each its own weights and head, and the centers.

    Args:
        config: the options.
        network: the student.
        target: its average.
        centers: of outputs.
        path: the file, if there is one.

    Returns:
        what a person should know.

    Raises:
        CheckpointError: the file does not fit.
        ConfigError: a head of other sizes.
    """
    target.load_state_dict(network.state_dict())
    if config.projector_init != "checkpoint" or path is None:
        is_hub = config.pretrained and config.projector_init == "checkpoint" and config.init_from is None
        return ["warning: the hub's weights hold no head, so it starts from scratch"] if is_hub else []
    where, state = str(path), load_weights_file(path)
    student, teacher = distilled_branches(state, where)
    # a released teacher has no mask token, as it sees all
    missing = target.take_head(replace(teacher, mask_token=student.mask_token), where)
    network.take_head(student, where)
    if student is not teacher:
        network.backbone.fit_weights(student.state, where)
    for of, center in centers.items():
        found = distilled_center(state, of, where)
        if found is None:
            missing.append(f"center of {of} outputs")
        elif found.shape != center.value.shape:
            shapes = f"{list(found.shape)}, here {list(center.value.shape)}"
            raise ConfigError(
                "--num-outputs", f"the {of} center of {where} is {shapes}", "Or pass --projector-init scratch."
            )
        else:
            center.value.copy_(found)
    if not missing:
        return []
    return [f"warning: {where} holds no {', no '.join(missing)}: what is missing starts from scratch"]


def distillation_views(config: SelfDistillationConfig, data: DataInfo, size: int) -> tuple[ViewSpec, ...]:
    """Two large views of a side and the small ones of the options."""
    return crop_views(
        (size, config.local_size),
        config.num_local_views,
        config.augmentation,
        global_scale=config.global_scale,
        local_scale=config.local_scale,
        chiral=data.chiral,
        photographic=data.photographic,
    )


def hold_last_layers(network: DistillationNetwork, config: SelfDistillationConfig, step: int) -> None:
    """Drop the gradients of the last layers in the first steps, so that the optimizer leaves them alone."""
    if step >= config.freeze_last_layer_steps:
        return
    for layer in (network.last_layer, network.patch_layer):
        for parameter in () if layer is None else layer.parameters():
            parameter.grad = None
