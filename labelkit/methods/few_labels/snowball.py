"""Snowball: images near the mean of a class get its label, the labels double, training goes on; again and again.

Source: dissertation "Deep Learning with Very Few and No Labels", chapter 2.
    1. a student learns from the given labels and all images (``--trainer``), a teacher follows it     Eq. 2.2 to 2.5
    2. the unlabeled images whose features are nearest to a class mean get its label                   Eq. 2.1, 2.8
    3. a master follows the teacher, and the student agrees with it on labeled images; 2. again
       with the master's features, until the labels are ``--cap`` times the given ones                 Eq. 2.6, 2.7
    4. the labels found are forgotten and found again by the better networks (a generation)
Growth ends where predictions no longer change, or by ``--val-split``; what judges is never looked at.
Departures: images are discovered by class, by the averaged networks; decays fit short phases; statistics are taken anew
(presets ``*_literal`` undo these). Lengths of later phases are ours, since none are published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import DatasetError
from labelkit.methods.few_labels.freematch import freematch_objective
from labelkit.methods.few_labels.growth import (
    VAL_DELTA,
    GrowthMonitor,
    LabelGrowth,
    PastFeatures,
    add_found,
    agreed,
    finite_features,
    training_class_names,
)
from labelkit.methods.few_labels.mean_teacher import mean_teacher_objective
from labelkit.methods.few_labels.mixmatch import mixmatch_objective
from labelkit.methods.few_labels.planned_growth import (
    average_decays,
    is_fresh,
    peak_rate,
    snowball_paces,
    snowball_phases,
    snowball_rules,
    snowball_scheduled,
)
from labelkit.methods.few_labels.pseudo_label_selection import Discovery
from labelkit.methods.few_labels.recipe import (
    build_student,
    check_few_labels,
    fit_whitening,
    recalibrate_students,
    streams,
    student_eval_view,
    student_phase,
    student_views,
)
from labelkit.methods.few_labels.searches import search_confident
from labelkit.methods.few_labels.snowball_options import SnowballConfig
from labelkit.methods.few_labels.snowball_search import Select
from labelkit.methods.few_labels.students import StudentClock, StudentNetwork, StudentNetworks, StudentObjective
from labelkit.models.ema import StudentChain
from labelkit.training.inputs import HeldOut, MonitorInputs, RunInputs
from labelkit.training.method import Method, Monitor, Phase, StepOutput, TrainState
from labelkit.training.monitors.classification import ClassificationMonitor
from labelkit.training.timing import Pace, RunSize, Scheduled

#: Networks that --fusion joins: those of the last discoveries.
FUSION_COUNT: Final = 3


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
    return mean_teacher_objective(config, config, views[0])


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


def find_confident(
    config: SnowballConfig,
    data: DataInfo,
    growth: LabelGrowth,
    past: PastFeatures,
    network: StudentNetwork,
    name: str,
    state: TrainState,
    rows: NDArray[np.int64],
    truth: NDArray[np.int64] | None = None,
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
        truth: (n,) labels that those found get in place of what the search says, for a comparison.

    Returns:
        What was found, in rows of the data set.

    Raises:
        DivergenceError: features are not finite.
    """

    def look(images: Tensor) -> Tensor:
        features = network.embed(images)
        return network.classify(features).float().softmax(dim=1) if config.score == "softmax" else features

    features = finite_features(look, name, state, rows)
    table = features.new_zeros((data.num_samples, features.shape[1]))
    table[rows] = features
    parts = [part[rows].numpy() for part in past.join(table)]
    found = search_confident(
        config,
        parts if config.fusion != "none" else parts[-1],
        growth.labels()[rows],
        growth.wanted(rows),
        select=_selection(config),
        score=config.score,
        seed=config.seed,
        num_classes=network.num_outputs,
        original=growth.given[rows],
        class_names=training_class_names(data),
    )
    found = agreed(found, rows, state)
    if truth is not None:
        found = replace(found, labels=truth[found.indices])
    add_found(growth, found, name, state, network.num_outputs)
    return found


