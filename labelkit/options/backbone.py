"""What methods share that train any backbone, and are judged by images that they are not trained on."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator, model_validator
from pydantic.config import JsonDict

from labelkit.options.base import StageConfig
from labelkit.options.training import RunConfig, TrainConfig

_MODEL: JsonDict = {"panel": "Model"}
_MONITOR: JsonDict = {"panel": "Monitor"}


class BackboneOptions(StageConfig):
    """A method that trains a backbone."""

    backbone: str = Field("resnet50", description="Any backbone (`labelkit list backbones`).", json_schema_extra=_MODEL)
    pretrained: bool = Field(False, description="Start from the hub's weights.", json_schema_extra=_MODEL)
    weights: Path | None = Field(
        None, description="Start from this .safetensors or .pth file instead.", json_schema_extra=_MODEL
    )
    image_size: int | None = Field(
        None, ge=8, le=2048, description="Side of a view in pixels; default: the backbone's.", json_schema_extra=_MODEL
    )

    @property
    def view_size(self) -> int | None:
        """As asked for."""
        return self.image_size


class PixelOptions(StageConfig):
    """How pixels are normalized, where the backbone's own way is not what was published."""

    pixel_mean: tuple[float, ...] | None = Field(
        None,
        description="Mean of the pixels in [0, 1], for each channel or for all; default: the backbone's.",
        json_schema_extra=_MODEL,
    )
    pixel_std: tuple[float, ...] | None = Field(
        None,
        description="Standard deviation of the pixels, likewise; default: the backbone's.",
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
    """Backbone and held-out images."""

    eval_split: str = Field(
        "auto",
        description="Split whose labels judge the network after an epoch, nothing else; auto: test, or val, if there "
        "is one that is not trained on; none: no judging.",
        json_schema_extra=_MONITOR,
    )

    @property
    def judging_split(self) -> str | None:
        """As asked for; ``None`` for none."""
        return None if self.eval_split == "none" else self.eval_split

    @field_validator("eval_split")
    @classmethod
    def _named(cls, split: str) -> str:
        if not split:
            raise ValueError("empty; none means no judging")
        return split


class BackboneTrainConfig(PixelOptions, BackboneRunConfig, TrainConfig):
    """The same for a run whose length is counted in epochs."""
