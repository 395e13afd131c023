"""Pictures of the object-aware filter of a CoTAP run: where in an image each of its prototypes is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit.commands.common.networks import TrainedRun, load_run
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.show.images import (
    as_pixels,
    network_input,
    shown_images,
)
from labelkit.commands.show.options import ShowPrototypesConfig
from labelkit.data.datasets import ImageDataset
from labelkit.errors import CheckpointError
from labelkit.methods.dense.cotap_network import DenseNetwork
from labelkit.training.compute_device import compute_device

# Prototypes that are drawn: those with most attention in these images.
_NUM_PROTOTYPES = 6
_NOTE = (
    "Attention of each patch to a prototype of the object-aware filter, mean over heads,\n"
    "blue to yellow: 0 to the largest of the row. Most attention first."
)


def show_prototypes(config: ShowPrototypesConfig) -> SimpleResult:
    """Draw where the patches of a few images attend to the prototypes with the most attention.

    Raises:
        ConfigError: a row that is not there, or a picture that is and may not be replaced.
        CheckpointError: the run cannot be used, or its network has no such filter.
        DatasetError: the images are not there or cannot be read.
    """
    run = load_run(config.checkpoint, config.which)
    network = run.method.main_network()
    if not isinstance(network, DenseNetwork) or network.filter is None:
        problem = "its network has no object-aware filter, so there are no prototypes to show"
        raise CheckpointError(str(run.folder), problem, "Pass a run of `labelkit train cotap` with the filter on.")
    listed = shown_images(config, run)
    views, maps = _look(network.to(compute_device(config.device)).eval(), run, listed)
    total = np.mean([found.mean(axis=(0, 1)) for found in maps], axis=0)
    order = np.argsort(-total, kind="stable")[:_NUM_PROTOTYPES]
    from labelkit.commands.common.images.plots import Panel, write_panels  # matplotlib takes a second to load

    drawn: list[list[Any]] = []
    described: list[dict[str, object]] = []
    cells: list[list[Cell]] = []
    for (name, _, _), view, found in zip(listed, views, maps, strict=True):
        limits = (0.0, max(float(found[:, :, order].max()), 1e-6))
        means = found.mean(axis=(0, 1))
        text = "".join(character if character.isprintable() else "?" for character in name)[-24:]
        heats = [Panel(view, found[:, :, p], limits, (f"mean {means[p]:.3f}",)) for p in order]
        drawn.append([Panel(view, lines=(text,)), *heats])
        described.append({"image": name, "attention": {int(p): float(means[p]) for p in order}})
        cells.append([name, int(means.argmax()), float(means.max()), float(found.max())])
    write_panels(config.out, ["image", *(f"prototype {p}" for p in order)], drawn, note=_NOTE)
    values: dict[str, object] = {
        "picture": config.out,
        "checkpoint": run.source,
        "num_prototypes": len(total),
        "prototypes": [int(p) for p in order],
        "images": described,
    }
    shown = (
        Table(
            f"attention to {len(total)} prototypes (even: {1 / len(total):.3f})",
            ["image", "most found", "its mean", "largest"],
            cells,
        ),
    )
    return SimpleResult(values, (config.out,), shown)


def _look(
    network: DenseNetwork, run: TrainedRun, listed: list[tuple[str, ImageDataset, int]]
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """Return each image as pixels (h, w, c) in [0, 1], and its attention (rows, cols, m) to the prototypes."""
    views, maps = [], []
    for _, images, row in listed:
        view = network_input(run, images, row, next(network.parameters()).device)
        with torch.inference_mode():
            attention = network.prototype_attention(view)[0].mean(dim=0).float()
        maps.append(attention.cpu().numpy())
        views.append(as_pixels(view, run.method))
    return views, maps
