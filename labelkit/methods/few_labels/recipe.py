"""Code shared by few-label methods: student and EMA networks, data streams, phases, views, and the loss interface.

A method owns networks, phases and labels; its objective defines the required views and the loss of a batch, so that
label growth works with both Mean Teacher and MixMatch.
Batch norm statistics are recomputed for averaged weights, since the old ones belong to other weights (snowball,
specification 3.2); the official MixMatch also re-estimates them, on 16,384 images.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.samplers import ImageStream, StreamSampler
from labelkit.data.views.recipes import semi_supervised_views, test_view
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import ConfigError, DatasetError
from labelkit.formatting import join_first_few
from labelkit.methods.backbone import backbone_options, embedding_views
from labelkit.methods.few_labels.options import (
    FewLabelTrainConfig,
    MeanTeacherOptions,
    TwoStreamOptions,
    TwoStreamTrainConfig,
)
from labelkit.models.backbones.convnets import set_dropout
from labelkit.models.batch_norm import BatchStatisticsSum, share_statistics, use_batch_statistics
from labelkit.models.ema import EMAChain
from labelkit.models.headed import ClassifierNetwork
from labelkit.models.heads import LinearHeads
from labelkit.models.inference import InferenceNetwork
from labelkit.training.distributed import count_processes
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, Monitor, PassSettings, Phase, StepOutput, TrainState
from labelkit.training.monitors.classification import ClassificationMonitor
from labelkit.training.schedules import (
    BETAS,
    Schedule,
    adam_beta_schedule,
    ema_decay_schedule,
    max_ema_decay,
    phase_lr_schedule,
)

StudentNetwork = ClassifierNetwork[LinearHeads]
FewLabelConfigT = TypeVar("FewLabelConfigT", bound=FewLabelTrainConfig)
TwoStreamConfigT = TypeVar("TwoStreamConfigT", bound=TwoStreamTrainConfig)


MAX_IMAGES: Final = 16_384


def recalibrate_bn(
    network: InferenceNetwork, state: TrainState, rows: NDArray[np.int64], *, part: nn.Module | None = None
) -> None:
    """Recompute the batch norm statistics that evaluation mode uses, from unaugmented training images.

    The result is the same for any number of processes, up to the last bits of a sum in float64. Training is not
    affected, since training mode uses batch statistics.

    Args:
        network: one of the method's networks.
        state: training state.
        rows: (m,) readable training images; at most ``MAX_IMAGES`` are used, always the same ones.
        part: part of the network to recalibrate; other statistics are used unchanged. Default: the whole network.
    """
    statistics = BatchStatisticsSum(network if part is None else part)
    if not statistics:
        return
    chosen = rows
    if len(rows) > MAX_IMAGES:
        chosen = np.sort(keyed_generator(0, "recalibrate").permutation(rows)[:MAX_IMAGES])

    def run_network(images: Tensor) -> Tensor:
        with nullcontext() if part is None else use_batch_statistics(part):
            network.embed(images)
        return torch.zeros(len(images), 1)

    with statistics.collect():
        # shuffled, since files sorted by class must not share a batch
        fixed = PassSettings("eval" if part is not None else "batch-statistics", order="fixed")
        state.local_pass(run_network, chosen, fixed)
    statistics.apply(lambda value: state.combine(value, "sum"))


def check_few_labels(config: FewLabelTrainConfig, data: DataInfo) -> int:
    """Check that every class has a labeled image, and return the number of classes from the options or the data.

    Raises:
        DatasetError: there are no labels for training, there is a single class, or a class has no label.
        ConfigError: fewer classes are requested than have labels.
    """
    num_classes = data.determine_num_classes(config.dataset, config.num_classes)
    counts = np.bincount(data.labels[data.labels >= 0], minlength=num_classes)
    missing = np.flatnonzero(counts == 0)
    if len(missing):
        known = training_class_names(data)
        names = (f"class {known[i]!r}" if i < len(known) else f"class {i}" for i in missing.tolist())
        problem = f"no image is labeled as {join_first_few(names, 5)}"
        raise DatasetError(config.dataset, problem, "Label at least one image of each class, or use fewer classes.")
    return num_classes


def training_class_names(data: DataInfo) -> list[str]:
    """Return the names of the training classes, or an empty list if the dataset has none."""
    return [data.class_names[label] for label in data.class_order] if data.class_names else []


def weak_and_strong_views(config: FewLabelTrainConfig, data: DataInfo, size: int) -> tuple[ViewSpec, ViewSpec]:
    """Return the weak and strong training views."""
    of_rows = embedding_views(config, data)
    if of_rows is not None:
        return of_rows
    if config.augmentation == "none":
        weak = strong = ViewSpec(size)
    else:
        weak, strong = semi_supervised_views(
            size, config.augmentation, chiral=data.chiral, photographic=data.photographic
        )
    shift, noise = getattr(config, "shift_px", None), getattr(config, "noise", 0.0)
    shift = weak.shift_px if shift is None else shift
    return replace(weak, noise=noise, shift_px=shift), replace(strong, noise=noise, shift_px=shift)


def student_phase(
    config: FewLabelTrainConfig,
    labels: NDArray[np.int64],
    rows: NDArray[np.int64],
    views: Sequence[ViewSpec],
    *,
    steps: int,
    peak_lr: float,
    index: int = 0,
    name: str = "train",
) -> Phase:
    """Return a phase of ``steps`` updates with its own learning-rate schedule, in epochs of ``eval_every_steps``.

    Its batches contain labeled images first, then unlabeled ones, if there are any.

    Args:
        config: the options.
        labels: (n,) labels of the phase, -1 = unlabeled.
        rows: readable rows.
        views: views of each image.
        steps: length of the phase.
        peak_lr: peak learning rate.
        index: number of the phase; only phase 0 has a warm-up.
        name: shown in the log.
    """
    labeled, others = rows[labels[rows] >= 0], rows[labels[rows] < 0]
    count = config.labeled_batch_size if isinstance(config, TwoStreamOptions) and len(others) else config.batch_size
    drawn = (ImageStream("labeled", labeled, count), ImageStream("unlabeled", others, config.batch_size - count))
    per_epoch = min(config.eval_every_steps, steps)
    sampler = StreamSampler(drawn, steps=per_epoch, seed=config.seed, phase=index)
    rate, moments = lr_and_beta_schedules(config, steps, peak_lr, is_first_phase=index == 0)
    return Phase(math.ceil(steps / per_epoch), tuple(views), sampler, name, labels, steps, lr=rate, betas=moments)


def lr_and_beta_schedules(
    config: FewLabelTrainConfig, steps: int, peak_lr: float, *, is_first_phase: bool = True
) -> tuple[Schedule, Callable[[int], tuple[float, float]] | None]:
    """Return schedules of the learning rate and, if not constant, of Adam's betas; only the first phase warms up."""
    up, down = getattr(config, "lr_ramp_up", 0.0) if is_first_phase else 0.0, getattr(config, "lr_ramp_down", 0.0)
    rate = phase_lr_schedule(peak_lr, steps, config.lr_schedule, getattr(config, "lr_horizon", 1.0), up, down)
    if config.lr_schedule != "ramps":
        return rate, None
    ends = getattr(config, "adam_beta1_end", BETAS[0]), getattr(config, "adam_beta2_start", BETAS[1])
    return rate, adam_beta_schedule(steps, up, down, *ends)


