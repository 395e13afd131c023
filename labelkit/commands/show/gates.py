"""Spatial gates of a network with attention (TAC-CCL) in two views of each image, and how much they agree."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from labelkit.algorithms.attention import carry_map, map_correlation
from labelkit.commands.common.networks import TrainedRun
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.show.images import as_pixels, class_name, shown_images, training_views
from labelkit.commands.show.options import ShowAttentionConfig
from labelkit.errors import CheckpointError, ConfigError
from labelkit.methods.metric.matched_images import second_view
from labelkit.methods.metric.networks import MetricNetwork
from labelkit.methods.metric.recipe import train_view
from labelkit.methods.metric.tac_ccl_options import TACCCLConfig
from labelkit.progress import current_progress
from labelkit.training.devices import Runtime

_NOTE = (
    "Spatial gate of the network, blue to yellow: least to most in the maps of one row.\n"
    "r: correlation of the first view's map with the second's, carried to the places that both show."
)


def show_gates(config: ShowAttentionConfig, run: TrainedRun) -> SimpleResult:
    """Draw the spatial gates of a few images in two views, and measure their agreement.

    The views are those of the method's training, also where it was trained without second views; drawn by the seed.

    Raises:
        ConfigError: an option that only networks with blocks have, or rows that are not there.
        CheckpointError: the network has no gate.
        DatasetError: the images are not there or cannot be read.
    """
    network, own = run.method.network, run.config
    if not isinstance(network, MetricNetwork) or network.attention is None:
        raise CheckpointError(
            str(run.folder), "its network has no attention to show", "Pass a run of `labelkit train tac-ccl`."
        )
    if config.block is not None:
        raise ConfigError("--block", "is for vision transformers; this network has one gate", "Remove it.")
    assert isinstance(own, TACCCLConfig)
    device = Runtime(device=config.device).device
    network.to(device).eval()
    first = train_view(own, run.method.data, network.input_spec.size)
    views = (first, second_view(own, run.method.data, first))
    from labelkit.commands.common.images.plots import Panel, write_panels  # matplotlib takes a second to load

    described: list[dict[str, object]] = []
    cells: list[list[Cell]] = []
    drawn: list[list[Any]] = []
    chosen = shown_images(config, run)
    with current_progress().task("attention", total=len(chosen)) as task:
        for name, dataset, row in chosen:
            batch = training_views(run, views, dataset, np.array([row]), config.seed, device)
            with torch.no_grad():
                gates = [network(view).attention for view in batch.views]
            carried, visible = carry_map(gates[1], batch.geometry[1].matrices, batch.geometry[0].matrices)
            correlation, label = float(map_correlation(gates[0], carried, visible)), class_name(dataset, row)
            described.append({"image": name, "label": label, "correlation": correlation})
            cells.append([name, label, correlation])
            pixels = [as_pixels(view, run.method) for view in batch.views]
            limits = (float(torch.cat(gates).min()), float(torch.cat(gates).max()) + 1e-6)
            maps = [found[0].cpu().numpy() for found in (*gates, torch.where(visible, carried, torch.nan))]
            drawn.append(
                [
                    Panel(pixels[0], lines=(name, *([label] if label is not None else []))),
                    Panel(pixels[1]),
                    Panel(pixels[0], maps[0], limits),
                    Panel(pixels[1], maps[1], limits),
                    Panel(pixels[0], maps[2], limits, (f"r {correlation:.3f}",)),
                ]
            )
            task.advance()
    headings = ["first view", "second view", "gate\nfirst", "gate\nsecond", "gate\nsecond, carried"]
    write_panels(config.out, headings, drawn, note=_NOTE)
    title = "correlation of attention in two views, at the places that both show"
    values: dict[str, object] = {
        "picture": config.out,
        "checkpoint": run.source,
        "method": own.command[1],
        "seed": config.seed,
        "images": described,
    }
    return SimpleResult(values, (config.out,), (Table(title, ["image", "label", "correlation"], cells),))
