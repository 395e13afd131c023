"""Options of CoTAP: patches that group by object, from order-preserving similarities between images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.methods.dense.options import SlowTargetConfig
from labelkit.options.base import with_default

_MODEL: JsonDict = {"panel": "Model"}
_FILTER: JsonDict = {"panel": "Object-aware filter"}
_VIEWS: JsonDict = {"panel": "Views"}
_TERMS: JsonDict = {"panel": "Loss terms"}
_ASSIGNMENT: JsonDict = {"panel": "Assignments"}
_RANKING: JsonDict = {"panel": "Ranking"}
_NEIGHBORS: JsonDict = {"panel": "Neighbors"}


class CoTAPConfig(SlowTargetConfig):
    """``labelkit train cotap``; defaults are those of the paper, or as the description says."""

    command: ClassVar[tuple[str, ...]] = ("train", "cotap")
    constants: ClassVar[Mapping[str, object]] = {
        "filter_fuse": "concat",
        "filter_ssl_gradients": False,
        "min_roi_tokens": 1.0,
        "image_features": "backbone",
        "min_overlap": (0.02, 0.01),
        "sk_epsilon": 0.05,
        "sk_iterations": 3,
        "ranking_threshold": 0.8,
        "ranking_floor": -0.2,
        "ranking_margin": 0.5,
        "prototype_temperature": 0.1,
        "assign": "feature",
        "num_prototypes": 300,
        "sk_order": "roi-first",
        "sk_queue": 0,
        "ranking_targets": "projector",
        "ranking_pairs": "random",
        "ranking_subsample": None,
        "ranking_max_gib": 1.0,
        "prototype_gather": False,
    }

    dataset: str = with_default(SlowTargetConfig, "dataset", "scene_objects")

    filter: bool = Field(
        True, description="Put the object-aware filter behind the backbone.", json_schema_extra=_FILTER
    )
    filter_prototypes: int = Field(64, ge=1, description="Object prototypes.", json_schema_extra=_FILTER)
    filter_kernel: int = Field(
        3, ge=1, description="Side of the object prototypes in patches, odd.", json_schema_extra=_FILTER
    )

    augmentation: Literal["dino", "paper", "none"] = Field(
        "dino",
        description="Colors. dino: jitter, gray, blur, solarize; paper: without the last, which it does not name.",
        json_schema_extra=_VIEWS,
    )

    image_alignment: float = Field(
        1.0, ge=0, description="Weight of the alignment of class tokens (lambda-bar 1).", json_schema_extra=_TERMS
    )
    patch_alignment: float = Field(
        1.0, ge=0, description="Weight of the alignment of patches (lambda 1).", json_schema_extra=_TERMS
    )
    image_concentration: float = Field(
        1.0, ge=0, description="Weight of the pull toward neighbor images (lambda-bar 2).", json_schema_extra=_TERMS
    )
    patch_ranking: float = Field(
        1.0, ge=0, description="Weight of the ranking of patch similarities (lambda 2).", json_schema_extra=_TERMS
    )
    prototype_entropy: float = Field(
        1.0, ge=0, description="Weight of the loss of the filter's prototypes (lambda 3).", json_schema_extra=_TERMS
    )

    student_temperature: float = Field(
        0.1, gt=0, description="Softmax temperature of the student (DINO, Leopart).", json_schema_extra=_ASSIGNMENT
    )
    roi_size: int = Field(7, ge=1, description="Cells along a side of an aligned overlap.", json_schema_extra=_RANKING)
    ranking_loss: Literal["cotap", "bce"] = Field(
        "cotap",
        description="By order (paper), or by value.",
        json_schema_extra=_RANKING,
    )
    ranking_views: Literal["aligned", "same"] = Field(
        "aligned",
        description="Compare patches of the overlap of two views, or all patches of one view that both networks see.",
        json_schema_extra=_RANKING,
    )

    num_neighbors: int = Field(
        10,
        ge=1,
        description="Neighbors that an image is pulled toward (ours; not published).",
        json_schema_extra=_NEIGHBORS,
    )
    neighbors: Path | None = Field(
        None,
        description="File of neighbors to use; it is made if it is missing. Default: in the run folder. Neighbors "
        "are found once, with the target network at the start.",
        json_schema_extra=_NEIGHBORS,
    )

    @model_validator(mode="after")
    def _check_terms(self) -> CoTAPConfig:
        terms = ("image_alignment", "patch_alignment", "image_concentration", "patch_ranking", "prototype_entropy")
        if not any(getattr(self, name) for name in terms):
            raise ValueError("all terms have weight 0, so there is nothing to learn")
        if self.prototype_entropy and not self.filter:
            raise ValueError("prototype_entropy needs the filter; pass prototype_entropy 0 or filter")
        if self.filter_kernel % 2 == 0:
            raise ValueError(f"filter_kernel must be odd, got {self.filter_kernel}")
        return self

    @model_validator(mode="after")
    def _check_data(self) -> CoTAPConfig:
        for name in ("image_alignment", "image_concentration", "prototype_entropy"):
            if getattr(self, name) and self.objects_per_batch == 0:
                raise ValueError(
                    f"{name} {getattr(self, name):g} needs images of one object; pass {name} 0 or a dataset"
                )
        return self
