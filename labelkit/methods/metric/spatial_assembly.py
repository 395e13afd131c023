"""What SAN needs around its network: the module from options, its terms of the loss, and what it does, in numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError
from labelkit.formatting import percent
from labelkit.methods.metric.assembly_loss import assembly_coherence, normalized_terms
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


def insert_assembly(network: MetricNetwork, config: SANConfig) -> None:
    """Put the module of the options into a network.

    Raises:
        ConfigError: a stage that is not there or does nothing, or numbers that do not fit its maps.
    """

    def build(channels: int, grid: tuple[int, int]) -> SpatialAssembly:
        # numbers of its own, so that the rest of the network starts as without it
        with seeded_init(config.seed + 3):
            try:
                return SpatialAssembly(
                    channels,
                    grid,
                    width=config.san_width,
                    diagonal=config.san_diagonal,
                    kind=config.san_assembly,
                )
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
