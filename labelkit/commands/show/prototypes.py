"""Pictures of the object-aware filter of a CoTAP run: where in an image each of its prototypes is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit.commands.common.images.read import one_image
from labelkit.commands.common.networks import TrainedRun, load_run
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.show.images import image_channels, shown_dataset, shown_rows
from labelkit.commands.show.options import ShowPrototypesConfig
from labelkit.data.datasets import ImageDataset
from labelkit.data.loaders import EvalLoader
from labelkit.data.views.spec import Normalize
from labelkit.errors import CheckpointError, DatasetError
from labelkit.methods.dense.cotap_network import DenseNetwork
from labelkit.training.compute_device import compute_device

# Prototypes that are drawn: those with most attention in these images.
_NUM_PROTOTYPES = 6
_NOTE = (
    "Attention of each patch to a prototype of the object-aware filter, mean over heads,\n"
    "blue to yellow: 0 to the largest of the row. Most attention first."
)


def show_prototypes(config: ShowPrototypesConfig) -> SimpleResult:
    """Draw the attention of the patches of a few images to the prototypes with most of it.

    Raises:
        ConfigError: a row that is not there, or a picture that is and may not be replaced.
        CheckpointError: the run cannot be used, or its network has no such filter.
        DatasetError: the images are not there or cannot be read.
    """
    run = load_run(config.checkpoint, config.which)
    network = run.method.headline()
    if not isinstance(network, DenseNetwork) or network.filter is None:
        problem = "its network has no object-aware filter, so that there are no prototypes to show"
        raise CheckpointError(str(run.folder), problem, "Give a run of `labelkit train cotap` with the filter on.")
    if config.image is not None:
        listed: list[tuple[ImageDataset, int]] = [(one_image(path), 0) for path in config.image]
    else:
        dataset = shown_dataset(config, run)
        listed = [(dataset, int(row)) for row in shown_rows(config, run, dataset)]
    views, maps = _look(network.to(compute_device(config.device)).eval(), run, listed)
    total = np.mean([found.mean(axis=(0, 1)) for found in maps], axis=0)
    order = np.argsort(-total, kind="stable")[:_NUM_PROTOTYPES]
    from labelkit.commands.common.images.plots import Panel, write_panels  # matplotlib takes a second to load

    drawn: list[list[Any]] = []
    described: list[dict[str, object]] = []
    cells: list[list[Cell]] = []
    for (images, row), view, found in zip(listed, views, maps, strict=True):
        name = images.sample_ids[row]
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
    network: DenseNetwork, run: TrainedRun, listed: list[tuple[ImageDataset, int]]
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    """Return each image as pixels (h, w, c) in [0, 1], and its attention (rows, cols, m) to the prototypes.

    Raises:
        DatasetError: an image cannot be read.
    """
    spec = network.input_spec
    mean, std = (np.array(value, dtype=np.float32) for value in (spec.mean, spec.std))
    views, maps = [], []
    for images, row in listed:
        loader = EvalLoader(
            images,
            run.method.eval_view(),
            rows=[row],
            batch_size=1,
            normalize=Normalize(spec.mean, spec.std),
            channels=image_channels(run.method),
            device=next(network.parameters()).device,
        )
        batch = next(iter(loader))
        if batch.bad:
            raise DatasetError(images.sample_ids[row], f"cannot be read: {batch.bad[0][1]}", "Choose another one.")
        with torch.inference_mode():
            attention = network.prototype_attention(batch.images)[0].mean(dim=0).float()
        maps.append(attention.cpu().numpy())
        views.append(np.clip(batch.images[0].permute(1, 2, 0).cpu().numpy() * std + mean, 0, 1))
    return views, maps
