"""Code shared by category discovery methods: data checks, construction from options, and evaluation.

Departure: if the warm-up of the teacher's temperature lasts one epoch, that epoch uses the final temperature; the
released code of SimGCD and DINO uses the initial one.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from labelkit.data.batch import DataInfo
from labelkit.data.samplers import BalancedSampler
from labelkit.data.views.recipes import test_view
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import ConfigError, DatasetError
from labelkit.methods.discovery.losses import DiscoveryLoss
from labelkit.methods.discovery.networks import DiscoveryNetwork
from labelkit.methods.discovery.options import ContrastiveTrainConfig, DiscoveryTrainConfig
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, Monitor, Phase, TrainState
from labelkit.training.monitors.groups import DiscoveryMonitor

DiscoveryConfigT = TypeVar("DiscoveryConfigT", bound=DiscoveryTrainConfig)


def teacher_temperature(config: DiscoveryTrainConfig, epoch: int) -> float:
    """Return the teacher's temperature in an epoch, interpolated linearly from start to final during warm-up.

    With w the length of the warm-up, at most that of the run, epoch 0 has the start value and epoch w - 1 the final
    value, as in SimGCD's released code; if w <= 1, all epochs have the final value.
    """
    start, final = config.teacher_temperature_start, config.teacher_temperature_final
    warmup = min(config.teacher_warmup_epochs, config.epochs)
    if warmup <= 1 or epoch >= warmup - 1:
        return final
    return start + (final - start) * epoch / (warmup - 1)


def check_discovery_data(config: ContrastiveTrainConfig, data: DataInfo) -> int:
    """Check that there are labeled and unlabeled images, and return the total number of old and new classes.

    Raises:
        DatasetError: there is no labeled or no unlabeled image.
        ConfigError: the number of classes is unknown or smaller than the number of old classes.
    """
    labeled = int((data.labels >= 0).sum())
    if labeled == data.num_samples:
        raise DatasetError(
            config.dataset,
            "every image is labeled, so there is nothing to discover",
            "Pass --label-split gcd to hide the labels of half of the classes and measure how well they are "
            "rediscovered, or learn these classes with `labelkit train supervised`. In a CSV, leave the labels of the "
            "images to discover empty.",
        )
    if labeled == 0 and config.supervised_weight > 0:
        remedy = "Pass a CSV with some labels, or --supervised-weight 0 to cluster without labels."
        raise DatasetError(config.dataset, "no image has a label that training may use", remedy)
    num_classes = config.num_classes if config.num_classes is not None else data.num_known_classes
    if num_classes is None:
        problem = f"the data has {data.num_old_classes} labeled classes and an unknown number of new classes"
        raise ConfigError("--num-classes", problem, "Pass --num-classes; `labelkit discover categories` estimates it.")
    if num_classes < max(2, data.num_old_classes):
        problem = f"{num_classes} is less than {data.num_old_classes}, the number of labeled classes"
        raise ConfigError("--num-classes", problem, "Raise --num-classes.")
    return num_classes


def old_class_mask(data: DataInfo) -> NDArray[np.bool_]:
    """Return a (k,) bool mask of the dataset's classes that have labels."""
    old = np.zeros(max(1, len(data.class_names)), dtype=np.bool_)
    old[list(data.class_order[: data.num_old_classes])] = True
    return old


class SelfDistilledClassifier(Method[DiscoveryConfigT], ABC):
    """Base class for SimGCD and FlipClass, in which the prediction for one view is the target for the other.

    If ``symmetric``, each view is the other's target.
    """

    runs_whole_backbone = False
    network: DiscoveryNetwork

    def __init__(self, config: DiscoveryConfigT, data: DataInfo, *, symmetric: bool) -> None:
        super().__init__(config, data)
        self.network = DiscoveryNetwork(config, data, check_discovery_data(config, data))
        self.loss = DiscoveryLoss(
            supervised_weight=config.supervised_weight,
            contrastive_temperature=config.contrastive_temperature,
            supervised_temperature=config.supervised_temperature,
            student_temperature=config.student_temperature,
            entropy_weight=config.entropy_weight,
            symmetric=symmetric,
        )
        self._teacher_temperature = teacher_temperature(config, 0)

    @abstractmethod
    def views(self, epoch: int) -> tuple[ViewSpec, ViewSpec]:
        """Return the teacher's and student's views for an epoch."""

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the single training phase, with two views and half of each batch labeled in expectation."""
        sampler = BalancedSampler(self.data.labels >= 0, seed=self.config.seed, rows=rows)
        return (Phase(self.config.epochs, self.views(0), sampler),)

    def on_epoch_start(self, state: TrainState) -> None:
        """Set the teacher's temperature for the epoch."""
        self._teacher_temperature = teacher_temperature(self.config, state.epoch)

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Return the monitor that tracks the discovery accuracy on unlabeled images."""
        config, data = self.config, self.data
        unlabeled = inputs.rows[data.labels[inputs.rows] < 0]
        pair = self.views if config.view_gap else None
        return DiscoveryMonitor(unlabeled, inputs.truth, old_class_mask(data), data.num_old_classes, pair)

    def remarks(self, metrics: Mapping[str, float]) -> list[str]:
        """Return a warning if fewer than half of the classes are predicted at the end of a run."""
        num_classes = self.network.num_outputs
        used = metrics.get("used_clusters", num_classes)
        if 2 * used >= num_classes:
            return []
        return [
            f"only {int(used)} of {num_classes} classes are in use on the unlabeled images: check --num-classes; "
            "with pretrained weights, pass --clip-grad-norm 1 or a lower --lr; otherwise, raise --entropy-weight"
        ]

    def eval_view(self) -> ViewSpec:
        """Return the evaluation view, without augmentation: a center crop, or the whole image of a digit."""
        return test_view(self.network.input_spec.size, self.config.augmentation)
