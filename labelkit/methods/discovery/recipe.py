"""What parametric category-discovery methods build from their options in the same way."""

from __future__ import annotations

from labelkit.config.discovery import ContrastiveTrainConfig, DiscoveryTrainConfig
from labelkit.data.batch import DataInfo
from labelkit.errors import ConfigError, DatasetError
from labelkit.losses.discovery import DiscoveryLoss
from labelkit.models.discovery_network import DiscoveryNetwork


def check_discovery_data(config: ContrastiveTrainConfig, data: DataInfo) -> int:
    """Return the number of classes, old and new.

    Raises:
        DatasetError: no labeled or no unlabeled image.
        ConfigError: the number of classes is unknown or smaller than that of the old classes.
    """
    labeled = int((data.labels >= 0).sum())
    if labeled == data.num_samples:
        raise DatasetError(
            config.dataset,
            "every image is labeled, so there is nothing to discover",
            "Use --label-split gcd or few-labels, or leave labels empty in the CSV.",
        )
    if labeled == 0 and config.supervised_weight > 0:
        raise DatasetError(
            config.dataset,
            "no image has a label that training may use",
            "Give a CSV with some labels, or --supervised-weight 0 to cluster without any.",
        )
    num_classes = config.num_classes if config.num_classes is not None else data.num_known_classes
    if num_classes is None:
        raise ConfigError(
            "--num-classes",
            f"the data names {data.num_old_classes} classes and leaves open how many new ones there are",
            "Pass --num-classes; `labelkit discover categories` estimates it.",
        )
    if num_classes < max(2, data.num_old_classes):
        raise ConfigError(
            "--num-classes",
            f"{num_classes} is fewer than the {data.num_old_classes} classes that have labels",
            "Raise it.",
        )
    return num_classes


def build_discovery_network(config: DiscoveryTrainConfig, data: DataInfo, num_classes: int) -> DiscoveryNetwork:
    """Build backbone and heads."""
    return DiscoveryNetwork(
        config.backbone,
        num_classes,
        in_channels=data.in_channels,
        image_size=config.image_size,
        pretrained=config.pretrained and config.weights is None,
        weights=config.weights,
        grad_from_block=config.grad_from_block,
        train_stem=config.train_stem,
        linear_probe=config.linear_probe,
        projector_hidden_dim=config.projector_hidden_dim,
        projection_dim=config.projection_dim,
        seed=config.seed,
    )


def build_discovery_loss(config: DiscoveryTrainConfig, *, symmetric: bool) -> DiscoveryLoss:
    """Build the total loss."""
    return DiscoveryLoss(
        supervised_weight=config.supervised_weight,
        contrastive_temperature=config.contrastive_temperature,
        supervised_temperature=config.supervised_temperature,
        student_temperature=config.student_temperature,
        entropy_weight=config.entropy_weight,
        symmetric=symmetric,
    )
