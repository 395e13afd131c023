"""``labelkit evaluate``: how good is a result beside a store, or a classifier?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import typer

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.cli.options import new_group
from labelkit.config.dense import EvaluatePatchClustersConfig, EvaluateSegmentationConfig, EvaluateTrackingConfig
from labelkit.config.evaluate import (
    EvaluateAnswerConfig,
    EvaluateClassificationConfig,
    EvaluateClusteringConfig,
    EvaluateKNNConfig,
    EvaluateLinearConfig,
    EvaluateRetrievalConfig,
)
from labelkit.config.gate import GateConfig
from labelkit.stages.evaluate.gate import Gate
from labelkit.stages.result import StageResult

C = TypeVar("C", bound=GateConfig)


def _score(config: C, evaluate: Callable[[C], StageResult]) -> None:
    """Print the scores, then fail if they miss a limit: what was measured is seen either way."""
    gate = Gate(config)
    result, error = gate.judge(evaluate(config))
    print_result(result)
    if error is not None:
        raise error


@stage_command(EvaluateClusteringConfig)
def clustering(config: EvaluateClusteringConfig) -> None:
    """Score groups against the true classes: accuracy All / Old / New, NMI, ARI, kinds of error.

    Example: labelkit evaluate clustering --index digits.h5
    """
    from labelkit.stages.evaluate.groups import evaluate_clustering  # scikit-learn loads here, not in --help

    _score(config, evaluate_clustering)


@stage_command(EvaluateAnswerConfig)
def answer(config: EvaluateAnswerConfig) -> None:
    """Score confident answers against the true classes: reliability, risk and coverage.

    Example: labelkit evaluate answer --index digits.h5
    """
    from labelkit.stages.evaluate.answers import evaluate_answer  # scipy loads here, not in --help

    _score(config, evaluate_answer)


@stage_command(EvaluateKNNConfig)
def knn(config: EvaluateKNNConfig) -> None:
    """Judge features: classes of one split from the nearest rows of another, and from a linear classifier.

    Example: labelkit evaluate knn --index digits.h5 -k 10 --temperature 0.1
    """
    from labelkit.stages.evaluate.knn import evaluate_knn  # torch loads here, not in --help

    _score(config, evaluate_knn)


@stage_command(EvaluateLinearConfig)
def linear(config: EvaluateLinearConfig) -> None:
    """Judge features by a linear classifier: trained on one split, scored on another, top 1 and 5.

    Example: labelkit evaluate linear --index digits.h5 --l2 1e-4,1e-3,1e-2
    """
    from labelkit.stages.evaluate.linear import evaluate_linear  # torch loads here, not in --help

    _score(config, evaluate_linear)


@stage_command(EvaluateRetrievalConfig)
def retrieval(config: EvaluateRetrievalConfig) -> None:
    """Score how well images of one class find each other: Recall@K, MAP@R, R-precision, NMI.

    Example: labelkit evaluate retrieval --index digits.h5 -k 1,2,4,8
    """
    from labelkit.stages.evaluate.retrieval import evaluate_retrieval  # numpy loads here, not in --help

    _score(config, evaluate_retrieval)


@stage_command(EvaluateClassificationConfig)
def classification(config: EvaluateClassificationConfig) -> None:
    """Score a classifier: top 1 and 5, classes with many, medium and few images, confusions.

    Example: labelkit evaluate classification --checkpoint runs/dl2pa-digits
    """
    from labelkit.stages.evaluate.classification import evaluate_classification  # torch loads here, not in --help

    _score(config, evaluate_classification)


@stage_command(EvaluateSegmentationConfig)
def segmentation(config: EvaluateSegmentationConfig) -> None:
    """Judge patch features: a head trained on them names the class of every pixel; mean IoU, pixels right.

    Example: labelkit evaluate segmentation --backbone pixels --dataset scenes --image-size 64
    """
    from labelkit.stages.evaluate.segmentation import evaluate_segmentation  # torch loads here, not in --help

    _score(config, evaluate_segmentation)


@stage_command(EvaluatePatchClustersConfig)
def patch_clusters(config: EvaluatePatchClustersConfig) -> None:
    """Judge patch features without training: groups of k-means, matched with the classes of the pixels.

    Example: labelkit evaluate patch-clusters --backbone pixels --dataset scenes --image-size 64
    """
    from labelkit.stages.evaluate.patch_clusters import evaluate_patch_clusters  # torch loads here, not in --help

    _score(config, evaluate_patch_clusters)


@stage_command(EvaluateTrackingConfig)
def tracking(config: EvaluateTrackingConfig) -> None:
    """Judge patch features by following objects through films from their masks in the first frame: J and F.

    Example: labelkit evaluate tracking --backbone pixels --dataset scene_videos --radius 3
    """
    from labelkit.stages.evaluate.tracking import evaluate_tracking  # torch loads here, not in --help

    _score(config, evaluate_tracking)


def build_app(words: Sequence[str] | None) -> typer.Typer:
    """Build ``labelkit evaluate`` as far as the words after it need."""
    return new_group(
        {
            "clustering": clustering,
            "answer": answer,
            "knn": knn,
            "linear": linear,
            "retrieval": retrieval,
            "classification": classification,
            "segmentation": segmentation,
            "patch-clusters": patch_clusters,
            "tracking": tracking,
        },
        words,
    )
