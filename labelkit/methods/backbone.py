"""What methods ask alike of the backbone that they train, out of their options."""

from __future__ import annotations

from labelkit.config.backbone import BackboneOptions as BackboneConfig
from labelkit.config.backbone import BackboneRunConfig
from labelkit.config.freezing import FreezeOptions
from labelkit.config.train import RunConfig
from labelkit.data.batch import DataInfo
from labelkit.methods.rows import row_shape
from labelkit.models.inference import BackboneOptions


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
    if isinstance(config, BackboneRunConfig):
        found |= {"mean": config.pixel_mean, "std": config.pixel_std}
    if isinstance(config, FreezeOptions):
        found["freeze_stages"] = config.freeze_stages
    return found
