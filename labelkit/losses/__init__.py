"""Losses: one short module per family, usable alone."""

from labelkit.losses.alignment import AttentionPull, ConfidentPseudoLabelLoss, DistributionAlignment
from labelkit.losses.consistency import DistillationLoss, LabelLoss, MeanEntropyRegularizer
from labelkit.losses.contrastive import InfoNCELoss, SupConLoss
from labelkit.losses.cotap import CoTAPLoss, cotap_loss
from labelkit.losses.discovery import DiscoveryLoss
from labelkit.losses.metric import MemoryContrastiveLoss, MultiSimilarityLoss, ProxyAnchorLoss
from labelkit.losses.multi_head import MultiHeadCrossEntropy

__all__ = [
    "AttentionPull",
    "ConfidentPseudoLabelLoss",
    "CoTAPLoss",
    "DiscoveryLoss",
    "DistillationLoss",
    "DistributionAlignment",
    "InfoNCELoss",
    "LabelLoss",
    "MeanEntropyRegularizer",
    "MemoryContrastiveLoss",
    "MultiHeadCrossEntropy",
    "MultiSimilarityLoss",
    "ProxyAnchorLoss",
    "SupConLoss",
    "cotap_loss",
]
