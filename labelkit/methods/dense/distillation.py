"""Parts of DINO and iBOT: losses, both networks and where they start, center of outputs, growing temperatures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.data.batch import DataInfo
from labelkit.data.views.recipes import crop_views
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import ConfigError
from labelkit.methods.backbone import backbone_options
from labelkit.methods.dense.distillation_options import SelfDistillationConfig
from labelkit.methods.dense.distilled_network import DistillationNetwork, distilled_branches, distilled_center
from labelkit.methods.dense.recipe import check_crops
from labelkit.models.weights.files import load_weights_file
from labelkit.training.method import TrainState
from labelkit.training.schedules import GrowingWeight

CenterOf = Literal["image", "patch"]


class RunningCenter(nn.Module):
    r"""Running mean of the target's outputs, updated as :math:`c \leftarrow m c + (1 - m) \bar t` after each step.

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

    def reset(self) -> None:
        """Discard the outputs collected so far, at the start of a step."""
        self._seen = []

    @torch.no_grad()
    def collect(self, outputs: Tensor) -> None:
        """Collect outputs (n, k) for the update at the end of the step."""
        self._seen.append((outputs.float().sum(dim=0), len(outputs)))

    @torch.no_grad()
    def update(self, state: TrainState) -> None:
        """Update the center with the mean output of all processes in this step."""
        sums = torch.stack([total for total, _ in self._seen]).sum(dim=0)
        count = sums.new_full((1,), float(np.sum([n for _, n in self._seen])))
        both = state.combine(torch.cat((sums, count)), "sum")
        self.value.lerp_((both[:-1] / both[-1]).to(self.value), 1 - self._decay)
        self._seen = []


def warmup_temperature(start: float, full: float, steps: int) -> Callable[[int], float]:
    """Return a temperature schedule that grows linearly for ``steps`` steps and is then constant."""
    share = GrowingWeight(1.0, steps)
    return lambda step: start + (full - start) * share(step)


def build_student(
    config: SelfDistillationConfig, data: DataInfo, *, hides_patches: bool = False
) -> DistillationNetwork:
    """Build the student `DistillationNetwork` with the backbone from the options."""
    network = DistillationNetwork(
        config.backbone,
        drop_path=config.drop_path,
        projector_dims=config.projector_dims,
        num_outputs=config.num_outputs,
        learn_lengths=not config.norm_last_layer,
        hides_patches=hides_patches,
        **backbone_options(config, data),
        seed=config.seed,
    )
    check_crops(config, network)
    return network


