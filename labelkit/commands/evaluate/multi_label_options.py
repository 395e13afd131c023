"""Options of ``labelkit evaluate presence``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.options.gate import GateConfig
from labelkit.options.model import ModelConfig
from labelkit.options.shared import DatasetOptions, DeviceOption, PerClassOption, ThreadsOption, WorkersOption

_DATA: JsonDict = {"panel": "Data"}


class EvaluatePresenceConfig(
    PerClassOption, ThreadsOption, DeviceOption, WorkersOption, DatasetOptions, GateConfig, ModelConfig
):
    """``labelkit evaluate presence``; defaults are those of DeepCluster's code, which SeLa follows."""

    command: ClassVar[tuple[str, ...]] = ("evaluate", "presence")
    constants: ClassVar[Mapping[str, object]] = {
        "lr_halving_steps": 5000,
        "max_scale": 0.5,
        "min_scale": 0.1,
    }

    dataset: str = Field(
        "voc_2007_classes", description="A set whose images may have several classes.", json_schema_extra=_DATA
    )
    split: str = Field("train", description="Images that are trained on.", json_schema_extra=_DATA)
    eval_split: str = Field("test", description="Images that are scored.", json_schema_extra=_DATA)
    train: Literal["linear", "fully-connected"] = Field(
        "linear",
        description="What is trained on the frozen network. linear: one layer on its embedding; fully-connected: the "
        "two wide layers of an AlexNet, drawn anew, and one on top (published as fc6-8).",
    )
    crops: Literal["random-ten", "ten", "center"] = Field(
        "random-ten",
        description="Views that are scored and summed. random-ten: ten as in training (published); ten: corners, "
        "center and their mirror images; center: one.",
    )
    steps: int = Field(80_000, ge=1, description="Updates.")
    batch_size: int = Field(16, ge=2, description="Images of a step.")
    lr: float = Field(0.003, gt=0, description="Learning rate of SGD with momentum 0.9, at first.")
    weight_decay: float = Field(1e-6, ge=0, description="L2 penalty.")
    clip_grad_norm: float = Field(10.0, gt=0, description="Largest length of the gradient.")
    seed: int = Field(0, ge=0, description="Seed of first weights, order and views; of an untrained network too.")

    @model_validator(mode="after")
    def _splits_differ(self) -> EvaluatePresenceConfig:
        if self.split == self.eval_split:
            raise ValueError(f"eval_split {self.eval_split} is trained on: choose two splits")
        return self
