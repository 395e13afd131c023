"""What methods share that train any backbone: which part of it, and how they are judged."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic.config import JsonDict

from labelkit.options.base import StageConfig, flag, option
from labelkit.options.memory import checked_size, size_bytes
from labelkit.options.training import RunConfig, TrainConfig

_REUSE = option("Model")


class ReuseOptions(StageConfig):
    """Options of methods that freeze the first part of their network and can cache its outputs."""

    reuse_frozen: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Cache the frozen part's output for this number of views per image, on disk next to the run; each "
        "epoch draws from these views, and the frozen part runs only once. Default: new views in each epoch.",
        json_schema_extra={**_REUSE, "before": None},
    )
    reuse_dtype: Literal["float16", "float32"] = Field(
        "float16",
        description="Data type of the cache for --reuse-frozen. float16: on a CPU with bf16, the frozen part runs in "
        "bf16 if its outputs for 64 images agree; float32: as exact as the network.",
        json_schema_extra={**_REUSE, "before": "float16"},
    )
    max_disk: str | None = Field(
        None,
        description="Maximum size of the cache for --reuse-frozen, such as 20GiB or 500MB; a plain number is GiB. "
        "Default: the free space.",
        json_schema_extra=option("Run", preset=False),
    )

    @field_validator("max_disk", mode="before")
    @classmethod
    def _size(cls, value: object) -> object:
        return checked_size(value)

    @property
    def max_disk_bytes(self) -> int | None:
        """Return the disk limit of the cache in bytes, or ``None`` without one."""
        return None if self.max_disk is None else size_bytes(self.max_disk)

    @model_validator(mode="after")
    def _goes_with_reuse(self) -> ReuseOptions:
        if self.reuse_frozen is None:
            for name in ("reuse_dtype", "max_disk"):
                if getattr(self, name) != ReuseOptions.model_fields[name].default:
                    raise ValueError(f"{flag(name)} requires --reuse-frozen: remove it, or pass both")
        return self


class FreezeOptions(ReuseOptions):
    """Options of methods that can freeze the first stages of their network."""

    freeze_stages: int = Field(
        0,
        ge=0,
        description="Freeze this number of backbone stages and everything before them, including running "
        "statistics. Stages are layer1 to layer4 in a ResNet, blocks.0 to blocks.6 in an EfficientNet. 0: train "
        "all.",
        json_schema_extra={**option("Model"), "before": 0},
    )

    @model_validator(mode="after")
    def _reuses_what_is_frozen(self) -> FreezeOptions:
        if self.reuse_frozen is not None and self.freeze_stages == 0:
            raise ValueError("--reuse-frozen requires --freeze-stages: pass both")
        return self


_MODEL: JsonDict = {"panel": "Model"}
_MONITOR: JsonDict = {"panel": "Monitor"}


class BackboneOptions(StageConfig):
    """Backbone options of methods that train a backbone."""

    backbone: str = Field("resnet50", description="Backbone (`labelkit list backbones`).", json_schema_extra=_MODEL)
    pretrained: bool = Field(
        False, description="Initialize from pretrained weights on the hub.", json_schema_extra=_MODEL
    )
    weights: Path | None = Field(
        None, description="Initialize from this .safetensors or .pth file.", json_schema_extra=_MODEL
    )
    image_size: int | None = Field(
        None,
        ge=8,
        le=2048,
        description="View size in pixels; default: the backbone's input size.",
        json_schema_extra=_MODEL,
    )

    @property
    def view_size(self) -> int | None:
        """Return the requested side of a view in pixels, or ``None`` for the backbone's."""
        return self.image_size


class PixelOptions(StageConfig):
    """Options for the pixel mean and standard deviation, where published code differs from the backbone's."""

    pixel_mean: tuple[float, ...] | None = Field(
        None,
        description="Pixel mean in [0, 1]: a value per channel, or one for all channels; default: the backbone's.",
        json_schema_extra=_MODEL,
    )
    pixel_std: tuple[float, ...] | None = Field(
        None,
        description="Pixel standard deviation: a value per channel, or one for all channels; default: the backbone's.",
        json_schema_extra=_MODEL,
    )

    @model_validator(mode="after")
    def _pixels(self) -> PixelOptions:
        if self.pixel_std is not None and min(self.pixel_std, default=0.0) <= 0:
            raise ValueError("pixel_std must be positive")
        for name in ("pixel_mean", "pixel_std"):
            values = getattr(self, name)
            if values is not None and len(values) not in (1, 3):
                raise ValueError(f"{name} needs 1 or 3 values, got {len(values)}")
        return self


class BackboneRunConfig(BackboneOptions, RunConfig):
    """Options of a training run with a backbone and held-out images."""

    eval_split: str = Field(
        "auto",
        description="Split for evaluation after each epoch; auto: test, else val, if not used for training; none: no "
        "evaluation.",
        json_schema_extra=_MONITOR,
    )

    @property
    def judging_split(self) -> str | None:
        """Return the split for evaluation, or ``None`` for none."""
        return None if self.eval_split == "none" else self.eval_split

    @field_validator("eval_split")
    @classmethod
    def _named(cls, split: str) -> str:
        if not split:
            raise ValueError("is empty: pass none for no evaluation")
        return split


class BackboneTrainConfig(PixelOptions, BackboneRunConfig, TrainConfig):
    """Options of a training run with a backbone whose length is counted in epochs."""