def load_start_weights(
    config: SelfDistillationConfig,
    network: DistillationNetwork,
    target: DistillationNetwork,
    centers: Mapping[CenterOf, RunningCenter],
    path: Path | None,
) -> list[str]:
    """Initialize student, target and centers from a file, or the target from the student without one.

    The file is the one whose backbone the student has. A full checkpoint gives each its own weights and head, and the
    centers.

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
        return ["warning: the hub's weights contain no head, so the head starts from scratch"] if is_hub else []
    where, state = str(path), load_weights_file(path)
    student, teacher = distilled_branches(state, where)
    # a released teacher has no mask token, as it sees all
    missing = target.copy_head(replace(teacher, mask_token=student.mask_token), where)
    network.copy_head(student, where)
    if student is not teacher:
        network.backbone.fit_weights(student.state, where)
    for of, center in centers.items():
        found = distilled_center(state, of, where)
        if found is None:
            missing.append(f"center of {of} outputs")
        elif found.shape != center.value.shape:
            shapes = f"{list(found.shape)}, here {list(center.value.shape)}"
            raise ConfigError(
                "--num-outputs",
                f"the {of} center of {where} is {shapes}",
                "Pass this size, or --projector-init scratch.",
            )
        else:
            center.value.copy_(found)
    if not missing:
        return []
    return [f"warning: {where} contains no {', no '.join(missing)}: missing parts start from scratch"]


def distillation_views(config: SelfDistillationConfig, data: DataInfo, size: int) -> tuple[ViewSpec, ...]:
    """Return the two large views of size ``size`` and the small views from the options."""
    return crop_views(
        (size, config.local_size),
        config.num_local_views,
        config.augmentation,
        global_scale=config.global_scale,
        local_scale=config.local_scale,
        chiral=data.chiral,
        photographic=data.photographic,
    )


def centered_targets(outputs: Tensor, center: Tensor, temperature: float) -> Tensor:
    r"""Compute the teacher's assignments, :math:`\text{softmax}((t - c) / \tau_t)`.

    Args:
        outputs: ``(n, k)`` float t.
        center: ``(k,)`` float c, the running mean of outputs, so that no output takes all.
        temperature: :math:`\tau_t > 0`; small values keep the assignments from being alike.

    Returns:
        ``(n, k)`` float32 (float64 stays), rows sum to 1, without gradient.

    Raises:
        ValueError: the temperature is not positive.
    """
    _check_temperature(temperature)
    with torch.no_grad(), without_autocast(outputs):
        return torch.softmax((promote(outputs) - center) / temperature, dim=-1)


class MultiViewDistillationLoss(nn.Module):
    r"""Cross-entropy between the teacher's and the student's assignments of different views of an image.

    .. math:: L = \frac{1}{|P|} \sum_{(a, v) \in P} -\frac{1}{b} \sum_i \sum_k q_{aik}
        \log \text{softmax}(s_{vi} / \tau_s)_k

    with the teacher's assignments q of views a, the student's outputs s of views v, and P all pairs with a != v. In
    nats, at least the mean entropy of q; log k where all outputs of the student are equal.

    Args:
        temperature: :math:`\tau_s > 0`.

    Shape:
        - outputs: sequence of ``(b, k)`` float, one for each view; gradients reach them.
        - targets: sequence of ``(b, k)`` float, of the first views in the same order; rows sum to 1, no gradient.
        - returns: ``()`` float32 (float64 stays).

    Raises:
        ValueError: the temperature is not positive, or there is no pair of different views.

    Source:
        M. Caron et al., "Emerging Properties in Self-Supervised Vision Transformers" (ICCV 2021), Eq. 3. The text sums
        over the pairs; the mean is that of its released code.
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        _check_temperature(temperature)
        self.temperature = temperature

    def forward(self, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Return the mean loss over view pairs and images."""
        losses = []
        for v, view in enumerate(outputs):
            others = [target for a, target in enumerate(targets) if a != v]
            if others:
                # one pass over the outputs for all targets: they may have 65,536 columns
                losses.append(_cross_entropies(view, sum(others[1:], others[0]), self.temperature).mean())
        if not losses:
            raise ValueError(f"no two different views among {len(outputs)} of the student and {len(targets)}")
        pairs = sum(a != v for v in range(len(outputs)) for a in range(len(targets)))
        total: Tensor = torch.stack(losses).sum() / pairs
        return total


class HiddenPatchLoss(nn.Module):
    r"""Cross-entropy between the student's assignments of masked patches and the teacher's of the visible ones.

    .. math:: L = \frac{1}{b} \sum_i \frac{1}{|M_i|} \sum_{j \in M_i} -\sum_k q_{jk} \log \text{softmax}(s_j / \tau_s)_k

    with the hidden patches :math:`M_i` of image i, of which there may be none: then i adds 0. In nats, >= 0; log k
    where every image has hidden patches and all outputs of the student are equal.

    Args:
        temperature: :math:`\tau_s > 0`.

    Shape:
        - outputs: ``(m, k)`` float of the student at hidden patches; gradients reach them.
        - targets: ``(m, k)`` float of the teacher at the same places; rows sum to 1, no gradient.
        - image: ``(m,)`` int64, the image in ``[0, num_images)`` that each belongs to.
        - num_images: b.
        - returns: ``()`` float32 (float64 stays); 0, still differentiable, for m = 0.

    Raises:
        ValueError: the temperature is not positive, or the shapes differ.

    Source:
        J. Zhou et al., "iBOT: Image BERT Pre-Training with Online Tokenizer" (ICLR 2022), Eq. 2. The text sums over
        patches; the mean over those of an image is that of its released code.
    """

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        _check_temperature(temperature)
        self.temperature = temperature

    def forward(self, outputs: Tensor, targets: Tensor, image: Tensor, num_images: int) -> Tensor:
        """Return the mean loss over images."""
        if outputs.shape != targets.shape or image.shape != outputs.shape[:1]:
            shapes = (tuple(outputs.shape), tuple(targets.shape), tuple(image.shape))
            raise ValueError(f"outputs, targets and image are {shapes}")
        losses = _cross_entropies(outputs, targets, self.temperature)
        counts = losses.new_zeros(num_images).index_add_(0, image, torch.ones_like(losses.detach()))
        return (losses / counts[image]).sum() / max(num_images, 1)


def _cross_entropies(outputs: Tensor, targets: Tensor, temperature: float) -> Tensor:
    with without_autocast(outputs):
        log_p = torch.log_softmax(promote(outputs) / temperature, dim=-1)
        return -(targets.detach() * log_p).sum(dim=-1)


def _check_temperature(temperature: float) -> None:
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
