"""Options for ``labelkit cluster``."""

from typing import ClassVar

from labelkit.options.base import OPTION
from labelkit.options.memory import MemoryConfig, ProcessesConfig
from labelkit.options.shared import AddedLabelsOption, NamedResultConfig, NormalizeOption, PreviousOptions, SplitOption


class ClusterConfig(SplitOption, PreviousOptions, NamedResultConfig, MemoryConfig):
    """Options shared by all clustering commands."""

    num_clusters: int = OPTION(..., "Number of clusters.", ge=1)
    num_inits: int = OPTION(10, "Number of random initializations; the one with the lowest inertia is kept.", ge=1)
    max_iterations: int = OPTION(300, "Maximum number of iterations per initialization.", ge=1)
    tolerance: float = OPTION(1e-6, "Stop when an iteration lowers the inertia by less than this fraction.", ge=0)
    seed: int = OPTION(0, "Random seed for the initializations.", ge=0)


class KMeansConfig(NormalizeOption, ProcessesConfig, ClusterConfig):
    """Options for ``labelkit cluster k-means``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "k-means")


class SphericalKMeansConfig(ProcessesConfig, ClusterConfig):
    """Options for ``labelkit cluster spherical-k-means``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "spherical-k-means")


class SSKMeansConfig(NormalizeOption, AddedLabelsOption, ProcessesConfig, ClusterConfig):
    """Options for ``labelkit cluster ss-kmeans``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "ss-kmeans")

    exchange: bool = OPTION(
        True,
        "At the end, reassign clusters to labeled classes by their nearest labeled images if this lowers "
        "the inertia. --no-exchange: as published; a class with few labels may then get images of another class.",
    )
    max_iterations: int = OPTION(100, "Maximum number of iterations per initialization (200 in the benchmark).", ge=1)
    tolerance: float = OPTION(1e-4, "Stop when the sum of squared centroid shifts falls below this value.", ge=0)


class SinkhornConfig(ClusterConfig):
    """Options for ``labelkit cluster sinkhorn``."""

    command: ClassVar[tuple[str, ...]] = ("cluster", "sinkhorn")

    num_clusters: int = OPTION(..., "Number of clusters.", ge=2)
    temperature: float = OPTION(
        0.02,
        "Temperature of the cosine similarities. With lower values, the cluster sizes match the requested "
        "sizes better, but the optimization takes longer.",
        gt=0,
    )
    prior: str = OPTION(
        "uniform",
        "Cluster sizes: uniform; zipf:a, proportional to 1/rank^a; or a text file with one number "
        "per cluster (fractions that sum to 1, or sizes that sum to the number of images).",
    )
    num_inits: int = OPTION(
        1,
        "Number of random initializations of spherical k-means; the centroids with the lowest inertia "
        "initialize the prototypes.",
        ge=1,
    )
    max_iterations: int = OPTION(
        100, "Maximum number of iterations of assignment and prototype update; 1: only assign.", ge=1
    )
    tolerance: float = OPTION(
        1e-6,
        "Stop when the sum of absolute deviations from the requested cluster fractions falls below this value.",
        gt=0,
    )
