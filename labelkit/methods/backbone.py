"""What families share: the backbone that options ask for, what stands in its place on rows of a store, the classes."""

from __future__ import annotations

import torch

from labelkit.data.batch import DataInfo
from labelkit.data.views.spec import RowView, ViewSpec
from labelkit.errors import ConfigError, DatasetError
from labelkit.models.inference import BackboneOptions
from labelkit.models.row_layers import RowShape
from labelkit.options.backbone import BackboneOptions as BackboneConfig
from labelkit.options.backbone import FreezeOptions, PixelOptions
from labelkit.options.embeddings import RowOptions, StrongRowOptions
from labelkit.options.training import RunConfig


def row_shape(config: RunConfig, data: DataInfo) -> RowShape | None:
    """Return what the head is made for; ``None`` where images are trained on."""
    if data.row_dim is None or not isinstance(config, RowOptions):
        return None
    center = None if data.row_center is None else torch.from_numpy(data.row_center)
    return RowShape(data.row_dim, config.head_layers, config.head_width, center)


def row_views(config: RunConfig, data: DataInfo) -> tuple[ViewSpec, ViewSpec] | None:
    """Return the weak view, which has noise alone, and the strong one; ``None`` where images are trained on.

    Where views are stored, both are one of these: a store keeps views of one kind.
    """
    if data.row_dim is None or not isinstance(config, RowOptions):
        return None
    if data.num_row_views:
        stored = ViewSpec(1, row=RowView(stored=True))
        return stored, stored
    weak = RowView(noise=config.row_noise)
    strong = weak
    if isinstance(config, StrongRowOptions):
        strong = RowView(noise=config.row_noise, dropout=config.row_dropout, mix=config.row_mix)
    return ViewSpec(1, row=weak), ViewSpec(1, row=strong)


def backbone_options(config: RunConfig, data: DataInfo) -> BackboneOptions:
    """Return channels and size of the images, weights, and what else the options say of the backbone.

    Args:
        config: of a method that trains a backbone.
        data: says how many channels images have, or how wide rows of a store are.
    """
    assert isinstance(config, BackboneConfig)
    found: BackboneOptions = {
        "in_channels": data.in_channels,
        "image_size": config.image_size,
        "pretrained": config.pretrained and config.weights is None,
        "weights": config.weights,
        "rows": row_shape(config, data),
    }
    if isinstance(config, PixelOptions):
        found |= {"mean": config.pixel_mean, "std": config.pixel_std}
    if isinstance(config, FreezeOptions):
        found["freeze_stages"] = config.freeze_stages
    return found


def class_count(dataset: str, wanted: int | None, data: DataInfo) -> int:
    """Return the number of classes of a classifier: as asked for, or those of the data, with or without images.

    Args:
        dataset: its name, for messages.
        wanted: as asked for.
        data: the training labels.

    Raises:
        DatasetError: no image has a label that may be used, or there is a single class.
        ConfigError: fewer classes are asked for than have labels.
    """
    if not (data.labels >= 0).any():
        raise DatasetError(
            dataset,
            "no image has a label that training may use",
            "Give some with --labels FILE, or use a set that has them.",
        )
    num_classes = wanted or data.num_known_classes or data.num_old_classes
    if num_classes < 2:
        raise DatasetError(dataset, "has one class, so there is nothing to tell apart", "Use two at least.")
    if num_classes < data.num_old_classes:
        raise ConfigError(
            "--num-classes", f"{num_classes} is fewer than the {data.num_old_classes} classes with labels", "Raise it."
        )
    return num_classes
