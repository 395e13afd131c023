"""``labelkit cluster``: the rows of a store become groups."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.cli.options import new_group
from labelkit.config.cluster import KMeansConfig, SinkhornConfig, SphericalKMeansConfig, SSKMeansConfig


@stage_command(KMeansConfig)
def kmeans(config: KMeansConfig) -> None:
    """Group rows by k-means; uses no labels. With --patches: the patches of the images.

    Example: labelkit cluster k-means --index digits.h5 --num-clusters 10
    """
    from labelkit.stages.group.cluster import cluster_store  # scikit-learn loads here, not in --help

    print_result(cluster_store(config))


@stage_command(SphericalKMeansConfig)
def spherical_kmeans(config: SphericalKMeansConfig) -> None:
    """Group rows by the angle between them; uses no labels.

    Example: labelkit cluster spherical-k-means --index digits.h5 --num-clusters 10
    """
    from labelkit.stages.group.cluster import cluster_store  # scikit-learn loads here, not in --help

    print_result(cluster_store(config))


@stage_command(SSKMeansConfig)
def ss_kmeans(config: SSKMeansConfig) -> None:
    """Group rows by k-means that keeps labeled rows of a class together.

    Example: labelkit cluster ss-kmeans --index digits.h5 --num-clusters 10
    """
    from labelkit.stages.group.cluster import cluster_store  # scikit-learn loads here, not in --help

    print_result(cluster_store(config))


@stage_command(SinkhornConfig)
def sinkhorn(config: SinkhornConfig) -> None:
    """Group rows into groups of equal or given sizes; uses no labels.

    Example: labelkit cluster sinkhorn --index digits.h5 --num-clusters 10
    """
    from labelkit.stages.group.cluster import cluster_store  # torch loads here, not in --help

    print_result(cluster_store(config))


def build_app(words: Sequence[str] | None) -> typer.Typer:
    """Build ``labelkit cluster`` as far as the words after it need."""
    return new_group(
        {
            "k-means": kmeans,
            "spherical-k-means": spherical_kmeans,
            "ss-kmeans": ss_kmeans,
            "sinkhorn": sinkhorn,
        },
        words,
    )
