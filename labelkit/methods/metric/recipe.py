"""Code shared by metric learning methods: network, group sampling, clustering, learning rates and monitor."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import DataInfo
from labelkit.data.samplers import ClassBalancedSampler
from labelkit.data.views.recipes import metric_test_view, metric_view
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import ConfigError
from labelkit.formatting import percent
from labelkit.methods.backbone import embedding_views
from labelkit.methods.metric.networks import MetricNetwork
from labelkit.methods.metric.options import MetricLearningConfig
from labelkit.methods.metric.pseudo_labels import PseudoLabels
from labelkit.models.frozen_part import ReusablePart
from labelkit.training.inputs import MonitorInputs
from labelkit.training.method import Method, Monitor, PassSettings, TrainState
from labelkit.training.monitors.retrieval import RetrievalMonitor

MetricConfigT = TypeVar("MetricConfigT", bound=MetricLearningConfig)

MAX_PIXELS = 32
#: Shares of single-image clusters and of reassigned images above which a warning is shown.
MANY_SINGLES, MANY_MOVED = 0.3, 0.6


def create_pseudo_labels(config: MetricLearningConfig, data: DataInfo, embed_dim: int) -> PseudoLabels:
    """Create the cluster-based pseudo-labels for embeddings of the given width.

    Raises:
        ConfigError: there are more clusters than images, or fewer than a batch needs.
    """
    needed = config.batch_size // config.images_per_class
    if config.num_clusters > data.num_samples:
        problem = f"{config.num_clusters} exceeds the number of images ({data.num_samples})"
        raise ConfigError("--num-clusters", problem, "Lower --num-clusters.")
    if config.num_clusters < needed:
        raise ConfigError(
            "--num-clusters",
            f"{config.num_clusters} clusters are too few: a batch contains {needed} clusters of "
            f"{config.images_per_class} images each",
            f"Use at least {needed} clusters, or --batch-size {config.num_clusters * config.images_per_class}.",
        )
    return PseudoLabels(
        data.num_samples, config.num_clusters, embed_dim, refresh_epochs=config.refresh_epochs, seed=config.seed
    )


def update_pseudo_labels(
    labels: PseudoLabels, network: MetricNetwork, config: MetricLearningConfig, state: TrainState
) -> Tensor:
    """Embed all readable images without augmentation, cluster them, and log the result.

    Returns:
        (n_r, d) float32, the embeddings of the clustered images, in the order of their rows.
    """
    rows, how = labels.rows, PassSettings(by_network=True)
    if labels.is_empty and not config.pretrained and config.weights is None:
        # an untrained network's running statistics are meaningless: all embeddings would be nearly equal
        how = PassSettings("batch-statistics", order="fixed", batch_size=config.batch_size)
    embeddings = state.full_pass(network.embed, rows, how)
    points = embeddings
    if labels.is_empty and config.first_clustering == "pooled":
        points = state.full_pass(network.features, rows, how)
    elif labels.is_empty and config.first_clustering == "pixels":
        points = state.full_pass(flatten_to_unit_rows, rows)
    record = labels.recluster(points, embeddings, state)
    state.log("pseudo-labels", record)
    if record["singles"] > MANY_SINGLES:
        state.warn(f"{percent(record['singles'])}% of the clusters have a single image: lower --num-clusters")
    if record["moved"] > MANY_MOVED:
        moved = percent(record["moved"])
        state.warn(f"{moved}% of the images moved to another cluster: the pseudo-labels are unstable")
    return embeddings


def flatten_to_unit_rows(images: Tensor) -> Tensor:
    """Downsample images (b, c, h, w) to at most ``MAX_PIXELS`` per side and flatten them to unit-norm rows (b, p).

    Without downsampling, 60,000 photos of 224 x 224 pixels would take 36 GB.
    """
    height, width = (min(side, MAX_PIXELS) for side in images.shape[-2:])
    return F.normalize(F.adaptive_avg_pool2d(images, (height, width)).flatten(1), dim=1)


def train_view(config: MetricLearningConfig, data: DataInfo, size: int) -> ViewSpec:
    """Return the training view of an image or a stored embedding."""
    of_rows = embedding_views(config, data)
    return of_rows[1] if of_rows else metric_view(size, config.augmentation, chiral=data.chiral or not config.mirror)


class MetricMethod(Method[MetricConfigT]):
    """Base class for metric learning methods, which are evaluated by retrieval on held-out images."""

    runs_whole_backbone = False
    network: MetricNetwork
    _sampler: ClassBalancedSampler | None = None
    _rows = np.zeros(0, dtype=np.int64)

    def __init__(
        self, config: MetricConfigT, data: DataInfo, *, attention: Callable[[int], nn.Module] | None = None
    ) -> None:
        super().__init__(config, data)
        self.network = MetricNetwork(config, data, attention)

    def group_sampler(self, rows: NDArray[np.int64], labels: NDArray[np.int64] | None = None) -> ClassBalancedSampler:
        """Return a sampler of groups of one class or, without labels, one cluster; reused for the same rows."""
        config = self.config
        if self._sampler is None or not np.array_equal(rows, self._rows):
            self._rows = rows
            self._sampler = ClassBalancedSampler(
                labels, config.images_per_class, batch_size=config.batch_size, seed=config.seed, rows=rows
            )
        return self._sampler

    def parameter_groups(self) -> Iterator[dict[str, Any]]:
        """Yield parameter groups for backbone and new layers, all with weight decay as in the released code."""
        config, backbone = self.config, list(self.network.backbone.parameters())
        yield {"params": backbone, "weight_decay": config.weight_decay, "first_epoch": config.warm_epochs}
        new = [parameter for module in self.network.new_modules() for parameter in module.parameters()]
        if new:
            yield {"params": new, "weight_decay": config.weight_decay, "lr_scale": config.new_lr_scale}

    def reuse_frozen(self) -> ReusablePart:
        """Enable caching of the frozen stages' outputs; a second view reuses the cached first one."""
        return self.network.backbone.reuse_frozen()

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Return the monitor that scores the retrieval of held-out images, and the clusters."""
        return RetrievalMonitor(inputs, self.config.recall_ks)

    def eval_view(self) -> ViewSpec:
        """Return the evaluation view: a center crop, or the whole image if training does not crop."""
        return metric_test_view(self.network.input_spec.size, whole=self.config.augmentation not in ("box", "crop"))
