"""Options for category discovery: GCD's contrastive learning, SimGCD's classifier, and FlipClass's alignment."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import field_validator, model_validator

from labelkit.options.backbone import BackboneOptions, ReuseOptions
from labelkit.options.base import field_factory, override_default
from labelkit.options.embeddings import StrongEmbeddingInputOptions
from labelkit.options.training import LabelKind, TrainConfig

_MODEL = field_factory("Model")
_LOSS = field_factory("Loss")
_VIEWS = field_factory("Views")
_MONITOR = field_factory("Monitor")
_ALIGN = field_factory("Alignment")


class ContrastiveTrainConfig(ReuseOptions, BackboneOptions, TrainConfig):
    """Options for category discovery: backbone, projector, contrastive losses and views.

    Unless noted otherwise, defaults are those of the released code of both GCD and SimGCD.
    """

    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "grad_from_block": ("linear_probe", False),
        "train_stem": ("linear_probe", False),
        "supervised_temperature": ("supervised_weight",),
    }

    epochs: int = override_default(TrainConfig, "epochs", 200)

    backbone: str = _MODEL(
        "vit_base_patch16_224.dino",
        "Name of a vision transformer, from timm or labelkit; see `labelkit list backbones`.",
    )
    pretrained: bool = override_default(BackboneOptions, "pretrained", True)
    grad_from_block: int = _MODEL(11, "First transformer block to train (0-based); earlier blocks stay frozen.", ge=0)
    train_stem: bool = _MODEL(
        False,
        "Also train the input embeddings and the final norm (when training from scratch, with --grad-from-block 0).",
    )
    linear_probe: bool = _MODEL(False, "Train only the heads.")
    num_classes: int | None = _MODEL(
        None,
        "Total number of old and new classes. If unknown, estimate it with `labelkit discover categories`. Default: "
        "the number of classes in the dataset.",
        ge=2,
    )
    projector_hidden_dim: int = _MODEL(2048, "Hidden width of the projector.", ge=1)
    projection_dim: int = _MODEL(256, "Output dimension of the projector.", ge=1)

    supervised_weight: float = _LOSS(0.35, "Weight of the supervised terms (lambda in the paper).", ge=0, le=1)
    contrastive_temperature: float = _LOSS(
        1.0, "Temperature of the unsupervised contrastive loss (tau_u in the paper).", gt=0
    )
    supervised_temperature: float = _LOSS(0.07, "Supervised contrastive temperature (tau_c in the paper).", gt=0)

    augmentation: Literal["generic", "fine", "digits"] = _VIEWS(
        "generic", "Augmentation recipe for generic photos, fine-grained photos, or digits (no flips or color jitter)."
    )

    @property
    def label_kind(self) -> LabelKind:
        """Kind of labels used: ``some`` of the classes have labels, and the others are discovered."""
        return "some"


class DiscoveryTrainConfig(ContrastiveTrainConfig):
    """Options for category discovery with a classifier over old and new classes; defaults follow SimGCD's code."""

    scaled: ClassVar[Mapping[str, int]] = {"teacher_warmup_epochs": 0}
    acts_with: ClassVar[Mapping[str, tuple[Any, ...]]] = {"teacher_temperature_start": ("teacher_warmup_epochs",)}

    own_output: ClassVar[Literal["names", "groups", "nothing"]] = "groups"

    student_temperature: float = _LOSS(0.1, "Temperature of the student's predictions (tau_s in the paper).", gt=0)
    teacher_temperature_start: float = _LOSS(
        0.07, "Initial temperature of the teacher's targets (tau_t in the paper).", gt=0
    )
    teacher_temperature_final: float = _LOSS(
        0.04, "Final temperature of the teacher's targets, after --teacher-warmup-epochs.", gt=0
    )
    teacher_warmup_epochs: int = _LOSS(30, "Number of warm-up epochs for the teacher's temperature.", ge=0)
    entropy_weight: float = _LOSS(
        2.0, "Weight of the mean-entropy regularizer (eps in the paper); published values differ by dataset.", ge=0
    )

    view_gap: bool = _MONITOR(
        False,
        "After each evaluation, also classify a teacher view and a student view of the unlabeled images. Logs both "
        "accuracies and the distance between the features of the two views. Takes two more passes over these images.",
        before=False,
    )


