"""Options for ``labelkit cluster``."""

from typing import ClassVar

from pydantic import Field

from labelkit.options.memory import MemoryConfig, ProcessesConfig
from labelkit.options.shared import (
    AddedLabelsOption,
    IndexConfig,
    NormalizeOption,
    PreviousOption,
    SplitOption,
)


class ClusterConfig(SplitOption, PreviousOption, IndexConfig, MemoryConfig):
    """Options shared by all clustering commands."""

    num_clusters: int = Field(..., ge=1, description="Number of clusters.")
    num_inits: int = Field(
        10, ge=1, description="Number of random initializations; the one with the lowest inertia is kept."
    )
    max_iterations: int = Field(300, ge=1, description="Maximum number of iterations per initialization.")
    tolerance: float = Field(
        1e-6, ge=0, description="Stop when an iteration lowers the inertia by less than this fraction."
    )
    seed: int = Field(0, ge=0, description="Random seed for the initializations.")


class PatchClusterConfig(ProcessesConfig, ClusterConfig):
    """Options shared by the clustering commands that can also cluster patches."""

    patches: bool = Field(
        False, description="Cluster image patches instead of images (requires a store from embed --dense)."
    )


class KMeansConfig(NormalizeOption, PatchClusterConfig):
    """Options for ``labelkit cluster k-means``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "k-means")


class SphericalKMeansConfig(PatchClusterConfig):
    """Options for ``labelkit cluster spherical-k-means``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "spherical-k-means")


class SSKMeansConfig(NormalizeOption, AddedLabelsOption, ProcessesConfig, ClusterConfig):
    """Options for ``labelkit cluster ss-kmeans``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "ss-kmeans")

    exchange: bool = Field(
        True,
        description="At the end, reassign clusters to labeled classes by their nearest labeled images if this lowers "
        "the inertia. --no-exchange: as published; a class with few labels may then get images of another class.",
    )
    max_iterations: int = Field(
        100, ge=1, description="Maximum number of iterations per initialization (200 in the benchmark)."
    )
    tolerance: float = Field(
        1e-4, ge=0, description="Stop when the sum of squared centroid shifts falls below this value."
    )


class SinkhornConfig(ClusterConfig):
    """Options for ``labelkit cluster sinkhorn``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "sinkhorn")

    num_clusters: int = Field(..., ge=2, description="Number of clusters.")
    temperature: float = Field(
        0.02,
        gt=0,
        description="Temperature of the cosine similarities. With lower values, the cluster sizes match the requested "
        "sizes better, but the optimization takes longer.",
    )
    prior: str = Field(
        "uniform",
        description="Cluster sizes: uniform; zipf:a, proportional to 1/rank^a; or a text file with one number "
        "per cluster (fractions that sum to 1, or sizes that sum to the number of images).",
    )
    exact_balance: bool = Field(
        False, description="Match the cluster sizes exactly with a final linear assignment (at most 8,000 images)."
    )
    num_inits: int = Field(
        1,
        ge=1,
        description="Number of random initializations of spherical k-means; the centroids with the lowest inertia "
        "initialize the prototypes.",
    )
    max_iterations: int = Field(
        100, ge=1, description="Maximum number of iterations of assignment and prototype update; 1: only assign."
    )
    tolerance: float = Field(
        1e-6,
        gt=0,
        description="Stop when the sum of absolute deviations from the requested cluster fractions falls below this "
        "value.",
    )
