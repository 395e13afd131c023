"""Losses that several families of methods use, usable alone; those of one family lie in its folder."""

from labelkit.losses.consistency import DistillationLoss, LabelLoss, MeanEntropyRegularizer
from labelkit.losses.contrastive import InfoNCELoss, SupConLoss

__all__ = [
    "DistillationLoss",
    "InfoNCELoss",
    "LabelLoss",
    "MeanEntropyRegularizer",
    "SupConLoss",
]
