"""Attention maps of a convolutional network with a spatial gate, in pairs of views: does attention move with the image?

The number for it: the correlation of the map of a view with that of its transformed view, carried back to the places
they share; of the trained network and of the one that training began with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelkit.algorithms.attention import carry_map, map_correlation
from labelkit.commands.common.networks import TrainedRun
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.show.images import (
    as_pixels,
    class_name,
    shown_dataset,
    shown_images,
    training_views,
)
from labelkit.commands.show.options import ShowAttentionConfig
from labelkit.data.batch import Batch
from labelkit.errors import CheckpointError, ConfigError
from labelkit.methods.metric.matched_images import second_view
from labelkit.methods.metric.networks import MetricNetwork
from labelkit.methods.metric.recipe import train_view
from labelkit.methods.metric.tac_ccl_options import TACCCLConfig
from labelkit.methods.registry import METHODS
from labelkit.progress import current_progress
from labelkit.training.devices import Runtime

_MEASURED = 256
_BATCH = 32
_NOTE = (
    "Spatial gate of the network, blue to yellow: least to most in the maps of one row.\n"
    "r: correlation of the first view's map with the second's, carried to the places that both show."
)


@dataclass(frozen=True)
class _Pair:
    """Maps of one image in two views, (h, w) each, and how much they agree."""

    first: Tensor
    second: Tensor
    carried: Tensor
    visible: Tensor
    correlation: float


def show_gates(config: ShowAttentionConfig, run: TrainedRun) -> SimpleResult:
    """Draw the spatial gates of a few images in two views, and measure their agreement on up to 256 images.

    The views are those of the method's training, also where it was trained without second views; drawn by the seed.

    Raises:
        ConfigError: an option that only networks with blocks have, or rows that are not there.
        CheckpointError: the network has no gate.
        DatasetError: the images are not there or cannot be read.
    """
    network = run.method.network
    if not isinstance(network, MetricNetwork) or network.attention is None:
        raise CheckpointError(
            str(run.folder), "its network has no attention to show", "Pass a run of `labelkit train tac-ccl`."
        )
    for option, given in (("--block", config.block is not None), ("--heads", config.heads)):
        if given:
            raise ConfigError(option, "is for vision transformers; this network has one gate", "Remove it.")
    runtime = Runtime(device=config.device)
    begun = _untrained(run)
    shown, measured = _views(config, run, runtime)
    networks = {} if begun is None else {"begun": begun.to(runtime.device)}
    networks["trained"] = network.to(runtime.device)
    means, num_measured = _agreement(networks, measured)
    from labelkit.commands.common.images.plots import write_panels  # matplotlib takes a second to load

    described: list[dict[str, object]] = []
    cells: list[list[Cell]] = []
    drawn: list[list[Any]] = []
    for name, label, batch in shown:
        pairs = {kind: _look(net, batch)[0] for kind, net in networks.items()}
        numbers = {kind: pair.correlation for kind, pair in pairs.items()}
        described.append({"image": name, "label": label, "correlation": numbers})
        cells.append([name, label, numbers.get("begun"), numbers["trained"]])
        drawn.append(_row(run, name, label, batch, pairs))
    cells.append([f"mean of {num_measured} images", None, means["begun"], means["trained"]])
    headings = ["first view", "second view"]
    for kind in networks:
        word = "trained" if kind == "trained" else "before training"
        headings += [f"{word}\nfirst", f"{word}\nsecond", f"{word}\nsecond, carried"]
    write_panels(config.out, headings, drawn, note=_NOTE)
    tables = (
        Table(
            "correlation of attention in two views, at the places that both show",
            ["image", "label", "before training", "trained"],
            cells,
        ),
    )
    values_out: dict[str, object] = {
        "picture": config.out,
        "checkpoint": run.source,
        "method": run.config.command[1],
        "seed": config.seed,
        "correlation": {"images": num_measured, **means},
        "images": described,
    }
    return SimpleResult(values_out, (config.out,), tables)


def _views(
    config: ShowAttentionConfig, run: TrainedRun, runtime: Runtime
) -> tuple[list[tuple[str, str | None, Batch]], list[Batch]]:
    """Return what is drawn, with name and label, and what is measured."""
    own, size = run.config, run.method.network.input_spec.size
    assert isinstance(own, TACCCLConfig)
    first = train_view(own, run.method.data, size)
    views = (first, second_view(own, run.method.data, first))
    made = partial(training_views, run, views, seed=config.seed, device=runtime.device)
    shown = [
        (name, class_name(dataset, row), made(dataset, np.array([row])))
        for name, dataset, row in shown_images(config, run)
    ]
    if config.image is not None:
        return shown, [batch for _, _, batch in shown]
    dataset = shown_dataset(config, run)
    every = np.arange(len(dataset))[:: max(1, math.ceil(len(dataset) / _MEASURED))]
    parts = np.array_split(every, range(_BATCH, len(every), _BATCH))
    return shown, [made(dataset, part, skip_bad=True) for part in parts]


def _agreement(networks: Mapping[str, MetricNetwork], measured: Sequence[Batch]) -> tuple[dict[str, float | None], int]:
    """Return the mean correlation of each network, ``None`` if there is none, and the images of the trained one."""
    means: dict[str, float | None] = {"begun": None}
    known: list[float] = []
    with current_progress().task("attention", total=len(networks) * len(measured)) as task:
        for name, network in networks.items():
            values = []
            for batch in measured:
                values += [pair.correlation for pair in _look(network, batch)]
                task.advance()
            known = [value for value in values if not math.isnan(value)]
            means[name] = float(np.mean(known)) if known else None
    # the trained network is the last one
    return means, len(known)


def _untrained(run: TrainedRun) -> MetricNetwork | None:
    """The network that training began with; ``None`` if it began with weights from elsewhere."""
    config: Any = run.config
    if config.pretrained or config.weights is not None or config.init_from is not None:
        return None
    network = METHODS[config.command[1]].load()(config, run.method.data).network
    assert isinstance(network, MetricNetwork)
    return network.eval()


@torch.no_grad()
def _look(network: MetricNetwork, batch: Batch) -> list[_Pair]:
    """The gates of a batch of pairs."""
    network.eval()
    first, second = (network(view).attention for view in batch.views)
    assert first is not None
    assert second is not None
    carried, visible = carry_map(second, batch.geometry[1].matrices, batch.geometry[0].matrices)
    found = map_correlation(first, carried, visible).tolist()
    return [_Pair(*maps) for maps in zip(first.cpu(), second.cpu(), carried.cpu(), visible.cpu(), found, strict=True)]


def _row(run: TrainedRun, name: str, label: str | None, batch: Batch, pairs: dict[str, _Pair]) -> list[Any]:
    """One row of the picture."""
    from labelkit.commands.common.images.plots import Panel  # matplotlib takes a second to load

    views = [as_pixels(view, run.method) for view in batch.views]
    panels = [Panel(views[0], lines=(name, *([label] if label is not None else []))), Panel(views[1])]
    for pair in pairs.values():
        maps = [pair.first, pair.second, torch.where(pair.visible, pair.carried, torch.nan)]
        known = torch.cat([pair.first.flatten(), pair.second.flatten()])
        limits = (float(known.min()), max(float(known.max()), float(known.min()) + 1e-6))
        lines: list[tuple[str, ...]] = [(), (), (f"r {pair.correlation:.3f}",)]
        shown = [views[0], views[1], views[0]]
        panels += [Panel(view, heat.numpy(), limits, line) for view, heat, line in zip(shown, maps, lines, strict=True)]
    return panels
