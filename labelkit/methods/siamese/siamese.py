"""Siamese learning: make the outputs for two views of an image similar, with a loss that prevents collapse.

Sources, by ``--loss``:
    simclr: T. Chen et al., "A Simple Framework for Contrastive Learning of Visual Representations" (ICML 2020)
    barlow-twins: J. Zbontar et al., "Barlow Twins: Self-Supervised Learning via Redundancy Reduction" (ICML 2021)
    moco: K. He et al., "Momentum Contrast for Unsupervised Visual Representation Learning" (CVPR 2020)
    simsiam: X. Chen, K. He, "Exploring Simple Siamese Representation Learning" (CVPR 2021)
Each step, on two views of every image:
    1. backbone and projection, one view after the other                                    2 x (b, p)
    2. the loss; for moco, against projections by an EMA of the network and a queue of earlier ones
    3. moco: update the EMA network; its projections of this batch replace the oldest in the queue
Departures: moco uses each view as the query once and stores the keys of both (the paper: one query, one key); it does
not shuffle images across processes, since batch normalization is computed per process here.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.algorithms.temperature import TemperatureLoss
from labelkit.data.batch import Batch, DataInfo
from labelkit.data.samplers import UniformSampler
from labelkit.data.views.recipes import sela_view, siamese_views
from labelkit.data.views.spec import ViewSpec
from labelkit.losses.contrastive import InfoNCELoss
from labelkit.methods.backbone import RepresentationMethod, backbone_options
from labelkit.methods.siamese.options import SiameseConfig
from labelkit.models.ema import copy_for_ema, ema_update
from labelkit.models.inference import BackboneNetwork
from labelkit.models.seeding import seeded_init
from labelkit.training.distributed import gather_batch
from labelkit.training.method import Phase, StepOutput, TrainState

_TINY = 1e-5


class BarlowTwinsLoss(nn.Module):
    r"""Barlow Twins loss: distance between the cross-correlation matrix of two views and the identity matrix.

    .. math:: L = s \left(\sum_i (1 - C_{ii})^2 + \lambda \sum_{i \ne j} C_{ij}^2\right),
        \quad C = \hat A^\top \hat B / b

    with the projections of both views centered and divided by their standard deviation over the batch. >= 0; 0 for
    equal views with uncorrelated dimensions, s d for independent views (in expectation, with large b and a small
    weight).

    Args:
        redundancy_weight: :math:`\lambda \ge 0`.
        scale: :math:`s > 0`, factor of the loss, whose sum over all pairs of dimensions is too large for plain SGD.

    Shape:
        - first, second: ``(b, d)`` float; row i of both is image i. Gradients reach both.
        - returns: ``()`` float32 (float64 is preserved). Dimensions that are constant in the batch have correlation 0.

    Raises:
        ValueError: the shapes differ.

    Source:
        J. Zbontar et al., "Barlow Twins" (ICML 2021), Eq. 1 and 2; its released code has s = 0.024. Variances divide by
        b and add 1e-5, as in the batch normalization of its code.
    """

    def __init__(self, redundancy_weight: float, scale: float = 1.0) -> None:
        super().__init__()
        self.redundancy_weight = redundancy_weight
        self.scale = scale

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the scaled loss, summed over all entries of the correlation matrix."""
        _check_pair(first, second)
        with without_autocast(first):
            correlations = _standardize(first).T @ _standardize(second) / max(len(first), 1)
            diagonal = correlations.diagonal()
            redundancy = correlations.square().sum() - diagonal.square().sum()
            return self.scale * ((1 - diagonal).square().sum() + self.redundancy_weight * redundancy)


