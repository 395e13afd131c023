"""TAC-CCL: metric learning without labels, from clusters and from attention that is consistent across views.

Source: "Unsupervised deep metric learning via transformed attention consistency and contrastive clustering loss"
(ECCV 2020), as in chapter 4 of Y. Li's dissertation "Deep Learning with Very Few and No Labels".
    1. every ``--refresh-epochs`` epochs: embed all images, k-means; the clusters are the labels until the next one
    2. each step: sample groups of images from clusters, each with a second view, which is transformed by a known
       homography or shows a matching image (``labelkit match``)
    3. multi-similarity loss against a memory of the embeddings of all images                          Sec. 4.3.2
    4. contrastive clustering loss: distance to the nearest centroid over that to the second nearest   Eq. 4.3
    5. similar embeddings of both views, and equal attention at locations visible in both                Eqs. 4.1, 4.2
       (for two images: near the matching keypoints, Eqs. 4.4 to 4.6)
``--no-ccl`` and ``--no-tac`` disable 4 and 5; disabling both gives the paper's baseline.
Departures: locations outside the second view are ignored; maps of matching images are compared at matching locations
(the printed equation compares the same locations); the memory is refilled at each clustering, and its labels
are looked up when used. Weights, ranges and learning rates are ours where the paper specifies none.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.algorithms.homographies import sample_second_views
from labelkit.algorithms.precision import promote, without_autocast
from labelkit.data.batch import Batch, DataInfo
from labelkit.data.views.spec import PairTransform, ViewSpec
from labelkit.errors import CheckpointMismatch
from labelkit.methods.metric.losses import MultiSimilarityLoss
from labelkit.methods.metric.matched_images import MatchedPairing, MatchedPairs, PairCorrespondence, read_matched_images
from labelkit.methods.metric.networks import MetricNetworkOutput
from labelkit.methods.metric.options import TACCCLConfig
from labelkit.methods.metric.pseudo_labels import MemoryBank
from labelkit.methods.metric.recipe import MetricMethod, create_pseudo_labels, train_view, update_pseudo_labels
from labelkit.training.distributed import gather_batch
from labelkit.training.inputs import MethodInputs
from labelkit.training.method import Phase, StepOutput, TrainState
from labelkit.training.monitors.retrieval import COLLAPSED, compute_similarity_spread

FLAT_ATTENTION = 1e-3
_MIN_DISTANCE = 1e-6


class ContrastiveClusteringLoss(nn.Module):
    r"""Mean ratio of each embedding's distances to its nearest and second-nearest centroids.

    .. math:: L = \frac{1}{b} \sum_n \frac{\|F_n - C^+_n\|}{\|F_n - C^-_n\|}

    Dimensionless, in [0, 1]: 0 at a centroid, 1 midway between two of them.

    Shape:
        - embeddings: ``(b, d)`` float; receives gradients.
        - centroids: ``(k, d)`` float, k >= 2; no gradient.
        - returns: ``()`` float32 (float64 is preserved).

    Raises:
        ValueError: there are fewer than two centroids.

    Source:
        TAC-CCL, Eq. 4.3. The text below it favors small values of the inverse ratio, that is, ambiguous images;
        we follow the equation.
    """

    def forward(self, embeddings: Tensor, centroids: Tensor) -> Tensor:
        """Return the mean ratio over the batch."""
        if len(centroids) < 2:
            raise ValueError(f"at least 2 centroids are required, got {len(centroids)}")
        with without_autocast(embeddings):
            rows = promote(embeddings)
            centers = centroids.detach().to(rows.dtype)
            # products select the centroids, differences give the distances, since products cancel near a centroid
            scores = (centers.square().sum(dim=1) - 2 * rows.detach() @ centers.T).detach()
            near, far = scores.topk(2, dim=1, largest=False).indices.unbind(1)
            to_near, to_far = (((rows - centers[i]).square().sum(dim=1) + 1e-12).sqrt() for i in (near, far))
            return (to_near / to_far.clamp(min=_MIN_DISTANCE)).mean()


class TransformedAttentionLoss(nn.Module):
    r"""Mean squared difference in attention between corresponding locations in two views.

    .. math:: L = \frac{1}{|V|} \sum_{p \in V} (M(p) - M'(H p))^2

    with attention maps M and M' of the two views, H the homography from the first to the second, and V the cells of M
    visible in the second view. Dimensionless, in [0, 1] for maps in [0, 1]; 0 if M' is M transformed by H, and also if
    both are constant, since a constant map is consistent with every H.

    Shape:
        - first, second: ``(b, h, w)`` float; both receive gradients.
        - homographies: ``(b, 3, 3)`` float in normalized coordinates; no gradient.
        - returns: ``()`` float32 (float64 is preserved), mean over the pairs with at least one cell in V; 0, still
          differentiable, if no pair has one.

    Source:
        TAC-CCL, Eqs. 4.1 and 4.2; the mean over V is ours.
        The paper does not specify what happens to locations outside the second view; here
        they are ignored. For maps multiplied by ``keypoint_heatmaps``, this is Eq. 4.6, which as printed
        compares the same locations of two different images; pass identity matrices for that.
    """

    def forward(self, first: Tensor, second: Tensor, homographies: Tensor) -> Tensor:
        """Return the mean loss over pairs of views."""
        with without_autocast(first):
            first, second = promote(first), promote(second)
            moved, visible = sample_second_views(second[:, None], promote(homographies), first.shape[-2:])
            weights = visible.to(first.dtype)
            number = weights.sum(dim=(1, 2))
            terms = ((first - moved[:, 0]).square() * weights).sum(dim=(1, 2)) / number.clamp(min=1)
            return terms.sum() / (number > 0).sum().clamp(min=1)


class FeatureSimilarityLoss(nn.Module):
    r"""Mean distance between the embeddings of two views.

    .. math:: L = \frac{1}{b} \sum_n \sqrt{\|F_n - F'_n\|^2 + 10^{-12}}

    In the unit of the embeddings; 0 to 2 between unit rows, where it is :math:`\sqrt{2 - 2 \cos}`. The added constant
    makes the gradient of equal rows finite.

    Shape:
        - first, second: ``(b, d)`` float; both receive gradients.
        - returns: ``()`` float32 (float64 is preserved).

    Source:
        TAC-CCL, Sec. 4.3.1.
    """

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the mean distance over pairs of views."""
        with without_autocast(first):
            return ((promote(first) - promote(second)).square().sum(dim=1) + 1e-12).sqrt().mean()


def collapsed_multi_similarity_loss(positives: int, negatives: int) -> float:
    """Return the smallest multi-similarity loss that is possible if all embeddings are equally similar.

    Each anchor has the given numbers of positive and negative references. A network that cannot distinguish images can
    do no better, so a run that stays at this value has learned nothing.
    """
    alpha, beta, base = 2.0, 50.0, 0.5  # as in `MultiSimilarityLoss`
    offsets = torch.linspace(-1 - base, 1 + base, 20_001, dtype=torch.float64)
    attract = torch.logaddexp(torch.zeros(()).double(), math.log(max(positives, 1e-300)) - alpha * offsets) / alpha
    repel = torch.logaddexp(torch.zeros(()).double(), math.log(max(negatives, 1e-300)) + beta * offsets) / beta
    return float((attract + repel).min())


class CBAM(nn.Module):
    """Convolutional block attention module that gates channels and then positions.

    Args:
        channels: number of channels c; the channel gate's hidden layer has c / 16 units.

    Shape:
        - maps: ``(b, c, h, w)`` float.
        - returns: maps ``(b, c, h, w)`` and the spatial gate ``(b, h, w)``.

    Source:
        S. Woo et al., "CBAM: Convolutional Block Attention Module" (ECCV 2018) and ``Jongchan/attention-module``.

    Raises:
        ValueError: the hidden layer would have no unit.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = channels // 16
        if hidden < 1:
            raise ValueError(f"attention requires at least 16 channels, got {channels}")
        self.channel_gate = nn.Sequential(nn.Linear(channels, hidden), nn.ReLU(), nn.Linear(hidden, channels))
        self.conv = nn.Conv2d(2, 1, 7, padding=3, bias=False)
        self.normalization = nn.BatchNorm2d(1, momentum=0.01)

    def forward(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gated maps and the spatial gate."""
        summary = self.channel_gate(maps.mean(dim=(2, 3))) + self.channel_gate(maps.amax(dim=(2, 3)))
        maps = maps * torch.sigmoid(summary)[:, :, None, None]
        both = torch.stack([maps.amax(dim=1), maps.mean(dim=1)], dim=1)
        gate = torch.sigmoid(self.normalization(self.conv(both)))
        return maps * gate, gate[:, 0]


class TACCCL(MetricMethod[TACCCLConfig]):
    """TAC-CCL training method: metric learning from clusters, a memory and pairs of views, without labels."""

    def __init__(self, config: TACCCLConfig, data: DataInfo) -> None:
        super().__init__(config, data, attention=CBAM)
        self.labels = create_pseudo_labels(config, data, config.embed_dim)
        self.memory = MemoryBank(max(data.num_samples, config.batch_size), config.embed_dim)
        #: () float32, pair loss if all embeddings were equal
        self.collapsed_loss: Tensor = nn.Buffer(torch.zeros(()))
        own = ("labels.", "memory.", "collapsed_loss")
        self.equal_buffers = tuple(name for name, _ in self.named_buffers() if name.startswith(own))
        self.pair_loss = MultiSimilarityLoss()
        self.center_loss = ContrastiveClusteringLoss()
        self.attention_loss = TransformedAttentionLoss()
        self.feature_loss = FeatureSimilarityLoss()
        self.use_matches(None)
        self._use_memory, self._use_centers = False, False
        self._attention_sd = torch.tensor(torch.inf)

    def use_matches(self, matched: MatchedPairs | None) -> None:
        """Set the pairs of images for second views; call before training starts or resumes."""
        self.matched = matched
        self.geometry = PairCorrespondence(matched)

    def attach(self, inputs: MethodInputs) -> None:
        """Read the matched images named in the options."""
        if self.config.matches is not None:
            self.use_matches(read_matched_images(self.config.matches, inputs))

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the single training phase, which samples groups from the current clusters."""
        self.labels.rows = rows
        pairing = None
        if self.matched is not None:
            clusters = self.labels.cluster_ids
            pairing = MatchedPairing(self.matched, lambda: clusters.cpu().numpy())
        return (Phase(self.config.epochs, self.views(), self.group_sampler(rows), pairing=pairing),)

    def views(self) -> tuple[ViewSpec, ...]:
        """Return the training view and, with attention consistency, the second view derived from it."""
        first = train_view(self.config, self.data, self.network.input_spec.size)
        if not self.config.tac:
            return (first,)
        transform = PairTransform(hflip=0.0 if self.data.chiral or not self.config.mirror else 0.5)
        return first, replace(first, interpolation="bilinear", padding="reflection", follows=transform)

    def on_epoch_start(self, state: TrainState) -> None:
        """Cluster the images if due, unless the run was resumed inside the epoch and already has the clusters."""
        config = self.config
        if self.labels.is_due(state.epoch):
            embeddings = update_pseudo_labels(self.labels, self.network, config, state)
            if config.memory_refill:
                self.memory.refill(embeddings, torch.from_numpy(self.labels.rows))
            self._monitor_collapse(embeddings, state)
        assert self._sampler is not None
        self._sampler.relabel(self.labels.cluster_ids.cpu().numpy())
        self._use_centers = config.ccl and state.epoch >= config.ccl_start_epoch
        if config.ccl and state.epoch == 0 and config.ccl_start_epoch >= config.epochs:
            state.warn(
                f"the contrastive clustering loss is never used: it starts after {config.ccl_start_epoch} "
                f"epochs, and training ends after {config.epochs}; lower --ccl-start-epoch, or pass --no-ccl"
            )

    def on_step_start(self, state: TrainState) -> None:
        """Enable the memory once it has been filled."""
        warmup = self.config.memory_warmup_steps
        wait = state.steps_per_epoch if warmup is None else warmup
        self._use_memory = self.config.memory_refill or state.step >= wait

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """Warn if attention is the same everywhere, and thus trivially consistent under every transform."""
        if self.config.tac and float(self._attention_sd) < FLAT_ATTENTION:
            state.warn("attention is nearly constant over the image, so it has no effect")
        return {}

    def _monitor_collapse(self, embeddings: Tensor, state: TrainState) -> None:
        """Store the pair loss of equal embeddings for the new clusters, log the similarity spread, warn of collapse."""
        ids = self.labels.cluster_ids.cpu().numpy()
        sizes = np.bincount(ids[ids >= 0])
        # expected share of the cluster of a random image; the image itself is subtracted below
        share = float((sizes * sizes).sum()) / float(sizes.sum()) ** 2
        references = min(len(self.memory), len(self.labels.rows))
        positives = max(0, round(share * references) - 1)
        self.collapsed_loss.fill_(collapsed_multi_similarity_loss(positives, references - 1 - positives))
        spread = compute_similarity_spread(embeddings.numpy())
        state.log("collapse", {"similarity_sd": spread, "collapsed_ms": float(self.collapsed_loss)})
        if state.epoch and spread < COLLAPSED:  # an untrained network is not evaluated
            state.warn(
                f"all embeddings are nearly equal (similarities differ by only {spread:.3f}): training is "
                "collapsing; lower --lr or the weights of the additional losses"
            )

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute all losses for a batch of view pairs."""
        config, count = self.config, len(batch.images)
        seen: MetricNetworkOutput = self.network(torch.cat(batch.views))
        first, second = seen.embeddings[:count], seen.embeddings[count:]
        logs: dict[str, Tensor] = {}
        total = self._pair_loss(first, batch.sample_index)
        logs["ms"], logs["ms_gap"] = total.detach(), total.detach() - self.collapsed_loss
        if self._use_centers:
            centers = self.center_loss(seen.embeddings, self.labels.centroids)
            total = total + config.ccl_weight * centers
            logs["ccl"] = centers.detach()
        assert seen.attention is not None
        self._attention_sd = logs["attention_sd"] = seen.attention.detach().flatten(1).std(dim=1).mean()
        if config.tac:
            features = self.feature_loss(first, second)
            maps = seen.attention[:count].float(), seen.attention[count:].float()
            homographies, masks = self.geometry(batch, (maps[0].shape[1], maps[0].shape[2]))
            if masks is not None:
                maps = maps[0] * masks[0], maps[1] * masks[1]
            attention = self.attention_loss(*maps, homographies)
            total = total + config.feature_weight * features + attention
            logs["features"], logs["tac"] = features.detach(), attention.detach()
            if batch.links is not None:
                logs["matched"] = (batch.links >= 0).float().mean()
        return StepOutput(total, logs)

    def _pair_loss(self, embeddings: Tensor, rows: Tensor) -> Tensor:
        """Compute the multi-similarity loss of the whole batch, which is equal on all processes."""
        embeddings, rows = gather_batch(embeddings), gather_batch(rows)
        ids = self.labels.cluster_ids
        kept, kept_rows, own = self.memory.enqueue(embeddings, rows)
        references = (kept, ids[kept_rows], own) if self._use_memory else ()
        return self.pair_loss(embeddings, ids[rows], *references)

    def groupings(self) -> Mapping[str, Tensor]:
        """Return the cluster ids, keyed by name."""
        return {"clusters": self.labels.cluster_ids}

    def extra_state(self) -> dict[str, Any]:
        """Return the digest of the matches in use."""
        return {"matches": None if self.matched is None else self.matched.digest}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Check that the matches are those the run began with; raise ``CheckpointMismatch`` if not."""
        if state.get("matches") != self.extra_state()["matches"]:
            problem = "contains different matches than at the start of the run"
            raise CheckpointMismatch(str(self.config.matches), problem, "Restore the original file.")
