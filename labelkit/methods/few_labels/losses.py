"""Losses of the methods for few labels.

Consistency of a student with a slower network: squared differences between predictions (Mean Teacher).

MixMatch: sharpened guesses, and a loss on targets that are blends of labels and guesses.

Source: D. Berthelot et al., "MixMatch" (NeurIPS 2019), Eq. 7 and 3 to 5; ``google-research/mixmatch``.

FreeMatch: thresholds that follow the model's own confidence, and a term on the classes it predicts.

Sources: Y. Wang et al., "FreeMatch: Self-adaptive Thresholding for Semi-supervised Learning" (ICLR 2023), Eq. 5 to 11;
``microsoft/Semi-supervised-learning:semilearn/algorithms/freematch``. With a fixed threshold this is FixMatch
(K. Sohn et al., NeurIPS 2020).

How well features keep apart from the second-nearest cluster (LMCS).

Source: the dissertation "Deep Learning with Very Few and No Labels", Eq. 3.6, whose sign is wrong: see below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast


class SquaredConsistency(nn.Module):
    r"""Mean squared difference between two predictions.

    .. math:: L = \frac{1}{b c} \sum_i \sum_k (\text{softmax}(s_i)_k - \text{softmax}(t_i)_k)^2

    Without unit, in [0, 2 / c]; 0 where both predict the same, 2 / c where both are certain of different classes.

    Shape:
        - student_logits: ``(b, c)`` float; gets gradients.
        - target_logits: ``(b, c)`` float; no gradient.
        - returns: ``(b,)`` float32 (float64 stays), the mean over classes of each row, so that rows can be chosen.

    Raises:
        ValueError: the shapes differ.

    Source:
        Mean Teacher (``CuriousAI/mean-teacher``). The dissertation's Eq. 2.5 prints the sum over classes and says
        "mean squared error"; the released code takes the mean, and so do we.
    """

    def forward(self, student_logits: Tensor, target_logits: Tensor) -> Tensor:
        """Return the difference of each row."""
        _check_pair(student_logits, target_logits)
        with without_autocast(student_logits):
            prediction = F.softmax(promote(student_logits), dim=1)
            target = F.softmax(promote(target_logits.detach()), dim=1)
            return (prediction - target).square().mean(dim=1)


class HeadDifference(nn.Module):
    r"""Mean squared difference between the logits of two heads, :math:`\frac{1}{bc} \sum (a_{ik} - b_{ik})^2`.

    In squared logits, >= 0; 0 where both heads agree.

    Shape:
        - first: ``(b, c)`` float; gets gradients.
        - second: ``(b, c)`` float; gets gradients.
        - returns: ``()`` float32 (float64 stays).

    Raises:
        ValueError: the shapes differ.

    Source:
        ``CuriousAI/mean-teacher:pytorch/main.py`` (``symmetric_mse_loss``).
    """

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return the mean over rows and classes."""
        _check_pair(first, second)
        with without_autocast(first):
            return (promote(first) - promote(second)).square().mean()


def _check_pair(first: Tensor, second: Tensor) -> None:
    if first.shape != second.shape or first.ndim != 2:
        raise ValueError(f"logits must both be (b, c); got {tuple(first.shape)} and {tuple(second.shape)}")


