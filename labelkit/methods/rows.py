"""What methods build alike that train on rows of a store: the shape of the head, and two views of a row."""

from __future__ import annotations

import torch

from labelkit.config.rows import RowOptions
from labelkit.config.train import RunConfig
from labelkit.data.batch import DataInfo
from labelkit.data.views.spec import RowView, ViewSpec
from labelkit.models.row_layers import RowShape


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
    strong = RowView(noise=config.row_noise, dropout=config.row_dropout, mix=config.row_mix)
    return ViewSpec(1, row=weak), ViewSpec(1, row=strong)
