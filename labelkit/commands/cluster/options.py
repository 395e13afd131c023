"""Options of ``labelkit cluster`` and ``labelkit diff``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.options.index import IndexConfig
from labelkit.options.memory import MemoryConfig
from labelkit.options.retired import RESULT_NAME, PreviousOption
from labelkit.options.shared import (
    STORE,
    AddedLabelsOption,
    NormalizeOption,
    OverwriteOption,
    SplitOption,
)


class ClusterConfig(SplitOption, PreviousOption, IndexConfig, MemoryConfig):
    """What all clusterings share."""

    num_clusters: int = Field(..., ge=1, description="Groups to find.")
    num_inits: int = Field(10, ge=1, description="Starts; the lowest inertia wins.")
    max_iterations: int = Field(300, ge=1, description="Most iterations of one start.")
    tolerance: float = Field(
        1e-6, ge=0, description="A start ends when an iteration lowers the inertia by less than this share."
    )
    seed: int = Field(0, ge=0, description="Seed of the starts.")


class PatchClusterConfig(ClusterConfig):
    """A clustering of rows, or of patches."""

    constants: ClassVar[Mapping[str, object]] = {
        "max_patches": 100000,
        "min_size": 1,
    }

    patches: bool = Field(
        False, description="Group the patches of the images instead (of a store made with embed --dense)."
    )


class KMeansConfig(NormalizeOption, PatchClusterConfig):
    """``labelkit cluster k-means``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "k-means")


class SphericalKMeansConfig(PatchClusterConfig):
    """``labelkit cluster spherical-k-means``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "spherical-k-means")


class SSKMeansConfig(NormalizeOption, AddedLabelsOption, ClusterConfig):
    """``labelkit cluster ss-kmeans``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "ss-kmeans")
    constants: ClassVar[Mapping[str, object]] = {"min_size": 1}

    max_iterations: int = Field(100, ge=1, description="Most iterations of one start (benchmark: 200).")
    tolerance: float = Field(1e-4, ge=0, description="A start ends when the centroids move less, in sum, squared.")
    exchange: bool = Field(
        True,
        description="In the end, give each class with labels the group that its labeled images are nearest to, if the "
        "inertia falls by it. Off: as published; a class with few labels may get the images of another one.",
    )


class SinkhornConfig(ClusterConfig):
    """``labelkit cluster sinkhorn``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "sinkhorn")
    constants: ClassVar[Mapping[str, object]] = {"init": "k-means", "prototypes": None}

    num_clusters: int = Field(..., ge=2, description="Groups to make.")
    temperature: float = Field(
        0.02, gt=0, description="Temperature of the cosines. A smaller one meets the sizes better and takes longer."
    )
    prior: str = Field(
        "uniform",
        description="Sizes of the groups: uniform; zipf:a, shares falling as 1/rank^a; or a text file of a number per "
        "group, shares that sum to 1 or sizes that sum to the rows.",
    )
    exact_balance: bool = Field(
        False, description="Meet the sizes exactly, by linear assignment at the end. For at most 8,000 rows."
    )
    num_inits: int = Field(
        1, ge=1, description="Starts of the spherical k-means that gives the first prototypes; the lowest inertia wins."
    )
    max_iterations: int = Field(100, ge=1, description="Most rounds of assignment and new prototypes; 1 only assigns.")
    tolerance: float = Field(
        1e-6, gt=0, description="Stop when the reached shares differ from the wanted ones by less than this, in sum."
    )


_STORE: JsonDict = {"panel": "Store", "preset": False}
_RULE: JsonDict = {"panel": "Which"}
_OUTPUT: JsonDict = {"panel": "Output", "preset": False}


class DiffConfig(OverwriteOption):
    """``labelkit diff``."""

    command: ClassVar[tuple[str, ...]] = ("diff",)

    index: Path = Field(..., description="Store with the later groups, NAME.h5.", json_schema_extra=STORE)
    result: str = Field(
        ..., pattern=RESULT_NAME, description="Result of cluster or discover in --index.", json_schema_extra=_STORE
    )
    previous: Path | None = Field(
        None, description="Store of the earlier groups; default: --index.", json_schema_extra=_STORE
    )
    previous_result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Result in --previous; default: the one named like --result.",
        json_schema_extra=_STORE,
    )
    csv: Path | None = Field(
        None,
        description="Also write a CSV with a line per image: path, both groups, and what became of it.",
        json_schema_extra={**_OUTPUT, "makes": "csv"},
    )
    main_share: float = Field(
        0.5,
        ge=0.5,
        lt=1,
        description="A group is mostly another if more than this share of its shared images is in it.",
        json_schema_extra=_RULE,
    )
    part_share: float = Field(
        0.2,
        gt=0,
        le=0.5,
        description="A part of a split or merge holds at least this share of the whole.",
        json_schema_extra=_RULE,
    )

    @model_validator(mode="after")
    def _two_results(self) -> DiffConfig:
        if self.previous is None and self.previous_result is None:
            raise ValueError("give what to compare with: --previous STORE, --previous-result NAME, or both")
        return self
