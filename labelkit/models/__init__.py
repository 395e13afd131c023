"""Networks: backbones, heads, the paired forward pass, averaged copies, weights from files."""

from labelkit.models.attention_maps import BlockAttention, attention_maps
from labelkit.models.backbones import Backbone, BackboneInfo, build_backbone, list_backbones
from labelkit.models.batch_norm import batch_statistics
from labelkit.models.cbam import CBAM
from labelkit.models.ema import EMATeacher
from labelkit.models.heads import CosineClassifier, Projector
from labelkit.models.metric_network import MetricNetwork, MetricOutput
from labelkit.models.paired_attention import KeyUpdate, default_align_blocks, freeze_backbone, paired_forward
from labelkit.models.resnet import cifar_resnet, resnet50
from labelkit.models.seeding import seeded_init
from labelkit.models.vit import UnsupportedBackboneError
from labelkit.models.weights import LoadReport, fingerprint, load_weights_file, map_weights

__all__ = [
    "CBAM",
    "Backbone",
    "BackboneInfo",
    "BlockAttention",
    "CosineClassifier",
    "EMATeacher",
    "KeyUpdate",
    "LoadReport",
    "MetricNetwork",
    "MetricOutput",
    "Projector",
    "UnsupportedBackboneError",
    "attention_maps",
    "batch_statistics",
    "build_backbone",
    "cifar_resnet",
    "default_align_blocks",
    "fingerprint",
    "freeze_backbone",
    "list_backbones",
    "load_weights_file",
    "map_weights",
    "paired_forward",
    "resnet50",
    "seeded_init",
]
