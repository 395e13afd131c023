"""DL2PA: classification with fixed prototypes, whose assignment to classes is re-optimized during training.

Source: "Hyperspherical Classification with Dynamic Label-to-Prototype Assignment" (CVPR 2024) and its released code.
    1. one unit prototype per class, spread over the sphere                      Eq. 5
    2. each step: pull each image's embedding toward the prototype of its class   Eq. 6
    3. each step: update the mean direction of each class in the batch            Eq. 9
    4. at the start of each epoch but the first: assign classes to prototypes so as to maximize the sum of
       cosines between class means and prototypes                                 Eq. 10
    5. predict the class of the nearest prototype
Departures from the released code:
    - step 4 precedes an epoch instead of following its validation, so that the trained state is evaluated and saved
    - class means weight all images of a batch equally, start from their first batch instead of noise, and use both
      labels of a mixed image
    - class means are averaged with decay 0.9; the code adds a tenth of the new mean to 1.9 times the old one, an
      effective decay of 0.95
Departures from the paper:
    - prototypes without a closed form are sharpened until only the largest cosine counts; those of c <= 2 d classes may
      be exact opposites; neither minimizes Eq. 5, but ``--sharpest-t none`` does
    - the printed Eq. 7 is wrong and not used
Fig. 3b prints tau' as a ratio, iterations between assignments over iterations per epoch, but describes it as the number
of assignments per epoch, the inverse. We follow the description, since the text says that 10 costs more than 1:
tau' = 10 is ``--updates-per-epoch 10``, tau' = 0.1 is ``--updates-per-epoch 0.1``, once in ten epochs. By the printed
ratio, the two would be swapped.
The handling of ties and of classes without images, and the timing of assignments, are ours (specification 3.4).
Baselines are options: ``--no-reassign`` (fixed prototypes), ``--prototypes simplex --no-reassign`` (ETF), ``--loss
cross-entropy --no-reassign`` (CE on fixed prototypes), ``--prototypes-from RUN`` (those of a learned classifier),
``--prototypes hpn --no-reassign`` (HPN), ``--prototypes words --no-reassign`` (Word2Vec); the learned classifier is
``train softmax``.
"""

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.data.batch import Batch, DataInfo, MixedBatch
from labelkit.methods.prototypes.losses import InnerProductLoss, WeightedCrossEntropy
from labelkit.methods.prototypes.options import DL2PAConfig
from labelkit.methods.prototypes.recipe import SupervisedClassifierMethod
from labelkit.methods.prototypes.source import load_initial_prototypes
from labelkit.models.headed import ClassifierNetwork
from labelkit.training.method import StepOutput, TrainState

#: Sums of unit embeddings with a smaller norm have no direction.
_SMALLEST_SUM = 1e-8
#: Decay of the class means (alpha). The released code intends the same value, but its update amounts to 0.95.
MEAN_DECAY = 0.9
# An unseen class keeps its prototype unless a seen one gains more than this by taking it.
UNSEEN_PULL = 1e-3
# Minimum mean gain for which classes are reassigned; smaller gains count as ties.
SMALLEST_GAIN = 1e-6


