"""Arguments for building a method's backbone from options and data, or the head in its place on stored embeddings."""

from __future__ import annotations

import torch

from labelkit.data.batch import DataInfo
from labelkit.data.views.spec import RowView, ViewSpec
from labelkit.models.inference import BackboneOptions
from labelkit.models.row_layers import EmbeddingMLPShape
from labelkit.options.backbone import BackboneOptions as BackboneConfig
from labelkit.options.backbone import FreezeOptions, PixelOptions
from labelkit.options.embeddings import RowOptions, StrongRowOptions
from labelkit.options.training import RunConfig


def get_embedding_input_shape(config: RunConfig, data: DataInfo) -> EmbeddingMLPShape | None:
    """Return the input shape for a head that trains on stored embeddings, or ``None`` when training on images."""
    if data.row_dim is None or not isinstance(config, RowOptions):
        return None
    center = None if data.row_center is None else torch.from_numpy(data.row_center)
    return EmbeddingMLPShape(data.row_dim, config.head_layers, config.head_width, center)


def row_views(config: RunConfig, data: DataInfo) -> tuple[ViewSpec, ViewSpec] | None:
    """Return the weak and the strong view of stored embeddings, or ``None`` when training on images.

    The weak one only adds noise. If the store has views, both are stored ones: a store keeps views of one kind.
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
    """Collect the keyword arguments for building the backbone from the data and the options of a method."""
    assert isinstance(config, BackboneConfig)
    found: BackboneOptions = {
        "in_channels": data.in_channels,
        "image_size": config.image_size,
        "pretrained": config.pretrained and config.weights is None,
        "weights": config.weights,
        "rows": get_embedding_input_shape(config, data),
    }
    if isinstance(config, PixelOptions):
        found |= {"mean": config.pixel_mean, "std": config.pixel_std}
    if isinstance(config, FreezeOptions):
        found["freeze_stages"] = config.freeze_stages
    return found
