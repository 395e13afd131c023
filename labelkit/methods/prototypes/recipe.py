"""What classifiers that train on labels build and ask for in the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import DataInfo
from labelkit.data.views.recipes import classification_view, test_view
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import ConfigError, DatasetError
from labelkit.methods.backbone import backbone_options, row_views
from labelkit.methods.prototypes.losses import balancing_weights
from labelkit.methods.prototypes.options import SupervisedTrainConfig
from labelkit.models.classifier_network import ClassifierNetwork
from labelkit.models.frozen_part import KeptPart
from labelkit.training.method import TrainState

HeadT = TypeVar("HeadT", bound=nn.Module)


def check_supervised_data(config: SupervisedTrainConfig, data: DataInfo) -> int:
    """Return the number of classes: as asked for, or those of the data, with or without images.

    Raises:
        DatasetError: no image has a label that may be used, or there is a single class.
        ConfigError: fewer classes are asked for than have labels.
    """
    if not (data.labels >= 0).any():
        raise DatasetError(
            config.dataset,
            "no image has a label that training may use",
            "Give some with --labels FILE, or use a set that has them.",
        )
    num_classes = config.num_classes or data.num_known_classes or data.num_old_classes
    if num_classes < 2:
        raise DatasetError(config.dataset, "has one class, so there is nothing to tell apart", "Use two at least.")
    if num_classes < data.num_old_classes:
        raise ConfigError(
            "--num-classes", f"{num_classes} is fewer than the {data.num_old_classes} classes with labels", "Raise it."
        )
    return num_classes


def build_classifier(
    config: SupervisedTrainConfig, data: DataInfo, num_classes: int, head: Callable[[int], HeadT]
) -> ClassifierNetwork[HeadT]:
    """Build backbone, embedding and head."""
    return ClassifierNetwork(
        config.backbone,
        head,
        num_classes,
        embed_dim=config.embed_dim,
        embedding_bn=config.embedding_bn,
        **backbone_options(config, data),
        seed=config.seed,
    )


def reuse_stages(config: SupervisedTrainConfig, network: ClassifierNetwork[Any]) -> KeptPart:
    """Let the network take what its frozen stages made of views.

    Raises:
        ConfigError: no stage is frozen, or images are mixed.
    """
    if config.mixup_alpha > 0:
        problem = "--mixup-alpha mixes images, and maps are kept"
        raise ConfigError("--reuse-frozen", problem, "Leave one of them out.")
    return network.backbone.reuse_frozen()


def labeled_rows(rows: NDArray[np.int64], data: DataInfo) -> NDArray[np.int64]:
    """Rows that can be read and have a label."""
    return rows[data.labels[rows] >= 0]


def train_view(config: SupervisedTrainConfig, data: DataInfo, size: int) -> ViewSpec:
    """How an image is prepared for training."""
    of_rows = row_views(config, data)
    return of_rows[1] if of_rows else classification_view(size, config.augmentation, chiral=data.chiral)


def eval_view(config: SupervisedTrainConfig, size: int) -> ViewSpec:
    """How an image is prepared for scoring: its center if training cuts boxes, else all of it."""
    return test_view(size, "generic" if config.augmentation.startswith("imagenet") else "digits")


class ClassWeights:
    """What each image counts in the loss.

    Args:
        config: says whether classes are balanced, and over what.
        data: the training labels.
        num_classes: c.
    """

    def __init__(self, config: SupervisedTrainConfig, data: DataInfo, num_classes: int) -> None:
        self.kind = config.class_weights
        self.num_classes = num_classes
        counts = np.bincount(data.labels[data.labels >= 0], minlength=num_classes)
        self.table = balancing_weights(torch.from_numpy(counts))

    def of_classes(self, labels: Tensor, state: TrainState | None) -> Tensor | None:
        """Return the weight of each class, (c,), or ``None`` if images count alike.

        Args:
            labels: (b,) of the batch, before any mixing; of this process.
            state: speaks to the other processes; ``None`` outside of a run.
        """
        if self.kind == "none":
            return None
        if self.kind == "global":
            return self.table.to(labels.device)
        # a GPU is not waited for, as torch.bincount would
        counts = (labels == torch.arange(self.num_classes, device=labels.device)[:, None]).sum(1)
        return balancing_weights(counts if state is None else state.combine(counts, "sum"))
