"""Losses shared by several method families, usable on their own; other losses are in their family's folder."""

from labelkit.losses.consistency import DistillationLoss, LabelLoss, MeanEntropyRegularizer
from labelkit.losses.contrastive import InfoNCELoss, SupConLoss

__all__ = ["DistillationLoss", "InfoNCELoss", "LabelLoss", "MeanEntropyRegularizer", "SupConLoss"]
