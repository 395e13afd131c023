"""LMCS's master: three frozen versions of a student, combined at one layer by trained converters.

Source: the dissertation "Deep Learning with Very Few and No Labels", Sec. 3.3.2. After each block of updates:
    1. copy and freeze the student, the student of the previous block and the EMA
    2. start from the mean of their features, followed by the EMA's last layers
    3. train converters and last layers:  J_M = J_X + lambda (J_C + eta J_D)                       Eq. 3.5 to 3.7
    4. keep an EMA of the trained weights, with recomputed batch norm statistics; freeze it
Random numbers are keyed by the block, so that masters do not change the student's random numbers.
Departures: the source specifies neither the layer nor the form of the converters: here, a linear map over channels,
shared by all positions, before the last stage or at the pooling layer. J_X, the cross-entropy on mixed labeled images,
is ours, since Eq. 3.7 has no label term; J_D has the opposite direction of the printed one; eta, which is not
specified, makes J_D half of J_C at the start; the master's optimizer and number of updates are ours.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Final, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import one_hot

from labelkit.algorithms.clustering import kmeans
from labelkit.algorithms.precision import promote, without_autocast
from labelkit.data.batch import Batch, draw_blending_plan
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.samplers import ImageStream, StreamSampler
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import ConfigError
from labelkit.methods.few_labels.losses import MixMatchLoss, SquaredConsistencyLoss
from labelkit.methods.few_labels.mixmatch import MIXUP_ALPHA
from labelkit.methods.few_labels.options import LMCSConfig
from labelkit.methods.few_labels.recipe import StudentNetwork, recalibrate_bn
from labelkit.models.backbones.staged_network import StagedNetwork
from labelkit.models.batch_norm import use_batch_statistics
from labelkit.models.ema import EMATeacher, copy_for_ema, ema_update
from labelkit.models.inference import InferenceNetwork
from labelkit.training.method import PassSettings, Phase, TrainState
from labelkit.training.schedules import ema_decay_schedule, max_ema_decay

#: Learning rate of Adam, and EMA decay of the trained weights (the decay is published, the rate is not).
MASTER_LR: Final = 1e-3
MASTER_DECAY: Final = 0.99
ETA_BATCHES: Final = 10
ETA_LIMITS: Final = (1e-4, 1e-1)
MAX_CENTROID_IMAGES: Final = 10_000
# the views of a master's images are drawn separately from those of the student's epochs
_EPOCH_OFFSET: Final = 1 << 20

ComposeAt = Literal["last-stage", "pool"]


class DiscriminationLoss(nn.Module):
    r"""Mean ratio of the squared distances :math:`d_0 \le d_1` from features to their two nearest centroids.

    .. math:: L = \overline{d_0^2 / (d_1^2 + 10^{-12})}

    In [0, 1]: 0 at a centroid, 1 midway between two; independent of the scale of the features. Eq. 3.6 as printed, the
    mean of :math:`(d_0 - d_1)^2`, is 0 midway between two centroids, so that minimizing it moves features there,
    the opposite of what its text describes.

    Shape:
        - features: ``(b, d)`` float; receives gradients.
        - centroids: ``(k, d)`` float, distinct; no gradient.
        - returns: ``()`` float32 (float64 is preserved); 0, still differentiable, without rows.

    Raises:
        ValueError: there are fewer than two centroids, or shapes do not match.
    """

    def forward(self, features: Tensor, centroids: Tensor) -> Tensor:
        """Return the mean ratio over the batch."""
        if centroids.ndim != 2 or len(centroids) < 2 or features.ndim != 2 or features.shape[1] != centroids.shape[1]:
            raise ValueError(
                f"features must have shape (b, d) and centroids (k, d) with k >= 2, got {tuple(features.shape)} and "
                f"{tuple(centroids.shape)}"
            )
        with without_autocast(features):
            features = promote(features)
            squares = (features[:, None, :] - centroids.detach().to(features.dtype)[None]).square().sum(-1)
            near, far = squares.topk(2, dim=1, largest=False).values.unbind(1)
            return (near / (far + 1e-12)).sum() / max(len(near), 1)


class Composition(nn.Module):
    """Trainable part of LMCS's master: three converters whose outputs are summed and fed to the last layers.

    Attributes:
        converters: three linear maps over channels; initially, their sum is the mean of the three inputs.
        decision: maps the combined maps to features, from the student's last stage; the identity at the pool.
        head: maps features to logits.
    """

    def __init__(self, student: StudentNetwork, at: ComposeAt) -> None:
        super().__init__()
        self.at = at
        self.head = copy_for_ema(student.head)
        if at == "pool":
            self.decision: nn.Module = nn.Identity()
            width = student.embed_dim
            self.converters = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        else:
            self.decision = copy_for_ema(_get_staged_network(student).stages[-1])
            width = next(layer for layer in self.decision.modules() if isinstance(layer, nn.Conv2d)).in_channels
            self.converters = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(3))
        self.requires_grad_(False)
        self.initialize_composition(student)

    @torch.no_grad()
    def initialize_composition(self, network: StudentNetwork) -> None:
        """Initialize the converters so that they average their inputs, and copy the last layers from ``network``."""
        for converter in self.converters:
            weight, bias = converter.parameters()
            weight.copy_((torch.eye(len(weight)) / 3).reshape(weight.shape))
            bias.zero_()
        self.head.load_state_dict(network.head.state_dict())
        if self.at == "last-stage":
            self.decision.load_state_dict(_get_staged_network(network).stages[-1].state_dict())

    def forward(self, inputs: Sequence[Tensor]) -> Tensor:
        """Map the outputs of the three networks at the composition layer to features (b, d)."""
        joined = torch.stack([convert(maps) for convert, maps in zip(self.converters, inputs, strict=True)]).sum(0)
        features: Tensor = self.decision(joined)
        return features.mean(dim=(2, 3)) if self.at == "last-stage" else features


class ComposedNetwork(InferenceNetwork):
    """LMCS's master network, which combines the current, previous and averaged student at one layer.

    It stays in evaluation mode, except for the composition while it is being trained.

    Attributes:
        current, previous, averaged: frozen networks in evaluation mode, copies of the student at first.
        composition: the trained part.

    Raises:
        ConfigError: the backbone cannot be cut before its last stage.
    """

    def __init__(self, student: StudentNetwork, at: ComposeAt) -> None:
        super().__init__()
        if at == "last-stage" and not isinstance(student.backbone.net, StagedNetwork):
            problem = f"{student.backbone.info.name} cannot be split before its last stage"
            others = "convnet13, resnet26_shake, wrn28_2, wrn16_2, wrn10_1"
            raise ConfigError("--compose-at", problem, f"Use --compose-at pool, or one of the backbones {others}.")
        self.at = at
        self.current, self.previous, self.averaged = (copy_for_ema(student) for _ in range(3))
        self.composition = Composition(student, at)
        self.input_spec, self.embed_dim = student.input_spec, student.embed_dim
        self.num_outputs = student.num_outputs
        self.train(False)

    def train(self, mode: bool = True) -> Self:
        """Keep evaluation mode, whatever ``mode`` is; only the composition is ever switched to training mode."""
        del mode
        return super().train(False)

    @property
    def identity(self) -> dict[str, str]:
        """Return the student's identity, with ``composition`` as the layer."""
        return {**self.current.identity, "layer": "composition"}

    @torch.no_grad()
    def composition_inputs(self, images: Tensor) -> tuple[Tensor, ...]:
        """Compute the outputs of the three networks at the composition layer."""
        networks = (self.current, self.previous, self.averaged)
        if self.at == "pool":
            return tuple(network.embed(images) for network in networks)
        return tuple(_get_staged_network(network).run_early_stages(images) for network in networks)

    @torch.no_grad()
    def averaged_logits(self, inputs: Sequence[Tensor]) -> Tensor:
        """Compute the averaged network's own logits from its output at the composition layer."""
        features = inputs[2] if self.at == "pool" else _get_staged_network(self.averaged).run_last_stage(inputs[2])
        return self.averaged.classify(features)

    def embed(self, images: Tensor) -> Tensor:
        """Return the master's features (b, d), with gradients flowing to the composition."""
        return self.composition(self.composition_inputs(images))

    def classify(self, embeddings: Tensor) -> Tensor:
        """Return the logits (b, c) of embeddings (b, d)."""
        return self.composition.head(embeddings)


