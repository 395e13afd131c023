"""What LMCS decides between blocks: who guides the student, and which critical samples get a label."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.algorithms.critical_samples import CriticalDiscovery, discover_critical
from labelkit.config.methods.lmcs import LMCSConfig
from labelkit.data.batch import DataInfo
from labelkit.data.transforms import ViewSpec
from labelkit.engine.composition import MasterDiet, MasterRules, MasterTraining
from labelkit.engine.freematch import FreeMatchObjective
from labelkit.engine.label_growth import LabelGrowth, agree_on
from labelkit.engine.method import TrainState
from labelkit.engine.mixmatch import MixMatchObjective
from labelkit.engine.student_objectives import freematch_objective, mixmatch_objective
from labelkit.engine.students import StudentNetwork
from labelkit.errors import DivergenceError
from labelkit.models.composition import ComposedNetwork
from labelkit.models.ema import EMATeacher
from labelkit.models.inference import InferenceNetwork


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


def master_rules(config: LMCSConfig, num_classes: int) -> MasterRules:
    """How a master is trained, from options."""
    return MasterRules(
        steps=config.steps_of_master,
        lr=config.master_lr,
        decay=config.master_decay,
        weight=config.unlabeled_weight,
        warm=config.master_init == "warm",
        supervised=config.master_supervised,
        mixup_alpha=config.mixup_alpha,
        discrimination=None if config.discrimination == "none" else config.discrimination,
        discrimination_weight=None if config.discrimination_weight == "auto" else config.discrimination_weight,
        num_centroids=config.num_centroids or num_classes,
        recalibrate=config.bn_recalibration,
        seed=config.seed,
    )


class Guide(nn.Module):
    """The frozen network that guides the student through a block.

    Args:
        config: the options.
        student: the network that it is made of versions of.

    Attributes:
        is_ready: a block has ended.
    """

    def __init__(self, config: LMCSConfig, student: StudentNetwork) -> None:
        super().__init__()
        self._config = config
        self._rules = master_rules(config, student.num_outputs)
        self.master = ComposedNetwork(student, config.compose_at) if config.guide == "composed" else None
        self.snapshot = EMATeacher(student, 0.0) if config.guide == "average" else None
        self.is_ready = False
        self._cached: Tensor | None = None

    @property
    def network(self) -> InferenceNetwork:
        """The guiding network."""
        if self.master is not None:
            return self.master
        assert self.snapshot is not None
        network = self.snapshot.module
        assert isinstance(network, InferenceNetwork)
        return network

    def renew(
        self, student: StudentNetwork, teacher: StudentNetwork, diet: MasterDiet, state: TrainState
    ) -> dict[str, float]:
        """Make the guide of the next block; return metrics.

        Args:
            student: with statistics to be judged with.
            teacher: likewise.
            diet: what a master is trained on.
            state: at the end of a block.
        """
        first, self.is_ready = not self.is_ready, True
        if self.snapshot is not None:
            self.snapshot.module.load_state_dict(teacher.state_dict())
            return {}
        assert self.master is not None
        record = MasterTraining(self.master, self._rules, diet, state, state.epoch).run(student, teacher, first=first)
        return {f"master/{name}": value for name, value in record.to_dict().items()}

    def look(self, state: TrainState, rows: NDArray[np.int64], num_samples: int) -> None:
        """Ask the guide about all images at once, if that is asked for."""
        if not self._config.guidance_cache or not self.is_ready:
            return
        logits = state.embed(self._logits, rows)
        table = logits.new_zeros((num_samples, logits.shape[1]))
        table[torch.from_numpy(rows)] = logits
        self._cached = table.to(next(self.parameters()).device)

    @torch.no_grad()
    def logits(self, images: Tensor, sample_index: Tensor) -> Tensor:
        """What the guide says of images: (b, c, h, w) and (b,) rows to (b, k)."""
        return self._logits(images) if self._cached is None else self._cached[sample_index]

    def _logits(self, images: Tensor) -> Tensor:
        return self.network.classify(self.network.embed(images))


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
    features = state.embed(network.embed, rows)
    if not bool(features.isfinite().all()):
        name = config.embed_with
        raise DivergenceError(
            f"step {state.step}", f"features of the {name} are not finite", "Lower --lr, or set --clip-grad-norm."
        )
    labels = growth.labels()[rows]
    found = discover_critical(
        features.numpy(),
        labels,
        growth.wanted(rows),
        num_classes=network.num_outputs,
        original=growth.given[rows],
        reference=config.reference,
        delta=config.radius,
        beta=None if config.beta == "auto" else config.beta,
        label_rule=config.label_rule,
        criterion=config.criterion,
        confine=config.confine,
        confine_factor=config.confine_factor,
        confine_cap=config.confine_cap,
        balance=config.balance,
        feature_norm=config.feature_norm,
        missing_class=config.missing_class,
        class_names=[data.class_names[label] for label in data.class_order] if data.class_names else (),
    )
    if config.criterion != "min_distance":
        # the column score of the table: what they were chosen by
        found = replace(found, distance=found.entropy)
    found = agree_on(found, rows, state)
    for warning in found.warnings:
        state.warn(f"warning: {warning}")
    disputed = found.disagreement
    if disputed > config.disagree_stop:
        state.warn(
            f"warning: nearest mean and soft label name different classes for {disputed:.0%} of the confined images: "
            "labels stop growing"
        )
        return replace(found, indices=found.indices[:0], labels=found.labels[:0])
    if found.exhausted:
        short = sum(report.taken < (report.quota or 0) for report in found.per_class)
        state.warn(f"warning: {len(found.indices)} critical samples found, fewer than wanted in {short} classes")
    growth.add(found, config.embed_with)
    counts = np.bincount(found.labels, minlength=network.num_outputs)
    state.log(
        "growth",
        {
            **growth.describe(),
            "discovered": float(len(found.indices)),
            "exhausted": float(found.exhausted),
            "disputed": disputed,
            **{f"class_{label}": float(count) for label, count in enumerate(counts)},
        },
    )
    return found