class PrototypeHead(nn.Module):
    """Parameter-free head that scores embeddings by their cosines with fixed class prototypes.

    Args:
        num_classes: c.
        dim: d.

    Shape:
        - embeddings: ``(b, d)`` float of any norm.
        - returns: ``(b, c)`` float32 (float64 is preserved) in [-1, 1].

    Attributes:
        prototypes: (c, d) unit rows; zeros until they are set.
        assignment: (c,) int64, index of each class's prototype, all different.
        prices: (c,), unused, but contained in checkpoints of 0.1.0 and their digests.
        class_means: (c, d) mean directions of the classes during training; unit rows, zeros before the first image.
        seen: (c,) int64, number of images in each class mean.
    """

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.prototypes: Tensor = nn.Buffer(torch.zeros(num_classes, dim))
        self.assignment: Tensor = nn.Buffer(torch.arange(num_classes))
        self.prices: Tensor = nn.Buffer(torch.zeros(num_classes))
        self.class_means: Tensor = nn.Buffer(torch.zeros(num_classes, dim))
        self.seen: Tensor = nn.Buffer(torch.zeros(num_classes, dtype=torch.int64))

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the cosines (b, c) of embeddings (b, d) with the prototype of each class."""
        with without_autocast(embeddings):
            unit = F.normalize(promote(embeddings), dim=1, eps=_SMALLEST_SUM)
            return F.linear(unit, self.class_prototypes.to(unit.dtype))

    @property
    def class_prototypes(self) -> Tensor:
        """Return the prototypes (c, d) in class order."""
        return self.prototypes[self.assignment]

    @torch.no_grad()
    def update_means(
        self,
        embeddings: Tensor,
        labels: Tensor,
        weights: Tensor | None = None,
        *,
        combine: Callable[[Tensor], Tensor] = lambda value: value,
    ) -> None:
        """Move each class's mean direction toward the mean of the class in the batch.

        The order of the images does not matter. The mean of a class's first batch is used as is. Classes without
        images, or whose sum vanishes, do not change.

        Args:
            embeddings: (b, d) of any norm.
            labels: (b,) int64 in [0, c); with mixup, each image occurs twice.
            weights: (b,) weight of each image's label, > 0; ones by default.
            combine: sums a tensor over processes.
        """
        unit = F.normalize(embeddings.detach().float(), dim=1, eps=_SMALLEST_SUM)
        weights = torch.ones_like(unit[:, 0]) if weights is None else weights.float()
        dim = unit.shape[1]
        # sums and counts are exchanged together
        table = unit.new_zeros((len(self.assignment), dim + 1))
        table.index_add_(0, labels, torch.cat([weights[:, None] * unit, (weights > 0).float()[:, None]], dim=1))
        table = combine(table)
        sums, counts = table[:, :dim], table[:, dim].long()
        lengths = sums.norm(dim=1)
        moved = lengths >= _SMALLEST_SUM
        means = sums / lengths.clamp(min=_SMALLEST_SUM)[:, None]
        blended = F.normalize(MEAN_DECAY * self.class_means + (1 - MEAN_DECAY) * means, dim=1)
        means = torch.where((self.seen > 0)[:, None], blended, means)
        self.class_means.copy_(torch.where(moved[:, None], means, self.class_means))
        self.seen.add_(torch.where(moved, counts, torch.zeros_like(counts)))


class DL2PA(SupervisedClassifierMethod[DL2PAConfig]):
    """DL2PA training method: classification by fixed prototypes that are reassigned to classes."""

    network: ClassifierNetwork[PrototypeHead]

    def __init__(self, config: DL2PAConfig, data: DataInfo) -> None:
        super().__init__(config, data, PrototypeHead)
        self.equal_buffers = tuple(f"network.head.{name}" for name, _ in self.network.head.named_buffers())
        self.inner_product = InnerProductLoss(config.reduction)
        self.cross_entropy = WeightedCrossEntropy()
        self._scale = 1.0
        self._records: list[dict[str, float]] = []

    def on_train_start(self, state: TrainState) -> None:
        """Initialize the prototypes, unless they were loaded from another run."""
        head, config = self.network.head, self.config
        count, dim = head.prototypes.shape
        if not head.prototypes.any():
            names = [self.data.class_names[label] for label in self.data.class_order if self.data.class_names]
            head.prototypes.copy_(load_initial_prototypes(config, count, dim, state.warn, names))
        spread = config.prototypes in ("uniform", "simplex") and config.prototypes_from is None
        if config.reassign and dim >= count - 1 and spread:
            state.warn("all prototypes are equivalent (d >= classes - 1), so reassignment has no effect")

    def on_epoch_start(self, state: TrainState) -> None:
        """If the loss is a sum, scale it by the number of processes, since gradients are averaged over them."""
        if self.config.reduction == "sum":
            processes = state.combine(torch.ones(()), "sum")
            self._scale = float(processes)

    def on_step_start(self, state: TrainState) -> None:
        """Reassign classes to prototypes if due."""
        config = self.config
        if config.reassign and is_reassignment_due(state, config.updates_per_epoch):
            record = reassign_classes(self.network.head, state)
            self._records.append(record)
            state.log("assignment", record)

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the loss against the class prototypes, and update the class means."""
        mixed = self.mix_batch(batch)
        embeddings = self.network.embed(mixed.images)
        self._update_means(embeddings, mixed)
        weights = self.class_weights(mixed.labels)
        loss = self._loss(embeddings, mixed.labels, weights)
        if mixed.share < 1:
            loss = mixed.share * loss + (1 - mixed.share) * self._loss(embeddings, mixed.other_labels, weights)
        return StepOutput(self._scale * loss)

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """Return the epoch's assignment metrics: number of moved classes, mean cosine after the last reassignment."""
        records, self._records = self._records, []
        metrics = {"classes_without_image": float((self.network.head.seen == 0).sum())}
        if self.config.reassign:
            metrics["assignment/changed"] = float(sum(record["changed"] for record in records))
        if records:
            metrics["assignment/objective"] = records[-1]["objective"]
        return metrics

    def extra_state(self) -> dict[str, Any]:
        """Return the records of the current epoch's reassignments."""
        return {"records": self._records}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by ``extra_state``."""
        self._records = list(state["records"])

    def describe(self, metrics: Mapping[str, float]) -> list[str]:
        """Return how many classes moved to another prototype, for the progress line."""
        moved = metrics.get("assignment/changed")
        return [] if moved is None else [f"classes moved {int(moved)}"]

    def _loss(self, embeddings: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        own = None if weights is None else weights[labels]
        head = self.network.head
        if self.config.loss == "cross-entropy":
            with without_autocast(embeddings):  # half-precision cosines have only two digits
                logits = F.linear(promote(embeddings), head.class_prototypes)
            loss: Tensor = self.cross_entropy(logits, labels, own)
        else:
            loss = self.inner_product(embeddings, head.class_prototypes[labels], own)
        return loss

    def _update_means(self, embeddings: Tensor, mixed: MixedBatch) -> None:
        labels, shares, state = mixed.labels, None, self.state
        if mixed.share < 1:
            embeddings, labels = torch.cat([embeddings, embeddings]), torch.cat([mixed.labels, mixed.other_labels])
            shares = torch.full_like(labels, mixed.share, dtype=torch.float32)
            shares[len(mixed.labels) :] = 1 - mixed.share
        self.network.head.update_means(embeddings, labels, shares, combine=lambda table: state.combine(table, "sum"))


def is_reassignment_due(state: TrainState, updates_per_epoch: float) -> bool:
    """Return whether classes must be reassigned to prototypes before the next step.

    This is so every ``steps_per_epoch / updates_per_epoch`` steps (rounded down, at least 1), except before the first
    step: with one update per epoch, at the start of every epoch but the first, so that an epoch is evaluated and saved
    with the assignment it was trained with; with 0.1, at the start of every tenth epoch.
    """
    # 1e-9: 3 / 0.1 may be a little less than 30
    period = max(1, int(state.steps_per_epoch / updates_per_epoch + 1e-9))
    return state.step > 0 and state.step % period == 0


@torch.no_grad()
def reassign_classes(head: PrototypeHead, state: TrainState) -> dict[str, float]:
    """Reassign classes to prototypes to maximize the sum of their cosines with the class means.

    The main process solves and shares the result, so that all processes agree even if their rounding differs.

    Returns:
        Values for the log: ``objective``, mean cosine between class means and their prototypes; ``changed``, number of
        classes whose prototype changed; ``seconds``, elapsed time.

    Raises:
        ValueError: a class mean is not finite; the message names the class.
    """
    started = time.perf_counter()
    before = head.assignment.cpu().numpy().copy()
    columns, value = np.zeros_like(before), 0.0
    if state.is_main:
        similarity = class_mean_similarities(head)
        columns = best_assignment(similarity, before)
        value = float(similarity[np.arange(len(columns)), columns].sum())
    assignment = state.combine(torch.from_numpy(columns), "sum")
    objective = state.combine(torch.tensor(value, dtype=torch.float32), "sum")
    head.assignment.copy_(assignment)
    changed = float((assignment.cpu().numpy() != before).sum())
    return {"objective": float(objective) / len(before), "changed": changed, "seconds": time.perf_counter() - started}


def class_mean_similarities(head: PrototypeHead) -> NDArray[np.float64]:
    """Compute the cosines (c, k) of class means and prototypes; classes without images favor their own prototype."""
    table = (head.class_means.double().cpu() @ head.prototypes.double().cpu().T).numpy()
    unseen = np.flatnonzero(head.seen.cpu().numpy() == 0)
    table[unseen] = 0.0
    table[unseen, head.assignment.cpu().numpy()[unseen]] = UNSEEN_PULL
    return np.asarray(table, dtype=np.float64)


def best_assignment(similarity: NDArray[np.float64], previous: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return scipy's optimal assignment (c,) of columns to rows, or the previous one if the gain is negligible.

    Raises:
        ValueError: a similarity (c, k), c <= k, is not finite; the message names the row.
    """
    from scipy.optimize import linear_sum_assignment

    strange = np.flatnonzero(~np.isfinite(similarity).all(axis=1))
    if len(strange):
        raise ValueError(f"row {strange[0]} of scores contains values that are not finite")
    rows, columns = linear_sum_assignment(similarity, maximize=True)
    gain = float(similarity[rows, columns].sum() - similarity[rows, previous].sum())
    return columns if gain > SMALLEST_GAIN * len(similarity) else previous
