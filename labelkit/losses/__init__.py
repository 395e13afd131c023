"""What is minimized: one short module per loss or family of losses, usable alone, with the parts it is made of."""

from labelkit.losses.consistency import DistillationLoss, LabelLoss, MeanEntropyRegularizer
from labelkit.losses.contrastive import InfoNCELoss, SupConLoss

__all__ = [
    "DistillationLoss",
    "InfoNCELoss",
    "LabelLoss",
    "MeanEntropyRegularizer",
    "SupConLoss",
]
