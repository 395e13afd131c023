"""Options of ``labelkit evaluate probes``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.options.gate import GateConfig
from labelkit.options.shared import DeviceOption, HeldOutOptions, ThreadsOption, WorkersOption

_STORE: JsonDict = {"panel": "Store", "preset": False}


class EvaluateProbesConfig(HeldOutOptions, DeviceOption, WorkersOption, ThreadsOption, GateConfig):
    """``labelkit evaluate probes``; defaults are those of SeLa's released code (eval_linear_probes.py)."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "probes")
    constants: ClassVar[Mapping[str, object]] = {
        "max_values": 9600,
    }

    checkpoint: Path = Field(..., description="Run folder, or a checkpoint in it.", json_schema_extra=_STORE)
    data_root: Path | None = Field(
        None, description="Folder where named sets live; default: as in training.", json_schema_extra=_STORE
    )
    at: Literal["convolutions", "features"] = Field(
        "convolutions",
        description="convolutions: a classifier after each convolution of a plain network; features: one on the "
        "embedding of any network (published for ResNets: 146 epochs, lr 0.1 that drops at 85 and 128, batches of "
        "1,024, no weight decay).",
    )
    augmentation: Literal["imagenet", "crop-flip", "digits", "none"] = Field(
        "imagenet",
        description="Views of the training: imagenet: a random box of 8 to 100 % and a mirror image (published).",
    )
    crops: Literal["ten", "center"] = Field(
        "ten",
        description="Views that are scored. ten: the mean over corners and center of the resized center, and their "
        "mirror images where these mean the same; center: one.",
    )
    epochs: int = Field(36, ge=1, description="Passes over the training images.")
    batch_size: int = Field(192, ge=2, description="Images of a step.")
    lr: float = Field(0.01, gt=0, description="Learning rate of SGD with momentum 0.9, until the first drop.")
    lr_drop_epochs: tuple[int, ...] = Field((10, 20, 30), description="Epochs before which it drops to a tenth.")
    weight_decay: float = Field(1e-5, ge=0, description="L2 penalty.")
    seed: int = Field(0, ge=0, description="Seed of first weights, order and views.")

    @model_validator(mode="after")
    def _drops_increase(self) -> EvaluateProbesConfig:
        if list(self.lr_drop_epochs) != sorted(set(self.lr_drop_epochs)) or any(e < 1 for e in self.lr_drop_epochs):
            raise ValueError(f"lr_drop_epochs must be positive and increase, got {self.lr_drop_epochs}")
        return self
