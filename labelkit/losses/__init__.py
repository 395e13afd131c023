"""Losses: one short module per family, usable alone."""

from labelkit.losses.consistency import DistillationLoss, LabelLoss, MeanEntropyRegularizer
from labelkit.losses.contrastive import InfoNCELoss, SupConLoss
from labelkit.losses.discovery import DiscoveryLoss

__all__ = [
    "DiscoveryLoss",
    "DistillationLoss",
    "InfoNCELoss",
    "LabelLoss",
    "MeanEntropyRegularizer",
    "SupConLoss",
]
