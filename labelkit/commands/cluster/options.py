"""Options of ``labelkit cluster`` and ``labelkit diff``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field, model_validator

from labelkit.options.base import panel
from labelkit.options.index import IndexConfig
from labelkit.options.memory import MemoryConfig, ProcessesConfig
from labelkit.options.retired import RESULT_NAME, PreviousOption
from labelkit.options.shared import (
    STORE,
    AddedLabelsOption,
    NormalizeOption,
    OverwriteOption,
    SplitOption,
)


class ClusterConfig(SplitOption, PreviousOption, IndexConfig, MemoryConfig):
    """Options shared by all clustering commands."""

    num_clusters: int = Field(..., ge=1, description="Number of clusters.")
    num_inits: int = Field(10, ge=1, description="Number of random starts; the start with the lowest inertia is kept.")
    max_iterations: int = Field(300, ge=1, description="Maximum iterations per start.")
    tolerance: float = Field(
        1e-6, ge=0, description="Stop when an iteration lowers the inertia by less than this fraction."
    )
    seed: int = Field(0, ge=0, description="Random seed for the starts.")


class PatchClusterConfig(ProcessesConfig, ClusterConfig):
    """Options of the clusterings that can also cluster patches."""

    constants: ClassVar[Mapping[str, object]] = {
        "max_patches": 100000,
        "min_size": 1,
    }

    patches: bool = Field(
        False, description="Cluster the patches of the images instead; needs a store made with embed --dense."
    )


class KMeansConfig(NormalizeOption, PatchClusterConfig):
    """Options of ``labelkit cluster k-means``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "k-means")


class SphericalKMeansConfig(PatchClusterConfig):
    """Options of ``labelkit cluster spherical-k-means``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "spherical-k-means")


class SSKMeansConfig(NormalizeOption, AddedLabelsOption, ProcessesConfig, ClusterConfig):
    """Options of ``labelkit cluster ss-kmeans``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "ss-kmeans")
    constants: ClassVar[Mapping[str, object]] = {"min_size": 1}

    max_iterations: int = Field(100, ge=1, description="Maximum iterations per start (benchmark: 200).")
    tolerance: float = Field(
        1e-4, ge=0, description="Stop when the squared movements of the centroids sum to less than this."
    )
    exchange: bool = Field(
        True,
        description="At the end, reassign clusters to labeled classes by their nearest labeled images if this "
        "lowers the inertia. Off: as published; a class with few labels may then get images of another class.",
    )


class SinkhornConfig(ClusterConfig):
    """Options of ``labelkit cluster sinkhorn``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "sinkhorn")
    constants: ClassVar[Mapping[str, object]] = {"init": "k-means", "prototypes": None}

    num_clusters: int = Field(..., ge=2, description="Number of clusters.")
    temperature: float = Field(
        0.02,
        gt=0,
        description="Temperature of the cosine similarities. Lower values match the sizes better and take longer.",
    )
    prior: str = Field(
        "uniform",
        description="Cluster sizes: uniform; zipf:a, proportional to 1/rank^a; or a text file with one number "
        "per cluster (fractions that sum to 1, or sizes that sum to the number of images).",
    )
    exact_balance: bool = Field(
        False, description="Match the sizes exactly with a final linear assignment (at most 8,000 images)."
    )
    num_inits: int = Field(
        1,
        ge=1,
        description="Number of starts of the spherical k-means that initializes the prototypes; the lowest "
        "inertia is kept.",
    )
    max_iterations: int = Field(
        100, ge=1, description="Maximum number of rounds of assignment and prototype update; 1: assign only."
    )
    tolerance: float = Field(
        1e-6,
        gt=0,
        description="Stop when the absolute differences from the requested cluster fractions sum to less than this.",
    )


_STORE = panel("Store", preset=False)
_RULE = panel("Thresholds")
_OUTPUT = panel("Output", preset=False)


class DiffConfig(OverwriteOption):
    """Options of ``labelkit diff``."""

    command: ClassVar[tuple[str, ...]] = ("diff",)

    index: Path = Field(..., description="Store with the later groups, NAME.h5.", json_schema_extra=STORE)
    result: str = _STORE(..., "Result from cluster or discover in --index.", pattern=RESULT_NAME)
    previous: Path | None = _STORE(None, "Store of the earlier groups; default: --index.")
    previous_result: str | None = _STORE(
        None, "Result in --previous; default: the name of --result.", pattern=RESULT_NAME
    )
    csv: Path | None = _OUTPUT(
        None, "Also write a CSV with one line per image: path, both groups, and the change.", makes="csv"
    )
    main_share: float = _RULE(
        0.5,
        "Fraction of a group's images above which the group counts as mostly inside another group. Only "
        "images in both stores count. Two groups mostly inside each other count as the same group, unless they split "
        "or merge.",
        ge=0.5,
        lt=1,
    )
    part_share: float = _RULE(
        0.2,
        "Minimum size of each part of a split or merge, as a fraction of the group that splits or that "
        "results from the merge.",
        gt=0,
        le=0.5,
    )

    @model_validator(mode="after")
    def _two_results(self) -> DiffConfig:
        if self.previous is None and self.previous_result is None:
            raise ValueError("pass the earlier groups: --previous STORE, --previous-result NAME, or both")
        return self
