"""Code shared by DINO and iBOT: all hooks except the training step, losses, output centers, temperature warm-up.

A student learns the assignments of its own moving average.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.algorithms.temperature import TemperatureLoss, require_positive
from labelkit.data.batch import DataInfo
from labelkit.errors import ConfigError
from labelkit.methods.dense.distilled_network import (
    DistillationNetwork,
    read_checkpoint_center,
    split_checkpoint_branches,
)
from labelkit.methods.dense.options import SelfDistillationConfig
from labelkit.methods.dense.recipe import EMATargetMethod, assignment_entropy, check_sizes
from labelkit.models.weights.files import load_weights_file
from labelkit.training.method import Phase, TrainState
from labelkit.training.schedules import RampedWeight

CenterKind = Literal["image", "patch"]

#: EMA decay of the center of the target's patch outputs.
PATCH_CENTER_DECAY: Final = 0.9

DistillationConfigT = TypeVar("DistillationConfigT", bound=SelfDistillationConfig)


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
        # sums of the step's outputs (k,), and their number
        self._sums: Tensor | None = None

    @torch.no_grad()
    def collect(self, outputs: Tensor) -> None:
        """Keep the sum of the step's outputs (n, k) for the update after the step."""
        sums = outputs.float().sum(dim=0)
        self._sums = torch.cat((sums, sums.new_full((1,), len(outputs))))

    @torch.no_grad()
    def update(self, state: TrainState) -> None:
        """Update the center with the mean of the step's outputs on all processes."""
        assert self._sums is not None
        both = state.combine(self._sums, "sum")
        self.value.lerp_((both[:-1] / both[-1]).to(self.value), 1 - self._decay)


def temperature_ramp(start: float, end: float, steps: int) -> Callable[[int], float]:
    """Return a schedule that increases a temperature linearly for ``steps`` steps, then keeps it constant."""
    share = RampedWeight(1.0, steps)
    return lambda step: start + (end - start) * share(step)


def centered_targets(outputs: Tensor, center: Tensor, temperature: float) -> Tensor:
    r"""Compute targets (n, k), the teacher's assignments, from its outputs t: :math:`\text{softmax}((t - c) / \tau_t)`.

    Subtracting the center c (k,), the running mean of outputs, keeps any output from dominating; a small temperature
    keeps the assignments from becoming uniform. No gradient; float32 (float64 is preserved), rows sum to 1.

    Raises:
        ValueError: the temperature is not positive.
    """
    require_positive(temperature, "temperature")
    with torch.no_grad(), without_autocast(outputs):
        return torch.softmax((promote(outputs) - center) / temperature, dim=-1)


