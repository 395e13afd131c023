"""Options of LMCS: a master composed of three versions of the student, and critical samples it learns first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.methods.few_labels.options import FreeMatchOptions, MixMatchOptions, TwoStreamTrainConfig
from labelkit.methods.few_labels.search_options import CriticalSearchOptions, GrowthOptions
from labelkit.options.embeddings import RowOptions

_OPTIMIZATION: JsonDict = {"panel": "Optimization"}
_RUN: JsonDict = {"panel": "Run"}
_LOSS: JsonDict = {"panel": "Loss"}
_MASTER: JsonDict = {"panel": "Master"}
_GROWTH: JsonDict = {"panel": "Growth"}
_SEARCH: JsonDict = {"panel": "Discovery"}
_PRETEXT: JsonDict = {"panel": "Pretext"}
_STOP: JsonDict = {"panel": "Stop"}


class LMCSConfig(
    RowOptions, TwoStreamTrainConfig, MixMatchOptions, FreeMatchOptions, CriticalSearchOptions, GrowthOptions
):
    """``labelkit train lmcs``; defaults are those of the dissertation where it gives one."""

    command: ClassVar[tuple[str, ...]] = ("train", "lmcs")
    constants: ClassVar[Mapping[str, object]] = {
        "pretext_lr": 0.1,
        "guidance_cache": False,
        "master_init": "ema",
        "discrimination_weight": "auto",
        "num_centroids": None,
    }

    steps: int = Field(1_048_576, ge=1, description="Updates of the student in all.", json_schema_extra=_OPTIMIZATION)
    labeled_batch_size: int = Field(
        64,
        ge=1,
        description="Labeled images of --batch-size: half of it for mixmatch, and for batches of the master.",
        json_schema_extra=_OPTIMIZATION,
    )
    dropout: float | None = Field(
        0.0,
        ge=0,
        lt=1,
        description="Dropout inside the backbone, if it has any; the student brings its own noise.",
        json_schema_extra={"panel": "Model"},
    )
    eval_every_steps: int = Field(
        10_240,
        ge=1,
        description="Updates of a block (the dissertation's step of 10 epochs), at whose end a master is composed and "
        "all networks are judged.",
        json_schema_extra=_RUN,
    )

    student: Literal["mixmatch", "freematch"] = Field(
        "mixmatch",
        description="How the student learns; options of the other have no effect but --unlabeled-weight, which is also "
        "the master's. FixMatch is freematch with --fixed-threshold 0.95.",
        json_schema_extra=_LOSS,
    )

    pretext_steps: int = Field(
        0,
        ge=0,
        description="Updates before the training in which the network learns to name quarter turns of all images "
        "(Table 3.9). They are not among --steps, and begin anew if they are interrupted.",
        json_schema_extra={**_PRETEXT, "before": 0},
    )

    guidance: Literal["consistency", "guess", "none"] = Field(
        "consistency",
        description="How the last block's master guides the student on unlabeled images: squared difference of their "
        "predictions (ours; no equation has it), as a part of the guessed label, or not.",
        json_schema_extra=_MASTER,
    )
    guidance_weight: float = Field(
        0.2,
        ge=0,
        description="Weight of the difference of --guidance consistency, times --unlabeled-weight (ours; 1 did harm "
        "on digits).",
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
    master_lr: float = Field(
        1e-3, gt=0, description="Learning rate of the master (Adam; ours; not published).", json_schema_extra=_MASTER
    )
    master_decay: float = Field(
        0.99,
        ge=0,
        lt=1,
        description="Decay of the average of the master's weights; at most 1 - 10 / updates below 1,000 of them.",
        json_schema_extra=_MASTER,
    )
    master_supervised: bool = Field(
        True,
        description="Teach the master the labels, given and discovered; without (literal Eq. 3.7) what is discovered "
        "could not reach it.",
        json_schema_extra=_MASTER,
    )
    discrimination: Literal["ratio", "margin", "literal", "none"] = Field(
        "ratio",
        description="Loss on the distances of master features to the two nearest centroids; literal is the printed "
        "Eq. 3.6, whose sign is wrong.",
        json_schema_extra=_MASTER,
    )

    growth_limit: float = Field(
        10.0,
        ge=1,
        description="Most labels, as a multiple of the given ones (R_L); 1: no growth.",
        json_schema_extra=_GROWTH,
    )
    generations: int = Field(
        1,
        ge=1,
        description="How often the labels grow from the given ones. Each time, what was discovered before is forgotten "
        "(Sec. 3.3.4). 1: they grow once (Eq. 3.13).",
        json_schema_extra={**_GROWTH, "before": 1},
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

    embed_with: Literal["student", "teacher", "master"] = Field(
        "student", description="Network whose features discover (Sec. 3.3.3).", json_schema_extra=_SEARCH
    )

    churn: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Smallest share of the average's changed predictions that goes on. Growth ends if fewer changed "
        "since the last discovery, generations if fewer changed since the last one. 0: never.",
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

    @model_validator(mode="after")
    def _check_master(self) -> LMCSConfig:
        if self.student == "mixmatch" and 2 * self.labeled_batch_size != self.batch_size:
            raise ValueError(
                f"labeled_batch_size {self.labeled_batch_size} must be half of batch_size {self.batch_size} (mixmatch)"
            )
        if self.guide == "average" and self.embed_with == "master":
            raise ValueError("embed_with master needs guide composed")
        return self

    def shortened(self, fraction: float) -> dict[str, object]:
        """Return fewer steps, also of the pretext."""
        return super().shortened(fraction) | self._scaled(fraction, "pretext_steps", least=0)
