"""Algorithms on arrays: clustering, class discovery, optimal transport, prototypes, neighbors, calibration, attention.

Names are imported on first use: some require torch, and using one module should not load all the others.
"""

from typing import TYPE_CHECKING

from labelkit.imports import lazy_exports

if TYPE_CHECKING:
    from labelkit.algorithms.attention import alignment_energy as alignment_energy
    from labelkit.algorithms.attention import attention_entropy as attention_entropy
    from labelkit.algorithms.attention import attention_update as attention_update
    from labelkit.algorithms.attention import prior_energy as prior_energy
    from labelkit.algorithms.calibration import ColumnProbability as ColumnProbability
    from labelkit.algorithms.calibration import ReliabilityCurve as ReliabilityCurve
    from labelkit.algorithms.calibration import RiskCoverageCurve as RiskCoverageCurve
    from labelkit.algorithms.calibration import column_probability as column_probability
    from labelkit.algorithms.calibration import fit_temperature as fit_temperature
    from labelkit.algorithms.calibration import fit_temperatures as fit_temperatures
    from labelkit.algorithms.calibration import group_means as group_means
    from labelkit.algorithms.calibration import leave_one_out_agreement as leave_one_out_agreement
    from labelkit.algorithms.calibration import reliability_curve as reliability_curve
    from labelkit.algorithms.calibration import risk_coverage_curve as risk_coverage_curve
    from labelkit.algorithms.calibration import softmax as softmax
    from labelkit.algorithms.clustering import Clustering as Clustering
    from labelkit.algorithms.clustering import SemiSupervisedClustering as SemiSupervisedClustering
    from labelkit.algorithms.clustering import kmeans as kmeans
    from labelkit.algorithms.clustering import nearest_centroids as nearest_centroids
    from labelkit.algorithms.clustering import semi_supervised_kmeans as semi_supervised_kmeans
    from labelkit.algorithms.feature_probes import knn_probabilities as knn_probabilities
    from labelkit.algorithms.feature_probes import linear_probe as linear_probe
    from labelkit.algorithms.feature_probes import logistic_regression as logistic_regression
    from labelkit.algorithms.indexes import ApproximateSearch as ApproximateSearch
    from labelkit.algorithms.indexes import build_index as build_index
    from labelkit.algorithms.matching import Matching as Matching
    from labelkit.algorithms.matching import cross_tabulate as cross_tabulate
    from labelkit.algorithms.matching import match_clusters as match_clusters
    from labelkit.algorithms.neighbors import ExactSearch as ExactSearch
    from labelkit.algorithms.neighbors import knn as knn
    from labelkit.algorithms.num_classes import NumClassesEstimate as NumClassesEstimate
    from labelkit.algorithms.num_classes import NumClassesSearch as NumClassesSearch
    from labelkit.algorithms.num_classes import bounded_integer_search as bounded_integer_search
    from labelkit.algorithms.num_classes import candidate_class_counts as candidate_class_counts
    from labelkit.algorithms.num_classes import choose_num_classes_by_density as choose_num_classes_by_density
    from labelkit.algorithms.num_classes import estimate_num_classes as estimate_num_classes
    from labelkit.algorithms.prototypes import Spread as Spread
    from labelkit.algorithms.prototypes import max_cosine_bound as max_cosine_bound
    from labelkit.algorithms.prototypes import measure_spread as measure_spread
    from labelkit.algorithms.prototypes import rms_cosine_bound as rms_cosine_bound
    from labelkit.algorithms.prototypes import spread_prototypes as spread_prototypes
    from labelkit.algorithms.prototypes import uniformity_loss as uniformity_loss
    from labelkit.algorithms.sinkhorn import LinearScores as LinearScores
    from labelkit.algorithms.sinkhorn import SinkhornResult as SinkhornResult
    from labelkit.algorithms.sinkhorn import build_prior as build_prior
    from labelkit.algorithms.sinkhorn import solve_assignment as solve_assignment
    from labelkit.algorithms.sinkhorn import sort_prior_by_cluster_size as sort_prior_by_cluster_size

__getattr__, __all__ = lazy_exports(__name__)