class MultiViewDistillationLoss(TemperatureLoss):
    r"""Cross-entropy between the teacher's and the student's assignments for different views of an image.

    .. math:: L = \frac{1}{|P|} \sum_{(a, v) \in P} -\frac{1}{b} \sum_i \sum_k q_{aik}
        \log \text{softmax}(s_{vi} / \tau_s)_k

    with the teacher's assignments q of views a, the student's outputs s of views v, and P all pairs with a != v. In
    nats, at least the mean entropy of q; log k if all outputs of the student are equal.

    Args:
        temperature: :math:`\tau_s > 0`.

    Shape:
        - outputs: sequence of ``(b, k)`` float, one for each view; receive gradients.
        - targets: sequence of ``(b, k)`` float for the first views, in the same order; rows sum to 1, no gradient.
        - returns: ``()`` float32 (float64 is preserved).

    Raises:
        ValueError: the temperature is not positive, or there is no pair of different views.

    Source:
        M. Caron et al., "Emerging Properties in Self-Supervised Vision Transformers" (ICCV 2021), Eq. 3. The text sums
        over the pairs; the mean follows the released code.
    """

    def forward(self, outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Return the mean loss over view pairs and images."""
        losses = []
        for v, view in enumerate(outputs):
            others = [target for a, target in enumerate(targets) if a != v]
            if others:
                # one pass over the outputs for all targets: they may have 65,536 columns
                losses.append(_cross_entropies(view, sum(others[1:], others[0]), self.temperature).mean())
        if not losses:
            raise ValueError(
                f"outputs and targets must include two different views, got {len(outputs)} and {len(targets)}"
            )
        pairs = sum(a != v for v in range(len(outputs)) for a in range(len(targets)))
        return torch.stack(losses).sum() / pairs


class MaskedPatchLoss(TemperatureLoss):
    r"""Cross-entropy between the student's assignments of masked patches and the teacher's of the unmasked patches.

    .. math:: L = \frac{1}{b} \sum_i \frac{1}{|M_i|} \sum_{j \in M_i} -\sum_k q_{jk} \log \text{softmax}(s_j / \tau_s)_k

    with the masked patches :math:`M_i` of image i; images without any contribute 0. In nats, >= 0; log k
    if every image has masked patches and all outputs of the student are equal.

    Args:
        temperature: :math:`\tau_s > 0`.

    Shape:
        - outputs: ``(m, k)`` float of the student at masked patches; receive gradients.
        - targets: ``(m, k)`` float of the teacher at the same locations; rows sum to 1, no gradient.
        - image: ``(m,)`` int64, image in ``[0, num_images)`` of each patch.
        - num_images: b.
        - returns: ``()`` float32 (float64 is preserved); 0, still differentiable, for m = 0.

    Raises:
        ValueError: the temperature is not positive, or the shapes differ.

    Source:
        J. Zhou et al., "iBOT: Image BERT Pre-Training with Online Tokenizer" (ICLR 2022), Eq. 2. The text sums over
        patches; the mean over those of an image follows the released code.
    """

    def forward(self, outputs: Tensor, targets: Tensor, image: Tensor, num_images: int) -> Tensor:
        """Return the mean loss over images."""
        if outputs.shape != targets.shape or image.shape != outputs.shape[:1]:
            shapes = (tuple(outputs.shape), tuple(targets.shape), tuple(image.shape))
            raise ValueError(f"shapes of outputs, targets and image do not match: {shapes}")
        losses = _cross_entropies(outputs, targets, self.temperature)
        counts = losses.new_zeros(num_images).index_add_(0, image, torch.ones_like(losses.detach()))
        return (losses / counts[image]).sum() / max(num_images, 1)


def _cross_entropies(outputs: Tensor, targets: Tensor, temperature: float) -> Tensor:
    with without_autocast(outputs):
        log_p = torch.log_softmax(promote(outputs) / temperature, dim=-1)
        return -(targets.detach() * log_p).sum(dim=-1)


class DistillationMethod(EMATargetMethod[DistillationConfigT, DistillationNetwork]):
    """Base class of DINO and iBOT, which train a student on the centered outputs of its EMA target.

    With ``hides_patches``, patches also have targets, with a separate center.
    """

    remedy = "a lower --teacher-temperature, "
    starts_from_scratch = "last layers start"

    def __init__(self, config: DistillationConfigT, data: DataInfo, *, hides_patches: bool = False) -> None:
        network = DistillationNetwork(config, data, hides_patches=hides_patches)
        check_sizes(config, network)
        super().__init__(config, data, network)
        self.centers = nn.ModuleDict({"image": RunningCenter(config.num_outputs, config.center_decay)})
        if hides_patches:
            self.centers["patch"] = RunningCenter(config.num_outputs, PATCH_CENTER_DECAY)
        self.equal_buffers = tuple(f"centers.{of}.value" for of in self.centers)
        self.loss = MultiViewDistillationLoss(config.student_temperature)
        self._temperature = temperature_ramp(
            config.teacher_temperature_start, config.teacher_temperature, config.teacher_warmup_steps
        )
        self._notes = self._initialize_from(config.weights)

    def center(self, kind: CenterKind) -> RunningCenter:
        """Return the running center of the target's outputs for class tokens or patches."""
        return cast(RunningCenter, self.centers[kind])

    def _named_centers(self) -> dict[CenterKind, RunningCenter]:
        return {of: self.center(of) for of in ("image", "patch") if of in self.centers}

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the single training phase, which mixes both datasets in each batch."""
        return (self.mixed_phase(rows, self.views()),)

    def on_gradients(self, state: TrainState) -> None:
        """Discard the last layer's gradients during the first steps, so that the layer stays unchanged."""
        if state.step < self.config.freeze_last_layer_steps:
            for parameter in self.network.last_layer.parameters():
                parameter.grad = None

    def on_step_end(self, state: TrainState) -> None:
        """Update the target network and the centers."""
        super().on_step_end(state)
        for center in self._named_centers().values():
            center.update(state)

    @torch.no_grad()
    def image_targets(self, class_tokens: Tensor) -> Tensor:
        """Compute the target's assignments (n, k) for class tokens (n, d), and collect its outputs for the center."""
        outputs = self.target.outputs(class_tokens)
        self.center("image").collect(outputs)
        return centered_targets(outputs, self.center("image").value, self._temperature(self.state.step))

    @torch.no_grad()
    def collapse_diagnostics(self, targets: Tensor, outputs: Tensor) -> dict[str, Tensor]:
        """Return the normalized entropies of the mean prediction and of the targets, if logged; warn of a collapse.

        The first is 0 if one output receives everything, the second is 1 if targets are uniform.
        """
        if not self.state.log_now:
            return {}
        entropy = torch.special.entr(targets.float()).sum(dim=1).mean() / math.log(outputs.shape[1])
        mean = assignment_entropy(outputs, self.config.student_temperature)
        found = {"diag/assignment_entropy": mean, "diag/target_entropy": entropy}
        self.warn_of_collapse(found)
        return found

    def on_backbone_loaded(self) -> None:
        """Load the heads from a full checkpoint file, or copy the student to the target if there is no file."""
        source = self.config.init_from
        self._notes = self._initialize_from(source if source is not None and source.is_file() else None)

    def _initialize_from(self, path: Path | None) -> list[str]:
        """Initialize student, target and centers from a file, or just the target from the student; return warnings.

        The student already has the backbone of the file. A full checkpoint provides the weights and head of each
        network, and the centers.

        Raises:
            CheckpointError: the file does not fit.
            ConfigError: its head has a different size.
        """
        config, network, target = self.config, self.network, self.target
        target.load_state_dict(network.state_dict())
        if path is None:
            is_hub = config.pretrained and config.init_from is None
            return ["warning: the hub's weights contain no head, so the head starts from scratch"] if is_hub else []
        where, state = str(path), load_weights_file(path)
        student, teacher = split_checkpoint_branches(state)
        missing = target.load_head(teacher, where)
        network.load_head(student, where)
        if student is not teacher:
            network.backbone.replace_weights(student, where)
        for of, center in self._named_centers().items():
            found = read_checkpoint_center(state, of, where)
            if found is None:
                missing.append(f"center of {of} outputs")
            elif found.shape != center.value.shape:
                shapes = f"{list(found.shape)} instead of {list(center.value.shape)}"
                problem = f"the {of} center of {where} has shape {shapes}"
                raise ConfigError("--num-outputs", problem, "Set --num-outputs to the size in the file.")
            else:
                center.value.copy_(found)
        if not missing:
            return []
        return [f"warning: {where} contains no {', no '.join(missing)}; these parts start from scratch"]
