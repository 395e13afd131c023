"""SAN: metric learning with a module that spatially reassembles feature maps inside the network.

Source: chapter 5 of "Deep Learning with Very Few and No Labels"; no code was released. Each step:
    1. sample groups of images from some classes or clusters
    2. lower network, assembly weights from its maps, assembly (Eq. 5.4), upper network, unit embeddings
    3. multi-similarity loss on the batch (Eq. 5.9), or another pair loss, Proxy-Anchor, or a classifier
    4. pair loss against a memory of embeddings by an EMA of the network, or by the network itself (XBM)
    5. entropy, correlation and coherence of the weights (Eq. 5.5-5.8), phased in over the first half of training;
       they train only the weight predictor (``--term-gradients``)
Without labels, all images are clustered every ``--refresh-epochs`` epochs, and the memory is refilled.
Stored embeddings have no positions: use ``--no-san``; the head's features are then the embedding.
Ours, since the chapter does not specify them: the weight predictor, the normalization of the weights, the position of
the module, and all loss weights, learning rates and schedules.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.keyed_random import keyed_generator
from labelkit.formatting import percent
from labelkit.methods.metric.assembly import (
    assembly_coherence,
    assembly_terms,
    compute_term_weight,
    normalized_entropy_and_correlation,
    weighted_assembly_loss,
)
from labelkit.methods.metric.losses import (
    ContrastiveBayesianLoss,
    MemoryContrastiveLoss,
    MultiSimilarityLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
)
from labelkit.methods.metric.networks import MetricNetwork
from labelkit.methods.metric.options import SANConfig
from labelkit.methods.metric.pseudo_labels import MemoryBank, PseudoLabels
from labelkit.methods.metric.recipe import MetricMethod, create_pseudo_labels, train_view, update_pseudo_labels
from labelkit.models.ema import EMATeacher
from labelkit.models.frozen_part import ReusablePart
from labelkit.models.seeding import seeded_init
from labelkit.training.distributed import gather_batch
from labelkit.training.method import Phase, StepOutput, TrainState

#: EMA decay (momentum) per step of the network that fills the memory.
MEMORY_DECAY = 0.999
#: Share of single-image classes above which a warning is shown.
MANY_LONE = 0.3
#: Diagnostics: number of images, thresholds of the warnings, and columns.
NUM_DIAGNOSTIC_IMAGES = 64
INACTIVE_DIAGONAL, INACTIVE_EFFECT, STATIC_VARIANCE, UNEVEN_ROWS = 0.97, 1e-2, 1e-3, 0.1
_SCALARS = ("diagonal", "sources", "row_error", "entropy", "correlation", "coherence", "move", "effect")
#: First epoch that uses the memory when training on classes; with clusters, it is used from the start.
MEMORY_START_EPOCH = 1


class SAN(MetricMethod[SANConfig]):
    """SAN training method: metric learning from labels or clusters with spatially reassembled feature maps."""

    def __init__(self, config: SANConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        if config.san:
            self.network.insert_assembly(
                config.san_before, width=config.san_width, diagonal=config.san_diagonal, seed=config.seed + 3
            )
        self.clusters: PseudoLabels | None = None
        if config.mode == "unsupervised":
            self.clusters = create_pseudo_labels(config, data, self.network.embed_dim)
        else:
            self.labels: Tensor = nn.Buffer(torch.from_numpy(data.labels), persistent=False)
        self.pairs = MemoryContrastiveLoss() if config.loss == "contrastive" else MultiSimilarityLoss()
        self.classes: nn.Module | None = None
        if config.has_class_vectors:
            with seeded_init(config.seed + 4):  # so that the network's own initial weights do not change
                of_classes = ProxyAnchorLoss if config.loss == "proxy-anchor" else NormalizedSoftmaxLoss
                self.classes = of_classes(data.num_old_classes, self.network.embed_dim)
        self.memory: MemoryBank | None = None
        self.slow: EMATeacher | None = None
        if config.memory != "none":
            images = data.num_samples if self.clusters is not None else int((data.labels >= 0).sum())
            size = config.memory_size or max(images, config.batch_size)
            self.memory = MemoryBank(size, self.network.embed_dim)
            of_memory = {"contrastive": MemoryContrastiveLoss, "contrastive-bayesian": ContrastiveBayesianLoss}
            self.memory_loss = of_memory[config.memory_loss]()
            if config.memory == "momentum":
                self.slow = EMATeacher(self.network, MEMORY_DECAY)
        own = ("clusters.", "labels", "memory.")
        self.equal_buffers = tuple(name for name, _ in self.named_buffers() if name.startswith(own))
        self._warned: set[str] = set()  # kinds of assembly warnings shown so far

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the single training phase: one augmented view, in batches of same-class or same-cluster groups."""
        if self.clusters is not None:
            self.clusters.rows = rows
        sampler = self.group_sampler(rows, None if self.clusters is not None else self.data.labels)
        view = train_view(self.config, self.data, self.network.input_spec.size)
        return (Phase(self.config.epochs, (view,), sampler),)

    def on_train_start(self, state: TrainState) -> None:
        """Warn if many classes have only one image, which a batch would have to repeat."""
        counts = np.bincount(self.data.labels[self.data.labels >= 0])
        share = float((counts[counts > 0] == 1).mean()) if (counts > 0).any() else 0.0
        if self.clusters is None and share > MANY_LONE:
            shown = percent(share)
            state.warn(f"{shown}% of the classes have only one image, which is repeated as its only positive")

    def on_epoch_start(self, state: TrainState) -> None:
        """Cluster the images if due, and update the sampler with the current clusters."""
        if self.clusters is None:
            return
        if self.clusters.is_due(state.epoch):
            update_pseudo_labels(self.clusters, self.network, self.config, state)
            if self.memory is not None:
                writer = self.network if self.slow is None else self.slow
                keys = state.full_pass(lambda images: writer(images).embeddings, self.clusters.rows)
                self.memory.refill(keys, torch.from_numpy(self.clusters.rows))
        assert self._sampler is not None
        self._sampler.relabel(self.clusters.cluster_ids.cpu().numpy())

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute all losses for the whole batch, gathered from all processes."""
        config, state = self.config, self.state
        output = self.network(batch.images)
        embeddings, rows = gather_batch(output.embeddings), gather_batch(batch.sample_index)
        labels = self._labels_of(rows)
        logs: dict[str, Tensor] = {}
        loss = self.pairs(embeddings, labels) if self.classes is None else self.classes(embeddings, labels)
        logs[config.loss] = loss.detach()
        if self.memory is not None:
            keys = embeddings if self.slow is None else gather_batch(self.slow(batch.images).embeddings)
            kept, kept_rows, own = self.memory.enqueue(keys, rows)
            if self.clusters is not None or state.epoch >= MEMORY_START_EPOCH:
                remembered = self.memory_loss(embeddings, labels, kept, self._labels_of(kept_rows), own)
                loss = loss + remembered
                logs["memory"] = remembered.detach()
        if output.assembly is not None:
            assert self.network.assembly is not None
            terms = assembly_terms(config, output.assembly)
            strength = compute_term_weight(config, state.step / (config.epochs * state.steps_per_epoch))
            loss = loss + strength * weighted_assembly_loss(config, terms, self.network.assembly)
            logs |= {name: term.detach() for name, term in terms.items()}
        return StepOutput(loss, logs)

    def on_step_end(self, state: TrainState) -> None:
        """Update the EMA network."""
        if self.slow is not None:
            self.slow.update(self.network)

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """Return statistics of how the assembly moves features of unaugmented training images; warn if it does nothing.

        ``diagonal``: mean share that stays in place; ``sources``: 2 to the power of the mean column entropy, effective
        number of inputs per output; ``row_error``: maximum deviation of a row sum from 1; ``entropy``, ``correlation``,
        ``coherence``: the loss terms; ``move``: mean distance in cells to the output with the largest weight;
        ``effect``: mean distance between embeddings with and without assembly; ``variance``: variance of the weights
        over images, summed over outputs and averaged over inputs.
        """
        config, network = self.config, self.network
        if network.assembly is None or (
            (state.epoch + 1) % config.eval_every_epochs and state.epoch + 1 < config.epochs
        ):
            return {}
        count = min(NUM_DIAGNOSTIC_IMAGES, len(self._rows))
        generator = keyed_generator(config.seed, "assembly diagnostics")
        chosen = np.sort(generator.choice(self._rows, count, replace=False))
        table = state.full_pass(lambda images: _assembly_diagnostics(network, images), chosen)
        found = dict(zip(_SCALARS, table[:, : len(_SCALARS)].double().mean(0).tolist(), strict=True))
        found["sources"] = float(2 ** table[:, 1].double().mean())
        found["row_error"] = float(table[:, 2].max())
        n = network.assembly.grid[0] * network.assembly.grid[1]
        weights = table[:, len(_SCALARS) :].reshape(count, n, n)
        found["variance"] = float(weights.var(0, unbiased=False).sum(1).mean())
        for kind, text in _assembly_warnings(found).items():
            if kind not in self._warned:
                self._warned.add(kind)
                state.warn(f"{text}")
        return {f"assembly/{name}": value for name, value in found.items()}

    def groupings(self) -> Mapping[str, Tensor]:
        """Return the cluster ids, keyed by name, if clusters are used."""
        return {} if self.clusters is None else {"clusters": self.clusters.cluster_ids}

    def reuse_frozen(self) -> ReusablePart:
        """Enable caching of the frozen stages' outputs, which the EMA network shares."""
        if self.slow is not None:
            slow: Any = self.slow.module
            slow.backbone.reuse_frozen()
        return super().reuse_frozen()

    def parameter_groups(self) -> Iterator[dict[str, Any]]:
        """Yield parameter groups with their learning rates; weight decay would freeze the predictor, so it has none."""
        config = self.config
        yield from super().parameter_groups()
        if self.network.assembly is not None:
            predictor = list(self.network.assembly.parameters())
            yield {"params": predictor, "weight_decay": 0.0, "lr_scale": config.san_lr_scale}
        if self.classes is not None:
            vectors = list(self.classes.parameters())
            yield {"params": vectors, "weight_decay": config.weight_decay, "lr_scale": config.proxy_lr_scale}

    def _labels_of(self, rows: Tensor) -> Tensor:
        """Return the current classes or clusters of dataset rows."""
        return (self.labels if self.clusters is None else self.clusters.cluster_ids)[rows]


