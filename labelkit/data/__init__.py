"""Images, labels and views: listings, splits, decoding, loaders, samplers, keyed randomness.

The names that need torch are imported on first use, so that listing and splitting stay quick.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from labelkit.data.datasets import EncodedImage, ImageDataset
from labelkit.data.decode import BadImage, decode_image
from labelkit.data.keyed_random import keyed_generator, keyed_torch_generator, keyed_uniform
from labelkit.data.label_split import LabelSplit
from labelkit.data.registry import DATASETS, DatasetSpec, load_dataset
from labelkit.data.samplers import BalancedSampler, ClassBalancedSampler, Sampler, UniformSampler
from labelkit.data.splits import class_halves_split, few_labels_split, gcd_split, given_split, no_labels_split
from labelkit.data.subsets import holdout_rows, long_tail_split

if TYPE_CHECKING:
    from labelkit.data.batch import Batch, DataInfo, ViewGeometry
    from labelkit.data.eval_loader import EvalBatch, EvalLoader
    from labelkit.data.image_bank import ImageBank
    from labelkit.data.train_loader import TrainLoader
    from labelkit.data.views.recipes import sela_view, simgcd_view, strong_view, test_view, weak_view
    from labelkit.data.views.spec import Normalize, ViewSpec

__all__ = [
    "DATASETS",
    "BadImage",
    "BalancedSampler",
    "Batch",
    "ClassBalancedSampler",
    "DataInfo",
    "DatasetSpec",
    "EncodedImage",
    "EvalBatch",
    "EvalLoader",
    "ImageBank",
    "ImageDataset",
    "LabelSplit",
    "Normalize",
    "Sampler",
    "TrainLoader",
    "UniformSampler",
    "ViewGeometry",
    "ViewSpec",
    "class_halves_split",
    "decode_image",
    "few_labels_split",
    "gcd_split",
    "given_split",
    "holdout_rows",
    "keyed_generator",
    "keyed_torch_generator",
    "keyed_uniform",
    "load_dataset",
    "long_tail_split",
    "no_labels_split",
    "sela_view",
    "simgcd_view",
    "strong_view",
    "test_view",
    "weak_view",
]

_NEED_TORCH = {
    "labelkit.data.batch": ("Batch", "DataInfo", "ViewGeometry"),
    "labelkit.data.eval_loader": ("EvalBatch", "EvalLoader"),
    "labelkit.data.image_bank": ("ImageBank",),
    "labelkit.data.train_loader": ("TrainLoader",),
    "labelkit.data.views.spec": ("Normalize", "ViewSpec"),
    "labelkit.data.views.recipes": ("sela_view", "simgcd_view", "strong_view", "test_view", "weak_view"),
}


def __getattr__(name: str) -> Any:
    for module, names in _NEED_TORCH.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
