"""Options of ``labelkit embed``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.options.base import flag, option
from labelkit.options.data import DataConfig
from labelkit.options.model import ModelConfig
from labelkit.options.shared import (
    DeviceOption,
    LabelsOption,
    OverwriteOption,
    ShardsOptions,
    StoreOutOption,
    ThreadsOption,
    WorkersOption,
)

_MODEL: JsonDict = {"panel": "Model"}
_RUN: JsonDict = {"panel": "Run"}
_RUN_ONLY: JsonDict = {"panel": "Run", "preset": False}
_IMAGES: JsonDict = {"panel": "Images"}
_PATCHES: JsonDict = {"panel": "Patches"}
_VIEWS: JsonDict = {"panel": "Views"}

#: Options that act with ``--index``.
_OF_ROWS = frozenset(
    {"index", "checkpoint", "which", "out", "shards", "overwrite", "device", "threads", "dtype", "logits"}
)


class EmbedConfig(
    OverwriteOption,
    StoreOutOption,
    ShardsOptions,
    ThreadsOption,
    WorkersOption,
    DeviceOption,
    LabelsOption,
    DataConfig,
    ModelConfig,
):
    """Options of ``labelkit embed``."""

    command: ClassVar[tuple[str, ...]] = ("embed",)
    constants: ClassVar[Mapping[str, object]] = {"stride": 1, "patch_seed": 0}

    index: Path | None = Field(
        None,
        description="Apply --checkpoint, a run on embeddings (`labelkit train METHOD --index`), to the embeddings of "
        "this store, NAME.h5, instead of images.",
        json_schema_extra=option("Store", preset=False, aliases=("--store",)),
    )
    max_images: int | None = Field(
        None,
        ge=1,
        description="Maximum number of images, evenly spaced in the list of images. Default: all.",
        json_schema_extra=_IMAGES,
    )
    logits: bool = Field(
        True, description="Also store the classifier's logits, if the model has a classifier.", json_schema_extra=_MODEL
    )
    last_blocks: int = Field(
        1,
        ge=1,
        description="Concatenate the normalized class tokens of the last N blocks of a ViT (DINO's linear "
        "evaluation: 4 for ViT-S). 1: the model's own embedding.",
        json_schema_extra=_MODEL,
    )
    mean_patch: bool = Field(
        False,
        description="Concatenate the class token with the mean of the patch tokens of a ViT (DINO's linear "
        "evaluation for ViT-B).",
        json_schema_extra=_MODEL,
    )
    dtype: Literal["float32", "float16"] = Field(
        "float32", description="Data type of the stored embeddings.", json_schema_extra=_RUN
    )
    dense: bool = Field(
        False,
        description="Also store patch features (the feature map of each image).",
        json_schema_extra=_PATCHES,
    )
    patches_per_image: int | None = Field(
        None,
        ge=1,
        description="Number of patches to keep per image (with --dense), drawn at random. Default: all.",
        json_schema_extra=_PATCHES,
    )
    patch_dtype: Literal["float16", "float32"] = Field(
        "float16", description="Data type of the stored patch features (with --dense).", json_schema_extra=_PATCHES
    )
    views: int | None = Field(
        None,
        ge=1,
        description="Also store the embeddings of this many augmented views of each image, on which `labelkit "
        "train METHOD --index` then trains. Each view takes as long to embed as the image. Default: none.",
        json_schema_extra=_VIEWS,
    )
    view_augmentation: Literal["auto", "crop", "box", "color", "digits"] = Field(
        "auto",
        description="How to make a view (with --views). crop: a square of the network's input size; box: a random box "
        "of 16 to 100 % of the area; color: a random box of 30 to 100 %, with color jitter and blur; digits: small "
        "rotations, shifts and zooms. auto: digits for sets of digits and characters, else box.",
        json_schema_extra=_VIEWS,
    )
    view_seed: int = Field(0, ge=0, description="Random seed of the views (with --views).", json_schema_extra=_VIEWS)
    batch_size: int | None = Field(
        None,
        ge=1,
        description="Images per forward pass; default: 16 on a CPU, 256 on a GPU; an unfinished run keeps its value.",
        json_schema_extra=_RUN,
    )
    precision: Literal["auto", "float32", "bf16", "fp16"] = Field(
        "float32",
        description="Floating-point precision of the network. auto: bf16 on a CPU with native bf16 if 64 images "
        "agree (cosine above 0.999, 99 % keep their nearest image), else float32.",
        json_schema_extra=_RUN,
    )
    runtime: Literal["auto", "torch", "onnx"] = Field(
        "auto",
        description="Inference engine. onnx: ONNX Runtime in float32 on a CPU. auto: onnx for networks with "
        "depthwise convolutions (EfficientNet) and at least 200 images, else torch. An unfinished run keeps its "
        "engine.",
        json_schema_extra=_RUN,
    )
    fast_decode: bool = Field(
        False,
        description="Decode large JPEGs at reduced size, at least twice the network's input. Faster; the embeddings "
        "agree with those from full decoding (cosine above 0.999).",
        json_schema_extra=_RUN,
    )
    part_rows: int = Field(
        1024,
        ge=1,
        description="Number of embeddings written at a time; a killed run loses at most one part.",
        json_schema_extra=_RUN,
    )
    reuse: tuple[Path, ...] | None = Field(
        None,
        min_length=1,
        description="Comma-separated stores made with the same model. Embeddings of identical image files are copied "
        "from them, whatever their file names. Default: none.",
        json_schema_extra=_RUN_ONLY,
    )
    processes: int = Field(
        1,
        ge=1,
        description="Number of processes that embed in parallel, one part of --part-rows images at a time; with "
        "several GPUs, one process per GPU. The embeddings do not depend on this number.",
        json_schema_extra=_RUN_ONLY,
    )
    ray_address: str | None = Field(
        None,
        description="Embed on this Ray cluster, whose nodes see the same files: an address of `ray start --head`, "
        "auto, or local (this machine only). If a node is lost, another node takes over its parts.",
        json_schema_extra=_RUN_ONLY,
    )
    dry_run: bool = Field(
        False,
        description="Show configuration, counts, memory and time without writing anything.",
        json_schema_extra=_RUN_ONLY,
    )

    @model_validator(mode="after")
    def _rows_need_a_run(self) -> EmbedConfig:
        if self.index is None:
            return self
        if self.checkpoint is None:
            raise ValueError("index requires --checkpoint, a run that was trained on embeddings")
        for name, field in type(self).model_fields.items():
            if name not in _OF_ROWS and getattr(self, name) != field.default:
                raise ValueError(f"{flag(name)} has no effect with --index, which contains no images: remove it")
        return self

    @model_validator(mode="after")
    def _runs_here_or_on_a_cluster(self) -> EmbedConfig:
        if self.ray_address is not None and self.processes != 1:
            raise ValueError(
                "--processes (on this machine) cannot be combined with --ray-address (on a cluster): remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _patches_need_dense(self) -> EmbedConfig:
        if self.patches_per_image is not None and not self.dense:
            raise ValueError("--patches-per-image requires --dense")
        return self

    @model_validator(mode="after")
    def _views_are_of_whole_images(self) -> EmbedConfig:
        if self.views is None:
            for name in ("view_augmentation", "view_seed"):
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{flag(name)} requires --views")
        elif self.fast_decode:
            raise ValueError("--fast-decode cannot be combined with --views, which crop images at full resolution")
        return self

    @model_validator(mode="after")
    def _patches_are_not_reused(self) -> EmbedConfig:
        if self.reuse is not None and self.dense:
            raise ValueError("--reuse has no effect with --dense, which needs the network for every image")
        return self
