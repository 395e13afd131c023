"""What methods for few labels build in the same way: student, streams, phases, averages, views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from labelkit.config.few_labels import FewLabelTrainConfig, MeanTeacherOptions
from labelkit.data.batch import DataInfo
from labelkit.data.samplers import Stream, StreamSampler
from labelkit.data.views.recipes import semi_supervised_views, test_view
from labelkit.data.views.spec import ViewSpec
from labelkit.engine.distributed import process_count
from labelkit.engine.method import Phase, TrainState
from labelkit.engine.schedules import AdamMoments, EMADecay, PhaseLearningRate, horizon_decay
from labelkit.engine.timing import Pace
from labelkit.errors import ConfigError, DatasetError
from labelkit.methods.backbone import backbone_options
from labelkit.methods.few_labels.recalibration import recalibrate_bn
from labelkit.methods.few_labels.students import StudentNetwork
from labelkit.methods.few_labels.whitened import add_whitening, is_whitened
from labelkit.methods.rows import row_views
from labelkit.models.batch_norm import share_statistics
from labelkit.models.classifier_network import ClassifierNetwork
from labelkit.models.convnet13 import set_dropout
from labelkit.models.ema import StudentChain
from labelkit.models.heads import LinearHeads


def check_few_labels(config: FewLabelTrainConfig, data: DataInfo, *, allow_missing: bool = False) -> int:
    """Return the number of classes: as asked for, or those of the data.

    Args:
        config: the options.
        data: the labels.
        allow_missing: a class without a label is no error.

    Raises:
        DatasetError: no label may be used, there is a single class, or a class has no label.
        ConfigError: fewer classes are asked for than have labels.
    """
    if not (data.labels >= 0).any():
        raise DatasetError(
            config.dataset,
            "no image has a label that training may use",
            "Give some with --labels FILE, or use a set that has them.",
        )
    num_classes = config.num_classes or data.num_known_classes or data.num_old_classes
    if num_classes < 2:
        raise DatasetError(config.dataset, "has one class, so there is nothing to tell apart", "Use two at least.")
    if num_classes < data.num_old_classes:
        raise ConfigError(
            "--num-classes", f"{num_classes} is fewer than the {data.num_old_classes} classes with labels", "Raise it."
        )
    counts = np.bincount(data.labels[data.labels >= 0], minlength=num_classes)
    missing = np.flatnonzero(counts == 0)
    if len(missing) and not allow_missing:
        names = [_called(int(label), data) for label in missing[:5]]
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        raise DatasetError(
            config.dataset,
            f"no image has a label of {', '.join(names)}{more}",
            "Label one of each class, or name fewer classes.",
        )
    return num_classes


def _called(label: int, data: DataInfo) -> str:
    if label >= len(data.class_order) or data.class_order[label] >= len(data.class_names):
        return f"class {label}"
    return f"class {data.class_names[data.class_order[label]]!r}"


def build_student(
    config: FewLabelTrainConfig, data: DataInfo, num_classes: int, *, num_heads: int = 1, seed: int | None = None
) -> StudentNetwork:
    """Build backbone and linear heads.

    Args:
        config: the options.
        data: facts about the images.
        num_classes: c.
        num_heads: linear classifiers; the first one predicts.
        seed: of the initial values; default: the run's.

    Raises:
        ConfigError: dropout is asked for in a backbone without any.
    """
    network = ClassifierNetwork(
        config.backbone,
        lambda dim: LinearHeads(dim, num_classes, num_heads),
        num_classes,
        embed_dim=None,
        embedding_bn=False,
        **backbone_options(config, data),
        seed=config.seed if seed is None else seed,
    )
    if config.dropout is not None and not set_dropout(network.backbone, config.dropout) and config.dropout > 0:
        raise ConfigError("--dropout", f"{config.backbone} has no dropout", "Leave it out, or choose convnet13.")
    add_whitening(network, config)
    if config.sync_bn and process_count() > 1:
        share_statistics(network)
    return network


def student_views(config: FewLabelTrainConfig, data: DataInfo, size: int) -> tuple[ViewSpec, ViewSpec]:
    """Return the weak and the strong training view."""
    of_rows = row_views(config, data)
    if of_rows is not None:
        return of_rows
    if config.augmentation == "none":
        weak = strong = ViewSpec(size)
    else:
        weak, strong = semi_supervised_views(
            size, config.augmentation, chiral=data.chiral, photographic=data.photographic
        )
    shift = weak.shift_px if config.shift_px is None else config.shift_px
    noise = 0.0 if is_whitened(config) else config.noise
    return replace(weak, noise=noise, shift_px=shift), replace(strong, noise=noise, shift_px=shift)


def student_eval_view(size: int) -> ViewSpec:
    """The whole image without augmentation; few-label sets have small images."""
    return test_view(size, "digits")


def streams(
    labels: NDArray[np.int64],
    rows: NDArray[np.int64],
    *,
    batch_size: int,
    labeled_per_batch: int,
    anchors: NDArray[np.int64] | None = None,
    anchors_per_batch: int = 0,
) -> tuple[Stream, ...]:
    """Return the streams of a phase: labeled rows first, then all others.

    Args:
        labels: (n,) labels of the phase, -1 = unlabeled.
        rows: rows that can be read.
        batch_size: images of a batch.
        labeled_per_batch: of these, labeled ones; all if no row is unlabeled.
        anchors: rows for a labeled stream of their own.
        anchors_per_batch: draws of it, out of ``labeled_per_batch``.

    Raises:
        ConfigError: a batch would have no unlabeled image though there are some.
    """
    labeled = labels[rows] >= 0
    unlabeled_rows = rows[~labeled]
    if not len(unlabeled_rows):
        labeled_per_batch = batch_size
    elif labeled_per_batch >= batch_size:
        raise ConfigError(
            "--labeled-batch-size",
            f"{labeled_per_batch} labeled images leave no place for others in a batch of {batch_size}",
            "Lower it, or raise --batch-size.",
        )
    made = [Stream("labeled", rows[labeled], labeled_per_batch - anchors_per_batch)]
    if anchors is not None and anchors_per_batch:
        made.insert(0, Stream("anchors", anchors, anchors_per_batch))
    return (*made, Stream("unlabeled", unlabeled_rows, batch_size - labeled_per_batch))


def student_phase(
    config: FewLabelTrainConfig,
    labels: NDArray[np.int64],
    views: Sequence[ViewSpec],
    drawn: Sequence[Stream],
    *,
    steps: int,
    peak: float,
    index: int = 0,
    name: str = "train",
) -> Phase:
    """Return a phase of ``steps`` updates, in epochs of ``eval_every_steps``; its learning rate is its own.

    Args:
        config: the options.
        labels: (n,) labels of the phase.
        views: of each image.
        drawn: what a batch consists of.
        steps: length.
        peak: highest learning rate.
        index: number of the phase; only the first one warms up.
        name: shown in the log.
    """
    pace = student_pace(config, steps=steps, peak=peak, index=index, name=name)
    batches = pace.draws // config.batch_size
    sampler = StreamSampler(drawn, steps=batches, seed=config.seed, phase=index)
    return Phase(pace.epochs, tuple(views), sampler, pace.name, labels, pace.steps, pace.lr, betas=pace.betas)


def student_pace(config: FewLabelTrainConfig, *, steps: int, peak: float, index: int = 0, name: str = "train") -> Pace:
    """Return length and optimizer of such a phase; arguments as for `student_phase`."""
    per_epoch = min(config.eval_every_steps, steps)
    ramp_up = config.lr_ramp_up if index == 0 else 0.0
    rate = PhaseLearningRate(peak, steps, config.lr_schedule, config.lr_horizon, ramp_up, config.lr_ramp_down)
    draws = per_epoch * config.grad_accumulation_steps * config.batch_size
    betas = adam_moments(config, steps, ramp_up)
    return Pace(math.ceil(steps / per_epoch), draws, name, steps, rate, betas=betas)


def adam_moments(config: FewLabelTrainConfig, steps: int, ramp_up: float) -> AdamMoments | None:
    """Decays of Adam's moments in so many steps; ``None``: as always."""
    if config.lr_schedule != "ramps":
        return None
    return AdamMoments(steps, ramp_up, config.lr_ramp_down, config.adam_beta1_end, config.adam_beta2_start)


def teacher_decay(config: FewLabelTrainConfig, phase_steps: int, ramp_steps: float = 0.0) -> EMADecay:
    """Decay of the teacher in a phase.

    Args:
        config: the options.
        phase_steps: length of the phase.
        ramp_steps: updates of the run with the lower decay, where the options have one.
    """
    high = horizon_decay(phase_steps, config.ema_decay) if config.ema_horizon else config.ema_decay
    if not isinstance(config, MeanTeacherOptions):
        return EMADecay(high, high, 0)
    return EMADecay(min(config.ema_decay_start, high), high, round(ramp_steps), config.ema_ramp)


def recalibrate_students(
    config: FewLabelTrainConfig,
    student: StudentNetwork,
    chain: StudentChain[StudentNetwork],
    state: TrainState,
    rows: NDArray[np.int64],
) -> None:
    """Give student, teacher and master running statistics to be judged and saved with; training does not use them."""
    if not config.bn_recalibration:
        return
    for network in (student, chain.teacher, chain.master):
        if network is not None:
            recalibrate_bn(network, state, rows)
