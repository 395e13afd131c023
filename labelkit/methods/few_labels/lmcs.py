"""LMCS: a master composed of three versions of the student guides it, and critical samples are labeled.

Source: dissertation "Deep Learning with Very Few and No Labels", chapter 3.
Each block of ``--eval-every-steps`` updates:
    1. train the student as in ``train mixmatch``, guided by the last block's master
    2. combine student, previous block's student and EMA by converters; train these and the last layers to
       form the master (``composition.py``)                                             Eq. 3.5 to 3.7
Every ``--generation-blocks`` blocks:
    3. label unlabeled images near the class means whose neighbors belong to several classes, until there are
       ``--growth-limit`` times as many labels as given (``critical_samples.py``)       Eq. 3.8 to 3.13
    4. the master uses the new labels at once, the student one discovery later (look-ahead)
Optionally, the student first learns to predict image rotations (``--pretext-steps``).
No step uses the true class of an unlabeled image. The EMA is evaluated; the student's features are used for discovery.
Departures: see ``composition.py`` and ``critical_samples.py``; the source gives no equation for the guidance; a last
phase trains the student on all discoveries. As in the source, one discovery is called a generation (Eq. 3.13; column
``iteration`` of the table).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.samplers import ImageStream, StreamSampler
from labelkit.errors import DivergenceError
from labelkit.formatting import percent
from labelkit.methods.few_labels.composition import GuideNetwork, MasterTrainer
from labelkit.methods.few_labels.critical_samples import discover_critical_samples
from labelkit.methods.few_labels.growth import (
    GrowingLabelSet,
    GrowthMonitor,
    GrowthRules,
    add_discovered_labels,
    broadcast_discovery,
)
from labelkit.methods.few_labels.losses import SquaredConsistencyLoss
from labelkit.methods.few_labels.mixmatch import MixMatchObjective, unlabeled_weight_schedule
from labelkit.methods.few_labels.options import LMCSConfig
from labelkit.methods.few_labels.recipe import (
    StudentObjectiveMethod,
    head_logits,
    labeled_and_unlabeled_positions,
    lr_and_beta_schedules,
    student_phase,
    training_class_names,
)
from labelkit.models.batch_norm import use_batch_statistics
from labelkit.models.headed import NUM_ROTATIONS, rotate_images
from labelkit.models.inference import InferenceNetwork
from labelkit.models.seeding import seeded_init
from labelkit.training.distributed import check_divisible
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Monitor, Phase, StepOutput, TrainState
from labelkit.training.schedules import RampedWeight, phase_lr_schedule

PRETEXT_LR = 0.1
#: Labels stop growing if nearest mean and soft label disagree on a larger share of the confined images (ours).
DISAGREE_STOP = 0.5
#: epoch number whose random numbers are not used by training
_PRETEXT_EPOCH = 1 << 29


class LMCS(StudentObjectiveMethod[LMCSConfig]):
    """LMCS training method: a student guided by composed masters; needs one label per class, preferably four."""

    def __init__(self, config: LMCSConfig, data: DataInfo) -> None:
        super().__init__(config, data, dropout=0.0)  # MixMatch adds its own noise
        check_divisible("--labeled-batch-size", config.labeled_batch_size)
        self.guide = GuideNetwork(config, self.network)
        weight = unlabeled_weight_schedule(config.steps, config)
        self.objective = MixMatchObjective(self.weak_view, weight=weight, seed=config.seed)
        self.consistency = SquaredConsistencyLoss()
        rules = GrowthRules(config.growth_factor, config.growth_limit, generations=1)
        self.growth = GrowingLabelSet(data.labels, rules)
        self.equal_buffers = tuple(name for name, _ in self.named_buffers() if name.startswith("growth."))
        guidance = config.guidance_weight * config.unlabeled_weight
        self._guidance = RampedWeight(guidance, config.unlabeled_ramp * config.steps)
        # for each phase after the first: number of discoveries that the student uses, first step, number of updates
        self._later: list[list[int]] = []

    def phase(self, index: int, rows: NDArray[np.int64]) -> Phase | None:
        """Return phase ``index``, whose batches combine labeled and earlier discovered images with unlabeled ones."""
        if index > len(self._later):
            return None
        self._rows = self.batch_norm_rows = rows
        config = self.config
        learned, start, steps = self._later[index - 1] if index else (0, 0, self._first_steps(rows))
        labels = self.growth.labels(learned)
        name = f"{learned} discoveries, {int((labels >= 0).sum()):,} labels" if index else "train"
        views = self.objective.views
        phase = student_phase(config, labels, rows, views, steps=steps, peak_lr=config.lr, index=index, name=name)
        rate, _ = lr_and_beta_schedules(config, config.steps, config.lr)
        return replace(phase, lr=lambda step: rate(start + step))

    def _first_steps(self, rows: NDArray[np.int64]) -> int:
        """Return the number of updates before the first discovery, or of the run if there is nothing to discover."""
        config, given = self.config, int((self.data.labels >= 0).sum())
        if not self.growth.rules.next_discovery_size(given, given, int((self.data.labels[rows] < 0).sum())):
            return config.steps
        return min(config.first_blocks * config.steps_per_block, config.steps)

    def max_adaptive_steps(self) -> int:
        """Return the number of updates of the run."""
        return self.config.steps

    def on_train_start(self, state: TrainState) -> None:
        """Train the pretext task if enabled, and copy the student to the EMA."""
        if self.config.pretext_steps:
            state.log("pretext", {"rotation_accuracy": self._learn_rotations(state)})
        super().on_train_start(state)

    def _learn_rotations(self, state: TrainState) -> float:
        """Pretrain the network, without its classifiers, on predicting image rotations.

        No labels are used; the rotation classifier is discarded.

        Source: S. Gidaris et al., "Unsupervised Representation Learning by Predicting Image Rotations" (ICLR 2018); SGD
        with its momentum and weight decay. The cosine learning-rate schedule is ours. All rotations of an image are in
        one batch.

        Returns:
            Share of rotations predicted correctly in the last tenth of the updates, over all processes.

        Raises:
            DivergenceError: the loss is not finite.
        """
        config, network, steps = self.config, self.network, self.config.pretext_steps
        sampler = StreamSampler(
            [ImageStream("pretext", self._rows, config.batch_size)], steps=steps, seed=config.seed, phase=0
        )
        rate = phase_lr_schedule(PRETEXT_LR, steps)
        # dropout and similar layers draw from torch's global generator
        with seeded_init(config.seed + 5):
            device = next(network.parameters()).device
            head = nn.Linear(network.embed_dim, NUM_ROTATIONS).to(device)
            trained = [*network.backbone.parameters(), *head.parameters()]
            optimizer = torch.optim.SGD(trained, lr=PRETEXT_LR, momentum=0.9, nesterov=True, weight_decay=5e-4)
            network.train()
            named = torch.zeros(2, dtype=torch.float64)
            for step, batch in enumerate(state.batches(Phase(1, (self.weak_view,), sampler), _PRETEXT_EPOCH)):
                for group in optimizer.param_groups:
                    group["lr"] = rate(step)
                images, turns = rotate_images(batch.images)
                logits = head(network.embed(images)).float()
                loss = F.cross_entropy(logits, turns)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call] # torch has no types
                state.average_gradients(trained)
                optimizer.step()
                if step >= steps - max(1, steps // 10):
                    right = float((logits.argmax(1) == turns).sum())
                    named += torch.tensor([right, len(turns)], dtype=torch.float64)
        if not bool(torch.isfinite(loss.detach())):
            raise DivergenceError("pretext", "the rotation-prediction loss is not finite", "Remove --pretext-steps.")
        right, count = state.combine(named, "sum").tolist()
        return float(right / count)

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute MixMatch's loss plus the guidance loss."""
        output, (_, others) = super().training_step(batch), labeled_and_unlabeled_positions(batch)
        weight = self._guidance(self.state.step)
        if not (weight > 0 and self.guide.is_ready and len(others)):
            return output
        guide_logits = self.guide.logits(batch.views[0][others])
        with use_batch_statistics(self.network):
            own = head_logits(self.network, batch.views[1][others])[0]
        difference = self.consistency(own, guide_logits).mean()
        return StepOutput(output.loss + weight * difference, {**output.logs, "guidance": difference.detach()})

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """Recalibrate the networks after a block, discover labels if due, and prepare the next guide."""
        super().on_epoch_end(state)
        metrics: dict[str, float] = {}
        if state.step_in_phase == state.phase_steps and state.step < self.config.steps:
            metrics |= self._grow(state)
        labels, guide, student, teacher = self.growth.labels(), self.guide, self.network, self.chain.teacher
        first, guide.is_ready = not guide.is_ready, True
        if guide.snapshot is not None:
            guide.snapshot.module.load_state_dict(teacher.state_dict())
        if guide.master is not None:
            training = MasterTrainer(guide.master, self.config, labels, self._rows, self.weak_view, state)
            master_metrics = training.run(student, teacher, is_first=first)
            metrics |= {f"master/{name}": value for name, value in master_metrics.items()}
        return {**metrics, "generation": float(self.growth.iteration), "labeled": float((labels >= 0).sum())}

    def _grow(self, state: TrainState) -> dict[str, float]:
        """Discover critical samples and plan the next phase, or plan the last phase."""
        growth, config, teacher = self.growth, self.config, self.chain.teacher
        scores = state.full_pass(lambda images: teacher.classify(teacher.embed(images)), self._rows)
        churn, _ = growth.record_predictions(scores.argmax(1), self._rows)
        rest, before = config.steps - state.step, int(growth.iteration)
        found = 0 if churn is not None and churn < config.churn else self._discover(state)
        length = min(config.generation_blocks * config.steps_per_block, rest) if found else rest
        self._later.append([before, state.step, length])
        return {**({} if churn is None else {"churn": churn}), "discovered": float(found)}

    def _discover(self, state: TrainState) -> int:
        """Label critical samples and return their number, 0 at the growth limit or if too many are disputed."""
        config, growth, rows = self.config, self.growth, self._rows
        if not growth.num_to_discover(rows):
            return 0
        found = discover_critical_samples(
            state.full_pass(self.network.embed, rows).numpy(),
            growth.labels()[rows],
            growth.num_to_discover(rows),
            criterion=config.criterion,
            confine=config.confine,
            num_classes=self.num_classes,
            original=growth.given[rows],
            balance=config.balance,
            class_names=training_class_names(self.data),
        )
        if config.criterion != "min_distance":
            # the score column of the table is the selection criterion
            found = replace(found, distance=found.entropy)
        found = broadcast_discovery(found, rows, state)
        if found.disagreement > DISAGREE_STOP:
            state.warn(
                f"nearest mean and soft label disagree on the class of {percent(found.disagreement)}% of the "
                "candidates, so no more labels are added"
            )
            return 0
        if found.exhausted:
            short = sum(report["taken"] < (report["quota"] or 0) for report in found.per_class)
            state.warn(f"found {len(found.indices)} critical samples, but too few in {short} classes")
        add_discovered_labels(growth, found, "student", state, self.num_classes, disputed=found.disagreement)
        return len(found.indices)

    def evaluated_networks(self) -> Mapping[str, InferenceNetwork]:
        """Return the networks to evaluate: student, EMA and, if there is one, master."""
        master = self.guide.master
        return {**super().evaluated_networks(), **({} if master is None else {"master": master})}

    def extra_state(self) -> dict[str, Any]:
        """Return the phases planned so far and whether the guide is ready."""
        return {"later": self._later, "guided": self.guide.is_ready}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by ``extra_state``."""
        self._later, self.guide.is_ready = [list(map(int, later)) for later in state["later"]], bool(state["guided"])

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Return the monitor that tracks held-out accuracy and discovered labels."""
        return GrowthMonitor(self.growth, self.data, inputs)
