"""Options for ``labelkit embed``."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from labelkit.options.base import IMAGES, MODEL, PATCHES, RUN, RUN_ONLY, STORE, field_factory, to_flag
from labelkit.options.data import DataConfig
from labelkit.options.memory import ProcessesConfig
from labelkit.options.model import ModelConfig
from labelkit.options.shared import (
    DeviceOption,
    LabelsOption,
    OverwriteOption,
    PrecisionOptions,
    ShardsOption,
    StoreOutOption,
    ThreadsOption,
)

_VIEWS = field_factory("Views")

#: Options that can be combined with ``--index``.
_OF_ROWS = frozenset({"index", "checkpoint", "out", "shards", "overwrite", "device", "threads", "dtype", "logits"})


class EmbedConfig(
    OverwriteOption,
    StoreOutOption,
    ShardsOption,
    ThreadsOption,
    PrecisionOptions,
    DeviceOption,
    LabelsOption,
    ProcessesConfig,
    DataConfig,
    ModelConfig,
):
    """Options for ``labelkit embed``."""

    command: ClassVar[tuple[str, ...]] = ("embed",)

    index: Path | None = STORE(
        None,
        "Store (NAME.h5) whose embeddings to use as input in place of images. --checkpoint must then come from a run "
        "trained on embeddings (`labelkit train METHOD --index`).",
        aliases=["--store"],
    )
    max_images: int | None = IMAGES(None, "Maximum number of images, selected at even intervals. Default: all.", ge=1)
    logits: bool = MODEL(True, "Also store the classifier's logits, if the model has a classifier.")
    last_blocks: int = MODEL(
        1,
        "Concatenate the normalized class tokens of the last N blocks of a ViT (4 for ViT-S in DINO's linear "
        "evaluation). 1: the model's own embedding.",
        ge=1,
    )
    mean_patch: bool = MODEL(
        False,
        "Concatenate a ViT's class token with the mean of its patch tokens (as in DINO's linear evaluation of ViT-B).",
    )
    dtype: Literal["float32", "float16"] = RUN("float32", "Data type of the stored embeddings.")
    dense: bool = PATCHES(False, "Also store patch features (the feature map of each image).")
    patch_dtype: Literal["float16", "float32"] = PATCHES(
        "float16", "Data type of the stored patch features (with --dense)."
    )
    views: int | None = _VIEWS(
        None,
        "Number of augmented views per image whose embeddings are also stored, for training with `labelkit train "
        "METHOD --index`. Each view takes as long to embed as the image. Default: none.",
        ge=1,
    )
    view_augmentation: Literal["auto", "crop", "box", "color", "digits"] = _VIEWS(
        "auto",
        "Augmentation of the views (with --views). crop: a square crop of the network's input size; box: a random "
        "crop of 16 to 100% of the area; color: a random crop of 30 to 100% of the area, with color jitter and "
        "blur; digits: small rotations, shifts and zooms. auto: digits for digits and characters, otherwise box.",
    )
    view_seed: int = _VIEWS(0, "Random seed for the views (with --views).", ge=0)
    batch_size: int | None = RUN(
        None,
        "Number of images per forward pass; a resumed run keeps its value. Default: 16 on a CPU, 256 on a GPU.",
        ge=1,
    )
    runtime: Literal["auto", "torch", "onnx"] = RUN(
        "auto",
        "Inference engine. onnx: ONNX Runtime in float32 on a CPU. auto: onnx for networks with depthwise "
        "convolutions (EfficientNet) and at least 200 images, otherwise torch. A resumed run keeps its engine.",
    )
    fast_decode: bool = RUN(
        False,
        "Decode large JPEGs at a reduced size, at least twice the network's input size. This is faster, and the "
        "embeddings are almost identical to those from full decoding (cosine similarity above 0.999).",
    )
    part_rows: int | None = RUN(
        None,
        "Number of embeddings written at a time; an interrupted run loses at most this many, and keeps its value when "
        "resumed. Default: 256 on a CPU, 1,024 on a GPU.",
        ge=1,
    )
    reuse: tuple[Path, ...] | None = RUN_ONLY(
        None,
        "Comma-separated stores created with the same model, from which to copy the embeddings of identical image "
        "files, even if the files were renamed. Default: none.",
        min_length=1,
    )
    extend: Path | None = RUN_ONLY(
        None,
        "Sharded store to extend, created with the same model. --out contains its shards, linked rather than "
        "rewritten, and one new shard (or --shards N) for images with new names. Default: none.",
    )
    dry_run: bool = RUN_ONLY(False, "Show the configuration, image counts, memory and time, without writing anything.")

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.index is not None:
            if self.checkpoint is None:
                raise ValueError("--index requires a --checkpoint that was trained on embeddings")
            for name, field in type(self).model_fields.items():
                if name not in _OF_ROWS and getattr(self, name) != field.default:
                    raise ValueError(f"{to_flag(name)} applies only to embedding images: remove it, or --index")
        if self.views is None:
            for name in ("view_augmentation", "view_seed"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{to_flag(name)} requires --views")
        elif self.fast_decode:
            raise ValueError("--fast-decode cannot be combined with --views, which need full resolution")
        if (self.reuse is not None or self.extend is not None) and self.dense:
            raise ValueError("--dense runs the network on every image: remove --reuse and --extend")
        if self.extend is not None and self.extend == self.out:
            raise ValueError("--out must differ from --extend: results of that store apply only to its own images")
        return self
