"""Images, labels and views: listings, splits, decoding, loaders, samplers, keyed randomness.

Names are imported on first use: some need torch, and one module should not cost all others.
"""

from typing import TYPE_CHECKING

from labelkit.lazy import names_of

if TYPE_CHECKING:
    from labelkit.data.batch import Batch, DataInfo, ViewGeometry
    from labelkit.data.datasets import EncodedImage, ImageDataset
    from labelkit.data.decode import BadImage, decode_image
    from labelkit.data.eval_loader import EvalBatch, EvalLoader
    from labelkit.data.image_bank import ImageBank
    from labelkit.data.keyed_random import keyed_generator, keyed_torch_generator, keyed_uniform
    from labelkit.data.label_split import LabelSplit
    from labelkit.data.named.layouts import DatasetSpec
    from labelkit.data.registry import DATASETS, load_dataset
    from labelkit.data.samplers import BalancedSampler, ClassBalancedSampler, Sampler, UniformSampler
    from labelkit.data.splits import class_halves_split, few_labels_split, gcd_split, given_split, no_labels_split
    from labelkit.data.subsets import holdout_rows, long_tail_split
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

__getattr__ = names_of(
    __name__,
    {
        "batch": (
            "Batch",
            "DataInfo",
            "ViewGeometry",
        ),
        "datasets": (
            "EncodedImage",
            "ImageDataset",
        ),
        "decode": (
            "BadImage",
            "decode_image",
        ),
        "eval_loader": (
            "EvalBatch",
            "EvalLoader",
        ),
        "image_bank": ("ImageBank",),
        "keyed_random": (
            "keyed_generator",
            "keyed_torch_generator",
            "keyed_uniform",
        ),
        "label_split": ("LabelSplit",),
        "named.layouts": ("DatasetSpec",),
        "registry": (
            "DATASETS",
            "load_dataset",
        ),
        "samplers": (
            "BalancedSampler",
            "ClassBalancedSampler",
            "Sampler",
            "UniformSampler",
        ),
        "splits": (
            "class_halves_split",
            "few_labels_split",
            "gcd_split",
            "given_split",
            "no_labels_split",
        ),
        "subsets": (
            "holdout_rows",
            "long_tail_split",
        ),
        "train_loader": ("TrainLoader",),
        "views.recipes": (
            "sela_view",
            "simgcd_view",
            "strong_view",
            "test_view",
            "weak_view",
        ),
        "views.spec": (
            "Normalize",
            "ViewSpec",
        ),
    },
)
