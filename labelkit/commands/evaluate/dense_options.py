"""Options of the commands that judge patch features: segmentation, clusters of patches, tracking, detection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic.config import JsonDict

from labelkit.options.base import option
from labelkit.options.gate import GateConfig
from labelkit.options.model import ModelConfig
from labelkit.options.shared import (
    DatasetOptions,
    DeviceOption,
    EvalSplitOption,
    ListingOptions,
    MaxImagesOption,
    OverwriteOption,
    PrecisionOptions,
    ScoresOutOptions,
    ThreadsOption,
)

_DATA: JsonDict = {"panel": "Data"}
_MODEL: JsonDict = {"panel": "Model"}
_RUN: JsonDict = {"panel": "Run"}
_HEAD_LR, _TUNED_LR = 3e-3, 1e-4
_OUT: JsonDict = {"panel": "Output", "preset": False}


class DenseConfig(
    OverwriteOption,
    ThreadsOption,
    DeviceOption,
    ScoresOutOptions,
    MaxImagesOption,
    ListingOptions,
    DatasetOptions,
    GateConfig,
    ModelConfig,
):
    """Options shared by the evaluations of patch features: data, network and outputs."""

    dataset: str = Field(
        "scenes",
        description="Data set with masks: a registered name (`labelkit datasets`), or a folder that contains images/ "
        "and masks/, or train/ and val/ with both in each.",
        json_schema_extra=_DATA,
    )
    patch_size: int = Field(
        8, ge=1, le=256, description="Side of a patch in pixels, with --backbone pixels.", json_schema_extra=_MODEL
    )
    batch_size: int = Field(64, ge=1, description="Images per forward pass.", json_schema_extra=_RUN)
    sheet: Path | None = Field(
        None,
        description="Also save the predicted masks next to the true masks in this PNG.",
        json_schema_extra={**_OUT, "makes": "png"},
    )


class EvaluateSegmentationConfig(EvalSplitOption, DenseConfig):
    """Options of ``labelkit evaluate segmentation``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "segmentation")
    constants: ClassVar[Mapping[str, object]] = {"final_lr": None, "absent_as_zero": False, "per_class": False}

    split: str = Field(
        "auto",
        description="Split to train the head on; auto: probe if the data set has this split, else train.",
        json_schema_extra=_DATA,
    )
    head: Literal["linear", "fcn", "fpn", "upernet"] = Field(
        "linear",
        description="Segmentation head to train. linear: one linear layer per patch; fcn: three convolution blocks, "
        "at eight times the resolution; fpn, upernet (with --tune): heads on feature maps from four depths.",
    )
    tune: bool = Field(
        False,
        description="Fine-tune the backbone with the head, using AdamW with weight decay 0.05; otherwise the backbone "
        "is frozen.",
    )
    samples: int = Field(
        20_000,
        ge=1,
        description="Total number of training images drawn (published: 118,000 for COCO-Stuff, else 100,000).",
    )
    lr: tuple[float, ...] | None = Field(
        None,
        description="Learning rate of Adam; from several comma-separated values, the best on held-out images is used "
        "(published: 3e-3, or the best of 1e-4,1e-3,3e-3,1e-2). Default: 3e-3, or 1e-4 with --tune.",
    )
    select_split: str | None = Field(
        None,
        description="Split on which the best of several --lr values is chosen; default: a fifth of the training "
        "images, held out from training.",
    )
    train_size: int | None = Field(
        None, ge=8, le=2048, description="Side of training crops in pixels (published: 336); default: --image-size."
    )
    augment: bool = Field(True, description="Train on random crops (80 to 100 % of the area) and flips.")
    seeds: int = Field(
        3,
        ge=1,
        le=100,
        description="Number of heads to train, with seeds counting up from --seed; scores are averaged.",
    )

    @field_validator("lr")
    @classmethod
    def _positive(cls, value: tuple[float, ...] | None) -> tuple[float, ...] | None:
        if value is not None and (not value or min(value) <= 0):
            raise ValueError("must be one or more learning rates above 0")
        return value

    @model_validator(mode="after")
    def _heads_of_depths(self) -> EvaluateSegmentationConfig:
        if self.head in ("fpn", "upernet") and not self.tune:
            raise ValueError(f"head {self.head} requires --tune, since it is trained together with the network")
        if self.tune and self.backbone == "pixels":
            raise ValueError("backbone pixels has no weights to tune: remove --tune")
        return self

    @property
    def rates(self) -> tuple[float, ...]:
        """Learning rates to try."""
        return self.lr or (_TUNED_LR if self.tune else _HEAD_LR,)


