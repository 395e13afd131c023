"""SAN's assembly beside the network: how it is put in, its terms of the loss, and what it does, in numbers.

Source: chapter 5 of "Deep Learning with Very Few and No Labels", Eq. 5.5-5.8: it is to be one-to-one, and nearly the
same for neighbors that look alike. An assembly that moves nothing is the minimum of all three terms at once: only the
loss of the embeddings pushes away from it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError
from labelkit.formatting import percent
from labelkit.methods.metric.assembly_network import Assembly, SpatialAssembly
from labelkit.methods.metric.networks import MetricNetwork
from labelkit.methods.metric.san_options import SANConfig
from labelkit.models.seeding import seeded_init
from labelkit.training.method import TrainState

LOOKED_AT = 64
INACTIVE_DIAGONAL, INACTIVE_EFFECT, STATIC_VARIANCE, UNEVEN_ROWS = 0.97, 1e-2, 1e-3, 0.1
# With --precision fp16 gradients of the predictor pass through half precision before any scaling of the loss.
_GRADIENT_SCALE = 1024.0
_SCALARS = ("diagonal", "sources", "row_error", "entropy", "correlation", "coherence", "move", "effect")
NEIGHBORS = tuple((i, j) for i in (-1, 0, 1) for j in (-1, 0, 1) if (i, j) != (0, 0))


def assembly_entropy(log_weights: Tensor) -> Tensor:
    r"""Entropy of rows and of columns, each scaled to sum to 1 (Eq. 5.5), in bits.

    .. math:: E = -\sum_{uv} \hat w^c_{uv} \log_2 \hat w^c_{uv} - \sum_{uv} \hat w^r_{uv} \log_2 \hat w^r_{uv}

    In [0, 2 n log2 n]; 0 for a permutation, the maximum for even weights.

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
    r"""Overlap of different rows and of different columns (Eq. 5.6).

    .. math:: C = \sum_{u_1 \ne u_2} \sum_v w_{u_1 v} w_{u_2 v} + \sum_{v_1 \ne v_2} \sum_u w_{u v_1} w_{u v_2}
        = \sum_v c_v^2 + \sum_u r_u^2 - 2 \|w\|^2

    with sums c of columns and r of rows. In [0, 2 (n - 1)] where these are 1; 0 for a permutation.

    Args:
        weights: ``(..., n, n)`` float >= 0. Gradients flow.

    Returns:
        ``(...)``.
    """
    columns, rows = weights.sum(-2), weights.sum(-1)
    return (columns**2).sum(-1) + (rows**2).sum(-1) - 2 * (weights**2).sum((-2, -1))


def neighbor_pairs(height: int, width: int) -> int:
    """Return the number of ordered pairs of neighbors of a grid, diagonal ones too."""
    return 2 * (height * (width - 1) + width * (height - 1) + 2 * (height - 1) * (width - 1))


def assembly_coherence(weights: Tensor, maps: Tensor) -> Tensor:
    r"""How differently neighbors with like features move (Eq. 5.7, 5.8).

    .. math:: L = \frac{1}{\#} \sum_p \sum_{q \in \Omega_p} \alpha_{pq} \|W_p - S_{q - p} W_q\|

    with W_p what position p gives to each output position, S a shift by the way from q to p that brings in zeros,
    alpha the cosine of the features of p and q, no less than 0, and # the ordered pairs of neighbors. 0 where nothing
    moves, and for no other permutation if all features are alike.

    Args:
        weights: ``(b, n, n)`` float at [input, output], n = h w. Gradients flow.
        maps: ``(b, c, h, w)`` float, the features before the assembly; no gradient, or the loss would make neighbors
            different.

    Returns:
        ``(b,)``.

    Source:
        Eq. 5.8 lacks the sum over p; the cut at 0, the mean and the norm's 1e-12 are ours.
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
    """Return all positions of a grid with a neighbor di rows below and dj columns to the right, and these neighbors."""
    here = (slice(max(0, -di), height - max(0, di)), slice(max(0, -dj), width - max(0, dj)))
    there = (slice(max(0, di), height - max(0, -di)), slice(max(0, dj), width - max(0, -dj)))
    return here, there


def normalized_terms(weights: Tensor, log_weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return entropy and correlation over their largest values for n > 1 positions, (b,) each."""
    n = weights.shape[-1]
    return (
        assembly_entropy(log_weights) / (2 * n * math.log2(n)),
        assembly_correlation(weights) / (2 * (n - 1)),
    )


def insert_assembly(network: MetricNetwork, config: SANConfig) -> None:
    """Put the module of the options into a network.

    Raises:
        ConfigError: a stage that is not there or does nothing, or numbers that do not fit its maps.
    """

    def build(channels: int, grid: tuple[int, int]) -> SpatialAssembly:
        # numbers of its own, so that the rest of the network starts as without it
        with seeded_init(config.seed + 3):
            try:
                return SpatialAssembly(channels, grid, width=config.san_width, diagonal=config.san_diagonal)
            except ValueError as error:
                raise ConfigError(
                    "--san-before",
                    f"{config.san_before} of {config.backbone} has {grid[0]} x {grid[1]} positions: {error}",
                    "Choose a later stage or smaller images.",
                ) from error

    network.insert_assembly(config.san_before, build)


def term_strength(config: SANConfig, done: float) -> float:
    """Return how much the terms count, in [0, 1], after a share ``done`` of the training."""
    start, end = config.term_ramp
    if done >= end:
        return 1.0
    return max(0.0, (done - start) / (end - start))


