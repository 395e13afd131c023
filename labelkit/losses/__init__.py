"""What is minimized: one short module per loss or family of losses, usable alone, with the parts it is made of."""

from labelkit.losses.alignment import AttentionPull, ConfidentPseudoLabelLoss, DistributionAlignment
from labelkit.losses.assembly import (
    assembly_coherence,
    assembly_correlation,
    assembly_entropy,
    neighbor_pairs,
    normalized_terms,
)
from labelkit.losses.attention_consistency import FeatureSimilarityLoss, TransformedAttentionLoss
from labelkit.losses.composition import DiscriminationLoss, nearest_two
from labelkit.losses.consistency import DistillationLoss, LabelLoss, MeanEntropyRegularizer
from labelkit.losses.contrastive import InfoNCELoss, SupConLoss
from labelkit.losses.contrastive_clustering import ContrastiveClusteringLoss
from labelkit.losses.cotap import CoTAPLoss, cotap_loss
from labelkit.losses.dense_ranking import DenseRankingLoss, patch_similarity
from labelkit.losses.discovery import DiscoveryLoss
from labelkit.losses.freematch import AdaptiveThreshold, FairnessLoss, PseudoLabelLoss
from labelkit.losses.mean_teacher import HeadDifference, SquaredConsistency
from labelkit.losses.metric import (
    ContrastiveBayesianLoss,
    MemoryContrastiveLoss,
    MultiSimilarityLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    collapsed_multi_similarity,
    hard_pairs,
    reference_pairs,
)
from labelkit.losses.mixmatch import MixMatchLoss, MixMatchTerms, sharpen
from labelkit.losses.multi_head import MultiHeadCrossEntropy
from labelkit.losses.prototype import InnerProductLoss, UniformityLoss, WeightedCrossEntropy, balancing_weights
from labelkit.losses.prototype_entropy import PrototypeEntropyLoss
from labelkit.losses.self_distillation import HiddenPatchLoss, MultiViewDistillationLoss, centered_targets
from labelkit.losses.siamese import BarlowTwinsLoss, PredictedViewLoss, QueueContrastLoss
from labelkit.losses.soft_assignment import SoftAssignmentLoss, batch_assignments

__all__ = [
    "BarlowTwinsLoss",
    "PredictedViewLoss",
    "QueueContrastLoss",
    "AdaptiveThreshold",
    "AttentionPull",
    "CoTAPLoss",
    "ConfidentPseudoLabelLoss",
    "ContrastiveBayesianLoss",
    "ContrastiveClusteringLoss",
    "DenseRankingLoss",
    "DiscoveryLoss",
    "DiscriminationLoss",
    "DistillationLoss",
    "DistributionAlignment",
    "FairnessLoss",
    "FeatureSimilarityLoss",
    "HeadDifference",
    "HiddenPatchLoss",
    "InfoNCELoss",
    "InnerProductLoss",
    "LabelLoss",
    "MeanEntropyRegularizer",
    "MemoryContrastiveLoss",
    "MixMatchLoss",
    "MixMatchTerms",
    "MultiHeadCrossEntropy",
    "MultiSimilarityLoss",
    "MultiViewDistillationLoss",
    "NormalizedSoftmaxLoss",
    "PrototypeEntropyLoss",
    "ProxyAnchorLoss",
    "PseudoLabelLoss",
    "SoftAssignmentLoss",
    "batch_assignments",
    "SquaredConsistency",
    "SupConLoss",
    "TransformedAttentionLoss",
    "UniformityLoss",
    "WeightedCrossEntropy",
    "assembly_coherence",
    "assembly_correlation",
    "assembly_entropy",
    "balancing_weights",
    "centered_targets",
    "collapsed_multi_similarity",
    "cotap_loss",
    "hard_pairs",
    "nearest_two",
    "neighbor_pairs",
    "normalized_terms",
    "patch_similarity",
    "reference_pairs",
    "sharpen",
]
