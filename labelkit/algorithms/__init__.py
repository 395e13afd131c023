"""Arrays in, arrays out: clustering, matching, neighbors, prototypes, number of classes, calibration, attention.

The names that need torch are imported on first use, so that the others stay quick to import.
"""

from typing import TYPE_CHECKING, Any

from labelkit.algorithms.assignment import Assignment, assign
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
from labelkit.algorithms.prototypes import (
    Spread,
    measure_spread,
    spread_prototypes,
    uniformity,
    uniformity_gradient,
)
from labelkit.algorithms.silhouette import pairwise_distances, silhouette_score, simplified_silhouette_score
from labelkit.algorithms.sphere_bounds import max_cosine_bound, rms_cosine_bound

if TYPE_CHECKING:
    from labelkit.algorithms.attention import alignment_energy, attention_entropy, attention_update, prior_energy

__all__ = [
    "Assignment",
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
    "Spread",
    "alignment_energy",
    "assign",
    "attention_entropy",
    "attention_update",
    "bounded_integer_search",
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
    "match_clusters",
    "max_cosine_bound",
    "measure_spread",
    "named_probability",
    "nearest_centroids",
    "pair_agreement",
    "pairwise_distances",
    "prior_energy",
    "reliability",
    "risk_coverage",
    "rms_cosine_bound",
    "semi_supervised_kmeans",
    "softmax",
    "silhouette_score",
    "simplified_silhouette_score",
    "spherical_kmeans",
    "spread_prototypes",
    "uniformity",
    "uniformity_gradient",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from labelkit.algorithms import attention

        return getattr(attention, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
