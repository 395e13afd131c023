"""Options of ``labelkit evaluate detection``."""

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
    PerClassOption,
    PrecisionOptions,
    ScoresOutOptions,
    ThreadsOption,
)

_DATA: JsonDict = {"panel": "Data"}
_MODEL: JsonDict = {"panel": "Model"}
_OUT: JsonDict = {"panel": "Output", "preset": False}


class EvaluateDetectionConfig(
    PerClassOption,
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
    """``labelkit evaluate detection``; defaults are those of CoTAP's Tables V and X, where the source gives them."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "detection")
    constants: ClassVar[Mapping[str, object]] = {
        "warmup_steps": None,
        "lr_drops": (0.75, 0.9167),
    }

    dataset: str = Field(
        "coco_2017",
        description="A set with boxes: coco_2017, voc_2007, or a folder with annotations/instances_train.json and "
        "instances_val.json, images in train/ and val/ (or both in images/).",
        json_schema_extra=_DATA,
    )
    split: str = Field("auto", description="Images that are trained on; auto = train.", json_schema_extra=_DATA)
    image_size: int | None = Field(
        None,
        ge=32,
        le=2048,
        description="Shorter side of images in pixels; default: 800. The longer one follows, up to --longer-side.",
        json_schema_extra=_MODEL,
    )
    longer_side: int | None = Field(
        None,
        ge=32,
        le=4096,
        description="Most pixels of the longer side; default: 5/3 of the shorter one (1333 of 800).",
        json_schema_extra=_MODEL,
    )
    detector: Literal["faster-rcnn", "mask-rcnn", "cascade-mask-rcnn"] = Field(
        "cascade-mask-rcnn",
        description="faster-rcnn: boxes alone; mask-rcnn: boxes and masks; cascade-mask-rcnn (published): three stages "
        "of both, for an IoU of .5, .6, .7.",
    )
    tune: bool = Field(True, description="Train the backbone with the detector (published); else it stays as it is.")
    epochs: int = Field(12, ge=1, description="Passes over the training images (published).")
    steps: int | None = Field(None, ge=1, description="Steps in place of --epochs.")
    batch_size: int = Field(16, ge=1, description="Images of a step; the source names no number.")
    lr: float = Field(2e-4, gt=0, description="Learning rate of AdamW (published).")
    weight_decay: float = Field(
        0.05, ge=0, description="Weight decay of AdamW; biases, norms and embeddings of places have none."
    )
    layer_decay: float = Field(
        1.0, gt=0, le=1, description="Factor of the learning rate from each block of a plain ViT to the one before it."
    )
    train_sizes: tuple[int, ...] | None = Field(
        None,
        description="Shorter sides of training images, one of which is drawn for each; default: --image-size.",
    )
    proposals: int = Field(1000, ge=1, description="Regions proposed in an image, twice as many in training.")
    samples_per_image: int = Field(512, ge=2, description="Regions of an image that the heads learn from.")
    precision: Literal["float32", "bf16", "fp16"] = Field(
        "float32",
        description="Compute type of backbone and pyramid; heads and boxes are in float32.",
        json_schema_extra=option("Run"),
    )
    seeds: int = Field(1, ge=1, le=100, description="Detectors trained, from --seed on; scores are their mean.")
    sheet: Path | None = Field(
        None,
        description="Also draw the boxes found beside the true ones to this PNG.",
        json_schema_extra={**_OUT, "makes": "png"},
    )

    @field_validator("train_sizes")
    @classmethod
    def _sides(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (not value or min(value) < 32):
            raise ValueError("must be one side or several, of 32 pixels or more")
        return value

    @model_validator(mode="after")
    def _trainable(self) -> EvaluateDetectionConfig:
        if self.backbone == "pixels":
            raise ValueError("pixels have no maps to detect with; give a backbone")
        if self.longer_side is not None and self.longer_side < self.shorter_side:
            raise ValueError(f"longer_side {self.longer_side} is below the shorter side, {self.shorter_side}")
        if not self.tune and self.layer_decay < 1:
            raise ValueError("layer_decay is of the backbone, which stays as it is with --no-tune")
        return self

    @property
    def shorter_side(self) -> int:
        """Of images in pixels."""
        return self.image_size or 800

    @property
    def longest_side(self) -> int:
        """Most that the longer side may have."""
        return self.longer_side or self.shorter_side * 5 // 3
