"""Options of LMCS: a master composed of three versions of the student, and critical samples it learns first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from pydantic.config import JsonDict

from labelkit.methods.few_labels.options import HalfLabeledConfig, SearchOptions
from labelkit.options.embeddings import RowOptions

_OPTIMIZATION: JsonDict = {"panel": "Optimization"}
_RUN: JsonDict = {"panel": "Run"}
_MASTER: JsonDict = {"panel": "Master"}
_GROWTH: JsonDict = {"panel": "Growth"}
_SEARCH: JsonDict = {"panel": "Discovery"}
_PRETEXT: JsonDict = {"panel": "Pretext"}
_STOP: JsonDict = {"panel": "Stop"}


class CriticalSearchOptions(SearchOptions):
    """Which unlabeled images are near the classes and yet ambiguous; also those of ``discover lmcs``."""

    constants: ClassVar[Mapping[str, object]] = {
        "delta": "auto",
        "confine_factor": 10,
        "reference": "original",
        "beta": "auto",
    }

    criterion: Literal["max_entropy", "min_entropy", "min_distance"] = Field(
        "max_entropy",
        description="Which of the confined images come first: the most or the least ambiguous, or the nearest.",
        json_schema_extra=_SEARCH,
    )
    confine: bool = Field(True, description="Search near the class means only (Eq. 3.9).", json_schema_extra=_SEARCH)
    confine_cap: float = Field(
        0.25,
        gt=0,
        le=1,
        description="With --confine: search the nearest 10 candidates for each wanted image, but at most this share.",
        json_schema_extra=_SEARCH,
    )
    label_rule: Literal["agree", "vote"] = Field(
        "agree",
        description="agree: take only images whose largest soft label is the class of the nearest mean; vote: call "
        "each by its largest soft label.",
        json_schema_extra=_SEARCH,
    )


class LMCSConfig(RowOptions, HalfLabeledConfig, CriticalSearchOptions):
    """``labelkit train lmcs``; defaults are those of the dissertation where it gives one."""

    command: ClassVar[tuple[str, ...]] = ("train", "lmcs")
    constants: ClassVar[Mapping[str, object]] = {
        "student": "mixmatch",
        "pretext_lr": 0.1,
        "guidance": "consistency",
        "guidance_cache": False,
        "master_init": "ema",
        "master_lr": 1e-3,
        "master_decay": 0.99,
        "discrimination_weight": "auto",
        "num_centroids": None,
        "generations": 1,
        "embed_with": "student",
        "val_split": None,
        "val_delta": 0.2,
    }
    #: Of another student than MixMatch.
    retired_fields: ClassVar[frozenset[str]] = frozenset(
        {"fixed_threshold", "threshold_decay", "fairness_weight", "pseudo_label_weight"}
    )

    steps: int = Field(1_048_576, ge=1, description="Updates of the student in all.", json_schema_extra=_OPTIMIZATION)
    eval_every_steps: int = Field(
        10_240,
        ge=1,
        description="Updates of a block (the dissertation's step of 10 epochs), at whose end a master is composed and "
        "all networks are judged.",
        json_schema_extra=_RUN,
    )

    pretext_steps: int = Field(
        0,
        ge=0,
        description="Updates before the training in which the network learns to name quarter turns of all images "
        "(Table 3.9). They are not among --steps, and begin anew if they are interrupted.",
        json_schema_extra={**_PRETEXT, "before": 0},
    )

    guidance_weight: float = Field(
        0.2,
        ge=0,
        description="Weight of the squared difference between the predictions of the student and of the last block's "
        "master on unlabeled images, times --unlabeled-weight (ours; no equation has it; 1 did harm on digits).",
        json_schema_extra=_MASTER,
    )
    guide: Literal["composed", "average"] = Field(
        "composed",
        description="Who guides: the composed master; or the student's average as it was after the last block, without "
        "any composition (ablation).",
        json_schema_extra=_MASTER,
    )
    compose_at: Literal["last-stage", "pool"] = Field(
        "last-stage",
        description="Where the three networks are joined: before the last stage of the backbone, or at its features "
        "(any backbone; the source names no layer).",
        json_schema_extra=_MASTER,
    )
    master_steps: int | None = Field(
        None,
        ge=1,
        description="Updates of the master after each block; default: a tenth of the block (ours; not published).",
        json_schema_extra=_MASTER,
    )
    master_supervised: bool = Field(
        True,
        description="Teach the master the labels, given and discovered; without (literal Eq. 3.7) what is discovered "
        "could not reach it.",
        json_schema_extra=_MASTER,
    )
    discrimination: Literal["ratio", "literal", "none"] = Field(
        "ratio",
        description="Loss on the distances of master features to the two nearest centroids; literal is the printed "
        "Eq. 3.6, whose sign is wrong.",
        json_schema_extra=_MASTER,
    )

    growth_factor: float = Field(
        2.0, gt=1, description="Labels after a discovery over those before.", json_schema_extra=_GROWTH
    )
    growth_limit: float = Field(
        10.0,
        ge=1,
        description="Most labels, as a multiple of the given ones (R_L); 1: no growth.",
        json_schema_extra=_GROWTH,
    )
    first_blocks: int = Field(
        30, ge=1, description="Blocks before the first discovery (ours; not published).", json_schema_extra=_GROWTH
    )
    generation_blocks: int = Field(
        15,
        ge=1,
        description="Blocks between two discoveries. The master learns the last discovery, the student the one before.",
        json_schema_extra=_GROWTH,
    )
    final_phase: bool = Field(
        True,
        description="Train the student on all discovered labels for the remaining steps. Otherwise the run ends "
        "earlier.",
        json_schema_extra=_GROWTH,
    )

    churn: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Smallest share of the average's changed predictions that goes on. Growth ends if fewer changed "
        "since the last discovery. 0: never.",
        json_schema_extra=_STOP,
    )
    disagree_stop: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Also stop the growth if nearest mean and soft label disagree about a larger share of the "
        "confined images.",
        json_schema_extra=_STOP,
    )

    @property
    def block_steps(self) -> int:
        """Updates of a block."""
        return min(self.eval_every_steps, self.steps)

    @property
    def steps_of_master(self) -> int:
        """Updates of a master."""
        return self.master_steps or max(1, self.block_steps // 10)

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return fewer steps, also of the pretext."""
        return super().shortened(fraction) | self._scaled(fraction, "pretext_steps", least=0)
