"""What category-discovery methods share: GCD's contrastive recipe, and SimGCD's classifier on top of it."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.config.backbone import BackboneOptions
from labelkit.config.base import with_default
from labelkit.config.reuse import ReuseOptions
from labelkit.config.train import LabelKind, TrainConfig

_MODEL: JsonDict = {"panel": "Model"}
_LOSS: JsonDict = {"panel": "Loss"}
_VIEWS: JsonDict = {"panel": "Views"}
_MONITOR: JsonDict = {"panel": "Monitor"}


class ContrastiveTrainConfig(ReuseOptions, BackboneOptions, TrainConfig):
    """Backbone, projector, contrastive losses and views of a category-discovery method.

    Defaults are those of the released code of GCD and SimGCD, which agree, unless the description says otherwise.
    """

    epochs: int = with_default(TrainConfig, "epochs", 200)

    backbone: str = Field(
        "vit_base_patch16_224.dino",
        description="A vision transformer by its timm name, or one of ours (`labelkit list backbones`).",
        json_schema_extra=_MODEL,
    )
    pretrained: bool = with_default(BackboneOptions, "pretrained", True)
    grad_from_block: int = Field(
        11, ge=0, description="First transformer block that is trained (0-based).", json_schema_extra=_MODEL
    )
    train_stem: bool = Field(
        False,
        description="Also train embedding layers and final norm (from scratch; with --grad-from-block 0).",
        json_schema_extra=_MODEL,
    )
    linear_probe: bool = Field(False, description="Train the heads only.", json_schema_extra=_MODEL)
    num_classes: int | None = Field(
        None,
        ge=2,
        description="Classes in all, old and new; default: what the data says. "
        "Unknown? `labelkit discover categories` estimates it.",
        json_schema_extra=_MODEL,
    )
    projector_hidden_dim: int = Field(2048, ge=1, description="Width of the projector.", json_schema_extra=_MODEL)
    projection_dim: int = Field(256, ge=1, description="Width of the contrastive space.", json_schema_extra=_MODEL)

    supervised_weight: float = Field(
        0.35, ge=0, le=1, description="Weight of the supervised terms (lambda).", json_schema_extra=_LOSS
    )
    contrastive_temperature: float = Field(
        1.0, gt=0, description="Temperature of the unsupervised contrastive loss (tau_u).", json_schema_extra=_LOSS
    )
    supervised_temperature: float = Field(
        0.07, gt=0, description="Temperature of the supervised contrastive loss (tau_c).", json_schema_extra=_LOSS
    )

    augmentation: Literal["generic", "fine", "digits"] = Field(
        "generic",
        description="Strength of the views: generic photos, fine-grained photos, digits (no mirror, no color).",
        json_schema_extra=_VIEWS,
    )

    @property
    def learns_from_labels(self) -> bool:
        """Unless the terms that use labels have weight 0."""
        return self.supervised_weight > 0

    @property
    def label_kind(self) -> LabelKind:
        """Some: classes without a label are what is to be found."""
        return "some"


class DiscoveryTrainConfig(ContrastiveTrainConfig):
    """A classifier over old and new classes beside the contrastive space; defaults are those of SimGCD's code."""

    own_output: ClassVar[Literal["names", "groups", "nothing"]] = "groups"

    student_temperature: float = Field(
        0.1, gt=0, description="Temperature of the student's prediction (tau_s).", json_schema_extra=_LOSS
    )
    teacher_temperature_start: float = Field(
        0.07, gt=0, description="Temperature of the teacher's target at the start (tau_t).", json_schema_extra=_LOSS
    )
    teacher_temperature_final: float = Field(
        0.04,
        gt=0,
        description="Temperature of the teacher's target after --teacher-warmup-epochs.",
        json_schema_extra=_LOSS,
    )
    teacher_warmup_epochs: int = Field(
        30, ge=0, description="Epochs from the first to the final teacher temperature.", json_schema_extra=_LOSS
    )
    entropy_weight: float = Field(
        2.0,
        ge=0,
        description="Weight of the mean-entropy regularizer (eps); differs by data set.",
        json_schema_extra=_LOSS,
    )
    collapse_patience_epochs: int = Field(
        5,
        ge=1,
        description="Stop after this number of evaluations in a row with a single cluster. They span at least 200 "
        "steps.",
        json_schema_extra=_LOSS,
    )

    view_gap: bool = Field(
        False,
        description="After an evaluated epoch, also classify a teacher's and a student's view of the unlabeled images: "
        "metrics have the accuracy of both and the distance of their features. Two more passes over these images.",
        json_schema_extra={**_MONITOR, "before": False},
    )

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return fewer epochs, also of the teacher's warm-up."""
        return super().shortened(fraction) | self._scaled(fraction, "teacher_warmup_epochs", least=0)
