"""Objectives of MixMatch and FreeMatch from options."""

from __future__ import annotations

from collections.abc import Sequence

from labelkit.config.few_labels import FewLabelTrainConfig
from labelkit.config.student_options import FreeMatchOptions, MixMatchOptions
from labelkit.data.transforms import ViewSpec
from labelkit.engine.freematch import FreeMatchObjective
from labelkit.engine.mixmatch import MixMatchObjective


def mixmatch_objective(config: FewLabelTrainConfig, options: MixMatchOptions, view: ViewSpec) -> MixMatchObjective:
    """Build MixMatch's objective.

    Args:
        config: the run.
        options: usually the same.
        view: how an image is augmented.
    """
    return MixMatchObjective(
        view,
        temperature=options.sharpening_temperature,
        alpha=options.mixup_alpha,
        weight=options.unlabeled_weight,
        warmup_steps=options.unlabeled_ramp * config.steps,
        pairing=options.pairing,
        seed=config.seed,
    )


def freematch_objective(options: FreeMatchOptions, views: Sequence[ViewSpec], num_classes: int) -> FreeMatchObjective:
    """Build FreeMatch's objective.

    Args:
        options: of the loss.
        views: the weak and the strong one.
        num_classes: k.
    """
    weak, strong = views
    return FreeMatchObjective(
        weak,
        strong,
        num_classes=num_classes,
        decay=options.threshold_decay,
        fixed_threshold=options.fixed_threshold,
        weight=options.pseudo_label_weight,
        fairness_weight=options.fairness_weight,
    )
