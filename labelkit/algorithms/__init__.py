"""Arrays in, arrays out: clustering, matching, neighbors, number of classes, calibration, attention update.

The names that need torch are imported on first use, so that the others stay quick to import.
"""

from typing import TYPE_CHECKING, Any

from labelkit.algorithms.calibration import (
    NamedProbability,
    Reliability,
    RiskCoverage,
    conformal_threshold,
    fit_temperature,
    group_means,
    group_scores,
    leave_one_out_agreement,
    named_probability,
    reliability,
    risk_coverage,
    softmax,
)
from labelkit.algorithms.class_number import (
    ClassNumber,
    ClassNumberChoice,
    CriterionCurve,
    bounded_integer_search,
    choose_num_classes,
    class_numbers,
    estimate_num_classes,
)
from labelkit.algorithms.clustering import (
    Clustering,
    SemiSupervisedClustering,
    kmeans,
    nearest_centroids,
    semi_supervised_kmeans,
    spherical_kmeans,
)
from labelkit.algorithms.clustering_path import Partition, kmeans_path
from labelkit.algorithms.matching import Matching, contingency, match_clusters, pair_agreement
from labelkit.algorithms.neighbors import knn
from labelkit.algorithms.silhouette import pairwise_distances, silhouette_score, simplified_silhouette_score

if TYPE_CHECKING:
    from labelkit.algorithms.attention import alignment_energy, attention_entropy, attention_update, prior_energy
    from labelkit.algorithms.attention_maps import carry_map, map_correlation, map_entropy

__all__ = [
    "ClassNumber",
    "ClassNumberChoice",
    "Clustering",
    "CriterionCurve",
    "Matching",
    "NamedProbability",
    "Reliability",
    "RiskCoverage",
    "Partition",
    "SemiSupervisedClustering",
    "alignment_energy",
    "attention_entropy",
    "attention_update",
    "bounded_integer_search",
    "carry_map",
    "conformal_threshold",
    "choose_num_classes",
    "class_numbers",
    "contingency",
    "estimate_num_classes",
    "fit_temperature",
    "group_means",
    "group_scores",
    "kmeans",
    "kmeans_path",
    "knn",
    "leave_one_out_agreement",
    "map_correlation",
    "map_entropy",
    "match_clusters",
    "named_probability",
    "nearest_centroids",
    "pair_agreement",
    "pairwise_distances",
    "prior_energy",
    "reliability",
    "risk_coverage",
    "semi_supervised_kmeans",
    "softmax",
    "silhouette_score",
    "simplified_silhouette_score",
    "spherical_kmeans",
]


_OF_MAPS = frozenset({"carry_map", "map_correlation", "map_entropy"})


def __getattr__(name: str) -> Any:
    if name in __all__:
        from labelkit.algorithms import attention, attention_maps

        return getattr(attention_maps if name in _OF_MAPS else attention, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
