"""Losses of DINO and iBOT: a student names its teacher's assignments of other views, and of hidden patches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast


def centered_targets(outputs: Tensor, center: Tensor, temperature: float) -> Tensor:
    r"""Return the assignments of a teacher, :math:`\text{softmax}((t - c) / \tau_t)`.

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
    r"""Cross-entropy between the assignments of different views of an image.

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
        """Return the mean over pairs and images."""
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
    r"""Cross-entropy of the assignments of hidden patches, which the teacher sees.

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
        """Return the mean over images."""
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
