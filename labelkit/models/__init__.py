"""Networks: backbones, heads, the paired forward pass, EMA teachers, and loading of weights.

Names are imported on first use: torch takes seconds to load, and published weights are looked up without it.
"""

from typing import TYPE_CHECKING

from labelkit.imports import lazy_exports

if TYPE_CHECKING:
    from labelkit.models.backbones.registry import Backbone as Backbone
    from labelkit.models.backbones.registry import BackboneInfo as BackboneInfo
    from labelkit.models.backbones.registry import build_backbone as build_backbone
    from labelkit.models.backbones.registry import list_backbones as list_backbones
    from labelkit.models.backbones.resnet import cifar_resnet as cifar_resnet
    from labelkit.models.backbones.resnet import resnet50 as resnet50
    from labelkit.models.backbones.vit import UnsupportedBackboneError as UnsupportedBackboneError
    from labelkit.models.batch_norm import BatchStatisticsSum as BatchStatisticsSum
    from labelkit.models.batch_norm import SharedBatchNorm2d as SharedBatchNorm2d
    from labelkit.models.batch_norm import share_statistics as share_statistics
    from labelkit.models.batch_norm import use_batch_statistics as use_batch_statistics
    from labelkit.models.ema import EMAChain as EMAChain
    from labelkit.models.ema import EMATeacher as EMATeacher
    from labelkit.models.ema import copy_for_ema as copy_for_ema
    from labelkit.models.ema import ema_update as ema_update
    from labelkit.models.heads import CosineClassifier as CosineClassifier
    from labelkit.models.heads import LinearHeads as LinearHeads
    from labelkit.models.heads import Projector as Projector
    from labelkit.models.paired_attention import KeyUpdateParams as KeyUpdateParams
    from labelkit.models.paired_attention import default_align_blocks as default_align_blocks
    from labelkit.models.paired_attention import freeze_backbone as freeze_backbone
    from labelkit.models.paired_attention import paired_forward as paired_forward
    from labelkit.models.seeding import seeded_init as seeded_init
    from labelkit.models.weights.files import LoadReport as LoadReport
    from labelkit.models.weights.files import assign_weights as assign_weights
    from labelkit.models.weights.files import fingerprint as fingerprint
    from labelkit.models.weights.files import load_weights_file as load_weights_file

__getattr__, __all__ = lazy_exports(__name__)
