"""Options of FlipClass: SimGCD's recipe and the alignment of the teacher's attention."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator
from pydantic.config import JsonDict

from labelkit.config.discovery import DiscoveryTrainConfig

_ALIGN: JsonDict = {"panel": "Alignment"}


class FlipClassConfig(DiscoveryTrainConfig):
    """``labelkit train flipclass``; alignment defaults are those of the paper's Appendix D.1."""

    command: ClassVar[tuple[str, ...]] = ("train", "flipclass")

    align_mode: Literal["flip", "none"] = Field(
        "flip",
        description="flip: move the teacher's keys; none: weak teacher, strong student only.",
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

    @field_validator("beta")
    @classmethod
    def _positive_beta(cls, beta: float | str) -> float | str:
        if isinstance(beta, float) and beta <= 0:
            raise ValueError(f"must be greater than 0, got {beta}")
        return beta
