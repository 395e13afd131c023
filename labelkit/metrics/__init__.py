"""Evaluation metrics for classification, clustering, retrieval, segmentation and discovered labels."""

from labelkit.metrics.classification import (
    eleven_point_average_precision,
    per_class_accuracy,
    proportion_interval,
    shot_groups,
    top_k_accuracy,
)
from labelkit.metrics.clustering import ClusterAccuracy, accuracy_intervals, cluster_accuracy, majority_accuracy
from labelkit.metrics.discovered import discovery_errors
from labelkit.metrics.retrieval import RetrievalScores, score_retrieval
from labelkit.metrics.segmentation import SegmentationCounts, SegmentationScores, boundary_accuracy, region_similarity

__all__ = [
    "ClusterAccuracy",
    "RetrievalScores",
    "SegmentationCounts",
    "SegmentationScores",
    "accuracy_intervals",
    "boundary_accuracy",
    "cluster_accuracy",
    "discovery_errors",
    "eleven_point_average_precision",
    "majority_accuracy",
    "per_class_accuracy",
    "proportion_interval",
    "region_similarity",
    "score_retrieval",
    "shot_groups",
    "top_k_accuracy",
]
