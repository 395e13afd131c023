"""TAC-CCL: metric learning without labels, from clusters and from attention that moves with the image.

Source: "Unsupervised deep metric learning via transformed attention consistency and contrastive clustering loss"
(ECCV 2020), as in chapter 4 of Y. Li's dissertation "Deep Learning with Very Few and No Labels".
    1. every ``--refresh-epochs``: embed all images, k-means; the clusters are the labels until the next time
    2. each step: groups of images of a cluster, each in a second view moved by a known homography, or shown by another
       image that matches (``labelkit match``)
    3. multi-similarity loss against a memory of the embeddings of all images                          Sec. 4.3.2
    4. contrastive clustering loss: nearest center over second nearest                                 Eq. 4.3
    5. similar embeddings of both views, and attention of one at the places that the other shows       Eqs. 4.1, 4.2
       (of two images: near the keypoints that match, Eqs. 4.4 to 4.6)
``--no-ccl`` and ``--no-tac`` leave out 4 and 5; without both it is the paper's baseline.
Departures: places that leave the second view do not count; maps of matching images are compared at places that match
(``--match-align none`` compares equal places, as printed); the memory is filled anew at each clustering, and its labels
are looked up when they are used. Weights, ranges and learning rates are ours where the paper gives none.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.algorithms.attention_maps import keypoint_masks
from labelkit.algorithms.homographies import as_square, between_views, move_points
from labelkit.config.methods.tac_ccl import TACCCLConfig
from labelkit.data.batch import Batch, DataInfo
from labelkit.data.pair_views import PairTransform
from labelkit.data.samplers import ClassBalancedSampler
from labelkit.data.transforms import ViewSpec
from labelkit.engine.gathering import gather_batch
from labelkit.engine.matched_images import LinkTables, MatchedImages, MatchedPairing
from labelkit.engine.memory_bank import MemoryBank
from labelkit.engine.method import Method, Phase, StepOutput, TrainState
from labelkit.engine.metric_learning import (
    build_metric_network,
    eval_view,
    group_sampler,
    multi_similarity_loss,
    parameter_groups,
    pseudo_labels,
    renew_pseudo_labels,
    train_view,
)
from labelkit.engine.retrieval_monitor import COLLAPSED, similarity_spread
from labelkit.errors import CheckpointMismatch
from labelkit.losses.attention_consistency import FeatureSimilarityLoss, TransformedAttentionLoss
from labelkit.losses.contrastive_clustering import ContrastiveClusteringLoss
from labelkit.losses.metric import collapsed_multi_similarity
from labelkit.models.metric_network import MetricNetwork, MetricOutput

FLAT_ATTENTION = 1e-3


class TACCCL(Method[TACCCLConfig]):
    """One network, clusters as labels, a memory, and pairs of views; needs no labels."""

    network: MetricNetwork

    def __init__(self, config: TACCCLConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        self.network = build_metric_network(config, data, attention=config.attention)
        self.labels = pseudo_labels(config, data)
        self.memory = MemoryBank(config.memory_size or data.num_samples, config.embed_dim) if config.memory else None
        #: () float32, what the pair loss is when all embeddings are alike
        self.collapsed_loss: Tensor = nn.Buffer(torch.zeros(()))
        self.equal_buffers = (
            *(f"labels.{name}" for name in self.labels.buffer_names),
            *(f"memory.{name}" for name in (MemoryBank.buffer_names if config.memory else ())),
            "collapsed_loss",
        )
        self.pair_loss = multi_similarity_loss(config)
        self.center_loss = ContrastiveClusteringLoss(config.ccl_positive)
        self.attention_loss = TransformedAttentionLoss(config.tac_reduction, both=config.tac_both)
        self.feature_loss = FeatureSimilarityLoss()
        #: matching images; set before training where there are some
        self.matched: MatchedImages | None = None
        self._links: LinkTables | None = None
        self._sampler: ClassBalancedSampler | None = None
        self._use_memory, self._use_centers = False, False
        self._warned: set[str] = set()

    # ------------------------------------------------------------------ diet

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """One phase: groups of the clusters of the time."""
        self.labels.rows = rows
        if self._sampler is None:
            self._sampler = group_sampler(self.config, rows, None)
        pairing = None
        if self.matched is not None:
            pairing = MatchedPairing(
                self.matched, self.config.match_share, lambda: self.labels.cluster_ids.cpu().numpy()
            )
        return (Phase(self.config.epochs, self.views(), self._sampler, pairing=pairing),)

    def views(self) -> tuple[ViewSpec, ...]:
        """The view of training, and the one that follows it."""
        config = self.config
        first = train_view(config, self.data, self.network.input_spec.size)
        if not config.tac:
            return (first,)
        transform = PairTransform(
            kinds=config.transforms,
            crop_area=config.pair_crop_area,
            rotation_rad=math.radians(config.pair_rotation_degrees),
            zoom=config.pair_zoom,
            perspective=config.pair_perspective,
            hflip=0.0 if self.data.chiral or not config.mirror else config.pair_mirror,
        )
        return first, replace(first, interpolation="bilinear", padding="reflection", follows=transform)

    def eval_view(self) -> ViewSpec:
        """The center of the image, or all of it where training cuts no boxes."""
        return eval_view(self.config, self.network.input_spec.size)

    # ------------------------------------------------------------------ events

    def on_epoch_start(self, state: TrainState) -> None:
        """Cluster when it is time; a run that is resumed inside the epoch has the clusters in its checkpoint."""
        config = self.config
        if self.labels.due(state.epoch):
            embeddings = renew_pseudo_labels(self.labels, self.network, config, state)
            if self.memory is not None and config.memory_refill:
                rows = torch.from_numpy(self.labels.rows)
                self.memory.refill(embeddings.to(self.memory.embeddings.device), rows)
            self.collapsed_loss.fill_(self._collapsed())
            spread = similarity_spread(embeddings.numpy())
            state.log("collapse", {"similarity_sd": spread, "collapsed_ms": float(self.collapsed_loss)})
            if state.epoch and spread < COLLAPSED:
                self._warn(
                    state,
                    f"all embeddings are alike (similarities differ by {spread:.3f} only): the network collapses; "
                    "lower --lr, --feature-weight, --ccl-weight or --tac-weight",
                )
        assert self._sampler is not None
        self._sampler.relabel(self.labels.cluster_ids.cpu().numpy())
        self._use_centers = config.ccl and state.epoch >= config.ccl_start_epoch
        self._see_memory(state)

    def on_step_start(self, state: TrainState) -> None:
        """The memory is used once it has been filled."""
        self._see_memory(state)

    def _see_memory(self, state: TrainState) -> None:
        warmup = self.config.memory_warmup_steps
        wait = 0 if self.config.memory_refill else state.steps_per_epoch if warmup is None else warmup
        self._use_memory = self.memory is not None and state.step >= wait

    def _collapsed(self) -> float:
        """The pair loss of a network that makes all images alike, for the clusters of the time."""
        ids = self.labels.cluster_ids.cpu().numpy()
        sizes = np.bincount(ids[ids >= 0], minlength=self.labels.num_clusters)
        total = int(sizes.sum())
        if self.memory is None:
            positives, references = self.config.images_per_class - 1, self.config.batch_size
        else:
            references = min(len(self.memory), total)
            positives = max(0, round(float((sizes * sizes).sum()) / total * references / total) - 1)
        config = self.config
        return collapsed_multi_similarity(
            positives, references - 1 - positives, alpha=config.ms_alpha, beta=config.ms_beta, base=config.ms_base
        )

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """How flat attention has become, and what is left in the memory."""
        metrics = {"clusters_epoch": float(self.labels.epoch)}
        if self._links is not None and self.matched is not None:
            metrics["matched_images"] = self.matched.coverage(self.labels.rows)
        return metrics

    def _warn(self, state: TrainState, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            state.warn(f"warning: {text}")

    # ------------------------------------------------------------------ a step

    def training_step(self, batch: Batch) -> StepOutput:
        """All losses of a batch of pairs."""
        config, count = self.config, len(batch.images)
        seen: MetricOutput = self.network(torch.cat(batch.views))
        first, second = seen.embeddings[:count], seen.embeddings[count:]
        logs: dict[str, Tensor] = {}
        total = self._pairs(first, batch.sample_index)
        if config.ms_both:
            total = 0.5 * (total + self._pairs(second, batch.sample_index))
        logs["ms"], logs["ms_gap"] = total.detach(), total.detach() - self.collapsed_loss
        if self._use_centers:
            ids = self.labels.cluster_ids[batch.sample_index].repeat(len(batch.views))
            centers = self.center_loss(seen.embeddings, self.labels.centroids, ids)
            total = total + config.ccl_weight * centers
            logs["ccl"] = centers.detach()
        if seen.attention is not None:
            logs["attention_sd"] = seen.attention.detach().flatten(1).std(dim=1).mean()
        if config.tac:
            assert seen.attention is not None
            features = self.feature_loss(first, second)
            attention = self._attention(seen.attention[:count], seen.attention[count:], batch)
            total = total + config.feature_weight * features + config.tac_weight * attention
            logs["features"], logs["tac"] = features.detach(), attention.detach()
            if batch.links is not None:
                logs["matched"] = (batch.links >= 0).float().mean()
        return StepOutput(total, logs)

    def _pairs(self, embeddings: Tensor, rows: Tensor) -> Tensor:
        """Multi-similarity loss of the whole batch, equal on every process."""
        embeddings, rows = gather_batch(embeddings), gather_batch(rows)
        ids = self.labels.cluster_ids
        if self.memory is None:
            alone: Tensor = self.pair_loss(embeddings, ids[rows])
            return alone
        memory = self.memory.remember(embeddings, rows)
        loss = torch.zeros((), device=embeddings.device)
        if self._use_memory:
            loss = self.pair_loss(embeddings, ids[rows], memory.embeddings, ids[memory.rows], memory.own)
        if not self._use_memory or self.config.memory_mode == "add":
            loss = loss + self.pair_loss(embeddings, ids[rows])
        return loss

    def _attention(self, first: Tensor, second: Tensor, batch: Batch) -> Tensor:
        """Attention of the first views against that of the second ones, at places that show the same."""
        geometry = batch.geometry[0].matrices, batch.geometry[1].matrices
        if batch.links is None or self.matched is None:
            loss: Tensor = self.attention_loss(first, second, between_views(*geometry))
            return loss
        if self._links is None or self._links.homographies.device != first.device:
            self._links = LinkTables.of(self.matched.matches, first.device)
        is_linked = (batch.links >= 0)[:, None, None]
        links = batch.links.clamp(min=0)
        same = torch.eye(3, device=first.device)
        over = torch.where(is_linked, self._links.homographies[links], same)
        homographies = torch.linalg.solve(as_square(geometry[1]), over @ as_square(geometry[0]))
        if self.config.match_align == "none":
            homographies = torch.where(is_linked, same, homographies)
        masks = []
        for side, matrices in enumerate(geometry):
            points, inside = move_points(self._links.keypoints[links, :, side], torch.linalg.inv(as_square(matrices)))
            mask = keypoint_masks(
                points,
                inside & self._links.present[links],
                (first.shape[1], first.shape[2]),
                sigma=self.config.match_sigma,
                clip=self.config.match_mask == "clip",
            )
            masks.append(torch.where(is_linked, mask, torch.ones_like(mask)))
        masked: Tensor = self.attention_loss(first.float() * masks[0], second.float() * masks[1], homographies)
        return masked

    # ------------------------------------------------------------------ state

    def parameter_groups(self) -> Iterator[dict[str, Any]]:
        """Backbone and new layers, each with its learning rate."""
        return parameter_groups(self.network, self.config)

    def groupings(self) -> Mapping[str, Tensor]:
        """The clusters."""
        return {"clusters": self.labels.cluster_ids}

    def extra_state(self) -> dict[str, Any]:
        """Which matches were used."""
        return {"matches": None if self.matched is None else self.matched.digest}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Refuse to go on with other matches.

        Raises:
            CheckpointMismatch: they are not those of the run.
        """
        now = None if self.matched is None else self.matched.digest
        if state.get("matches") != now:
            raise CheckpointMismatch(
                str(self.config.matches), "holds other matches than the run began with", "Restore the file."
            )
