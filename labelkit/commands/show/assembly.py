"""What a trained spatial assembly does with a few images: what moves where, and how much stays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from labelkit.commands.common.networks import load_run
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.show.images import (
    as_pixels,
    class_name,
    network_input,
    shown_images,
)
from labelkit.commands.show.options import ShowAssemblyConfig
from labelkit.errors import CheckpointError
from labelkit.methods.metric.networks import MetricNetwork
from labelkit.progress import current_progress
from labelkit.training.devices import Runtime

if TYPE_CHECKING:
    from labelkit.commands.common.images.plots import Panel

# Weight of a move that is drawn as an arrow, at least, and arrows of an image, the heaviest.
_MIN_WEIGHT, _MAX_ARROWS = 0.2, 12
_NOTE = (
    "Arrows: from where features are taken to where they are put (weights above --min-weight), the thicker the more.\n"
    "stays: share of the features of a position that stays there; sources: how many positions each output is made of."
)


# Row and column of the cells that features are taken from and put to, and the weight.
_Move = tuple[tuple[int, int], tuple[int, int], float]


def show_assembly(config: ShowAssemblyConfig) -> SimpleResult:
    """Draw how a trained spatial assembly moves the features of a few images, and report its statistics.

    Images are prepared as for embedding. The run is only read.

    Raises:
        ConfigError: a row or number of images that is not there, or a picture that is and may not be replaced.
        CheckpointError: the run cannot be used, or its network has no assembly.
        DatasetError: the images are not there or cannot be read.
    """
    run = load_run(config.checkpoint, config.which)
    network = run.method.network
    if not isinstance(network, MetricNetwork) or network.assembly is None:
        raise CheckpointError(
            str(run.folder), "its network has no assembly to show", "Pass a run of `labelkit train san` (not --no-san)."
        )
    runtime = Runtime(device=config.device)
    network.to(runtime.device)
    chosen = shown_images(config, run)
    from labelkit.commands.common.images.plots import Arrow, Panel, write_panels  # matplotlib takes a second to load

    height, width = network.assembly.grid
    described: list[dict[str, object]] = []
    cells: list[list[Cell]] = []
    drawn: list[list[Panel | None]] = []
    with current_progress().task("assembly", total=len(chosen)) as task:
        for name, dataset, row in chosen:
            view = network_input(run, dataset, row, runtime.device)
            pixels, called = as_pixels(view, run.method), class_name(dataset, row)
            weights, effect = _look(network, view)
            moves = _moves(weights, width)
            stays = weights.diagonal().reshape(height, width).numpy()
            # 2 to the entropy of what each output is made of
            made_of = torch.special.entr(weights).sum(0).div(np.log(2)).exp2().reshape(height, width).numpy()
            numbers = {
                "stays": float(stays.mean()),
                "sources": float(made_of.mean()),
                "way": float(np.mean([np.hypot(i - k, j - m) for (i, j), (k, m), _ in moves])) if moves else 0.0,
                "effect": effect,
            }
            listed = [{"from": list(a), "to": list(b), "weight": round(weight, 4)} for a, b, weight in moves]
            described.append({"image": name, "label": called, **numbers, "moves": listed})
            cells.append([name, called, *numbers.values(), len(moves)])
            # right and up, in [0, 1] of the panel
            ends = [[((j + 0.5) / width, 1 - (i + 0.5) / height) for i, j in move[:2]] for move in moves]
            arrows = tuple(Arrow(a, b, weight) for (a, b), (_, _, weight) in zip(ends, moves, strict=True))
            most = max(2.0, float(made_of.max()))
            drawn.append(
                [
                    Panel(pixels, lines=(Path(name).name[-24:], called or "")),
                    Panel(pixels, lines=(f"{len(moves)} moves",), arrows=arrows),
                    Panel(pixels, stays, (0.0, 1.0), (f"stays {numbers['stays']:.2f}",)),
                    Panel(pixels, made_of, (1.0, most), (f"sources {numbers['sources']:.1f}",)),
                ]
            )
            task.advance()
    write_panels(config.out, ("image", "moves", "stays", "sources"), drawn, note=_NOTE)
    values: dict[str, object] = {
        "picture": config.out,
        "checkpoint": run.source,
        "before": getattr(run.config, "san_before", None),
        "grid": list(network.assembly.grid),
        "images": described,
    }
    columns = ["image", "label", "stays", "sources", "way", "effect", "moves"]
    title = "share that stays; positions an output is made of; mean way of the moves in cells; change of the embedding"
    return SimpleResult(values, (config.out,), (Table(title, columns, cells),))


def _look(network: MetricNetwork, view: Tensor) -> tuple[Tensor, float]:
    """Return the weights (n, n) of the assembly for one image (1, c, h, w), and how far it moves the embedding."""
    with torch.no_grad():
        assembly = network(view).assembly
        embedding = network.embed(view)
        with network.without_assembly():
            effect = float((embedding - network.embed(view)).norm())
    assert assembly is not None
    return assembly.weights[0].cpu(), effect


def _moves(weights: Tensor, width: int) -> list[_Move]:
    """The heaviest weights off the diagonal, heaviest first."""
    values, places = weights.clone().fill_diagonal_(0).flatten().sort(descending=True)
    heaviest = zip(values[:_MAX_ARROWS].tolist(), places[:_MAX_ARROWS].tolist(), strict=True)
    found = [(*divmod(place, len(weights)), weight) for weight, place in heaviest]
    return [(divmod(a, width), divmod(b, width), weight) for a, b, weight in found if weight > _MIN_WEIGHT]
