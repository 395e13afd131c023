"""LMCS: three versions of a student are composed to a master that guides it, and critical samples get labels.

Source: dissertation "Deep Learning with Very Few and No Labels", chapter 3.
Each block of ``--eval-every-steps`` updates:
    1. the student learns as in ``train mixmatch`` (``--student``), and agrees with the last block's master
    2. student, student of the block before and average are joined by converters; these and the last layers
       are trained and become the master (``composition.py``)                           Eq. 3.5 to 3.7
Every ``--generation-blocks`` blocks:
    3. unlabeled images near the means of the classes whose neighborhood names several classes get a label,
       until labels are ``--growth-limit`` times the given ones                         Eq. 3.8 to 3.13
    4. the master learns them at once, the student one discovery later (look-ahead)
Before all this it may learn to name how images are turned (``--pretext-steps``, ``pretext.py``).
With ``--generations`` this is repeated from the given labels, once the student has learned the last discovery.
Nothing here knows the class of an unlabeled image. The average is the network that is judged and embeds.
Departures: see those of ``composition.py`` and ``critical_samples.py``; guidance has no equation in the source; it
calls one discovery a generation (Eq. 3.13; column ``iteration`` of the table) and also the growth from the given
labels to all of them (Sec. 3.3.4); a last phase trains the student on all that was discovered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.views.spec import ViewSpec
from labelkit.formatting import percent
from labelkit.methods.few_labels.composition import MasterDiet
from labelkit.methods.few_labels.critical_samples import CriticalDiscovery
from labelkit.methods.few_labels.freematch import FreeMatchObjective, freematch_objective
from labelkit.methods.few_labels.growth import (
    VAL_DELTA,
    GrowthMonitor,
    LabelGrowth,
    add_found,
    agreed,
    finite_features,
    training_class_names,
)
from labelkit.methods.few_labels.guide import Guide
from labelkit.methods.few_labels.lmcs_options import LMCSConfig
from labelkit.methods.few_labels.losses import SquaredConsistency
from labelkit.methods.few_labels.mixmatch import MixMatchObjective, mixmatch_objective, unlabeled_weight
from labelkit.methods.few_labels.planned_growth import first_steps, labels_of, later_steps, lmcs_phases, lmcs_rules
from labelkit.methods.few_labels.pretext import learn_rotations
from labelkit.methods.few_labels.recipe import (
    adam_moments,
    build_student,
    check_few_labels,
    recalibrate_students,
    streams,
    student_eval_view,
    student_pace,
    student_phase,
    student_views,
    teacher_decay,
)
from labelkit.methods.few_labels.searches import search_critical
from labelkit.methods.few_labels.students import (
    StudentClock,
    StudentNetwork,
    StudentNetworks,
    labeled_and_others,
    logits_of,
)
from labelkit.models.batch_norm import batch_statistics
from labelkit.models.ema import StudentChain
from labelkit.models.inference import InferenceNetwork
from labelkit.training.inputs import HeldOut, MonitorInputs, RunInputs
from labelkit.training.method import Method, Monitor, Phase, StepOutput, TrainState
from labelkit.training.monitors.classification import ClassificationMonitor
from labelkit.training.schedules import GrowingWeight, PhaseLearningRate
from labelkit.training.timing import Pace, RunSize, Scheduled


def lmcs_objective(
    config: LMCSConfig, views: tuple[ViewSpec, ViewSpec], num_classes: int
) -> MixMatchObjective | FreeMatchObjective:
    """Build what ``--student`` names.

    Args:
        config: the options.
        views: the weak and the strong training view.
        num_classes: k.
    """
    if config.student == "mixmatch":
        return mixmatch_objective(config, config, views[0])
    return freematch_objective(config, views, num_classes)


def guidance_weight(config: LMCSConfig) -> GrowingWeight:
    """Weight of the difference to the guide, by the update of the run."""
    return GrowingWeight(config.guidance_weight * config.unlabeled_weight, config.unlabeled_ramp * config.steps)


def whole_run_pace(config: LMCSConfig, index: int, start: int, steps: int, name: str) -> Pace:
    """Length of a phase that begins at an update of the run; the optimizer goes on as if there were no phases."""
    pace = student_pace(config, steps=steps, peak=config.lr, index=index, name=name)
    rate = PhaseLearningRate(
        config.lr, config.steps, config.lr_schedule, config.lr_horizon, config.lr_ramp_up, config.lr_ramp_down
    )
    moments = adam_moments(config, config.steps, config.lr_ramp_up)
    betas = None if moments is None else lambda step: moments(start + step)
    return replace(pace, lr=lambda step: rate(start + step), betas=betas)


def find_critical(
    config: LMCSConfig,
    data: DataInfo,
    growth: LabelGrowth,
    network: InferenceNetwork,
    state: TrainState,
    rows: NDArray[np.int64],
) -> CriticalDiscovery:
    """Find critical samples, give them labels, log what was found.

    Args:
        config: the options.
        data: names and order of the classes.
        growth: labels so far; gets those that are found, unless too many of them are disputed.
        network: looks at the images, prepared for evaluation.
        state: of the event.
        rows: (m,) images that can be read.

    Returns:
        What was found, in rows of the data set.

    Raises:
        DivergenceError: features are not finite.
    """
    features = finite_features(network.embed, config.embed_with, state, rows)
    found = search_critical(
        config,
        features.numpy(),
        growth.labels()[rows],
        growth.wanted(rows),
        num_classes=network.num_outputs,
        original=growth.given[rows],
        class_names=training_class_names(data),
    )
    if config.criterion != "min_distance":
        # the column score of the table: what they were chosen by
        found = replace(found, distance=found.entropy)
    found = agreed(found, rows, state)
    disputed = found.disagreement
    if disputed > config.disagree_stop:
        state.warn(
            f"warning: nearest mean and soft label name different classes for {percent(disputed)} % of the confined "
            "images: labels stop growing"
        )
        return replace(found, indices=found.indices[:0], labels=found.labels[:0])
    if found.exhausted:
        short = sum(report.taken < (report.quota or 0) for report in found.per_class)
        state.warn(f"warning: {len(found.indices)} critical samples found, fewer than wanted in {short} classes")
    add_found(growth, found, config.embed_with, state, network.num_outputs, disputed=disputed)
    return found


class LMCS(Method[LMCSConfig]):
    """Needs at least one label of each class, better four."""

    network: StudentNetwork

    def __init__(self, config: LMCSConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        num_classes = check_few_labels(config, data, allow_missing=config.missing_class == "skip")
        self.network = build_student(config, data, num_classes)
        self.chain = StudentChain(self.network, with_master=False)
        self.guide = Guide(config, self.network)
        self._views = student_views(config, data, self.network.input_spec.size)
        self.objective = lmcs_objective(config, self._views, num_classes)
        self.consistency = SquaredConsistency()
        self.growth = LabelGrowth(data.labels, lmcs_rules(config))
        self.equal_buffers = tuple(name for name, _ in self.named_buffers() if name.startswith("growth."))
        self._decay = teacher_decay(config, config.steps)
        self._guidance = guidance_weight(config)
        self._state: TrainState | None = None
        self._rows = np.zeros(0, dtype=np.int64)
        # of each phase after the first: discoveries of the generation that the student learns, start, updates
        self._later: list[list[int]] = []
        self.validation: HeldOut | None = None  # of --val-split
        self._errors: list[float | None] = [None, None]  # by validation: at the last discovery, and generation

    def attach(self, inputs: RunInputs) -> None:
        """Take the images that end the growth, if labels of their own are to decide."""
        if self.config.val_split is not None:
            self.validation = inputs.held_out("--val-split", self.config.val_split)

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """The phase on the given labels; what follows is decided on the way."""
        first = self.phase(0, rows)
        assert first is not None
        return (first,)

    def phase(self, index: int, rows: NDArray[np.int64]) -> Phase | None:
        """Images with given labels and those of earlier generations, beside all others."""
        if index > len(self._later):
            return None
        self._rows, config = rows, self.config
        learned, start, steps = self._later[index - 1] if index else (0, 0, self._first_steps())
        labels = self.growth.labels(learned)
        drawn = streams(labels, rows, batch_size=config.batch_size, labeled_per_batch=config.labeled_batch_size)
        name = f"{learned} discoveries, {int((labels >= 0).sum()):,} labels" if index else "train"
        views = self.objective.views()
        phase = student_phase(config, labels, views, drawn, steps=steps, peak=config.lr, index=index, name=name)
        pace = whole_run_pace(config, index, start, steps, name)
        return replace(phase, lr=pace.lr, betas=pace.betas)

    @classmethod
    def paces(cls, config: LMCSConfig, size: RunSize) -> tuple[Pace, ...]:
        """The phases of a run whose discoveries find all that they look for."""
        phases = lmcs_phases(config, size.known_labels(), size.known_images())
        starts = accumulate((phase.steps for phase in phases), initial=0)
        return tuple(
            whole_run_pace(config, index, start, phase.steps, phase.name)
            for index, (phase, start) in enumerate(zip(phases, starts, strict=False))
        )

    @classmethod
    def scheduled(cls, config: LMCSConfig, size: RunSize) -> Mapping[str, Scheduled]:
        """Labels of such a run, decay of the average, weights of unlabeled images and of the guide."""
        labels = labels_of(lmcs_phases(config, size.known_labels(), size.known_images()))
        decay, guidance = teacher_decay(config, config.steps), guidance_weight(config)
        found: dict[str, Scheduled] = {
            "labels": lambda now: labels(now.phase),
            "ema_decay": lambda now: decay(now.step + 1),
        }
        if config.student == "mixmatch":
            weight = unlabeled_weight(config, config)
            found["unlabeled_weight"] = lambda now: weight(now.step)
        if config.guidance == "consistency":
            found["guidance_weight"] = lambda now: guidance(now.step)
        return found

    def _first_steps(self) -> int:
        unlabeled = int((self.data.labels[self._rows] < 0).sum())
        return first_steps(self.config, int((self.data.labels >= 0).sum()), unlabeled)

    def planned_steps(self) -> int:
        """All of them."""
        return self.config.steps

    def on_train_start(self, state: TrainState) -> None:
        """Start networks equal, also when weights were taken from elsewhere; say what growth cannot do."""
        config = self.config
        if config.pretext_steps:
            named = learn_rotations(
                self.network,
                state,
                self._rows,
                self._views[0],
                steps=config.pretext_steps,
                batch_size=config.batch_size,
                seed=config.seed,
            )
            state.log("pretext", {"rotation_accuracy": named})
        self.chain.restart(self.network)
        if not (self.data.labels[self._rows] < 0).any():
            state.warn("warning: no image is without a label, so that there is nothing to discover")

    def on_step_start(self, state: TrainState) -> None:
        """Remember where the run is."""
        self._state = state

    def training_step(self, batch: Batch) -> StepOutput:
        """Return the loss of the objective, and the difference to the guide."""
        config, (_, others) = self.config, labeled_and_others(batch)
        networks = StudentNetworks(self.network, self.chain.teacher)
        clock = StudentClock.of(self._state)
        weight = self._guidance(clock.step)
        wanted = config.guidance == "guess" or (config.guidance == "consistency" and weight > 0)
        if not (wanted and self.guide.is_ready and len(others)):
            return self.objective(batch, networks, clock)
        said = self.guide.logits(batch.views[0][others])
        if config.guidance == "guess":
            return self.objective.forward(batch, networks, clock, said.float().softmax(dim=1))
        output = self.objective(batch, networks, clock)
        with batch_statistics(self.network):
            own = logits_of(self.network, batch.views[1][others])[0]
        difference = self.consistency(own, said).mean()
        return StepOutput(output.loss + weight * difference, {**output.logs, "guidance": difference.detach()})

    def on_step_end(self, state: TrainState) -> None:
        """Move the average."""
        self.chain.update(self.network, self._decay(state.step + 1), teacher_runs=self.objective.runs_teacher)

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """After a block: prepare networks to be judged, discover at the end of a generation, compose the master."""
        recalibrate_students(self.config, self.network, self.chain, state, self._rows)
        metrics: dict[str, float] = {}
        if state.step_in_phase == state.phase_steps and state.step < self.config.steps:
            metrics |= self._grow(state)
        labels, config = self.growth.labels(), self.config
        diet = MasterDiet(labels, self._rows, self._views[0], config.batch_size, config.labeled_batch_size)
        metrics |= self.guide.renew(self.network, self.chain.teacher, diet, state)
        growth, nested = self.growth, config.generations > 1
        metrics["generation"] = float(growth.generation if nested else growth.iteration)
        metrics |= {"iteration": float(growth.iteration)} if nested else {}
        return {**metrics, "labeled": float((labels >= 0).sum())}

    def _grow(self, state: TrainState) -> dict[str, float]:
        """Find critical samples for another phase, go over to the next generation, or on to the last phase."""
        growth, config = self.growth, self.config
        metrics, stable, stable_generation = self._changes(state)
        rest, before, found = config.steps - state.step, int(growth.iteration), 0
        if not stable:
            found = self._discover(state)
        learned = self._later[-1][0] if self._later else 0
        goes_on = growth.may_begin_again() and not (int(growth.generation) > 1 and stable_generation)
        next_steps = later_steps(config, rest)
        if not found and goes_on and before > learned:
            # the student learns the last discovery before it is forgotten
            self._later.append([before, state.step, next_steps])
            return {**metrics, "discovered": 0.0}
        if not found and goes_on:
            growth.next_generation()
            self._errors[1] = self._errors[0]
            before, found = 0, self._discover(state)
        if found:
            self._later.append([before, state.step, next_steps])
        elif config.final_phase:
            self._later.append([before, state.step, rest])
        return {**metrics, "discovered": float(found)}

    def _discover(self, state: TrainState) -> int:
        """Give critical samples their labels; return how many, 0 if there is no room for more."""
        if not self.growth.wanted(self._rows):
            return 0
        found = find_critical(self.config, self.data, self.growth, self._embedder(), state, self._rows)
        return len(found.indices)

    def _changes(self, state: TrainState) -> tuple[dict[str, float], bool, bool]:
        """Metrics, and whether little changed since the last discovery and since the last generation."""
        teacher, config = self.chain.teacher, self.config
        scores = state.embed(lambda images: teacher.classify(teacher.embed(images)), self._rows)
        changed = self.growth.note_predictions(scores.argmax(1), self._rows)
        metrics = {
            name: value for name, value in zip(("churn", "generation_churn"), changed, strict=True) if value is not None
        }
        stable = [value is not None and value < config.churn for value in changed]
        if self.validation is not None:
            error = 100 * (1 - ClassificationMonitor(self.validation, self.data.class_order)(self, state)["accuracy"])
            stable = [last is not None and abs(error - last) <= VAL_DELTA for last in self._errors]
            self._errors[0] = metrics["val_error"] = error
        return metrics, stable[0], stable[1]

    def _embedder(self) -> InferenceNetwork:
        if self.config.embed_with == "master" and self.guide.is_ready:
            return self.guide.network
        return self.network if self.config.embed_with == "student" else self.chain.teacher

    def headline(self) -> StudentNetwork:
        """The average."""
        return self.chain.teacher

    def judged(self) -> Mapping[str, InferenceNetwork]:
        """Student, average and master."""
        networks: dict[str, InferenceNetwork] = {"student": self.network, "teacher": self.chain.teacher}
        return networks if self.guide.master is None else {**networks, "master": self.guide.master}

    def extra_state(self) -> dict[str, Any]:
        """The phases decided on so far, and whether a master is there."""
        return {
            "later": self._later,
            "guided": self.guide.is_ready,
            "errors": self._errors,
            "objective": self.objective.extra_state(),
        }

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``extra_state`` gave."""
        self._later, self.guide.is_ready = [list(map(int, later)) for later in state["later"]], bool(state["guided"])
        self._errors = list(state.get("errors", self._errors))  # runs of version 0.1 have none
        self.objective.load_extra_state(state["objective"])

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Names given to held-out images, and the labels that were found."""
        return GrowthMonitor(self.growth, self.data, inputs)

    def eval_view(self) -> ViewSpec:
        """The image without augmentation."""
        return student_eval_view(self.network.input_spec.size)
