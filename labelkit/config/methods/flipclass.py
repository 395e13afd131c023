"""Options of FlipClass: SimGCD's recipe and the alignment of the teacher's attention."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator
from pydantic.config import JsonDict

from labelkit.config.discovery import DiscoveryTrainConfig

_ALIGN: JsonDict = {"panel": "Alignment"}


class FlipClassConfig(DiscoveryTrainConfig):
    """``labelkit train flipclass``; alignment defaults are those of the paper's Appendix D.1."""

    command: ClassVar[tuple[str, ...]] = ("train", "flipclass")

    align_mode: Literal["flip", "none", "sda", "l2", "kld", "coral", "da", "fixmatch"] = Field(
        "flip",
        description="flip: move the teacher's keys; none: weak teacher and strong student alone. Rivals of the paper: "
        "sda: the student's augmentation grows over the first half; l2, kld, coral: a loss pulls the teacher's keys to "
        "the student's queries; da: targets moved to even class shares; fixmatch: only sure targets count.",
        json_schema_extra=_ALIGN,
    )
    align_blocks: tuple[int, ...] = Field(
        (8, 9),
        description="Blocks whose keys move, 0-based (8,9 = the paper's 9-10, fine-grained; 3,4 for CIFAR-10).",
        json_schema_extra=_ALIGN,
    )
    update_space: Literal["key", "token", "literal"] = Field(
        "key",
        description="key: descend in the keys, per head; token: in the block's input; literal: Eq. 8 as printed.",
        json_schema_extra=_ALIGN,
    )
    alpha: float = Field(0.0, ge=0, description="Weight of the keys' length in the energy.", json_schema_extra=_ALIGN)
    beta: float | Literal["auto"] = Field(
        1.0, description="Inverse temperature of the alignment; auto = 1/sqrt(head width).", json_schema_extra=_ALIGN
    )
    gamma_update: float = Field(0.1, ge=0, description="Step size of the update.", json_schema_extra=_ALIGN)
    gamma_reg: float = Field(0.5, ge=0, description="Weight of the prior in the update.", json_schema_extra=_ALIGN)
    align_loss_blocks: tuple[int, ...] | None = Field(
        None,
        description="Blocks of the loss of l2, kld and coral, trained ones only; default: the last.",
        json_schema_extra=_ALIGN,
    )
    align_weight: float = Field(
        1.0, ge=0, description="Weight of the loss of l2, kld, coral.", json_schema_extra=_ALIGN
    )
    fixmatch_threshold: float = Field(
        0.95, ge=0, le=1, description="Least confidence of a target that counts (fixmatch).", json_schema_extra=_ALIGN
    )
    align_tokens: Literal["all", "patch"] = Field(
        "all", description="Tokens that take part; patch leaves out the class token.", json_schema_extra=_ALIGN
    )
    update_grad: Literal["stop", "through"] = Field(
        "stop", description="Whether gradients pass through the increment.", json_schema_extra=_ALIGN
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
            raise ValueError(f"blocks count from 0, got {blocks}")
        return tuple(sorted(set(blocks)))

    @model_validator(mode="after")
    def _options_of_the_mode(self) -> FlipClassConfig:
        owners = {
            "align_loss_blocks": ("l2", "kld", "coral"),
            "align_weight": ("l2", "kld", "coral"),
            "fixmatch_threshold": ("fixmatch",),
            **dict.fromkeys(
                ("update_space", "update_grad", "align_tokens", "alpha", "beta", "gamma_update", "gamma_reg"), ("flip",)
            ),
        }
        for name, modes in owners.items():
            default = type(self).model_fields[name].default
            if self.align_mode not in modes and getattr(self, name) != default:
                raise ValueError(
                    f"{name} has no meaning for align_mode {self.align_mode}; it goes with {', '.join(modes)}"
                )
        for block in self.align_loss_blocks or ():
            if block < self.grad_from_block:
                raise ValueError(
                    f"align_loss_blocks: block {block} is frozen (grad_from_block is {self.grad_from_block}): a loss "
                    "there has no gradient"
                )
        return self

    @field_validator("beta")
    @classmethod
    def _positive_beta(cls, beta: float | str) -> float | str:
        if isinstance(beta, float) and beta <= 0:
            raise ValueError(f"must be greater than 0, got {beta}")
        return beta
