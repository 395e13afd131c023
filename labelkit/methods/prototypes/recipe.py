"""Code shared by supervised classifiers."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import Batch, DataInfo, MixedBatch, mixup
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.samplers import UniformSampler
from labelkit.data.views.recipes import classification_view, test_view
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import ConfigError
from labelkit.methods.backbone import backbone_options, embedding_views
from labelkit.methods.prototypes.losses import balanced_class_weights
from labelkit.methods.prototypes.options import SupervisedTrainConfig
from labelkit.models.frozen_part import ReusablePart
from labelkit.models.headed import ClassifierNetwork
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, Monitor, Phase
from labelkit.training.monitors.classification import ClassificationMonitor

SupervisedConfigT = TypeVar("SupervisedConfigT", bound=SupervisedTrainConfig)


class SupervisedClassifierMethod(Method[SupervisedConfigT]):
    """Base class for classifiers trained on all labeled images.

    ``head`` builds the classification head from the number of classes and the embedding width.
    """

    decays_all = True  # as in the released code
    network: ClassifierNetwork[Any]

    def __init__(self, config: SupervisedConfigT, data: DataInfo, head: Callable[[int, int], nn.Module]) -> None:
        super().__init__(config, data)
        num_classes = data.determine_num_classes(config.dataset, config.num_classes)
        self.network = ClassifierNetwork(
            config.backbone,
            lambda dim: head(num_classes, dim),
            num_classes,
            embed_dim=config.embed_dim,
            embedding_bn=config.embedding_bn,
            **backbone_options(config, data),
            seed=config.seed,
        )
        self._num_classes = num_classes
        counts = np.bincount(data.labels[data.labels >= 0], minlength=num_classes)
        self._global_weights = balanced_class_weights(torch.from_numpy(counts))

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the single training phase, with one augmented view of every labeled image per epoch."""
        config, size, of_rows = self.config, self.network.input_spec.size, embedding_views(self.config, self.data)
        view = of_rows[1] if of_rows else classification_view(size, config.augmentation, chiral=self.data.chiral)
        labeled = rows[self.data.labels[rows] >= 0]
        return (Phase(config.epochs, (view,), UniformSampler(labeled, seed=config.seed)),)

    def class_weights(self, labels: Tensor) -> Tensor | None:
        """Return class weights (c,) that balance the unmixed batch or the training set; ``None``: all equal."""
        if self.config.class_weights == "none":
            return None
        if self.config.class_weights == "global":
            return self._global_weights.to(labels.device)
        # unlike torch.bincount, this does not synchronize with the GPU
        counts = (labels == torch.arange(self._num_classes, device=labels.device)[:, None]).sum(1)
        return balanced_class_weights(self.state.combine(counts, "sum"))

    def mix_batch(self, batch: Batch) -> MixedBatch:
        """Return the batch, with images blended by mixup if enabled."""
        step = self.state.step
        return mixup(batch, self.config.mixup_alpha, keyed_generator(self.config.seed, "mixup", step))

    def reuse_frozen(self) -> ReusablePart:
        """Enable caching of the frozen stages' outputs.

        Raises:
            ConfigError: no stage is frozen, or mixup is enabled.
        """
        if self.config.mixup_alpha > 0:
            problem = "cached feature maps cannot be mixed as --mixup-alpha requires"
            raise ConfigError("--reuse-frozen", problem, "Remove --reuse-frozen or --mixup-alpha.")
        return self.network.backbone.reuse_frozen()

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Return the monitor that tracks classification accuracy on held-out images."""
        return ClassificationMonitor(inputs.held_out, self.data.class_order)

    def eval_view(self) -> ViewSpec:
        """Return the evaluation view: a center crop if training uses random crops, otherwise the whole image."""
        cuts_boxes = self.config.augmentation.startswith("imagenet")
        return test_view(self.network.input_spec.size, "generic" if cuts_boxes else "digits")