def _get_staged_network(network: StudentNetwork) -> StagedNetwork:
    net = network.backbone.net
    assert isinstance(net, StagedNetwork)
    return net


class MasterTrainer:
    """Trainer of the master network after a block of updates; ``state.epoch`` is the number of the block.

    Args:
        master: updated in place with new networks and weights.
        config: training options.
        labels: (n,) int64 training labels, given and discovered, -1 = none.
        rows: (m,) readable images.
        view: augmentation of the images.
        state: training state.
    """

    def __init__(
        self,
        master: ComposedNetwork,
        config: LMCSConfig,
        labels: NDArray[np.int64],
        rows: NDArray[np.int64],
        view: ViewSpec,
        state: TrainState,
    ) -> None:
        self.master, self.config, self.labels, self.rows, self.view = master, config, labels, rows, view
        self.state, self.block = state, state.epoch
        self.steps = config.master_steps or max(1, config.steps_per_block // 10)
        high = max_ema_decay(self.steps, MASTER_DECAY)
        self.decay = ema_decay_schedule(high, high, 0)
        self._consistency, self._label_loss = SquaredConsistencyLoss(), MixMatchLoss()
        self._discrimination = None if config.discrimination == "none" else DiscriminationLoss()
        self._centroids: Tensor | None = None

    def run(self, student: StudentNetwork, teacher: StudentNetwork, *, is_first: bool) -> dict[str, float]:
        """Build the master from the student and its EMA after the block, and train it.

        Both must have batch norm statistics for evaluation. For the ``is_first`` master, both students are the same.

        Returns:
            Means of J_X (``cross_entropy``), J_C (``agreement``) and J_D (``discrimination``) over the last quarter of
            the updates; and ``eta``.
        """
        master, steps = self.master, self.steps
        master.previous.load_state_dict((student if is_first else master.current).state_dict())
        master.current.load_state_dict(student.state_dict())
        master.averaged.load_state_dict(teacher.state_dict())
        master.composition.initialize_composition(master.averaged)
        device = next(master.parameters()).device
        composition, generator = master.composition, self.state.generator("lmcs/master")
        sums = torch.zeros(4, device=device)
        self._recompute_centroids(generator)
        eta = self._compute_eta()
        composition.requires_grad_(True)
        shadow = copy_for_ema(composition)
        optimizer = torch.optim.Adam(composition.parameters(), lr=MASTER_LR)
        last_quarter = steps - max(1, steps // 4)
        for step, batch in enumerate(self.batches()):
            if step and step % max(1, steps // 4) == 0:
                self._recompute_centroids(generator)
            # dropout and shake draw from the global generator, which the trainer reseeds before each update
            composition.train()
            parts = self.losses(batch, step)
            composition.eval()
            total = parts[0] + self.config.unlabeled_weight * (parts[1] + eta * parts[2])
            optimizer.zero_grad()
            total.backward()  # type: ignore[no-untyped-call] # torch has no types
            self.state.average_gradients(composition.parameters())
            optimizer.step()
            ema_update(shadow, composition, self.decay(step + 1), buffers="copy")
            if step >= last_quarter:
                sums += torch.stack([*(part.detach() for part in parts), torch.ones((), device=device)])
        composition.requires_grad_(False)
        composition.load_state_dict(shadow.state_dict())
        recalibrate_bn(master, self.state, self.rows, part=composition)
        means = dict(zip(("cross_entropy", "agreement", "discrimination"), (sums / sums[3]).tolist(), strict=False))
        return {**means, "eta": eta}

    @property
    def _unlabeled(self) -> NDArray[np.int64]:
        return self.rows[self.labels[self.rows] < 0]

    def batches(self) -> Iterator[Batch]:
        """Return the master's training batches, identical at every call."""
        config, unlabeled = self.config, self._unlabeled
        per_batch = config.labeled_batch_size if len(unlabeled) else config.batch_size
        streams = [
            ImageStream("master labeled", self.rows[self.labels[self.rows] >= 0], per_batch),
            ImageStream("master unlabeled", unlabeled, config.batch_size - per_batch),
        ]
        sampler = StreamSampler(streams, steps=self.steps, seed=config.seed, phase=self.block)
        return self.state.batches(Phase(1, (self.view,), sampler, labels=self.labels), _EPOCH_OFFSET + self.block)

    def losses(self, batch: Batch, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Compute the loss terms J_X, J_C and J_D of a batch; disabled terms are 0."""
        master, images, labels = self.master, batch.images, batch.labels
        labeled = labels >= 0
        count = int(labeled.sum())
        targets = one_hot(labels[labeled], master.num_outputs).float()
        generator = keyed_generator(self.config.seed, "lmcs/master mixup", self.block * self.steps + step)
        shares = draw_blending_plan(count, MIXUP_ALPHA, generator, images.device)
        inputs = master.composition_inputs(torch.cat([shares.blend(images[labeled]), images[~labeled]]))
        features = master.composition(inputs)
        logits = master.classify(features)
        cross_entropy, _ = self._label_loss(logits[:count], shares.blend(targets), count)
        agreement = discrimination = logits.sum() * 0
        if len(logits) > count:
            teacher = master.averaged_logits(tuple(maps[count:] for maps in inputs))
            agreement = self._consistency(logits[count:], teacher).mean()
            if self._discrimination is not None and self._centroids is not None and len(self._centroids) > 1:
                discrimination = self._discrimination(features[count:], self._centroids)
        return cross_entropy, agreement, discrimination

    @torch.no_grad()
    def _compute_eta(self) -> float:
        """Return the weight that makes J_D half of J_C before the first update, within ``ETA_LIMITS``."""
        if self._discrimination is None:
            return 0.0
        sums = torch.zeros(2)
        with use_batch_statistics(self.master.composition):
            for step, batch in enumerate(self.batches()):
                if step == ETA_BATCHES:
                    break
                _, agreement, discrimination = self.losses(batch, step)
                sums += torch.stack([agreement, discrimination]).cpu()
        agreement, discrimination = self.state.combine(sums, "sum").tolist()
        if discrimination <= 0:
            return ETA_LIMITS[0]
        return float(np.clip(0.5 * agreement / discrimination, *ETA_LIMITS))

    def _recompute_centroids(self, generator: np.random.Generator) -> None:
        """Cluster the master's features of unlabeled images into as many clusters as there are classes."""
        rows = self._unlabeled
        if self._discrimination is None or not len(rows):
            return
        if len(rows) > MAX_CENTROID_IMAGES:
            rows = np.sort(keyed_generator(self.config.seed, "lmcs/centroids").permutation(rows)[:MAX_CENTROID_IMAGES])
        composition, is_trained = self.master.composition, self._centroids is not None

        def embed_for_clustering(images: Tensor) -> Tensor:
            # training compares features computed with batch statistics
            with use_batch_statistics(composition) if is_trained else nullcontext():
                return self.master.embed(images)

        features = self.state.full_pass(embed_for_clustering, rows, PassSettings(order="fixed"))
        wanted = min(self.master.num_outputs, len(rows))
        centroids = torch.zeros(wanted, features.shape[1])
        if self.state.is_main:  # on all processes, identical runs would compete for the same CPU
            found = kmeans(features.numpy(), wanted, generator=generator, num_inits=1, max_iter=20)
            centroids = torch.from_numpy(np.asarray(found.centroids, dtype=np.float32))
        places = torch.from_numpy(np.unique(self.state.combine(centroids, "sum").numpy(), axis=0))
        if len(places) < 2:
            self.state.warn("the master's features form a single cluster, so they cannot be separated")
        self._centroids = places.to(next(self.master.parameters()).device)


class GuideNetwork(nn.Module):
    """Frozen network that guides the student during a block: the last master or a copy of the student's EMA.

    It is ready (``is_ready``) after the first block.
    """

    def __init__(self, config: LMCSConfig, student: StudentNetwork) -> None:
        super().__init__()
        self.master = ComposedNetwork(student, config.compose_at) if config.guide == "composed" else None
        self.snapshot = EMATeacher(student, 0.0) if config.guide == "average" else None
        self.is_ready = False

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """Return the guide's logits (b, k) for images (b, c, h, w)."""
        network = self.master if self.snapshot is None else self.snapshot.module
        assert isinstance(network, InferenceNetwork)
        return network.classify(network.embed(images))