def assembly_terms(config: SANConfig, seen: Assembly) -> dict[str, Tensor]:
    """Return entropy, correlation and coherence that have a weight, means over the batch."""
    terms: dict[str, Tensor] = {}
    if config.entropy_weight > 0 or config.correlation_weight > 0:
        terms["entropy"], terms["correlation"] = (
            term.mean() for term in normalized_terms(seen.weights, seen.log_weights)
        )
    if config.coherence_weight > 0:
        terms["coherence"] = assembly_coherence(seen.weights, seen.maps).mean()
    weights = {
        "entropy": config.entropy_weight,
        "correlation": config.correlation_weight,
        "coherence": config.coherence_weight,
    }
    return {name: term for name, term in terms.items() if weights[name] > 0}


def weighted_sum(config: SANConfig, terms: Mapping[str, Tensor], predictor: nn.Module) -> Tensor:
    """Return the sum of the terms, each with its weight; it trains what the options say."""
    total = sum((getattr(config, f"{name}_weight") * term for name, term in terms.items()), start=torch.zeros(()))
    return for_predictor_alone(total, predictor) if config.term_gradients == "predictor" else total


def for_predictor_alone(total: Tensor, predictor: nn.Module) -> Tensor:
    """Return a sum of terms that trains the predictor, not the network whose maps it saw.

    Args:
        total: ``()``, made of what the predictor gave.
        predictor: the module of the assembly.

    Returns:
        the same value, with the same gradients for the parameters of the predictor, and none for anything else.
    """
    if not total.requires_grad:
        return total
    parameters = [parameter for parameter in predictor.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(total * _GRADIENT_SCALE, parameters, retain_graph=True, allow_unused=True)
    linear = total.new_zeros(())
    for parameter, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            linear = linear + (parameter * (gradient / _GRADIENT_SCALE)).sum()
    return total.detach() + (linear - linear.detach())


class AssemblyDiagnostics:
    """Looks at what the assembly does to a few images of the training set, without augmentation.

    ``diagonal``: mean share that stays in place; ``sources``: 2 to the mean entropy of a column, how many positions an
    output is made of; ``row_error``: largest difference of a row's sum from 1; ``entropy``, ``correlation``,
    ``coherence``: the terms; ``move``: mean way in cells to the output that gets most; ``effect``: mean distance of the
    embeddings with and without it; ``variance``: variance of the weights over the images, summed over outputs, mean
    over inputs.

    Args:
        config: of the run.
    """

    def __init__(self, config: SANConfig) -> None:
        self._config = config
        self._warned: set[str] = set()

    def __call__(self, network: MetricNetwork, state: TrainState, rows: NDArray[np.int64]) -> dict[str, float]:
        """Return the numbers by name; warn once each when the module does nothing."""
        count = min(LOOKED_AT, len(rows))
        chosen = np.sort(keyed_generator(self._config.seed, "assembly diagnostics").choice(rows, count, replace=False))
        table = state.embed(lambda images: _measure(network, images), chosen)
        found = dict(zip(_SCALARS, table[:, : len(_SCALARS)].double().mean(0).tolist(), strict=True))
        found["sources"] = float(2 ** table[:, 1].double().mean())
        found["row_error"] = float(table[:, 2].max())
        assert network.assembly is not None
        n = network.assembly.grid[0] * network.assembly.grid[1]
        weights = table[:, len(_SCALARS) :].reshape(count, n, n)
        found["variance"] = float(weights.var(0, unbiased=False).sum(1).mean())
        for kind, text in _warnings(found).items():
            if kind not in self._warned:
                self._warned.add(kind)
                state.warn(f"warning: {text}")
        return {f"assembly/{name}": value for name, value in found.items()}


def _measure(network: MetricNetwork, images: Tensor) -> Tensor:
    """Numbers of each image, then its weights: (b, 8 + n n)."""
    output = network(images)
    with network.without_assembly():
        still = network(images)
    seen = output.assembly
    weights, (height, width) = seen.weights, seen.grid
    n = height * width
    entropy, correlation = normalized_terms(weights, seen.log_weights)
    coherence = assembly_coherence(weights, seen.maps)
    columns = torch.special.entr(weights).sum(1).mean(1) / np.log(2)
    place = torch.arange(n, device=weights.device)
    best = weights.argmax(2)
    way = ((best // width - place // width) ** 2 + (best % width - place % width) ** 2).float().sqrt().mean(1)
    numbers = [
        weights.diagonal(dim1=1, dim2=2).mean(1),
        columns,
        (weights.sum(2) - 1).abs().amax(1),
        entropy,
        correlation,
        coherence,
        way,
        (output.embeddings - still.embeddings).norm(dim=1),
    ]
    return torch.cat([torch.stack(numbers, 1), weights.flatten(1)], dim=1)


def _warnings(found: Mapping[str, float]) -> dict[str, str]:
    texts = {}
    if found["diagonal"] > INACTIVE_DIAGONAL or found["effect"] < INACTIVE_EFFECT:
        texts["inactive"] = (
            f"the assembly does next to nothing ({percent(found['diagonal'])} % stays in place, embeddings move by "
            f"{found['effect']:.2g}): lower the weights of its terms or --san-diagonal"
        )
    if found["variance"] < STATIC_VARIANCE:
        texts["static"] = (
            f"the assembly is the same for all images (variance {found['variance']:.1g}): raise --san-lr-scale or "
            "lower --san-diagonal"
        )
    if found["row_error"] > UNEVEN_ROWS:
        texts["rows"] = f"rows of the assembly sum to 1 up to {found['row_error']:.2g} only: lower --san-lr-scale"
    return texts
