"""Options of DL2PA: fixed prototypes on the sphere, assigned to classes anew during training."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.config.base import with_default
from labelkit.config.prototypes import SHARPEST_T
from labelkit.config.rows import RowOptions
from labelkit.config.supervised import SupervisedTrainConfig

_PROTOTYPES: JsonDict = {"panel": "Prototypes"}
_ASSIGNMENT: JsonDict = {"panel": "Assignment"}
_LOSS: JsonDict = {"panel": "Loss"}


class DL2PAConfig(RowOptions, SupervisedTrainConfig):
    """``labelkit train dl2pa``; defaults are those of the released code for CIFAR-100."""

    command: ClassVar[tuple[str, ...]] = ("train", "dl2pa")

    epochs: int = with_default(SupervisedTrainConfig, "epochs", 250)

    prototypes: Literal["uniform", "simplex", "hpn", "words"] = Field(
        "uniform",
        description="uniform: spread over the sphere for any number of classes; simplex: all pairs alike (ETF), for "
        "d >= classes - 1. `labelkit prototypes` shows them. Rivals of the paper, with --no-reassign: hpn: each pushed "
        "from its nearest other (hyperspherical prototype networks), and in the order of --class-vectors if these are "
        "given; words: those of --class-vectors.",
        json_schema_extra=_PROTOTYPES,
    )
    class_vectors: Path | None = Field(
        None,
        description="With --prototypes words or hpn: text file of word2vec or GloVe, in each line a class name (_ for "
        "a space) and its numbers. As prototypes, those of more than d numbers are cut to their principal directions.",
        json_schema_extra={**_PROTOTYPES, "before": None},
    )
    prototype_seed: int = Field(
        0, ge=0, description="Seed of the prototypes; apart from --seed.", json_schema_extra=_PROTOTYPES
    )
    prototypes_from: Path | None = Field(
        None,
        description="Take the prototypes of this file of `labelkit prototypes`, or the directions that this run of "
        "`train softmax` learned.",
        json_schema_extra=_PROTOTYPES,
    )

    sharpest_t: float | None = Field(
        SHARPEST_T,
        gt=0,
        le=1e9,
        description="Sharpen the loss of the prototypes step by step up to this value, until the largest cosine "
        "counts. none: minimize the paper's loss (Eq. 5) itself, also where opposite pairs are the widest spread.",
        json_schema_extra={**_PROTOTYPES, "before": SHARPEST_T},
    )

    reassign: bool = Field(
        True,
        description="Assign classes to prototypes anew during training. Otherwise each class keeps its first "
        "prototype.",
        json_schema_extra=_ASSIGNMENT,
    )
    updates_per_epoch: float = Field(
        1.0,
        gt=0,
        description="Assignments per epoch, tau' of the paper's Fig. 3b: 10 = ten times an epoch, 0.1 = every tenth "
        "epoch.",
        json_schema_extra=_ASSIGNMENT,
    )
    freeze_after: float | None = Field(
        None,
        ge=0,
        le=1,
        description="No new assignment after this share of the epochs; default: to the end.",
        json_schema_extra=_ASSIGNMENT,
    )
    initial_assignment: Literal["identity", "random"] = Field(
        "identity",
        description="Assignment to start with; random is drawn by --seed.",
        json_schema_extra=_ASSIGNMENT,
    )
    class_mean_decay: float = Field(
        0.9,
        ge=0,
        lt=1,
        description="Weight of the past in a class mean (alpha). The released code "
        "means 0.9, but its update amounts to 0.95.",
        json_schema_extra=_ASSIGNMENT,
    )

    loss: Literal["inner-product", "cross-entropy"] = Field(
        "inner-product",
        description="inner-product: (1 - cosine)^2 with the own prototype; cross-entropy: softmax over the inner "
        "products with all prototypes.",
        json_schema_extra=_LOSS,
    )
    reduction: Literal["sum", "half-mean"] = Field(
        "half-mean",
        description="inner-product over a batch. sum: of the released code for balanced data; half-mean: of the paper. "
        "The learning rate depends on it.",
        json_schema_extra=_LOSS,
    )

    @model_validator(mode="after")
    def _check_loss(self) -> DL2PAConfig:
        if self.reduction == "sum" and self.loss != "inner-product":
            raise ValueError("reduction sum goes with loss inner-product")
        if self.prototypes_from is not None and self.prototypes != "uniform":
            raise ValueError("prototypes and prototypes_from exclude each other")
        if self.sharpest_t != SHARPEST_T and (self.prototypes != "uniform" or self.prototypes_from is not None):
            raise ValueError("sharpest_t is of prototypes uniform that are made now")
        if self.prototypes != "hpn" and (self.class_vectors is not None) != (self.prototypes == "words"):
            raise ValueError("prototypes words and class_vectors go together; prototypes hpn may have them")
        return self
