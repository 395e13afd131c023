"""ZCA whitening in front of a student: built from options, fitted to the training images once."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit.config.few_labels import FewLabelTrainConfig, MeanTeacherOptions
from labelkit.engine.method import TrainState
from labelkit.errors import ConfigError
from labelkit.methods.few_labels.students import StudentNetwork
from labelkit.models.whitening import Whitening, zca


def is_whitened(config: FewLabelTrainConfig) -> bool:
    """Whether the options ask for it."""
    return isinstance(config, MeanTeacherOptions) and config.whitening == "zca"


def add_whitening(network: StudentNetwork, config: FewLabelTrainConfig) -> None:
    """Put whitening before the backbone if the options ask for it; noise of the views is added behind it.

    Raises:
        ConfigError: images that are too large.
    """
    if not is_whitened(config):
        return
    spec, info = network.input_spec, network.backbone.info
    shape = (info.in_channels, info.image_size, info.image_size)
    try:
        network.backbone.whitening = Whitening(shape, spec.mean, spec.std, config.noise)
    except ValueError as error:
        raise ConfigError("--whitening", str(error), "Lower --image-size, or leave it out.") from error


def fit_whitening(network: StudentNetwork, state: TrainState, rows: NDArray[np.int64]) -> None:
    """Fit the whitening to the training images, the same on every process.

    Args:
        network: whose whitening is fitted, if it has any.
        state: at the start of training.
        rows: images that can be read.
    """
    whitening = network.backbone.whitening
    if whitening is None:
        return
    center, matrix = zca(state.embed(whitening.contrasted, rows))
    table = torch.cat([center[None], matrix])
    table = state.combine(table if state.is_main else torch.zeros_like(table), "sum")
    whitening.fit_to(table[0], table[1:])
