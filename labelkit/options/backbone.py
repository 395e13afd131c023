"""Options for all methods that train a backbone: frozen parts, initial weights, and evaluation during training."""

from pathlib import Path
from typing import Literal, Self

from pydantic import field_validator, model_validator

from labelkit.options.base import MODEL, MONITOR, BaseConfig
from labelkit.options.training import RunConfig, TrainConfig


class ReuseOptions(BaseConfig):
    """Options for caching the outputs of the frozen first part of a network."""

    reuse_frozen: int | None = MODEL(
        None,
        "Number of views per image for which the frozen part's output is cached on disk, next to the run. Every epoch "
        "draws from these views; the frozen part runs only once. Default: new views in every epoch.",
        ge=1,
        le=1024,
        before=None,
    )
    reuse_dtype: Literal["float16", "float32"] = MODEL(
        "float16",
        "Data type of the cache (with --reuse-frozen). float16 takes half the space; float32 keeps full precision.",
        before="float16",
    )

    @model_validator(mode="after")
    def _check_reuse_options(self) -> Self:
        if self.reuse_frozen is None and self.reuse_dtype != "float16":
            raise ValueError("--reuse-dtype requires --reuse-frozen: remove it, or pass both")
        return self


class FreezeOptions(ReuseOptions):
    """Options for freezing the first stages of a backbone."""

    freeze_stages: int = MODEL(
        0,
        "Number of backbone stages to freeze, counted from the input, with all earlier layers and their running "
        "statistics. Stages are layer1 to layer4 in a ResNet, blocks.0 to blocks.6 in an EfficientNet. 0: train all.",
        ge=0,
        before=0,
    )

    @model_validator(mode="after")
    def _check_frozen_reuse(self) -> Self:
        if self.reuse_frozen is not None and self.freeze_stages == 0:
            raise ValueError("--reuse-frozen requires --freeze-stages: pass both")
        return self


class BackboneOptions(BaseConfig):
    """Options for the backbone and its initial weights."""

    backbone: str = MODEL("resnet50", "Name of the backbone; see `labelkit list backbones`.")
    pretrained: bool = MODEL(False, "Initialize with pretrained weights from the hub.")
    weights: Path | None = MODEL(None, "Initialize with the weights in this .safetensors or .pth file.")
    image_size: int | None = MODEL(None, "View size in pixels. Default: the backbone's input size.", ge=8, le=2048)

    @property
    def view_size(self) -> int | None:
        """Side length of a view in pixels, or ``None`` for the backbone's input size."""
        return self.image_size


class PixelOptions(BaseConfig):
    """Options for pixel normalization, to match published code whose values differ from the backbone's."""

    pixel_mean: tuple[float, ...] | None = MODEL(
        None, "Pixel mean in [0, 1]: one value, or one per channel. Default: the backbone's."
    )
    pixel_std: tuple[float, ...] | None = MODEL(
        None, "Pixel standard deviation: one value, or one per channel. Default: the backbone's."
    )

    @model_validator(mode="after")
    def _pixels(self) -> Self:
        if self.pixel_std is not None and min(self.pixel_std, default=0.0) <= 0:
            raise ValueError("pixel_std must be positive")
        for name in ("pixel_mean", "pixel_std"):
            values = getattr(self, name)
            if values is not None and len(values) not in (1, 3):
                raise ValueError(f"{name} must have 1 or 3 values, got {len(values)}")
        return self


class BackboneRunConfig(BackboneOptions, RunConfig):
    """Options for training a backbone, with evaluation on held-out images."""

    eval_split: str = MONITOR(
        "auto",
        "Split to evaluate on during training. auto: test if it exists, otherwise val, but never the training split; "
        "none: no evaluation.",
    )

    @property
    def evaluation_split(self) -> str | None:
        """Split to evaluate on, or ``None`` for no evaluation."""
        return None if self.eval_split == "none" else self.eval_split

    @field_validator("eval_split")
    @classmethod
    def _named(cls, split: str) -> str:
        if not split:
            raise ValueError("must not be empty: pass none for no evaluation")
        return split


class BackboneTrainConfig(PixelOptions, BackboneRunConfig, TrainConfig):
    """Options for training a backbone for a number of epochs."""
