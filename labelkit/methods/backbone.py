"""Code shared by several method families: backbone arguments, views of stored embeddings, and a kNN monitor."""

from typing import TypeVar

import torch

from labelkit.data.batch import DataInfo
from labelkit.data.views.recipes import plain_view
from labelkit.data.views.spec import EmbeddingView, ViewSpec
from labelkit.models.inference import BackboneOptions
from labelkit.models.row_layers import EmbeddingMLPConfig
from labelkit.options.backbone import BackboneOptions as BackboneConfig
from labelkit.options.backbone import FreezeOptions, PixelOptions
from labelkit.options.embeddings import EmbeddingInputOptions, StrongEmbeddingInputOptions
from labelkit.options.representation import RepresentationRunConfig
from labelkit.options.training import RunConfig
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, Monitor
from labelkit.training.monitors.representation import RepresentationMonitor

RepresentationConfigT = TypeVar("RepresentationConfigT", bound=RepresentationRunConfig)


def embedding_views(config: RunConfig, data: DataInfo) -> tuple[ViewSpec, ViewSpec] | None:
    """Return the weak and strong views of stored embeddings, or ``None`` when training on images.

    The weak view only adds noise. If the store contains views, both are stored views, since a store has only one kind.
    """
    if data.row_dim is None or not isinstance(config, EmbeddingInputOptions):
        return None
    if data.num_row_views:
        stored = ViewSpec(1, row=EmbeddingView(stored=True))
        return stored, stored
    weak = EmbeddingView(noise=config.row_noise)
    strong = weak
    if isinstance(config, StrongEmbeddingInputOptions):
        strong = EmbeddingView(noise=config.row_noise, dropout=config.row_dropout, mix=config.row_mix)
    return ViewSpec(1, row=weak), ViewSpec(1, row=strong)


def backbone_options(config: RunConfig, data: DataInfo) -> BackboneOptions:
    """Return the keyword arguments that build a method's backbone, given its options and data."""
    assert isinstance(config, BackboneConfig)
    rows = None
    if data.row_dim is not None and isinstance(config, EmbeddingInputOptions):
        center = None if data.row_center is None else torch.from_numpy(data.row_center)
        rows = EmbeddingMLPConfig(data.row_dim, config.head_layers, config.head_width, center)
    found: BackboneOptions = {
        "in_channels": data.in_channels,
        "image_size": config.image_size,
        "pretrained": config.pretrained and config.weights is None,
        "weights": config.weights,
        "rows": rows,
    }
    if isinstance(config, PixelOptions):
        found |= {"mean": config.pixel_mean, "std": config.pixel_std}
    if isinstance(config, FreezeOptions):
        found["freeze_stages"] = config.freeze_stages
    return found


class RepresentationMethod(Method[RepresentationConfigT]):
    """Base class for methods that learn a representation without labels."""

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Return the monitor that evaluates features on held-out images, and the clusterings, if there are any."""
        k, temperature = self.config.knn_neighbors, self.config.knn_temperature
        return RepresentationMonitor(inputs, len(self.data.class_names), k, temperature)

    def eval_view(self) -> ViewSpec:
        """Return the evaluation view: a center crop, or the whole image if the input size is small."""
        return plain_view(self.network.input_spec.size)
