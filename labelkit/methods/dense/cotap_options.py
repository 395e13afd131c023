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


class DenseOptions(SlowTargetConfig):
    """Features of an image, filter, and views with a part in common."""

    constants: ClassVar[Mapping[str, object]] = {
        "filter_fuse": "concat",
        "filter_ssl_gradients": False,
        "min_roi_tokens": 1.0,
    }

    image_features: Literal["backbone", "filtered"] = Field(
        "backbone",
        description="Features of an image: the class token before or after the filter.",
        json_schema_extra=_MODEL,
    )

    filter: bool = Field(
        True, description="Put the object-aware filter behind the backbone.", json_schema_extra=_FILTER
    )
    filter_prototypes: int = Field(64, ge=1, description="Object prototypes.", json_schema_extra=_FILTER)
    filter_kernel: int = Field(
        3, ge=1, description="Side of the object prototypes in patches, odd.", json_schema_extra=_FILTER
    )

    min_overlap: tuple[float, float] = Field(
        (0.02, 0.01),
        description="Smallest share of the image that the two large views have in common, and that a small view "
        "shares with each.",
        json_schema_extra=_VIEWS,
    )
    augmentation: Literal["dino", "paper", "none"] = Field(
        "dino",
        description="Colors. dino: jitter, gray, blur, solarize; paper: without the last, which it does not name.",
        json_schema_extra=_VIEWS,
    )


class CoTAPConfig(DenseOptions):
    """``labelkit train cotap``; defaults are those of the paper, or as the description says."""

    command: ClassVar[tuple[str, ...]] = ("train", "cotap")
    constants: ClassVar[Mapping[str, object]] = {
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
    sk_epsilon: float = Field(0.05, gt=0, description="Entropy weight of Sinkhorn.", json_schema_extra=_ASSIGNMENT)
    sk_iterations: int = Field(3, ge=1, description="Iterations of Sinkhorn.", json_schema_extra=_ASSIGNMENT)

    roi_size: int = Field(7, ge=1, description="Cells along a side of an aligned overlap.", json_schema_extra=_RANKING)
    ranking_loss: Literal["cotap", "bce", "ap-t"] = Field(
        "cotap",
        description="By order (paper); by value; or by order for targets of --ranking-threshold and more against all "
        "others.",
        json_schema_extra=_RANKING,
    )
    ranking_threshold: float = Field(
        0.8,
        ge=0,
        le=1,
        description="Least similarity of the targets that --ranking-loss ap-t ranks above all others.",
        json_schema_extra=_RANKING,
    )
    ranking_floor: float = Field(
        -0.2, description="Targets weigh by how far they are above this (tau 1).", json_schema_extra=_RANKING
    )
    ranking_margin: float = Field(
        0.5, gt=0, description="Gap of similarities that is enough (tau 2).", json_schema_extra=_RANKING
    )
    ranking_views: Literal["aligned", "same"] = Field(
        "aligned",
        description="Compare patches of the overlap of two views, or all patches of one view that both networks see.",
        json_schema_extra=_RANKING,
    )
    prototype_temperature: float = Field(
        0.1, gt=0, description="Temperature of a prototype's attention over images (tau 3).", json_schema_extra=_FILTER
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
        if self.image_features == "filtered" and not self.filter:
            raise ValueError("image_features filtered needs the filter")
        if not all(0 < share < 1 for share in self.min_overlap):
            raise ValueError("min_overlap must be shares above 0 and below 1")
        return self

    @model_validator(mode="after")
    def _check_threshold(self) -> CoTAPConfig:
        if (
            self.ranking_loss != "ap-t"
            and self.ranking_threshold != type(self).model_fields["ranking_threshold"].default
        ):
            raise ValueError(
                f"ranking_threshold has no meaning for ranking_loss {self.ranking_loss}; it goes with ranking_loss ap-t"
            )
        return self

    @model_validator(mode="after")
    def _check_data(self) -> CoTAPConfig:
        for name in ("image_alignment", "image_concentration", "prototype_entropy"):
            if getattr(self, name) and self.objects_per_batch == 0:
                raise ValueError(
                    f"{name} {getattr(self, name):g} needs images of one object; pass {name} 0 or a dataset"
                )
        return self
