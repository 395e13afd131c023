"""Options of the methods of category discovery.

What category-discovery methods share: GCD's contrastive recipe, and SimGCD's classifier on top of it.

Options of FlipClass: SimGCD's recipe and the alignment of the teacher's attention.

Options of GCD, the contrastive baseline under SimGCD.

Options of SimGCD, the baseline under FlipClass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic.config import JsonDict

from labelkit.options.backbone import BackboneOptions, ReuseOptions
from labelkit.options.base import with_default
from labelkit.options.embeddings import StrongRowOptions
from labelkit.options.training import LabelKind, TrainConfig

_MODEL: JsonDict = {"panel": "Model"}
_LOSS: JsonDict = {"panel": "Loss"}
_VIEWS: JsonDict = {"panel": "Views"}
_MONITOR: JsonDict = {"panel": "Monitor"}


class ContrastiveTrainConfig(ReuseOptions, BackboneOptions, TrainConfig):
    """Options of category discovery: backbone, projector, contrastive losses and views.

    Defaults are those of the released code of GCD and SimGCD, which agree, unless the description says otherwise.
    """

    epochs: int = with_default(TrainConfig, "epochs", 200)

    backbone: str = Field(
        "vit_base_patch16_224.dino",
        description="A vision transformer by its timm name, or one of labelkit's own (`labelkit list backbones`).",
        json_schema_extra=_MODEL,
    )
    pretrained: bool = with_default(BackboneOptions, "pretrained", True)
    grad_from_block: int = Field(
        11,
        ge=0,
        description="First transformer block to train (0-based); earlier blocks stay frozen.",
        json_schema_extra=_MODEL,
    )
    train_stem: bool = Field(
        False,
        description="Also train the embedding layers and the final norm (for training from scratch, with "
        "--grad-from-block 0).",
        json_schema_extra=_MODEL,
    )
    linear_probe: bool = Field(False, description="Train the heads only.", json_schema_extra=_MODEL)
    num_classes: int | None = Field(
        None,
        ge=2,
        description="Total number of old and new classes; default: from the data. If the number is unknown, `labelkit "
        "discover categories` estimates it.",
        json_schema_extra=_MODEL,
    )
    projector_hidden_dim: int = Field(2048, ge=1, description="Width of the projector.", json_schema_extra=_MODEL)
    projection_dim: int = Field(256, ge=1, description="Output dimension of the projector.", json_schema_extra=_MODEL)

    supervised_weight: float = Field(
        0.35, ge=0, le=1, description="Weight of the supervised terms (paper: lambda).", json_schema_extra=_LOSS
    )
    contrastive_temperature: float = Field(
        1.0, gt=0, description="Unsupervised contrastive temperature (paper: tau_u).", json_schema_extra=_LOSS
    )
    supervised_temperature: float = Field(
        0.07, gt=0, description="Supervised contrastive temperature (paper: tau_c).", json_schema_extra=_LOSS
    )

    augmentation: Literal["generic", "fine", "digits"] = Field(
        "generic",
        description="Augmentation recipe for generic photos, fine-grained photos, or digits (no flips or color).",
        json_schema_extra=_VIEWS,
    )

    @property
    def learns_from_labels(self) -> bool:
        """Return whether the supervised terms have a positive weight."""
        return self.supervised_weight > 0

    @property
    def label_kind(self) -> LabelKind:
        """Return ``some``, since classes without labels are to be discovered."""
        return "some"


class DiscoveryTrainConfig(ContrastiveTrainConfig):
    """Options of category discovery with a classifier over old and new classes, with defaults of SimGCD's code."""

    constants: ClassVar[Mapping[str, object]] = {"collapse_patience_epochs": 5}

    own_output: ClassVar[Literal["names", "groups", "nothing"]] = "groups"

    student_temperature: float = Field(
        0.1, gt=0, description="Temperature of the student's prediction (paper: tau_s).", json_schema_extra=_LOSS
    )
    teacher_temperature_start: float = Field(
        0.07, gt=0, description="Initial temperature of the teacher's target (paper: tau_t).", json_schema_extra=_LOSS
    )
    teacher_temperature_final: float = Field(
        0.04,
        gt=0,
        description="Temperature of the teacher's target after --teacher-warmup-epochs.",
        json_schema_extra=_LOSS,
    )
    teacher_warmup_epochs: int = Field(
        30, ge=0, description="Number of warm-up epochs of the teacher's temperature.", json_schema_extra=_LOSS
    )
    entropy_weight: float = Field(
        2.0,
        ge=0,
        description="Weight of the mean-entropy regularizer (paper: eps); published values differ by data set.",
        json_schema_extra=_LOSS,
    )

    view_gap: bool = Field(
        False,
        description="After each evaluation, also classify a teacher's and a student's view of the unlabeled images. "
        "Logs both accuracies and the distance between the features of the two views. Takes two more passes over "
        "these images.",
        json_schema_extra={**_MONITOR, "before": False},
    )

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return options with fewer epochs and a shorter warm-up of the teacher's temperature."""
        return super().shortened(fraction) | self._scaled(fraction, "teacher_warmup_epochs", least=0)


