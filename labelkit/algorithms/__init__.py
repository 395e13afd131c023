"""Algorithms on arrays: clustering, class discovery, optimal transport, prototypes, neighbors, calibration, attention.

Names are imported on first use: some require torch, and using one module should not load all the others.
"""

from typing import TYPE_CHECKING

from labelkit.imports import lazy_getattr

if TYPE_CHECKING:
    from labelkit.algorithms.attention import alignment_energy, attention_entropy, attention_update, prior_energy
    from labelkit.algorithms.calibration import (
        ColumnProbability,
        ReliabilityCurve,
        RiskCoverageCurve,
        column_probability,
        fit_temperature,
        fit_temperatures,
        group_means,
        leave_one_out_agreement,
        reliability_curve,
        risk_coverage_curve,
        softmax,
    )
    from labelkit.algorithms.clustering import (
        Clustering,
        SemiSupervisedClustering,
        kmeans,
        nearest_centroids,
        semi_supervised_kmeans,
        spherical_kmeans,
    )
    from labelkit.algorithms.feature_probes import knn_probabilities, linear_probe, logistic_regression
    from labelkit.algorithms.indexes import ApproximateSearch, build_index
    from labelkit.algorithms.matching import Matching, cross_tabulate, match_clusters
    from labelkit.algorithms.neighbors import ExactSearch, knn
    from labelkit.algorithms.num_classes import (
        NumClassesEstimate,
        NumClassesSearch,
        bounded_integer_search,
        candidate_class_counts,
        choose_num_classes_by_density,
        estimate_num_classes,
    )
    from labelkit.algorithms.prototypes import (
        Spread,
        max_cosine_bound,
        measure_spread,
        rms_cosine_bound,
        spread_prototypes,
        uniformity_loss,
    )
    from labelkit.algorithms.sinkhorn import (
        LinearScores,
        SinkhornResult,
        build_prior,
        solve_assignment,
        sort_prior_by_cluster_size,
    )

__all__ = [
    "ApproximateSearch",
    "NumClassesSearch",
    "NumClassesEstimate",
    "Clustering",
    "ColumnProbability",
    "ExactSearch",
    "LinearScores",
    "Matching",
    "ReliabilityCurve",
    "RiskCoverageCurve",
    "SemiSupervisedClustering",
    "Spread",
    "SinkhornResult",
    "alignment_energy",
    "attention_entropy",
    "attention_update",
    "bounded_integer_search",
    "build_index",
    "choose_num_classes_by_density",
    "candidate_class_counts",
    "column_probability",
    "cross_tabulate",
    "estimate_num_classes",
    "fit_temperature",
    "fit_temperatures",
    "group_means",
    "kmeans",
    "knn",
    "knn_probabilities",
    "leave_one_out_agreement",
    "linear_probe",
    "logistic_regression",
    "build_prior",
    "match_clusters",
    "max_cosine_bound",
    "measure_spread",
    "nearest_centroids",
    "sort_prior_by_cluster_size",
    "prior_energy",
    "reliability_curve",
    "risk_coverage_curve",
    "rms_cosine_bound",
    "semi_supervised_kmeans",
    "softmax",
    "solve_assignment",
    "spherical_kmeans",
    "spread_prototypes",
    "uniformity_loss",
]

__getattr__ = lazy_getattr(__name__)
