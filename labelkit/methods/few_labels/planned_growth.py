"""Phases of runs whose labels grow, as they are if every discovery finds all that it looks for.

What a run really does is decided on the way, by `growth.LabelGrowth`; this is the longest course that it can take.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from labelkit.methods.few_labels.growth import GrowthRules
from labelkit.methods.few_labels.lmcs_options import LMCSConfig
from labelkit.methods.few_labels.mean_teacher import consistency_weight
from labelkit.methods.few_labels.mixmatch import unlabeled_weight
from labelkit.methods.few_labels.recipe import student_pace, teacher_decay
from labelkit.methods.few_labels.snowball_options import SnowballConfig
from labelkit.training.schedules import horizon_decay
from labelkit.training.timing import Moment, Pace, RunSize, Scheduled


@dataclass(frozen=True, slots=True)
class GrownPhase:
    """One phase.

    Attributes:
        labels: that the student learns from.
        steps: updates.
        generation, iteration: which discovery came before it; iteration 0: none.
    """

    labels: int
    steps: int
    generation: int = 1
    iteration: int = 0

    @property
    def name(self) -> str:
        """For tables."""
        return f"{self.labels:,} labels"


def snowball_rules(config: SnowballConfig) -> GrowthRules:
    """How far the labels of snowball grow."""
    return GrowthRules(config.growth_factor, config.cap, config.generations)


def lmcs_rules(config: LMCSConfig) -> GrowthRules:
    """How far the labels of lmcs grow."""
    return GrowthRules(config.growth_factor, config.growth_limit, config.generations)


def snowball_phases(config: SnowballConfig, given: int, images: int) -> list[GrownPhase]:
    """Phases of a run of snowball whose generations all reach their full size.

    Args:
        config: the options.
        given: images with a label.
        images: all.
    """
    sizes, length = snowball_rules(config).sizes(given, images), config.phase_steps
    later = [
        GrownPhase(labels, length, generation, iteration)
        for generation in range(1, config.generations + 1)
        for iteration, labels in enumerate(sizes, 1)
    ]
    if config.max_steps is not None:
        later = later[: max(0, (config.max_steps - config.steps) // length)]
    return [GrownPhase(given, config.steps), *later]


def is_fresh(config: SnowballConfig, generation: int, iteration: int) -> bool:
    """Whether a phase of snowball, after its discovery, begins with new networks."""
    return config.reinit == "generation" and generation > 1 and iteration == 1


def average_decays(config: SnowballConfig, phase_steps: int, update: int) -> tuple[float, float]:
    """Decays of teacher and master.

    Args:
        config: the options.
        phase_steps: updates of the running phase.
        update: since the networks were new, from 1.
    """
    decay = teacher_decay(config, phase_steps, config.consistency_ramp * config.steps)(update)
    master = horizon_decay(phase_steps, config.master_decay) if config.ema_horizon else config.master_decay
    return decay, master


def peak_rate(config: SnowballConfig, index: int) -> float:
    """Highest learning rate of a phase."""
    return (config.later_lr_ratio if index else 1.0) * config.lr


def snowball_paces(config: SnowballConfig, size: RunSize) -> tuple[Pace, ...]:
    """Lengths and optimizer of those phases."""
    phases = snowball_phases(config, size.known_labels(), size.known_images())
    return tuple(
        student_pace(config, steps=phase.steps, peak=peak_rate(config, index), index=index, name=phase.name)
        for index, phase in enumerate(phases)
    )


def snowball_scheduled(config: SnowballConfig, size: RunSize) -> dict[str, Scheduled]:
    """What changes in those phases: labels, decays of the averages, the weight of the objective."""
    phases = snowball_phases(config, size.known_labels(), size.known_images())
    fresh = [index for index, phase in enumerate(phases) if is_fresh(config, phase.generation, phase.iteration)]
    starts = [0, *accumulate(phase.steps for phase in phases)]
    labels = labels_of(phases)

    def decays(now: Moment) -> tuple[float, float]:
        started = starts[max((index for index in fresh if index <= now.phase), default=0)]
        return average_decays(config, now.phase_steps, now.step + 1 - started)

    found: dict[str, Scheduled] = {
        "labels": lambda now: labels(now.phase),
        "ema_decay": lambda now: decays(now)[0],
    }
    if config.master:
        has_master = [index > 0 and index not in fresh for index in range(len(phases))]
        found["master_decay"] = lambda now: decays(now)[1] if has_master[now.phase] else math.nan
    if config.trainer == "mean-teacher":
        grown = consistency_weight(config, config)
        is_new = {0, *fresh}
        found["consistency_weight"] = lambda now: grown(now.step_in_phase) if now.phase in is_new else grown.full
    if config.trainer == "mixmatch":
        weight = unlabeled_weight(config, config)
        found["unlabeled_weight"] = lambda now: weight(now.step)
    return found


def first_steps(config: LMCSConfig, given: int, unlabeled: int) -> int:
    """Updates of lmcs before the first discovery; all if there is nothing to discover."""
    if not lmcs_rules(config).next_count(given, given, unlabeled):
        return config.steps
    return min(config.first_blocks * config.block_steps, config.steps)


def later_steps(config: LMCSConfig, rest: int) -> int:
    """Updates of lmcs between two discoveries, of which so many are left."""
    return min(config.generation_blocks * config.block_steps, rest)


def lmcs_phases(config: LMCSConfig, given: int, images: int) -> list[GrownPhase]:
    """Phases of a run of lmcs; arguments as for `snowball_phases`.

    The student learns the discovery before the last one, so that labels are one phase late.
    """
    sizes = [given, *lmcs_rules(config).sizes(given, images)]
    phases = [GrownPhase(given, first_steps(config, given, images - given))]
    generation, iteration, learned, step = 1, 0, 0, phases[0].steps
    while step < config.steps:
        shown, length = iteration, later_steps(config, config.steps - step)
        if iteration + 1 < len(sizes):
            iteration += 1
        elif generation < config.generations:
            if shown == learned:
                generation, iteration, shown = generation + 1, 1, 0
        elif config.final_phase:
            length = config.steps - step
        else:
            break
        phases.append(GrownPhase(sizes[shown], length, generation, iteration))
        learned, step = shown, step + length
    return phases


def labels_of(phases: list[GrownPhase]) -> Callable[[int], float]:
    """Labels that a phase learns from, by its number."""
    return lambda phase: float(phases[phase].labels)
