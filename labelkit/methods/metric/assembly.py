"""Spatial assembly: a module that predicts how an image's feature vectors should move, and moves them; its loss terms.

Source: chapter 5 of "Deep Learning with Very Few and No Labels", Eq. 5.1-5.8; no code was released. Ours: the
predictor, the method that makes its weights doubly stochastic (Sinkhorn), and their initial values.
Eq. 5.5-5.8 make the assembly one-to-one, and nearly the same for similar neighbors. An assembly that moves
nothing minimizes all three terms at once; only the loss on the embeddings opposes it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.methods.metric.options import SANConfig

MAX_POSITIONS = 400
# maximum vote; number of normalizations of rows and columns (ours: the chapter does not describe the predictor)
BOUND, SWEEPS = 10.0, 20


@dataclass(frozen=True, slots=True)
class AssemblyOutput:
    """Assembly weights of one batch and the feature maps they were applied to."""

    # (b, n, n) float32, weight of input position u in output position v at [u, v]; columns sum to 1, rows nearly so
    weights: Tensor
    log_weights: Tensor  # (b, n, n), their logarithms
    maps: Tensor  # (b, c, h, w), input of the assembly, with n = h w positions row by row

    @property
    def grid(self) -> tuple[int, int]:
        """Return the number of rows and columns of the maps."""
        return self.maps.shape[2], self.maps.shape[3]


def sinkhorn_normalize(logits: Tensor, sweeps: int) -> Tensor:
    """Normalize rows and columns alternately, differentiably and in log space, until all sums are close to 1.

    Args:
        logits: (..., n, n) float.
        sweeps: number of times that rows and then columns are normalized; 0: never.

    Returns:
        Logarithms of the weights; columns sum to 1 exactly, since they are normalized last.

    Source:
        R. Sinkhorn (1964).
    """
    for _ in range(sweeps):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits


def assemble(maps: Tensor, weights: Tensor) -> Tensor:
    """Compute each output position of maps (b, c, h, w) as a weighted sum of the input positions (Eq. 5.4).

    Weights are (b, n, n) at [input, output], n = h w.
    """
    return torch.einsum("buv,bcu->bcv", weights, maps.flatten(2)).reshape(maps.shape)


class SpatialAssembly(nn.Module):
    """Module that predicts how the positions of feature maps should be rearranged, and rearranges them.

    The predictor consists of a 1x1 and a 3x3 convolution (with coordinates as inputs), plus a summary of the whole
    image, then a 1x1 convolution that outputs the votes of position u for each position v, bounded to plus or minus
    ``BOUND``. The vote for staying has a bias, and this layer is initialized to 0, so that initially a share of
    ``diagonal`` stays in place in every image.

    Args:
        channels: number of channels c of the maps.
        grid: rows and columns of the maps; other sizes are rejected.
        width: number of channels of the predictor.
        diagonal: initial share that stays in place, in (0, 1).

    Shape:
        - maps: ``(b, c, h, w)`` float.
        - returns: assembled maps of the same shape and dtype, and an `AssemblyOutput` (float32).

    Raises:
        ValueError: there is one position or too many, or maps have another grid.
    """

    def __init__(self, channels: int, grid: tuple[int, int], *, width: int = 64, diagonal: float = 0.9) -> None:
        super().__init__()
        n = grid[0] * grid[1]
        if not 1 < n <= MAX_POSITIONS:
            raise ValueError(f"the number of positions must be from 2 to {MAX_POSITIONS}, got {n}")
        self.channels, self.grid = channels, grid
        #: whether maps are left unchanged, to measure the effect of the module
        self.bypassed = False
        # with zeros elsewhere, this logit leaves the share ``diagonal`` in place
        self.start = math.log(diagonal * (n - 1) / (1 - diagonal))
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.spatial = nn.Sequential(
            nn.Conv2d(width + 2, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.context = nn.Linear(width, width)
        layer = nn.Conv2d(width, n, 1)
        nn.init.zeros_(layer.weight)
        assert layer.bias is not None
        nn.init.zeros_(layer.bias)
        self.votes = nn.ModuleDict({"layer": layer})  # of each position, from its own features

    def forward(self, maps: Tensor) -> tuple[Tensor, AssemblyOutput]:
        """Return the assembled maps and their assembly weights."""
        _, c, h, w = maps.shape
        if (h, w) != self.grid or c != self.channels:
            raise ValueError(
                f"feature maps must have shape {self.channels} x {self.grid[0]} x {self.grid[1]}, got {c} x {h} x "
                f"{w}; use the image size used in training"
            )
        votes = self._votes(maps)
        with without_autocast(maps):
            # row sums would be inaccurate in half precision
            votes = BOUND * torch.tanh(promote(votes) / BOUND)
            logits = votes + self.start * torch.eye(h * w, device=maps.device, dtype=votes.dtype)
            logs = sinkhorn_normalize(logits, SWEEPS)
            weights = logs.exp()
            moved = assemble(promote(maps), weights).to(maps.dtype)
        return moved, AssemblyOutput(weights, logs, maps)

    def _votes(self, maps: Tensor) -> Tensor:
        """Compute the votes (b, n, n) at [input, output]."""
        hidden = self.stem(maps)
        hidden = self.spatial(torch.cat([hidden, self._coordinates(hidden)], dim=1))
        hidden = hidden + torch.relu(self.context(hidden.mean(dim=(2, 3))))[:, :, None, None]
        votes: Tensor = self.votes["layer"](hidden)
        return votes.flatten(2).transpose(1, 2)

    def _coordinates(self, like: Tensor) -> Tensor:
        """Return the x and y coordinates of all cell centers in (-1, 1), as (b, 2, h, w)."""
        h, w = self.grid
        x = (2 * torch.arange(w, device=like.device, dtype=like.dtype) + 1) / w - 1
        y = (2 * torch.arange(h, device=like.device, dtype=like.dtype) + 1) / h - 1
        return torch.stack([x.expand(h, w), y[:, None].expand(h, w)]).expand(len(like), -1, -1, -1)


# With --precision fp16, gradients of the predictor pass through half precision before any loss scaling.
_GRADIENT_SCALE = 1024.0
NEIGHBORS = tuple((i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))


def assembly_entropy(log_weights: Tensor) -> Tensor:
    r"""Compute the entropy, in bits, of the normalized rows and columns of assembly weights (Eq. 5.5).

    .. math:: E = -\sum_{uv} \hat w^c_{uv} \log_2 \hat w^c_{uv} - \sum_{uv} \hat w^r_{uv} \log_2 \hat w^r_{uv}

    In [0, 2 n log2 n]; 0 for a permutation, the maximum for uniform weights.

    Args:
        log_weights: ``(..., n, n)`` float, logarithms of weights at [input, output]; -inf = 0. Gradients flow.

    Returns:
        ``(...)``.
    """
    total = log_weights.new_zeros(())
    for axis in (-2, -1):
        logs = log_weights - log_weights.logsumexp(axis, keepdim=True)
        logs = logs.masked_fill(logs == -torch.inf, 0.0)
        shares = torch.where(log_weights == -torch.inf, 0.0, logs.exp())
        total = total - (shares * logs).sum((-2, -1)) / math.log(2)
    return total


def assembly_correlation(weights: Tensor) -> Tensor:
    r"""Compute the overlap between different rows and between different columns of assembly weights (Eq. 5.6).

    .. math:: C = \sum_{u_1 \ne u_2} \sum_v w_{u_1 v} w_{u_2 v} + \sum_{v_1 \ne v_2} \sum_u w_{u v_1} w_{u v_2}
        = \sum_v c_v^2 + \sum_u r_u^2 - 2 \|w\|^2

    with column sums c and row sums r. In [0, 2 (n - 1)] if these are 1; 0 for a permutation.

    Args:
        weights: ``(..., n, n)`` float >= 0. Gradients flow.

    Returns:
        ``(...)``.
    """
    columns, rows = weights.sum(-2), weights.sum(-1)
    return (columns**2).sum(-1) + (rows**2).sum(-1) - 2 * (weights**2).sum((-2, -1))


def assembly_coherence(weights: Tensor, maps: Tensor) -> Tensor:
    r"""Compute the coherence term: how differently neighboring positions with similar features move (Eq. 5.7, 5.8).

    .. math:: L = \frac{1}{\#} \sum_p \sum_{q \in \Omega_p} \alpha_{pq} \|W_p - S_{q - p} W_q\|

    with W_p the weights of position p in all output positions, S a shift by the offset from q to p with zero padding,
    alpha the cosine of the features of p and q, clipped at 0, and # the number of ordered pairs of neighbors. 0 if
    nothing moves, and for no other permutation if all features are equal.

    Args:
        weights: ``(b, n, n)`` float at [input, output], n = h w. Gradients flow.
        maps: ``(b, c, h, w)`` float, the features before the assembly; no gradient, since the loss would otherwise make
            neighbors dissimilar.

    Returns:
        ``(b,)``.

    Source:
        Eq. 5.8 lacks the sum over p; the clipping at 0, the mean and the norm's 1e-12 are ours.
    """
    b, _, h, w = maps.shape
    table = weights.reshape(b, h, w, h, w)
    padded = F.pad(table, (1, 1, 1, 1))
    unit = F.normalize(maps.detach().to(weights.dtype), dim=1, eps=1e-8)
    total, pairs = weights.new_zeros(b), 0
    for di, dj in NEIGHBORS:
        here, there = _neighbors(h, w, di, dj)
        gap = table[:, *here] - padded[:, *there][..., 1 + di : 1 + di + h, 1 + dj : 1 + dj + w]
        distance = ((gap**2).sum((-2, -1)) + 1e-12).sqrt() - 1e-6
        alpha = (unit[:, :, *here] * unit[:, :, *there]).sum(1).clamp_min(0)
        total = total + (alpha * distance).flatten(1).sum(1)
        pairs += alpha[0].numel()
    return total / max(pairs, 1)


def _neighbors(height: int, width: int, di: int, dj: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Return slices of the grid positions with a neighbor at offset (di, dj), and of these neighbors."""
    here = (slice(max(0, -di), height - max(0, di)), slice(max(0, -dj), width - max(0, dj)))
    there = (slice(max(0, di), height - max(0, -di)), slice(max(0, dj), width - max(0, -dj)))
    return here, there


def normalized_entropy_and_correlation(weights: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Compute assembly entropy (b,) and correlation (b,), each divided by its maximum for n > 1 positions."""
    n = weights.shape[-1]
    return assembly_entropy(log_weights) / (2 * n * math.log2(n)), assembly_correlation(weights) / (2 * (n - 1))


def compute_term_weight(config: SANConfig, progress: float) -> float:
    """Return the weight, in [0, 1], of the assembly terms after a fraction ``progress`` of the training."""
    start, end = config.term_ramp
    if progress >= end:
        return 1.0
    return max(0.0, (progress - start) / (end - start))


def assembly_terms(config: SANConfig, output: AssemblyOutput) -> dict[str, Tensor]:
    """Compute the enabled assembly terms (entropy, correlation, coherence) as means over the batch."""
    terms: dict[str, Tensor] = {}
    if config.entropy_weight > 0 or config.correlation_weight > 0:
        terms["entropy"], terms["correlation"] = (
            term.mean() for term in normalized_entropy_and_correlation(output.weights, output.log_weights)
        )
    if config.coherence_weight > 0:
        terms["coherence"] = assembly_coherence(output.weights, output.maps).mean()
    return {name: term for name, term in terms.items() if getattr(config, f"{name}_weight") > 0}


def weighted_assembly_loss(config: SANConfig, terms: Mapping[str, Tensor], predictor: nn.Module) -> Tensor:
    """Compute the weighted sum of the assembly terms, whose gradients can be limited to the predictor."""
    total = sum((getattr(config, f"{name}_weight") * term for name, term in terms.items()), start=torch.zeros(()))
    if config.term_gradients != "predictor" or not total.requires_grad:
        return total
    parameters = [parameter for parameter in predictor.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(total * _GRADIENT_SCALE, parameters, retain_graph=True, allow_unused=True)
    linear = total.new_zeros(())
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            linear = linear + (parameter * (gradient / _GRADIENT_SCALE)).sum()
    return total.detach() + (linear - linear.detach())
