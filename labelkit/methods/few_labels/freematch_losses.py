"""FreeMatch's losses: thresholds that follow the model's own confidence, and a term on the classes it predicts.

Sources: Y. Wang et al., "FreeMatch: Self-adaptive Thresholding for Semi-supervised Learning" (ICLR 2023), Eq. 5 to 11;
``microsoft/Semi-supervised-learning:semilearn/algorithms/freematch``. With a fixed threshold this is FixMatch
(K. Sohn et al., NeurIPS 2020).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast

Sum = Callable[[Tensor], Tensor]


class AdaptiveThreshold(nn.Module):
    r"""Confidence thresholds for pseudo-labels that follow the model's running mean confidence.

    .. math:: \tau \leftarrow m \tau + (1 - m)\,\overline{\max_k p_k}, \quad
        \tilde p \leftarrow m \tilde p + (1 - m)\,\bar p, \quad
        \tau_k = \tau\, \tilde p_k / \max_j \tilde p_j

    All start at 1 / c. A row is kept if the probability of its class k is at least :math:`\tau_k`.

    Args:
        num_classes: c.
        decay: m in [0, 1).
        fixed: keep rows whose probability is at least this one instead (FixMatch); the averages go on.

    Attributes:
        confidence: () float32, :math:`\tau`.
        class_shares: (c,) float32, :math:`\tilde p`.
        predicted_shares: (c,) float32, the average share of images that each class is predicted for.
    """

    def __init__(self, num_classes: int, decay: float = 0.999, fixed: float | None = None) -> None:
        super().__init__()
        self.decay, self.fixed = decay, fixed
        self.confidence: Tensor = nn.Buffer(torch.tensor(1 / num_classes))
        self.class_shares: Tensor = nn.Buffer(torch.full((num_classes,), 1 / num_classes))
        self.predicted_shares: Tensor = nn.Buffer(torch.full((num_classes,), 1 / num_classes))

    @torch.no_grad()
    def update(self, probabilities: Tensor, total: Sum = lambda value: value) -> None:
        """Update the running averages with a batch of predictions for weak views.

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
        """Return a (b,) bool mask of the predictions (b, c) that exceed their class's threshold."""
        surest, classes = probabilities.max(dim=1)
        if self.fixed is not None:
            return surest >= self.fixed
        return surest >= (self.confidence * self.class_shares / self.class_shares.max())[classes]


class PseudoLabelLoss(nn.Module):
    r"""Cross-entropy of strong views against pseudo-labels from weak views, over the kept images.

    .. math:: L = -\frac1b \sum_{i \in A} \log \text{softmax}(s_i)_{\hat y_i}

    The mean is over all b rows, so that it grows with the share that is kept. In nats, >= 0.

    Shape:
        - logits: ``(b, c)`` float of the strong views; gets gradients.
        - pseudo_labels: ``(b,)`` int64.
        - kept: ``(b,)`` bool, A.
        - returns: ``()`` float32 (float64 stays); 0, still differentiable, if nothing is kept.
    """

    def forward(self, logits: Tensor, pseudo_labels: Tensor, kept: Tensor) -> Tensor:
        """Return the mean loss over all images of the batch."""
        with without_autocast(logits):
            terms = F.cross_entropy(promote(logits), pseudo_labels, reduction="none")
            return (terms * kept).sum() / max(len(terms), 1)


class FairnessLoss(nn.Module):
    r"""FreeMatch's fairness loss on class frequencies: the negative cross-entropy of two normalized distributions.

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
        """Return the loss, a sum over classes."""
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
