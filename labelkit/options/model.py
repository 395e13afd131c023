"""Options for the network that computes features, shared by all commands that apply a network to images."""

from pathlib import Path
from typing import Self

from pydantic import model_validator

from labelkit.options.base import MODEL, BaseConfig


class ModelConfig(BaseConfig):
    """Options for the network and its weights."""

    checkpoint: Path | None = MODEL(
        None,
        "Run folder from `labelkit train`, or a checkpoint in it. Images from the run's dataset stay in the split "
        "that they had in the run.",
    )
    backbone: str | None = MODEL(
        None,
        "Backbone to use instead of --checkpoint: a name; names joined as A+B, to concatenate their features; pixels "
        "(the resized image itself); or auto (the best backbone with weights on this machine, in the hub's cache or "
        "an installed package). Default: auto.",
    )
    pretrained: bool = MODEL(
        False, "Use published weights for --backbone, from this machine if available, otherwise from the hub."
    )
    weights: Path | None = MODEL(None, "File with weights for --backbone.")
    random_weights: bool = MODEL(False, "Use random weights for --backbone, as a baseline.")
    image_size: int | None = MODEL(
        None, "Input size in pixels. Default: the backbone's, except 224 for DINOv2 (published: 518).", ge=1, le=2048
    )
    seed: int = MODEL(0, "Random seed for the weights of an untrained network.", ge=0)

    @model_validator(mode="after")
    def _check_one_model(self) -> Self:
        sources = [self.pretrained, self.weights is not None, self.random_weights]
        if self.checkpoint is not None and self.backbone is not None:
            raise ValueError("pass either --checkpoint (a run folder) or --backbone (a name), not both")
        if self.checkpoint is not None and any(sources):
            raise ValueError("--pretrained, --weights and --random-weights require --backbone")
        parts = (self.backbone or "").split("+")
        if len(parts) > 1:
            if not all(parts) or {"auto", "pixels"} & set(parts):
                raise ValueError("--backbone A+B requires backbone names, not auto or pixels")
            if self.weights is not None or self.image_size is not None:
                raise ValueError("--weights and --image-size apply to a single backbone: remove them or one name")
        if self.backbone == "pixels" and any(sources):
            raise ValueError("--backbone pixels has no weights: remove --pretrained, --weights or --random-weights")
        if self.uses_best_backbone:
            if self.random_weights or self.weights is not None:
                option = "--random-weights" if self.random_weights else "--weights"
                raise ValueError(f"{option} requires a backbone: pass --backbone NAME (see `labelkit list backbones`)")
        elif self.backbone not in (None, "auto", "pixels") and sum(sources) != 1:
            raise ValueError("pass one of --pretrained, --weights FILE and --random-weights with --backbone")
        return self

    @property
    def uses_best_backbone(self) -> bool:
        """Whether the best available backbone is to be used."""
        return self.checkpoint is None and self.backbone in (None, "auto")