def sharpen(probabilities: Tensor, temperature: float) -> Tensor:
    """Raise to the power ``1 / temperature`` and normalize again.

    Args:
        probabilities: (b, c) float, rows sum to 1.
        temperature: in (0, 1] to sharpen; 1 changes nothing.

    Raises:
        ValueError: the temperature is not positive.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, got {temperature}")
    # relative to the largest: a power of tiny numbers underflows
    powers = (probabilities / probabilities.amax(dim=1, keepdim=True)).pow(1 / temperature)
    return powers / powers.sum(dim=1, keepdim=True)


@dataclass(frozen=True, slots=True)
class MixMatchTerms:
    """The parts of the loss.

    Attributes:
        labeled: () cross-entropy of the labeled rows, nats.
        unlabeled: () squared difference of the other rows, in [0, 2 / c].
    """

    labeled: Tensor
    unlabeled: Tensor


class MixMatchLoss(nn.Module):
    r"""Cross-entropy of the rows that come from labels, squared difference of probabilities for the others.

    .. math:: L_x = -\frac1b \sum_{i \le b} \sum_k r_{ik} \log p_{ik}, \quad
        L_u = \frac{1}{(m - b) c} \sum_{i > b} \sum_k (p_{ik} - r_{ik})^2

    Both are 0 where prediction and target agree on one class; :math:`L_x` is the entropy of the targets where they
    agree otherwise. The two are returned apart, since the weight of the second one grows during training.

    Shape:
        - logits: ``(m, c)`` float; gets gradients.
        - targets: ``(m, c)`` float, rows sum to 1; no gradient.
        - num_labeled: b, rows at the start that count as labeled.
        - returns: two ``()`` float32 (float64 stays); a part without rows is 0.

    Raises:
        ValueError: shapes that differ, or more labeled rows than rows.
    """

    def forward(self, logits: Tensor, targets: Tensor, num_labeled: int) -> MixMatchTerms:
        """Return both parts."""
        if logits.shape != targets.shape or logits.ndim != 2 or not 0 <= num_labeled <= len(logits):
            raise ValueError(
                f"logits {tuple(logits.shape)} and targets {tuple(targets.shape)} must both be (m, c), "
                f"with {num_labeled} labeled rows among them"
            )
        with without_autocast(logits):
            scores, targets = promote(logits), targets.detach()
            log_predictions = F.log_softmax(scores[:num_labeled], dim=1)
            labeled = -(targets[:num_labeled] * log_predictions).sum() / max(num_labeled, 1)
            rest = (F.softmax(scores[num_labeled:], dim=1) - targets[num_labeled:]).square()
            return MixMatchTerms(labeled, rest.sum() / max(rest.numel(), 1))


Sum = Callable[[Tensor], Tensor]


class AdaptiveThreshold(nn.Module):
    r"""Which predictions are sure enough to be pseudo-labels, by thresholds that rise as the model becomes surer.

    .. math:: \tau \leftarrow m \tau + (1 - m)\,\overline{\max_k p_k}, \quad
        \tilde p \leftarrow m \tilde p + (1 - m)\,\bar p, \quad
        \tau_k = \tau\, \tilde p_k / \max_j \tilde p_j

    All start at 1 / c. A row is kept if the probability of its class k is at least :math:`\tau_k`.

    Args:
        num_classes: c.
        decay: m in [0, 1).
        fixed: keep rows whose probability is at least this one instead (FixMatch); the averages go on.

    Raises:
        ValueError: a number out of its range.

    Attributes:
        confidence: () float32, :math:`\tau`.
        class_shares: (c,) float32, :math:`\tilde p`.
        predicted_shares: (c,) float32, the average share of images that each class is predicted for.
    """

    def __init__(self, num_classes: int, decay: float = 0.999, fixed: float | None = None) -> None:
        super().__init__()
        if num_classes < 1 or not 0 <= decay < 1 or (fixed is not None and not 0 <= fixed <= 1):
            raise ValueError(f"num_classes {num_classes}, decay {decay} or fixed {fixed} is out of range")
        self.decay, self.fixed = decay, fixed
        self.confidence: Tensor = nn.Buffer(torch.tensor(1 / num_classes))
        self.class_shares: Tensor = nn.Buffer(torch.full((num_classes,), 1 / num_classes))
        self.predicted_shares: Tensor = nn.Buffer(torch.full((num_classes,), 1 / num_classes))

    @torch.no_grad()
    def update(self, probabilities: Tensor, total: Sum = lambda value: value) -> None:
        """Take in a batch of weak predictions.

        Args:
            probabilities: (b, c), this process's part.
            total: sum of a small tensor over processes.
        """
        surest, classes = probabilities.max(dim=1)
        counts = _counts(classes, probabilities.shape[1]).to(probabilities.dtype)
        own = torch.cat([surest.sum()[None], probabilities.sum(0), counts, counts.sum()[None]])
        sums = total(own)
        means = sums[:-1] / sums[-1].clamp(min=1)
        c = probabilities.shape[1]
        for average, value in (
            (self.confidence, means[0]),
            (self.class_shares, means[1 : c + 1]),
            (self.predicted_shares, means[c + 1 :]),
        ):
            average.lerp_(value, 1 - self.decay)

    def forward(self, probabilities: Tensor) -> Tensor:
        """(b, c) weak predictions to (b,) bool, the rows that are kept."""
        surest, classes = probabilities.max(dim=1)
        if self.fixed is not None:
            return surest >= self.fixed
        return surest >= (self.confidence * self.class_shares / self.class_shares.max())[classes]


class PseudoLabelLoss(nn.Module):
    r"""Cross-entropy of strong views with the class of the weak ones, over the rows that are kept.

    .. math:: L = -\frac1b \sum_{i \in A} \log \text{softmax}(s_i)_{\hat y_i}

    The mean is over all b rows, so that it grows with the share that is kept. In nats, >= 0.

    Shape:
        - logits: ``(b, c)`` float of the strong views; gets gradients.
        - pseudo_labels: ``(b,)`` int64.
        - kept: ``(b,)`` bool, A.
        - returns: ``()`` float32 (float64 stays); 0, still differentiable, if nothing is kept.
    """

    def forward(self, logits: Tensor, pseudo_labels: Tensor, kept: Tensor) -> Tensor:
        """Return the mean."""
        with without_autocast(logits):
            terms = F.cross_entropy(promote(logits), pseudo_labels, reduction="none")
            return (terms * kept).sum() / max(len(terms), 1)


class FairnessLoss(nn.Module):
    r"""FreeMatch's term on the mix of classes: the negative cross-entropy of two normalized mixes.

    .. math:: L = \sum_k \text{norm}(\tilde p / \tilde h)_k \log \text{norm}(\bar p / \bar h)_k

    with the running shares :math:`\tilde p, \tilde h` of ``AdaptiveThreshold``, and :math:`\bar p, \bar h` the mean
    prediction and the predicted shares of the kept strong views. In nats, <= 0; -log c where both mixes are even.

    As published, descending it raises the cross-entropy: it moves the batch away from the running mix. Its weight is
    small, and 0 leaves it out.

    Shape:
        - logits: ``(b, c)`` float of the strong views; gets gradients.
        - kept: ``(b,)`` bool.
        - class_shares, predicted_shares: ``(c,)`` float, no gradient.
        - returns: ``()`` float32 (float64 stays); 0, still differentiable, if nothing is kept.
    """

    def forward(self, logits: Tensor, kept: Tensor, class_shares: Tensor, predicted_shares: Tensor) -> Tensor:
        """Return the sum over classes."""
        places = kept.nonzero().squeeze(1)  # the one time that a GPU is waited for
        if not len(places):
            return promote(logits).sum() * 0
        with without_autocast(logits):
            predictions = F.softmax(promote(logits[places]), dim=1)
            counts = _counts(predictions.argmax(dim=1), logits.shape[1])
            expected = _normalized(class_shares, predicted_shares)
            found = _normalized(predictions.mean(dim=0), counts / counts.sum())
            return (expected * (found + 1e-12).log()).sum()


def _counts(classes: Tensor, num_classes: int) -> Tensor:
    """How often each class occurs, (c,) int64; ``bincount`` would wait for a GPU to learn the largest."""
    return (classes[:, None] == torch.arange(num_classes, device=classes.device)).sum(dim=0)


def _normalized(shares: Tensor, by: Tensor) -> Tensor:
    """``shares / by`` as a distribution; a class that was never predicted counts 0."""
    ratios = torch.where(by > 0, shares / by.clamp(min=1e-12), 0.0)
    return ratios / ratios.sum()


Discrimination = Literal["ratio", "literal"]


class DiscriminationLoss(nn.Module):
    r"""Compare the distances :math:`d_0 \le d_1` of each feature to its nearest and second-nearest centroid.

    - ``ratio``: :math:`\overline{d_0^2 / (d_1^2 + 10^{-12})}`, in [0, 1]: 0 at a centroid, 1 half-way between two;
      does not change with the scale of the features.
    - ``literal``: :math:`\overline{(d_0 - d_1)^2}`, the printed Eq. 3.6. It is 0 half-way between two centroids, so
      that descending it moves features there, the opposite of what its text asks for.

    Args:
        kind: which one.

    Shape:
        - features: ``(b, d)`` float; gets gradients.
        - centroids: ``(k, d)`` float, distinct; no gradient.
        - returns: ``()`` float32 (float64 stays); 0, still differentiable, without rows.

    Raises:
        ValueError: unknown kind, fewer than two centroids, or shapes that do not fit.
    """

    def __init__(self, kind: Discrimination) -> None:
        super().__init__()
        if kind not in ("ratio", "literal"):
            raise ValueError(f"unknown kind {kind!r}")
        self.kind = kind

    def forward(self, features: Tensor, centroids: Tensor) -> Tensor:
        """Return the mean over the batch."""
        with without_autocast(features):
            near, far = nearest_two(promote(features), centroids)
            if self.kind == "ratio":
                terms = near / (far + 1e-12)
            else:
                # a feature that lies on its centroid has no direction away from it
                terms = (_root(far) - _root(near)).square()
            return terms.sum() / max(len(terms), 1)


def nearest_two(features: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """Squared distances to the nearest and the second-nearest centroid, each (b,).

    Raises:
        ValueError: fewer than two centroids, or another width.
    """
    if centroids.ndim != 2 or len(centroids) < 2 or features.ndim != 2 or features.shape[1] != centroids.shape[1]:
        raise ValueError(
            f"need (b, d) features and at least two (k, d) centroids, got {tuple(features.shape)} and "
            f"{tuple(centroids.shape)}"
        )
    squares = (features[:, None, :] - centroids.detach().to(features.dtype)[None]).square().sum(-1)
    two = squares.topk(2, dim=1, largest=False).values
    return two[:, 0], two[:, 1]


def _root(squares: Tensor) -> Tensor:
    """Square root with gradient 0 at 0."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), 0.0)