class SimSiamLoss(nn.Module):
    r"""SimSiam loss: negative cosine between the prediction from each view and the projection of the other.

    .. math:: L = -\frac{1}{2b} \sum_i \cos(p_i, \mathrm{sg}(z'_i)) + \cos(p'_i, \mathrm{sg}(z_i))

    with predictions p and projections z of two views. In [-1, 1]; -1 when all predictions are exact.

    Shape:
        - predictions: two ``(b, d)`` float tensors of any norm, which receive gradients.
        - projections: two ``(b, d)`` tensors, likewise; no gradient.
        - returns: ``()`` float32 (float64 is preserved).

    Raises:
        ValueError: the shapes differ.

    Source:
        X. Chen, K. He, "Exploring Simple Siamese Representation Learning" (CVPR 2021), Eq. 1 and 2.
    """

    def forward(self, predictions: tuple[Tensor, Tensor], projections: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean loss over both directions."""
        cosines = []
        for prediction, target in zip(predictions, reversed(projections), strict=True):
            _check_pair(prediction, target)
            with without_autocast(prediction):
                cosines.append(F.cosine_similarity(promote(prediction), promote(target.detach()), dim=1).mean())
        return -(cosines[0] + cosines[1]) / 2


class QueueContrastLoss(TemperatureLoss):
    r"""MoCo's contrastive loss, which compares a query view with its key and with a queue of earlier keys.

    .. math:: L = -\frac{1}{b} \sum_i \log \frac{\exp(q_i \cdot k_i / \tau)}
        {\exp(q_i \cdot k_i / \tau) + \sum_j \exp(q_i \cdot n_j / \tau)}

    with unit queries q, keys k and earlier keys n. In nats, > 0; equal to log(m + 1) when all similarities are equal.

    Args:
        temperature: :math:`\tau > 0`.

    Shape:
        - queries: ``(b, d)`` float of any norm, the only input that receives gradients.
        - keys: ``(b, d)``, likewise; row i is the other view of query i.
        - queue: ``(m, d)``, likewise.
        - returns: ``()`` float32 (float64 is preserved).

    Raises:
        ValueError: the temperature is not positive, or the shapes differ.

    Source:
        K. He et al., "Momentum Contrast" (CVPR 2020), Eq. 1.
    """

    def forward(self, queries: Tensor, keys: Tensor, queue: Tensor) -> Tensor:
        """Return the mean loss over the queries."""
        _check_pair(queries, keys)
        with without_autocast(queries):
            q, k, n = (F.normalize(promote(rows), dim=1) for rows in (queries, keys.detach(), queue.detach()))
            logits = torch.cat([(q * k).sum(1, keepdim=True), q @ n.T], dim=1) / self.temperature  # (b, 1 + m)
            return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.int64, device=q.device))


def _standardize(rows: Tensor) -> Tensor:
    moved = promote(rows) - promote(rows).mean(0)
    return moved / (moved.square().mean(0) + _TINY).sqrt()


def _check_pair(first: Tensor, second: Tensor) -> None:
    if first.ndim != 2 or first.shape != second.shape:
        raise ValueError(f"views must have the same shape (b, d), got {tuple(first.shape)} and {tuple(second.shape)}")


class SiameseNetwork(BackboneNetwork):
    """Backbone with a projector and, for SimSiam, a predictor; the loss determines which layers are normalized."""

    crops = False

    def __init__(self, config: SiameseConfig, data: DataInfo) -> None:
        super().__init__(config.backbone, seed=config.seed, **backbone_options(config, data))
        width, normalize = config.projector_widths[-1], config.loss in ("barlow-twins", "simsiam")
        with seeded_init(config.seed + 1):
            layers = _build_layers((self.backbone.info.feature_dim, *config.projector_widths), normalize=normalize)
            if config.loss == "simsiam":
                layers.append(nn.BatchNorm1d(width, affine=False))
            self.projector = nn.Sequential(*layers)
            self.predictor: nn.Module | None = None
            if config.loss == "simsiam":
                self.predictor = nn.Sequential(*_build_layers((width, config.predictor_dim, width), normalize=True))

    def project(self, images: Tensor) -> Tensor:
        """Map one view (b, c, h, w) to projections (b, p)."""
        return self.projector(self.embed(images))

    def predict(self, projections: Tensor) -> Tensor:
        """Predict the projections (b, p) of the other view from those of one view."""
        assert self.predictor is not None
        return self.predictor(projections)


def _build_layers(widths: Sequence[int], *, normalize: bool) -> list[nn.Module]:
    """Build linear layers separated by ReLU and, optionally, batch norm, which makes their biases redundant."""
    made: list[nn.Module] = []
    for number, (given, width) in enumerate(pairwise(widths)):
        if number:
            made += [nn.BatchNorm1d(given), nn.ReLU()] if normalize else [nn.ReLU()]
        is_last = number == len(widths) - 2
        made.append(nn.Linear(given, width, bias=is_last or not normalize))
    return made


class Siamese(RepresentationMethod[SiameseConfig]):
    """Siamese training method: self-supervised learning from two views with one of four losses."""

    network: SiameseNetwork
    decays_all = True
    equal_buffers = ("queue", "oldest")

    def __init__(self, config: SiameseConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        self.network = SiameseNetwork(config, data)
        self.contrast = InfoNCELoss(config.temperature)
        self.redundancy = BarlowTwinsLoss(config.redundancy_weight, config.loss_scale)
        self.prediction = SimSiamLoss()
        self.queue_contrast = QueueContrastLoss(config.temperature)
        is_moco = config.loss == "moco"
        self.slow = copy_for_ema(self.network) if is_moco else None
        generator = torch.Generator().manual_seed(config.seed)
        shape = (config.queue_size if is_moco else 0, config.projector_widths[-1])
        self.queue: Tensor = nn.Buffer(F.normalize(torch.randn(shape, generator=generator), dim=1))
        self.oldest: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self._newest: list[Tensor] = []

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the single training phase, with two views of every image per epoch."""
        return (Phase(self.config.epochs, self._views(), UniformSampler(rows, seed=self.config.seed)),)

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the loss selected by the options."""
        first, second = batch.views[0], batch.views[1]
        projections = self.network.project(first), self.network.project(second)
        if self.config.loss == "simclr":
            return StepOutput(self.contrast(torch.cat([gather_batch(view) for view in projections])))
        if self.config.loss == "barlow-twins":
            return StepOutput(self.redundancy(gather_batch(projections[0]), gather_batch(projections[1])))
        if self.config.loss == "simsiam":
            predictions = self.network.predict(projections[0]), self.network.predict(projections[1])
            return StepOutput(self.prediction(predictions, projections))
        return StepOutput(self._queue_loss(projections, (first, second)))

    def _queue_loss(self, projections: tuple[Tensor, Tensor], views: tuple[Tensor, Tensor]) -> Tensor:
        """Return the mean loss with both views as queries, and store the keys."""
        assert self.slow is not None
        with torch.no_grad():
            keys = [F.normalize(self.slow.project(view).float(), dim=1) for view in views]
        self._newest += keys
        losses = [
            self.queue_contrast(queries, other, self.queue)
            for queries, other in zip(projections, reversed(keys), strict=True)
        ]
        return (losses[0] + losses[1]) / 2

    @torch.no_grad()
    def on_step_end(self, state: TrainState) -> None:
        """Update the EMA network and replace the oldest projections in the queue."""
        if self.slow is None:
            return
        ema_update(self.slow, self.network, self.config.ema_decay, buffers="counters")
        newest = torch.cat([gather_batch(keys) for keys in self._newest])[-len(self.queue) :]
        self._newest = []
        places = (self.oldest + torch.arange(len(newest), device=newest.device)) % len(self.queue)
        self.queue[places] = newest
        self.oldest.copy_((self.oldest + len(newest)) % len(self.queue))

    def on_backbone_loaded(self) -> None:
        """Copy the loaded weights to the EMA network."""
        if self.slow is not None:
            self.slow.load_state_dict(self.network.state_dict())

    def _views(self) -> tuple[ViewSpec, ViewSpec]:
        config, size = self.config, self.network.input_spec.size
        if config.augmentation == "digits":
            view = sela_view(size, "digits", chiral=self.data.chiral)
            return view, view
        return siamese_views(
            size,
            crop=config.crop,
            scale=config.crop_scale,
            flip=0.0 if self.data.chiral else config.flip_prob,
            jitter=config.jitter_prob if self.data.photographic else 0.0,
            gray=config.gray_prob if self.data.photographic else 0.0,
            blur=config.blur_prob,
        )
