"""GCD: unsupervised and supervised contrastive learning, followed by semi-supervised k-means.

Source: S. Vaze, K. Han, A. Vedaldi, A. Zisserman, "Generalized Category Discovery" (CVPR 2022) and its released code.
Each step, on two views of every image:
    1. backbone and projection head over both views                (2b, p)
    2. contrastive losses: unsupervised on all images, supervised on labeled images
After training: semi-supervised k-means on the backbone's unit features (`labelkit cluster ss-kmeans`). The score
logged after an epoch is that of this command with default options and the run's seed.
Departures: the released script keeps the epoch with the best accuracy on the test labels; we keep the last. At the end,
our k-means may exchange classes with other clusters (`--exchange`), which the released one does not do.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.samplers import BalancedSampler
from labelkit.data.views.recipes import simgcd_view, test_view
from labelkit.data.views.spec import ViewSpec
from labelkit.losses.contrastive import InfoNCELoss, SupConLoss
from labelkit.methods.backbone import embedding_views
from labelkit.methods.discovery.networks import PairedNetwork
from labelkit.methods.discovery.options import GCDConfig
from labelkit.methods.discovery.recipe import check_discovery_data, old_class_mask
from labelkit.models.frozen_part import FrozenPart
from labelkit.models.heads import CosineClassifier, Projector
from labelkit.models.seeding import seeded_init
from labelkit.training.distributed import gather_batch
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, Monitor, Phase, StepOutput
from labelkit.training.monitors.groups import ClusteringMonitor


class ContrastiveNetwork(PairedNetwork):
    """A ViT with a wide contrastive head and no classifier."""

    def __init__(self, config: GCDConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        dim, bottleneck = self.backbone.info.feature_dim, config.projection_dim
        with seeded_init(config.seed + 1):
            # DINO's head: a bottleneck, then cosines to many directions
            self.projector = Projector(dim, config.projector_hidden_dim, bottleneck)
            self.directions = CosineClassifier(bottleneck, config.head_dim)

    def forward_pair(self, first: Tensor, second: Tensor) -> Tensor:
        """Map ``first`` and ``second`` views (b, c, h, w) to projections (2b, head_dim), with all first views first.

        After ``reuse_frozen``, views are cached outputs instead.
        """
        features = self.compute_pair_features(first, second)
        return self.directions(self.projector(features))


class GCD(Method[GCDConfig]):
    """GCD training method: contrastive learning on labeled and unlabeled images, without a classifier."""

    runs_whole_backbone = False
    decays_all = True  # as in the released code
    network: ContrastiveNetwork

    def __init__(self, config: GCDConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        self._num_clusters = check_discovery_data(config, data)
        self.network = ContrastiveNetwork(config, data)
        self.contrast = InfoNCELoss(config.contrastive_temperature)
        self.label_contrast = SupConLoss(config.supervised_temperature)

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the single training phase: two views by one transform, half of each batch labeled in expectation."""
        size, domain = self.network.input_spec.size, self.config.augmentation
        of_rows = embedding_views(self.config, self.data)
        view = of_rows[1] if of_rows else simgcd_view(size, domain, chiral=self.data.chiral)
        sampler = BalancedSampler(self.data.labels >= 0, seed=self.config.seed, rows=rows)
        return (Phase(self.config.epochs, (view, view), sampler),)

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the unsupervised and the supervised contrastive loss of both views."""
        views = self.network.forward_pair(batch.views[0], batch.views[1]).chunk(2)
        projections, labels = torch.cat([gather_batch(view) for view in views]), gather_batch(batch.labels)
        rep_u, rep_s = self.contrast(projections), self.label_contrast(projections, labels)
        weight = self.config.supervised_weight
        loss = (1 - weight) * rep_u + weight * rep_s
        return StepOutput(loss, {"rep_u": rep_u.detach(), "rep_s": rep_s.detach()})

    def reuse_frozen(self) -> FrozenPart:
        """Enable caching of the outputs of the blocks before the first trained block."""
        return self.network.reuse_frozen()

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Return the monitor that clusters all images by semi-supervised k-means."""
        return ClusteringMonitor(
            inputs.rows,
            self.data.labels,
            inputs.truth,
            old_class_mask(self.data),
            num_clusters=self._num_clusters,
            seed=self.config.seed,
        )

    def eval_view(self) -> ViewSpec:
        """Return the evaluation view, without augmentation: a center crop, or the whole image of a digit."""
        return test_view(self.network.input_spec.size, self.config.augmentation)