def teacher_decay_schedule(config: FewLabelTrainConfig, phase_steps: int) -> Schedule:
    """Return a phase's schedule of the teacher's EMA decay, at most 1 - 10 / steps so that initial weights fade.

    With Mean Teacher's options, it is ``ema_decay_start`` if that is lower, until the consistency weight is full.
    """
    high = max_ema_decay(phase_steps, config.ema_decay)
    if not isinstance(config, MeanTeacherOptions):
        return ema_decay_schedule(high, high, 0)
    return ema_decay_schedule(min(config.ema_decay_start, high), high, round(config.consistency_ramp * config.steps))


@dataclass(frozen=True, slots=True)
class StudentNetworks:
    """Student, teacher and master used in a training step, all in training mode."""

    student: StudentNetwork  # the network that is trained
    teacher: StudentNetwork  # EMA of the student
    master: StudentNetwork | None = None  # EMA of the teacher once it exists, else ``None``


class StudentObjective(nn.Module, ABC):
    """Base class for training losses computed from the student, teacher and master outputs on a batch.

    In a batch, rows of the labeled stream (``labels >= 0``) come first; the others have the label -1. Discovered images
    are labeled rows like any other. Gradients are averaged over processes, which may have different numbers of labeled
    rows, so a mean over labeled rows is their sum divided by ``state.mean_count``.

    Attributes:
        views: views of each image in a batch.
        teacher_in_train_mode: whether training steps run the teacher in training mode, with its own statistics.
        runs_master: likewise for the master, once it exists.
    """

    views: tuple[ViewSpec, ...]
    teacher_in_train_mode: bool
    runs_master: bool

    @abstractmethod
    def forward(self, batch: Batch, networks: StudentNetworks, state: TrainState) -> StepOutput:
        """Return the loss, with gradients only for the student, and the values to log."""


def head_logits(network: StudentNetwork, images: Tensor) -> tuple[Tensor, ...]:
    """Compute each head's logits (b, k) for images (b, c, h, w); the first head makes the predictions."""
    return network.head.all_logits(network.embed(images))


