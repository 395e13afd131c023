"""Networks: backbones, heads, the paired forward pass, EMA teachers, and loading of weights.

Names are imported on first use: torch takes seconds to load, and published weights are looked up without it.
"""

from typing import TYPE_CHECKING

from labelkit.imports import lazy_getattr

if TYPE_CHECKING:
    from labelkit.models.backbones.registry import Backbone, BackboneInfo, build_backbone, list_backbones
    from labelkit.models.backbones.resnet import cifar_resnet, resnet50
    from labelkit.models.backbones.vit import UnsupportedBackboneError
    from labelkit.models.batch_norm import BatchStatisticsSum, SharedBatchNorm2d, share_statistics, use_batch_statistics
    from labelkit.models.ema import EMAChain, EMATeacher, copy_for_ema, ema_update
    from labelkit.models.heads import CosineClassifier, LinearHeads, Projector
    from labelkit.models.paired_attention import KeyUpdateParams, default_align_blocks, freeze_backbone, paired_forward
    from labelkit.models.seeding import seeded_init
    from labelkit.models.weights.files import LoadReport, assign_weights, fingerprint, load_weights_file

__all__ = [
    "Backbone",
    "BackboneInfo",
    "CosineClassifier",
    "EMATeacher",
    "KeyUpdateParams",
    "LinearHeads",
    "LoadReport",
    "Projector",
    "SharedBatchNorm2d",
    "BatchStatisticsSum",
    "EMAChain",
    "UnsupportedBackboneError",
    "use_batch_statistics",
    "build_backbone",
    "cifar_resnet",
    "copy_for_ema",
    "default_align_blocks",
    "ema_update",
    "fingerprint",
    "freeze_backbone",
    "list_backbones",
    "load_weights_file",
    "assign_weights",
    "paired_forward",
    "resnet50",
    "seeded_init",
    "share_statistics",
]

__getattr__ = lazy_getattr(__name__)