_ALIGN: JsonDict = {"panel": "Alignment"}


class FlipClassConfig(DiscoveryTrainConfig):
    """Options of ``labelkit train flipclass``, with alignment defaults of the paper's Appendix D.1."""

    command: ClassVar[tuple[str, ...]] = ("train", "flipclass")
    constants: ClassVar[Mapping[str, object]] = {
        "fixmatch_threshold": 0.95,
        "align_tokens": "all",
        "update_grad": "stop",
        "align_loss_blocks": None,  # of l2, kld and coral: the last block
        "align_weight": 1.0,
    }

    align_mode: Literal["flip", "none", "sda", "l2", "kld", "coral", "da", "fixmatch"] = Field(
        "flip",
        description="How to align the teacher with the student. flip: move the teacher's keys; none: only a weak view "
        "for the teacher and a strong view for the student. The paper's baselines: sda: the student's augmentation "
        "grows stronger over the first half of training; l2, kld, coral: a loss pulls the teacher's keys to the "
        "student's queries; da: targets adjusted to equal class frequencies; fixmatch: only confident targets count.",
        json_schema_extra=_ALIGN,
    )
    align_blocks: tuple[int, ...] = Field(
        (8, 9),
        description="Blocks in which keys move, 0-based (8,9: the paper's 9-10 for fine-grained data; 3,4 for "
        "CIFAR-10).",
        json_schema_extra=_ALIGN,
    )
    update_space: Literal["key", "token", "literal"] = Field(
        "key",
        description="What the alignment updates to lower the energy. key: the keys, per head; token: the block's "
        "input; literal: Eq. 8 as printed.",
        json_schema_extra=_ALIGN,
    )
    alpha: float = Field(0.0, ge=0, description="Weight of the keys' norm in the energy.", json_schema_extra=_ALIGN)
    beta: float | Literal["auto"] = Field(
        1.0, description="Inverse temperature of the alignment; auto = 1/sqrt(head width).", json_schema_extra=_ALIGN
    )
    gamma_update: float = Field(0.1, ge=0, description="Step size of the alignment update.", json_schema_extra=_ALIGN)
    gamma_reg: float = Field(
        0.5, ge=0, description="Weight of the prior in the alignment update.", json_schema_extra=_ALIGN
    )
    student_view: Literal["strong", "weak"] = Field(
        "strong", description="Augmentation of the student's view.", json_schema_extra=_ALIGN
    )
    log_energy: Literal["aligned", "all", "none"] = Field(
        "aligned",
        description="Blocks whose energies are logged, every --log-every-steps steps.",
        json_schema_extra=_ALIGN,
    )

    @field_validator("align_blocks")
    @classmethod
    def _no_duplicates(cls, blocks: tuple[int, ...]) -> tuple[int, ...]:
        if any(block < 0 for block in blocks):
            raise ValueError(f"block numbers must be at least 0, got {blocks}")
        return tuple(sorted(set(blocks)))

    @model_validator(mode="after")
    def _options_of_the_mode(self) -> FlipClassConfig:
        for name in ("update_space", "alpha", "beta", "gamma_update", "gamma_reg"):
            if self.align_mode != "flip" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} has no effect with align_mode {self.align_mode}, only with flip")
        return self

    @field_validator("beta")
    @classmethod
    def _positive_beta(cls, beta: float | str) -> float | str:
        if isinstance(beta, float) and beta <= 0:
            raise ValueError(f"must be greater than 0, got {beta}")
        return beta


class GCDConfig(StrongRowOptions, ContrastiveTrainConfig):
    """Options of ``labelkit train gcd``, with defaults of the released code."""

    command: ClassVar[tuple[str, ...]] = ("train", "gcd")

    head_dim: int = Field(
        65536,
        ge=2,
        description="Dimension of the contrastive space after the projector's bottleneck.",
        json_schema_extra={"panel": "Model"},
    )


class SimGCDConfig(StrongRowOptions, DiscoveryTrainConfig):
    """Options of ``labelkit train simgcd``, with defaults of the released code."""

    command: ClassVar[tuple[str, ...]] = ("train", "simgcd")

    views: Literal["simgcd", "weak-strong"] = Field(
        "simgcd",
        description="How to make the two views. simgcd: from one transform; weak-strong: as in FlipClass.",
        json_schema_extra={"panel": "Views"},
    )
    symmetric: bool = Field(
        True,
        description="Let each view teach the other view; otherwise, only the first view teaches the second.",
        json_schema_extra={"panel": "Loss"},
    )
