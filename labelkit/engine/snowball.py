"""What snowball decides at a discovery: which network looks, what it finds, and what a student learns from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from labelkit.algorithms.nearest_centroid import Discovery
from labelkit.algorithms.snowball import Select, discover_confident
from labelkit.config.methods.snowball import SnowballConfig
from labelkit.data.batch import DataInfo
from labelkit.data.transforms import ViewSpec
from labelkit.engine.few_labels import mean_teacher_objective
from labelkit.engine.label_growth import LabelGrowth, PastFeatures, agree_on
from labelkit.engine.method import TrainState
from labelkit.engine.student_objectives import freematch_objective, mixmatch_objective
from labelkit.engine.students import StudentNetwork, StudentObjective
from labelkit.errors import DivergenceError
from labelkit.models.ema import StudentChain


def snowball_objective(config: SnowballConfig, views: tuple[ViewSpec, ViewSpec], num_classes: int) -> StudentObjective:
    """Build what ``--trainer`` names.

    Args:
        config: the options.
        views: the weak and the strong training view.
        num_classes: k.
    """
    if config.trainer == "mixmatch":
        return mixmatch_objective(config, config, views[0])
    if config.trainer == "freematch":
        return freematch_objective(config, views, num_classes)
    return mean_teacher_objective(config, config, views[0], master_on=config.master_on)


def planned_steps(config: SnowballConfig, growth: LabelGrowth) -> int:
    """Updates of a run whose generations all reach their full size."""
    given, length = int((growth.given >= 0).sum()), config.phase_steps
    later = config.generations * len(growth.rules.sizes(given, len(growth.given)))
    if config.max_steps is not None:
        later = min(later, (config.max_steps - config.steps) // length)
    return config.steps + later * length


def _selection(config: SnowballConfig) -> Select:
    """Far images teach MixMatch more (specification 3.4)."""
    if config.select != "auto":
        return config.select
    return "far" if config.trainer == "mixmatch" else "min"


def choose_network(
    config: SnowballConfig, student: StudentNetwork, chain: StudentChain[StudentNetwork]
) -> tuple[str, StudentNetwork]:
    """Return the name of the network that discovers, and the network; a master that is not there is the teacher."""
    wanted = config.embed_with
    if wanted == "student" or (wanted == "student-first" and chain.master is None):
        return "student", student
    if wanted == "teacher" or chain.master is None:
        return "teacher", chain.teacher
    return "master", chain.master


def discover(
    config: SnowballConfig,
    data: DataInfo,
    growth: LabelGrowth,
    past: PastFeatures,
    network: StudentNetwork,
    name: str,
    state: TrainState,
    rows: NDArray[np.int64],
) -> Discovery:
    """Find images, give them labels, log what was found.

    Args:
        config: the options.
        data: names and order of the classes.
        growth: labels so far; gets those that are found.
        past: features of earlier discoveries.
        network: looks at the images, prepared for evaluation.
        name: of the network.
        state: of the event.
        rows: (m,) images that can be read.

    Returns:
        What was found, in rows of the data set.

    Raises:
        DivergenceError: features are not finite.
    """

    def look(images: Tensor) -> Tensor:
        features = network.embed(images)
        return network.classify(features).float().softmax(dim=1) if config.score == "softmax" else features

    features = state.embed(look, rows)
    if not bool(features.isfinite().all()):
        raise DivergenceError(
            f"step {state.step}", f"features of the {name} are not finite", "Lower --lr, or set --clip-grad-norm."
        )
    table = features.new_zeros((data.num_samples, features.shape[1]))
    table[rows] = features
    parts = [part[rows].numpy() for part in past.join(table)]
    labels, given = growth.labels()[rows], growth.given[rows]
    found = discover_confident(
        parts if config.fusion != "none" else parts[-1],
        labels,
        growth.wanted(rows),
        num_classes=network.num_outputs,
        original=given,
        balance=config.balance,
        select=_selection(config),
        far_factor=config.far_factor,
        far_cap=config.far_cap,
        fusion=config.fusion,
        fusion_scale=config.fusion_scale,
        score=config.score,
        feature_norm=config.feature_norm,
        missing_class=config.missing_class,
        refill=config.refill,
        seed=config.seed,
        class_names=[data.class_names[label] for label in data.class_order] if data.class_names else (),
    )
    found = agree_on(found, rows, state)
    for warning in found.warnings:
        state.warn(f"warning: {warning}")
    growth.add(found, name)
    histogram = np.bincount(found.labels, minlength=network.num_outputs)
    state.log(
        "growth",
        {
            **growth.describe(),
            "discovered": float(len(found.indices)),
            "exhausted": float(found.exhausted),
            **{f"class_{label}": float(count) for label, count in enumerate(histogram)},
        },
    )
    return found