def _assembly_diagnostics(network: MetricNetwork, images: Tensor) -> Tensor:
    """Return each image's diagnostics followed by its assembly weights, (b, 8 + n n)."""
    output = network(images)
    with network.without_assembly():
        still = network(images)
    seen = output.assembly
    weights, (height, width) = seen.weights, seen.grid
    n = height * width
    entropy, correlation = normalized_entropy_and_correlation(weights, seen.log_weights)
    coherence = assembly_coherence(weights, seen.maps)
    columns = torch.special.entr(weights).sum(1).mean(1) / np.log(2)
    place = torch.arange(n, device=weights.device)
    best = weights.argmax(2)
    way = ((best // width - place // width) ** 2 + (best % width - place % width) ** 2).float().sqrt().mean(1)
    numbers = [
        weights.diagonal(dim1=1, dim2=2).mean(1),
        columns,
        (weights.sum(2) - 1).abs().amax(1),
        entropy,
        correlation,
        coherence,
        way,
        (output.embeddings - still.embeddings).norm(dim=1),
    ]
    return torch.cat([torch.stack(numbers, 1), weights.flatten(1)], dim=1)


def _assembly_warnings(found: Mapping[str, float]) -> dict[str, str]:
    texts = {}
    if found["diagonal"] > INACTIVE_DIAGONAL or found["effect"] < INACTIVE_EFFECT:
        texts["inactive"] = (
            f"the assembly has almost no effect ({percent(found['diagonal'])}% stays in place, embeddings move by "
            f"{found['effect']:.2g}): lower the weights of its loss terms or --san-diagonal"
        )
    if found["variance"] < STATIC_VARIANCE:
        texts["static"] = (
            f"the assembly is nearly the same for all images (variance {found['variance']:.1g}): raise --san-lr-scale "
            "or lower --san-diagonal"
        )
    if found["row_error"] > UNEVEN_ROWS:
        texts["rows"] = f"assembly rows deviate from a sum of 1 by {found['row_error']:.2g}: lower --san-lr-scale"
    return texts
