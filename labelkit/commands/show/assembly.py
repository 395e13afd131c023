"""What a trained spatial assembly does with a few images: what moves where, and how much stays."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
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
from labelkit.methods.metric.assembly import Assembly
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


@dataclass(frozen=True)
class _Move:
    """One weight that is drawn; cells in rows of the grid."""

    source: int
    target: int
    weight: float


@dataclass(frozen=True)
class _Seen:
    """What the assembly does with one image.

    Attributes:
        grid: rows and columns of cells.
        moves: the heaviest.
        stays: (rows, columns), share that stays.
        sources: (rows, columns), positions that each output is made of.
        numbers: means of these, of the way of the moves, and the change of the embedding.
    """

    grid: tuple[int, int]
    moves: list[_Move]
    stays: NDArray[np.float32]
    sources: NDArray[np.float32]
    numbers: dict[str, float]

    def listed_moves(self) -> list[dict[str, object]]:
        """Return the moves with the row and column of their source and target cells, as JSON."""
        width = self.grid[1]
        return [
            {
                "from": list(divmod(move.source, width)),
                "to": list(divmod(move.target, width)),
                "weight": round(move.weight, 4),
            }
            for move in self.moves
        ]


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
    from labelkit.commands.common.images.plots import write_panels  # matplotlib takes a second to load

    described: list[dict[str, object]] = []
    cells: list[list[Cell]] = []
    drawn: list[list[Panel | None]] = []
    with current_progress().task("assembly", total=len(chosen)) as task:
        for name, dataset, row in chosen:
            view = network_input(run, dataset, row, runtime.device)
            seen, pixels, called = _look(network, view), as_pixels(view, run.method), class_name(dataset, row)
            described.append({"image": name, "label": called, **seen.numbers, "moves": seen.listed_moves()})
            cells.append([name, called, *seen.numbers.values(), len(seen.moves)])
            drawn.append(_panels(seen, pixels, (Path(name).name[-24:], called or "")))
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


def _look(network: MetricNetwork, view: Tensor) -> _Seen:
    """What the assembly does with one image (1, c, h, w)."""
    with torch.no_grad():
        assembly = network(view).assembly
        embedding = network.embed(view)
        with network.without_assembly():
            effect = float((embedding - network.embed(view)).norm())
    assert assembly is not None
    moves = _moves(assembly, _MIN_WEIGHT, _MAX_ARROWS)
    stays, sources = _maps(assembly)
    numbers = {
        "stays": float(stays.mean()),
        "sources": float(sources.mean()),
        "way": float(np.mean([_way(assembly, move) for move in moves])) if moves else 0.0,
        "effect": effect,
    }
    return _Seen(assembly.grid, moves, stays, sources, numbers)


def _panels(seen: _Seen, pixels: NDArray[np.float32], lines: tuple[str, str]) -> list[Panel | None]:
    """A row of the picture: the image, what moves, what stays, how many sources."""
    from labelkit.commands.common.images.plots import Arrow, Panel  # matplotlib takes a second to load

    height, width = seen.grid
    arrows = tuple(
        Arrow(_center(move.source, height, width), _center(move.target, height, width), move.weight)
        for move in seen.moves
    )
    most = max(2.0, float(seen.sources.max()))
    return [
        Panel(pixels, lines=lines),
        Panel(pixels, lines=(f"{len(seen.moves)} moves",), arrows=arrows),
        Panel(pixels, seen.stays, (0.0, 1.0), (f"stays {seen.numbers['stays']:.2f}",)),
        Panel(pixels, seen.sources, (1.0, most), (f"sources {seen.numbers['sources']:.1f}",)),
    ]


def _moves(seen: Assembly, min_weight: float, most: int) -> list[_Move]:
    """The heaviest weights off the diagonal, heaviest first."""
    weights = seen.weights[0].cpu().clone().fill_diagonal_(0)
    values, places = weights.flatten().sort(descending=True)
    n = len(weights)
    found = [
        _Move(int(place) // n, int(place) % n, float(value))
        for value, place in zip(values[:most], places[:most], strict=True)
    ]
    return [move for move in found if move.weight > min_weight]


def _maps(seen: Assembly) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """What stays at each position, and 2 to the entropy of what each output is made of."""
    weights = seen.weights[0].cpu()
    sources = torch.special.entr(weights).sum(0).div(np.log(2)).exp2()
    return weights.diagonal().reshape(seen.grid).numpy(), sources.reshape(seen.grid).numpy()


def _way(seen: Assembly, move: _Move) -> float:
    """Length of a move in cells."""
    width = seen.grid[1]
    (i, j), (k, m) = divmod(move.source, width), divmod(move.target, width)
    return float(np.hypot(i - k, j - m))


def _center(cell: int, height: int, width: int) -> tuple[float, float]:
    """Center of a cell in the panel: right and up, in [0, 1]."""
    i, j = divmod(cell, width)
    return (j + 0.5) / width, 1 - (i + 0.5) / height