def labeled_and_unlabeled_positions(batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the positions, int64, of labeled (m,) and unlabeled (u,) images in a batch, without a GPU sync."""
    labeled = batch.on_host.labels >= 0
    return batch.indices_where(labeled), batch.indices_where(~labeled)


class EMAStudentMethod(Method[FewLabelConfigT]):
    """Base class of few-label methods that train a network, and use its EMA for evaluation and embedding.

    Attributes:
        network: the trained network, a backbone with linear classification heads.
        chain: its EMA (``chain.teacher``).
        batch_norm_rows: (m,) images from which batch norm statistics are computed; subclasses set it in ``phases`` or
            ``phase``.

    Args:
        config: the options.
        data: the labels.
        num_heads: number of linear classifiers; the first one predicts.
        dropout: dropout rate inside the backbone, if it has dropout; ``None``: its default.
        with_master: whether to keep an EMA of the EMA.

    Raises:
        DatasetError: see :func:`labelkit.methods.few_labels.recipe.check_few_labels`.
        ConfigError: likewise; or dropout is requested for a backbone without any.
    """

    network: StudentNetwork
    batch_norm_rows: NDArray[np.int64]

    def __init__(
        self,
        config: FewLabelConfigT,
        data: DataInfo,
        *,
        num_heads: int = 1,
        dropout: float | None = None,
        with_master: bool = False,
    ) -> None:
        super().__init__(config, data)
        self.num_classes = num_classes = check_few_labels(config, data)
        self.network = ClassifierNetwork(
            config.backbone,
            lambda dim: LinearHeads(dim, num_classes, num_heads),
            num_classes,
            embed_dim=None,
            embedding_bn=False,
            **backbone_options(config, data),
            seed=config.seed,
        )
        if dropout is not None and not set_dropout(self.network.backbone, dropout) and dropout > 0:
            problem = f"{config.backbone} has no dropout"
            raise ConfigError("--dropout", problem, "Remove --dropout, or pass --backbone convnet13.")
        if count_processes() > 1:  # so that training does not depend on the number of processes
            share_statistics(self.network)
        self.weak_view, self.strong_view = weak_and_strong_views(config, data, self.network.input_spec.size)
        self.chain = EMAChain(self.network, with_master=with_master)
        self._decay = teacher_decay_schedule(config, config.steps)  # by update, counted from 1

    @property
    def teacher_in_train_mode(self) -> bool:
        """Return whether the teacher runs in training mode, and so has running statistics of its own."""
        return False

    def on_train_start(self, state: TrainState) -> None:
        """Copy the student to the EMA network, since its weights may have been loaded from elsewhere."""
        self.chain.teacher.load_state_dict(self.network.state_dict())

    def on_step_end(self, state: TrainState) -> None:
        """Update the EMA network."""
        self.chain.update(self.network, self._decay(state.step + 1), teacher_in_training=self.teacher_in_train_mode)

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """Recalibrate the batch norm statistics of all networks, which are needed only to evaluate and save them."""
        for network in (self.network, self.chain.teacher, self.chain.master):
            if network is not None:
                recalibrate_bn(network, state, self.batch_norm_rows)
        return {}

    def main_network(self) -> StudentNetwork:
        """Return the master if it exists, otherwise the EMA network."""
        return self.chain.master or self.chain.teacher

    def evaluated_networks(self) -> Mapping[str, InferenceNetwork]:
        """Return the student, its EMA and, if it exists, the master, keyed by name."""
        networks = {"student": self.network, "teacher": self.chain.teacher}
        return networks if self.chain.master is None else networks | {"master": self.chain.master}

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Return the monitor that tracks classification accuracy on held-out images."""
        return ClassificationMonitor(inputs.held_out, self.data.class_order)

    def eval_view(self) -> ViewSpec:
        """Return the evaluation view: the whole image without augmentation, since few-label sets have small images."""
        return test_view(self.network.input_spec.size, "digits")


class StudentObjectiveMethod(EMAStudentMethod[TwoStreamConfigT]):
    """Base class for few-label methods that train on labeled and unlabeled images with a `StudentObjective`.

    Attributes:
        objective: set by the method.
    """

    objective: StudentObjective

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the first phase, which uses the given labels; later ones, if any, are planned during training."""
        first = self.phase(0, rows)
        assert first is not None
        return (first,)

    def phase(self, index: int, rows: NDArray[np.int64]) -> Phase | None:
        """Return the single training phase, whose batches combine (repeating) labeled images with unlabeled ones."""
        config, views = self.config, self.objective.views
        if index:
            return None
        self.batch_norm_rows = rows
        return student_phase(config, self.data.labels, rows, views, steps=config.steps, peak_lr=config.lr)

    @property
    def teacher_in_train_mode(self) -> bool:
        """Return whether the objective runs the teacher in training mode."""
        return self.objective.teacher_in_train_mode

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the objective's loss for one batch."""
        networks = StudentNetworks(self.network, self.chain.teacher, self.chain.master)
        return self.objective(batch, networks, self.state)
