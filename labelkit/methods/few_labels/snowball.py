"""Snowball: repeatedly label the images nearest to the class means, doubling the labels, and continue training.

Source: dissertation "Deep Learning with Very Few and No Labels", chapter 2.
    1. train a student on the given labels and all images (``--trainer``), with its EMA as teacher     Eq. 2.2 to 2.5
    2. label the unlabeled images whose features are nearest to a class mean                           Eq. 2.1, 2.8
    3. train the student to agree on labeled images with a master, the teacher's EMA; repeat 2 with the
       master's features until there are ``--cap`` times as many labels as given                       Eq. 2.6, 2.7
    4. discard the discovered labels and discover them again with the better networks (a generation)
Growth ends when predictions no longer change; evaluation data are never used.
Departures: images are discovered per class, by the averaged networks; EMA decays fit short phases; batch norm
statistics are recomputed. The lengths of later phases are ours, since none are published.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import DataInfo
from labelkit.errors import DatasetError
from labelkit.methods.few_labels.growth import (
    GrowingLabelSet,
    GrowthMonitor,
    GrowthRules,
    add_discovered_labels,
    broadcast_discovery,
)
from labelkit.methods.few_labels.mean_teacher import MeanTeacherObjective
from labelkit.methods.few_labels.mixmatch import MixMatchObjective, unlabeled_weight_schedule
from labelkit.methods.few_labels.options import SnowballConfig
from labelkit.methods.few_labels.recipe import (
    StudentObjective,
    StudentObjectiveMethod,
    student_phase,
    teacher_decay_schedule,
    training_class_names,
)
from labelkit.methods.few_labels.snowball_search import Select, discover_confident_samples
from labelkit.training.distributed import check_divisible
from labelkit.training.inputs import MethodInputs, MonitorInputs
from labelkit.training.method import Monitor, Phase, TrainState
from labelkit.training.schedules import max_ema_decay

#: Decay of the master's weights (beta).
MASTER_DECAY: Final = 0.999
#: Ratio of the number of labels after a discovery to that before.
GROWTH_FACTOR: Final = 2.0
#: Number of networks that --fusion combines: those of the latest discoveries.
FUSION_COUNT: Final = 3


class PastFeatures(nn.Module):
    """Features computed by the networks of past discoveries, for discoveries that combine several networks.

    The features from a past network do not change, so they are stored instead of its weights.

    Args:
        count: number of discoveries to combine, including the next one.
        num_samples: n.
        dim: d.
    """

    def __init__(self, count: int, num_samples: int, dim: int) -> None:
        super().__init__()
        self.kept: Tensor = nn.Buffer(torch.zeros(max(0, count - 1), num_samples if count > 1 else 0, dim))
        self.num_kept: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def append(self, features: Tensor) -> list[Tensor]:
        """Store current features (n, d), and return them after the past features, oldest first."""
        past = list(self.kept[: int(self.num_kept)].clone().cpu())  # a copy, since the buffer is overwritten below
        if len(self.kept):
            latest = [*past, features][-len(self.kept) :]
            for place, part in enumerate(latest):
                self.kept[place] = part.to(self.kept.device)
            self.num_kept.fill_(len(latest))
        return [*past, features]


class Snowball(StudentObjectiveMethod[SnowballConfig]):
    """Snowball training method: repeated discovery of labels for unlabeled images; needs a label for every class."""

    def __init__(self, config: SnowballConfig, data: DataInfo) -> None:
        super().__init__(config, data, num_heads=config.num_heads, dropout=config.dropout, with_master=config.master)
        weak = self.weak_view
        self.objective: StudentObjective
        if config.trainer == "mixmatch":
            check_divisible("--labeled-batch-size", config.labeled_batch_size)
            self.objective = MixMatchObjective(
                weak, weight=unlabeled_weight_schedule(config.steps, config), seed=config.seed
            )
        else:
            self.objective = MeanTeacherObjective(config, config.steps, weak)
        self.growth = GrowingLabelSet(data.labels, GrowthRules(GROWTH_FACTOR, config.cap, config.generations))
        joined = 1 if config.fusion == "none" else FUSION_COUNT
        self.past = PastFeatures(joined, data.num_samples, self.network.embed_dim)
        own = ("growth.", "past.", "chain.has_master")
        self.equal_buffers = tuple(name for name, _ in self.named_buffers() if name.startswith(own))
        self.truth: NDArray[np.int64] | None = None  # for --found-labels true
        self._planned = 0  # later phases decided on so far
        self._exhausted = False

    def attach(self, inputs: MethodInputs) -> None:
        """Load the hidden true labels if discovered images should receive them, for comparison."""
        if self.config.found_labels == "true":
            number = {int(label): i for i, label in enumerate(self.data.class_order)}
            classes = inputs.truth("--found-labels true")
            self.truth = np.array([number.get(int(label), -1) for label in classes], dtype=np.int64)
            if missing := int((self.truth < 0).sum()):
                needed = "but --found-labels true requires one for every image"
                problem = f"{missing} images have no label from the training classes, {needed}"
                remedy = "Remove --found-labels, or use a fully labeled dataset."
                raise DatasetError(self.config.dataset, problem, remedy)

    def phase(self, index: int, rows: NDArray[np.int64]) -> Phase | None:
        """Return phase ``index``, whose batches combine labeled and discovered images with unlabeled ones."""
        if index > self._planned:
            return None
        self._rows = self.batch_norm_rows = rows
        config = self.config
        labels = self.data.labels if index == 0 else self.growth.labels()
        steps = config.later_phase_steps if index else config.steps
        name = f"generation {int(self.growth.generation)}, {int((labels >= 0).sum()):,} labels" if index else "train"
        peak, views = (config.later_lr_ratio if index else 1.0) * config.lr, self.objective.views
        return student_phase(config, labels, rows, views, steps=steps, peak_lr=peak, index=index, name=name)

    def max_adaptive_steps(self) -> int:
        """Return the number of updates of a run in which every generation reaches its full size."""
        config, given = self.config, self.growth.given
        later = config.generations * len(self.growth.rules.max_label_counts(int((given >= 0).sum()), len(given)))
        if config.max_steps is not None:
            later = min(later, max(0, (config.max_steps - config.steps) // config.later_phase_steps))
        return config.steps + later * config.later_phase_steps

    def on_phase_start(self, state: TrainState) -> None:
        """Create the master network at the start of the second phase, after the first discovery."""
        if state.phase and self.config.master and self.chain.master is None:
            self.chain.create_master_network()

    def on_step_end(self, state: TrainState) -> None:
        """Update teacher and master."""
        config, length = self.config, state.phase_steps
        decay = teacher_decay_schedule(config, length)(state.step + 1)
        master = max_ema_decay(length, MASTER_DECAY)
        teacher_in_train_mode, runs_master = self.objective.teacher_in_train_mode, self.objective.runs_master
        self.chain.update(
            self.network, decay, master, teacher_in_training=teacher_in_train_mode, master_in_training=runs_master
        )

    def on_phase_end(self, state: TrainState) -> Mapping[str, float]:
        """Discover labels, start another generation or end growth, depending on how many predictions changed."""
        growth, network = self.growth, self.main_network()
        scores = state.full_pass(lambda images: network.classify(network.embed(images)), self._rows)
        changed = growth.record_predictions(scores.argmax(1), self._rows)
        metrics = growth.describe()
        for name, value in zip(("churn", "generation_churn"), changed, strict=True):
            metrics |= {} if value is None else {name: value}
        stable, stable_generation = (value is not None and value < self.config.churn for value in changed)
        metrics["discovered"] = float(self._grow(state, stable, stable_generation))
        return metrics

    def _grow(self, state: TrainState, stable: bool, stable_generation: bool) -> int:
        """Discover images for another phase; return how many, 0 if the run is over."""
        growth, config = self.growth, self.config
        if config.max_steps is not None and state.step + config.later_phase_steps > config.max_steps:
            return 0
        iteration, generation = int(growth.iteration), int(growth.generation)
        over = self._exhausted or (stable and iteration > 0)
        if over or not growth.num_to_discover(self._rows):
            # the next generation requires that this one has discovered labels
            if not iteration or generation == config.generations or (generation > 1 and stable_generation):
                return 0
            growth.next_generation()
        found, self._exhausted = self._discover(state)
        self._planned += found > 0
        return found

    def _discover(self, state: TrainState) -> tuple[int, bool]:
        """Label images; return how many, and whether there were too few candidates."""
        config, growth, rows, network = self.config, self.growth, self._rows, self.main_network()
        # MixMatch learns more from distant images (specification 3.4)
        default: Select = "far" if config.trainer == "mixmatch" else "min"
        name = "teacher" if self.chain.master is None else "master"
        features = state.full_pass(network.embed, rows)
        table = features.new_zeros((self.data.num_samples, features.shape[1]))
        table[rows] = features
        parts = [part[rows].numpy() for part in self.past.append(table)]
        found = discover_confident_samples(
            parts if config.fusion != "none" else parts[-1],
            growth.labels()[rows],
            growth.num_to_discover(rows),
            select=default if config.select == "auto" else config.select,
            fusion=config.fusion,
            seed=config.seed,
            num_classes=self.num_classes,
            original=growth.given[rows],
            balance=config.balance,
            class_names=training_class_names(self.data),
        )
        found = broadcast_discovery(found, rows, state)
        if self.truth is not None:
            found = replace(found, labels=self.truth[found.indices])
        add_discovered_labels(growth, found, name, state, self.num_classes)
        return len(found.indices), found.exhausted

    def extra_state(self) -> dict[str, Any]:
        """Return the state of the label growth."""
        return {"moment": [self._planned, 0, self._exhausted]}  # 0: a value stored by 0.1.0, always 0

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by ``extra_state``."""
        self._planned, _, self._exhausted = state["moment"][:3]

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Return the monitor that tracks held-out accuracy and discovered labels."""
        return GrowthMonitor(self.growth, self.data, inputs)
