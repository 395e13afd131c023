"""Losses of several families of methods, usable on their own; losses of one family are in its folder."""

from labelkit.losses.consistency import DistillationLoss, LabelLoss, MeanEntropyRegularizer
from labelkit.losses.contrastive import InfoNCELoss, SupConLoss

__all__ = ["DistillationLoss", "InfoNCELoss", "LabelLoss", "MeanEntropyRegularizer", "SupConLoss"]