class Snowball(Method[SnowballConfig]):
    """Needs at least one label of each class."""

    network: StudentNetwork

    def __init__(self, config: SnowballConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        self.num_classes = check_few_labels(config, data, allow_missing=config.missing_class == "skip")
        self.network = build_student(config, data, self.num_classes, num_heads=config.num_heads)
        self.chain = StudentChain(self.network, with_master=config.master)
        views = student_views(config, data, self.network.input_spec.size)
        self.objective = snowball_objective(config, views, self.num_classes)
        self.growth = LabelGrowth(data.labels, snowball_rules(config))
        width = self.num_classes if config.score == "softmax" else self.network.embed_dim
        self.past = PastFeatures(1 if config.fusion == "none" else FUSION_COUNT, data.num_samples, width)
        own = ("growth.", "past.", "chain.has_master")
        self.equal_buffers = tuple(name for name, _ in self.named_buffers() if name.startswith(own))
        self.validation: HeldOut | None = None  # of --val-split
        self.truth: NDArray[np.int64] | None = None  # of --found-labels true
        self._state: TrainState | None = None
        self._rows = np.arange(0)
        self._planned = 0  # later phases decided on so far
        self._started = 0  # step at which the networks were new
        self._exhausted = False
        self._fresh: tuple[int, bool] | None = None  # of which phase, and whether it began with new networks
        self._errors: list[float | None] = [None, None]  # by validation: of the last phase, and generation

    def attach(self, inputs: RunInputs) -> None:
        """Take the images that end a generation, if labels of their own are to decide."""
        if self.config.val_split is not None:
            self.validation = inputs.held_out("--val-split", self.config.val_split)
        if self.config.found_labels == "true":
            self.truth = self._true_labels(inputs.truth("--found-labels true"))

    def _true_labels(self, classes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Training class of each row by its class in the data set.

        Raises:
            DatasetError: a row has none.
        """
        number = {int(label): i for i, label in enumerate(self.data.class_order)}
        labels = np.array([number.get(int(label), -1) for label in classes], dtype=np.int64)
        if (labels < 0).any():
            problem = (
                f"{int((labels < 0).sum())} images have no label of a training class, which --found-labels true needs"
            )
            raise DatasetError(self.config.dataset, problem, "Leave it out, or use a set whose labels are all known.")
        return labels

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """The phase on the given labels; what follows is decided on the way."""
        first = self.phase(0, rows)
        assert first is not None
        return (first,)

    def phase(self, index: int, rows: NDArray[np.int64]) -> Phase | None:
        """Labeled images, given and discovered, beside all others."""
        if index > self._planned:
            return None
        self._rows, config = rows, self.config
        labels = self.data.labels if index == 0 else self.growth.labels()
        drawn = streams(
            labels,
            rows,
            batch_size=config.batch_size,
            labeled_per_batch=config.labeled_batch_size,
            anchors=rows[self.data.labels[rows] >= 0],
            anchors_per_batch=round(config.anchor_fraction * config.labeled_batch_size) if index else 0,
        )
        steps = config.phase_steps if index else config.steps
        name = f"generation {int(self.growth.generation)}, {int((labels >= 0).sum()):,} labels" if index else "train"
        peak, views = peak_rate(config, index), self.objective.views()
        return student_phase(config, labels, views, drawn, steps=steps, peak=peak, index=index, name=name)

    @classmethod
    def paces(cls, config: SnowballConfig, size: RunSize) -> tuple[Pace, ...]:
        """The phases of a run whose discoveries find all that they look for."""
        return snowball_paces(config, size)

    @classmethod
    def scheduled(cls, config: SnowballConfig, size: RunSize) -> Mapping[str, Scheduled]:
        """Labels, decays of the averages, and the weight of the objective in such a run."""
        return snowball_scheduled(config, size)

    def planned_steps(self) -> int:
        """All generations to the full size."""
        given = self.growth.given
        return sum(phase.steps for phase in snowball_phases(self.config, int((given >= 0).sum()), len(given)))

    def on_train_start(self, state: TrainState) -> None:
        """Start networks equal, also when weights were taken from elsewhere; say what growth cannot do."""
        fit_whitening(self.network, state, self._rows)
        self.chain.restart(self.network)
        if not (self.data.labels[self._rows] < 0).any():
            state.warn("warning: no image is without a label, so that there is nothing to discover")

    def on_phase_start(self, state: TrainState) -> None:
        """Form the master after a discovery; in a new generation, start anew if asked to."""
        config = self.config
        if self._is_fresh(state):
            seed = config.seed + 1000 * int(self.growth.generation)
            fresh = build_student(config, self.data, self.num_classes, num_heads=config.num_heads, seed=seed)
            fresh.backbone.whitening = self.network.backbone.whitening
            self.network.load_state_dict(fresh.state_dict())
            self.chain.restart(self.network)
            self.chain.forget_master()
            state.reset_optimizer()
            self._started = state.step
        elif state.phase and config.master and self.chain.master is None:
            self.chain.form_master()

    def on_step_start(self, state: TrainState) -> None:
        """Remember where the run is."""
        self._state = state

    def training_step(self, batch: Batch) -> StepOutput:
        """Return the loss of the objective."""
        networks = StudentNetworks(self.network, self.chain.teacher, self.chain.master)
        fresh = self._state is None or self._state.phase == 0 or self._is_fresh(self._state)
        return self.objective(batch, networks, StudentClock.of(self._state, fresh=fresh))

    def on_step_end(self, state: TrainState) -> None:
        """Move teacher and master."""
        decay, master = average_decays(self.config, state.phase_steps, state.step + 1 - self._started)
        runs_teacher, runs_master = self.objective.runs_teacher, self.objective.runs_master
        self.chain.update(self.network, decay, master, teacher_runs=runs_teacher, master_runs=runs_master)

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """Prepare the networks to be judged and to discover."""
        recalibrate_students(self.config, self.network, self.chain, state, self._rows)
        return {}

    def on_phase_end(self, state: TrainState) -> Mapping[str, float]:
        """See whether anything still changes; discover, or begin another generation, or end."""
        growth, network = self.growth, self.headline()
        scores = state.embed(lambda images: network.classify(network.embed(images)), self._rows)
        since_phase, since_generation = growth.note_predictions(scores.argmax(1), self._rows)
        metrics = growth.describe()
        for name, value in (("churn", since_phase), ("generation_churn", since_generation)):
            metrics |= {} if value is None else {name: value}
        stable = [value is not None and value < self.config.churn for value in (since_phase, since_generation)]
        if self.validation is not None:
            error = 100 * (1 - ClassificationMonitor(self.validation, self.data.class_order)(self, state)["accuracy"])
            stable = [last is not None and abs(error - last) <= VAL_DELTA for last in self._errors]
            self._errors[0] = metrics["val_error"] = error
        metrics["discovered"] = float(self._grow(state, *stable))
        return metrics

    def _grow(self, state: TrainState, stable: bool, stable_generation: bool) -> int:
        """Discover images for another phase; return how many, 0 if the run is over."""
        growth, config = self.growth, self.config
        if config.max_steps is not None and state.step + config.phase_steps > config.max_steps:
            return 0
        over = self._exhausted or (stable and int(growth.iteration) > 0)
        if over or not growth.wanted(self._rows):
            if not growth.may_begin_again() or (int(growth.generation) > 1 and stable_generation):
                return 0
            growth.next_generation()
            self._errors[1] = self._errors[0]
        name, network = choose_network(config, self.network, self.chain)
        found = find_confident(config, self.data, growth, self.past, network, name, state, self._rows, self.truth)
        self._exhausted = found.exhausted
        self._planned += len(found.indices) > 0
        return len(found.indices)

    def _is_fresh(self, state: TrainState) -> bool:
        """Whether the running phase began with new networks."""
        if state.phase == 0:
            return False
        if self._fresh is None or self._fresh[0] != state.phase:  # growth moves between phases alone
            later = is_fresh(self.config, int(self.growth.generation), int(self.growth.iteration))
            self._fresh = state.phase, later
        return self._fresh[1]

    def headline(self) -> StudentNetwork:
        """The master if there is one, else the teacher."""
        return self.chain.master or self.chain.teacher

    def judged(self) -> Mapping[str, StudentNetwork]:
        """All networks."""
        networks = {"student": self.network, "teacher": self.chain.teacher, "master": self.chain.master}
        return {name: network for name, network in networks.items() if network is not None}

    def extra_state(self) -> dict[str, Any]:
        """Where the growth stands."""
        moment = [self._planned, self._started, self._exhausted, self._errors]
        return {"moment": moment, "objective": self.objective.extra_state()}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``extra_state`` gave."""
        self._planned, self._started, self._exhausted, self._errors = state["moment"]
        self.objective.load_extra_state(state["objective"])

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Names given to held-out images, and the labels that were found."""
        return GrowthMonitor(self.growth, self.data, inputs)

    def eval_view(self) -> ViewSpec:
        """The image without augmentation."""
        return student_eval_view(self.network.input_spec.size)