class FlipClassConfig(DiscoveryTrainConfig):
    """Options for ``labelkit train flipclass``; alignment defaults follow Appendix D.1 of the paper."""

    command: ClassVar[tuple[str, ...]] = ("train", "flipclass")

    align_mode: Literal["flip", "none", "sda", "l2", "kld", "coral", "da", "fixmatch"] = _ALIGN(
        "flip",
        "How to align the teacher with the student. flip: move the teacher's keys toward the student's queries; none: "
        "only use a weak view for the teacher and a strong view for the student. The other values are the paper's "
        "baselines. sda: strengthen the student's augmentation over the first half of training; l2, kld, coral: pull "
        "these keys toward the queries with a loss; da: adjust targets to equal class frequencies; fixmatch: use only "
        "confident targets.",
    )
    align_blocks: tuple[int, ...] = _ALIGN(
        (8, 9), "Transformer blocks whose attention keys are aligned, 0-based (8,9 in the paper for fine-grained data)."
    )
    update_space: Literal["key", "token", "literal"] = _ALIGN(
        "key",
        "Tensor that the alignment updates to lower the energy. key: the keys, per head; token: the block's input; "
        "literal: Eq. 8 of the paper, as printed.",
    )
    alpha: float = _ALIGN(0.0, "Weight of the key norm in the energy.", ge=0)
    beta: float = _ALIGN(1.0, "Inverse temperature of the alignment.", gt=0)
    gamma_update: float = _ALIGN(0.1, "Step size of the alignment update.", ge=0)
    gamma_reg: float = _ALIGN(0.5, "Weight of the prior in the alignment update.", ge=0)
    student_view: Literal["strong", "weak"] = _ALIGN("strong", "Augmentation of the student's view.")
    log_energy: Literal["aligned", "all", "none"] = _ALIGN(
        "aligned", "Blocks whose energies to log every --log-every-steps steps."
    )

    @field_validator("align_blocks")
    @classmethod
    def _no_duplicates(cls, blocks: tuple[int, ...]) -> tuple[int, ...]:
        if any(block < 0 for block in blocks):
            raise ValueError(f"block numbers must be at least 0, got {blocks}")
        return tuple(sorted(set(blocks)))

    @model_validator(mode="after")
    def _check_mode_options(self) -> Self:
        for name in ("update_space", "alpha", "beta", "gamma_update", "gamma_reg"):
            if self.align_mode != "flip" and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} has no effect with --align-mode {self.align_mode}, only with flip")
        return self


class GCDConfig(StrongEmbeddingInputOptions, ContrastiveTrainConfig):
    """Options for ``labelkit train gcd``, with the defaults of the released code."""

    command: ClassVar[tuple[str, ...]] = ("train", "gcd")

    head_dim: int = _MODEL(65536, "Dimension of the contrastive space after the projector's bottleneck.", ge=2)


class SimGCDConfig(StrongEmbeddingInputOptions, DiscoveryTrainConfig):
    """Options for ``labelkit train simgcd``, with the defaults of the released code."""

    command: ClassVar[tuple[str, ...]] = ("train", "simgcd")

    views: Literal["simgcd", "weak-strong"] = _VIEWS(
        "simgcd",
        "How to create the two views. simgcd: both with the same augmentation; weak-strong: one weakly and one "
        "strongly augmented, as in FlipClass.",
    )
    symmetric: bool = _LOSS(
        True, "Use each view as the teacher of the other; otherwise, only the first view teaches the second."
    )