class EvaluatePatchClustersConfig(DenseConfig):
    """Options of ``labelkit evaluate patch-clusters``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "patch-clusters")
    constants: ClassVar[Mapping[str, object]] = {
        "max_patches": 200000,
        "absent_as_zero": False,
        "per_class": False,
        "grid": None,
    }

    split: str = Field(
        "auto",
        description="Split whose patches are clustered and scored; auto: val, else test.",
        json_schema_extra=_DATA,
    )
    num_clusters: int | None = Field(
        None,
        ge=2,
        description="Number of patch clusters. Default: the number of classes, matched one to one; with more "
        "clusters, each cluster gets its best class.",
    )
    pca: int = Field(50, ge=1, description="Number of principal components kept of the standardized features.")
    seeds: int = Field(
        5, ge=1, le=100, description="Number of k-means runs, with seeds counting up from --seed; scores are averaged."
    )
    num_inits: int = Field(
        5, ge=1, description="Number of random starts per run; the start with the lowest inertia is kept."
    )
    max_iterations: int = Field(50, ge=1, description="Maximum iterations per start.")


class EvaluateTrackingConfig(DenseConfig):
    """Options of ``labelkit evaluate tracking``."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "tracking")
    constants: ClassVar[Mapping[str, object]] = {
        "per_film": False,
        "top_k": 5,
        "context": 7,
        "shorter_side": 480,
        "max_films": None,
    }

    dataset: str = Field(
        "scene_videos",
        description="Videos with object masks: scene_videos or davis_2017.",
        json_schema_extra=_DATA,
    )
    split: str = Field("auto", description="Videos to evaluate on; auto: val, else all.", json_schema_extra=_DATA)
    radius: int = Field(12, ge=0, description="Maximum distance of label propagation, in patches; 0: unlimited.")
    temperature: float = Field(
        0.1, gt=0, description="Temperature of the label propagation: each source has weight exp(cosine / temperature)."
    )


class EvaluateDetectionConfig(
    OverwriteOption,
    ThreadsOption,
    PrecisionOptions,
    DeviceOption,
    ScoresOutOptions,
    EvalSplitOption,
    MaxImagesOption,
    ListingOptions,
    DatasetOptions,
    GateConfig,
    ModelConfig,
):
    """Options of ``labelkit evaluate detection``, with the defaults of CoTAP's Tables V and X where it gives them."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "detection")
    constants: ClassVar[Mapping[str, object]] = {
        "warmup_steps": None,
        "lr_drops": (0.75, 0.9167),
        "sheet": None,
        "per_class": False,
    }

    dataset: str = Field(
        "coco_2017",
        description="Data set with boxes: coco_2017, voc_2007, or a folder with "
        "annotations/instances_train.json and instances_val.json, images in train/ and val/ (or both in "
        "images/).",
        json_schema_extra=_DATA,
    )
    split: str = Field("auto", description="Split to train on; auto: train.", json_schema_extra=_DATA)
    image_size: int | None = Field(
        None,
        ge=32,
        le=2048,
        description="Shorter image side in pixels; default: 800. The longer side is limited by --longer-side.",
        json_schema_extra=_MODEL,
    )
    longer_side: int | None = Field(
        None,
        ge=32,
        le=4096,
        description="Maximum longer image side in pixels; default: 5/3 of the shorter side (1333 for 800).",
        json_schema_extra=_MODEL,
    )
    detector: Literal["faster-rcnn", "mask-rcnn", "cascade-mask-rcnn"] = Field(
        "cascade-mask-rcnn",
        description="Detector to train. faster-rcnn: boxes only; mask-rcnn: boxes and masks; cascade-mask-rcnn "
        "(published): three stages of both, for an IoU of 0.5, 0.6 and 0.7.",
    )
    tune: bool = Field(
        True, description="Fine-tune the backbone with the detector (published); otherwise the backbone is frozen."
    )
    epochs: int = Field(12, ge=1, description="Number of training epochs (default: as published).")
    steps: int | None = Field(None, ge=1, description="Number of steps, instead of --epochs.")
    batch_size: int = Field(16, ge=1, description="Number of images per step (our choice; not in the paper).")
    lr: float = Field(2e-4, gt=0, description="Learning rate of AdamW (published).")
    weight_decay: float = Field(
        0.05, ge=0, description="Weight decay of AdamW; biases, norms and position embeddings are not decayed."
    )
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Layer-wise learning-rate decay for a plain ViT: the factor by which the rate falls from each "
        "block to the block before it.",
    )
    train_sizes: tuple[int, ...] | None = Field(
        None,
        description="Shorter sides of training images in pixels; one is drawn at random for each image. "
        "Default: --image-size.",
    )
    proposals: int = Field(1000, ge=1, description="Region proposals per image; twice as many in training.")
    samples_per_image: int = Field(512, ge=2, description="Regions sampled per image to train the heads.")
    precision: Literal["float32", "bf16", "fp16"] = Field(
        "float32",
        description="Floating-point precision of backbone and feature pyramid; heads and boxes use float32.",
        json_schema_extra=option("Run"),
    )
    seeds: int = Field(
        1,
        ge=1,
        le=100,
        description="Number of detectors to train, with seeds counting up from --seed; scores are averaged.",
    )

    @field_validator("train_sizes")
    @classmethod
    def _sides(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (not value or min(value) < 32):
            raise ValueError("must be one or more sides of at least 32 pixels")
        return value

    @model_validator(mode="after")
    def _trainable(self) -> EvaluateDetectionConfig:
        if self.backbone == "pixels":
            raise ValueError("backbone pixels has no feature maps for detection: choose another backbone")
        if self.longer_side is not None and self.longer_side < self.shorter_side:
            raise ValueError(f"longer_side {self.longer_side} must be at least the shorter side, {self.shorter_side}")
        if not self.tune and self.layer_decay < 1:
            raise ValueError("layer_decay has no effect with --no-tune, which freezes the backbone")
        return self

    @property
    def shorter_side(self) -> int:
        """Length of the shorter side of images, in pixels."""
        return self.image_size or 800

    @property
    def longest_side(self) -> int:
        """Maximum length of the longer side of images, in pixels."""
        return self.longer_side or self.shorter_side * 5 // 3
