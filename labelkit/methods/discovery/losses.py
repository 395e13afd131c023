"""The loss of SimGCD and FlipClass, and the baselines for FlipClass's key update.

Source: SimGCD (CVMI-Lab/SimGCD:train.py) and "Flipped Classroom: Aligning Teacher Attention with Student in Generalized
Category Discovery" (NeurIPS 2024), Sec. 4.2; the baselines are those of its App. D.4.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.losses.consistency import DistillationLoss, LabelLoss, MeanEntropyRegularizer
from labelkit.losses.contrastive import InfoNCELoss, SupConLoss
from labelkit.training.distributed import gather_batch


class DiscoveryLoss(nn.Module):
    r"""Category discovery loss: a weighted sum of unsupervised and supervised terms.

    .. math::
        L &= (1 - \lambda)(L^u_\text{rep} + L^u_\text{cons}) + \lambda (L^s_\text{rep} + L^s_\text{cons}) \\
        L^u_\text{cons} &= \text{CE}(\text{teacher}, \text{student}) + \epsilon (\log c - H(\bar p))

    with the contrastive losses of `InfoNCELoss` (all images) and `SupConLoss` (labeled images),
    `DistillationLoss`, `MeanEntropyRegularizer` and `LabelLoss` (both views). In nats, >= 0.

    Args:
        supervised_weight: :math:`\lambda` in [0, 1].
        contrastive_temperature: temperature of `InfoNCELoss`, > 0.
        supervised_temperature: temperature of `SupConLoss`, > 0.
        student_temperature: temperature of the predictions in all terms on logits, > 0.
        entropy_weight: :math:`\epsilon` >= 0.
        symmetric: average both directions, with each view as teacher once; otherwise, view 0 is the teacher.

    Shape:
        - projections: ``(2b, d)`` float; rows 0..b-1 are view 0 (teacher), the others view 1.
        - logits: ``(2b, c)`` float cosines, rows in the same order. The teacher's rows receive
          gradients from the label and entropy terms only, unless ``symmetric``.
        - labels: ``(b,)`` int64 in ``[-1, c)``, -1 = unlabeled.
        - teacher_temperature: float > 0.
        - consistency: ``()`` float that replaces `DistillationLoss`, or ``None``.
        - returns: ``()`` float32 (float64 is preserved), and its parts, detached: ``rep_u``, ``rep_s``,
          ``cons_u_ce``, ``mean_entropy_gap`` (unweighted), ``cons_s``, ``n_labeled``.
          Without labels, the supervised parts are exactly 0.

    Raises:
        ValueError: there are fewer than 2 images, row counts do not match, or an argument is out of range.

    Source:
        SimGCD's code. The FlipClass text swaps the two contrastive temperatures; the code's 1.0
        (unsupervised) and 0.07 (supervised) produced the published baselines.
    """

    def __init__(
        self,
        *,
        supervised_weight: float = 0.35,
        contrastive_temperature: float = 1.0,
        supervised_temperature: float = 0.07,
        student_temperature: float = 0.1,
        entropy_weight: float = 2.0,
        symmetric: bool = False,
    ) -> None:
        super().__init__()
        if not 0 <= supervised_weight <= 1:
            raise ValueError(f"supervised_weight must be in [0, 1], got {supervised_weight}")
        if not entropy_weight >= 0:
            raise ValueError(f"entropy_weight must be >= 0, got {entropy_weight}")
        self.supervised_weight = supervised_weight
        self.entropy_weight = entropy_weight
        self.symmetric = symmetric
        self.contrast = InfoNCELoss(contrastive_temperature)
        self.label_contrast = SupConLoss(supervised_temperature)
        self.distillation = DistillationLoss(student_temperature)
        self.mean_entropy = MeanEntropyRegularizer(student_temperature)
        self.label_loss = LabelLoss(student_temperature)

    def forward(
        self,
        projections: Tensor,
        logits: Tensor,
        labels: Tensor,
        *,
        teacher_temperature: float,
        consistency: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted loss and the value of each term."""
        b = len(labels)
        if b < 2:
            raise ValueError(f"the batch must contain at least 2 images, got {b}")
        if len(projections) != 2 * b or len(logits) != 2 * b:
            raise ValueError(
                f"projections and logits must have 2 rows per label ({b}), got {len(projections)} and {len(logits)}"
            )
        views = ([gather_batch(view) for view in both.chunk(2)] for both in (projections, logits))
        (projections, logits), labels = map(torch.cat, views), gather_batch(labels)
        b = len(labels)
        rep_u = self.contrast(projections)
        rep_s = self.label_contrast(projections, labels)
        if consistency is not None:
            cons_u_ce = consistency
        else:
            cons_u_ce = self.distillation(logits[b:], logits[:b], teacher_temperature)
            if self.symmetric:
                cons_u_ce = 0.5 * (cons_u_ce + self.distillation(logits[:b], logits[b:], teacher_temperature))
        mean_entropy_gap = self.mean_entropy(logits)
        cons_s = self.label_loss(logits, labels.repeat(2))

        unsupervised = rep_u + cons_u_ce + self.entropy_weight * mean_entropy_gap
        loss = (1 - self.supervised_weight) * unsupervised + self.supervised_weight * (rep_s + cons_s)
        parts = {
            "rep_u": rep_u,
            "rep_s": rep_s,
            "cons_u_ce": cons_u_ce,
            "mean_entropy_gap": mean_entropy_gap,
            "cons_s": cons_s,
            "n_labeled": (labels >= 0).sum(),
        }
        return loss, {name: part.detach() for name, part in parts.items()}


AlignmentKind = Literal["l2", "kld", "coral"]
#: Decay of the running mean of predictions in `DistributionAlignmentLoss` (ours).
SHARES_DECAY = 0.99


class AttentionAlignmentLoss(nn.Module):
    r"""Distance between the teacher's keys and the student's queries, averaged over heads.

    .. math::
        \text{l2} &= \text{mean}_{b,h,i} \lVert k_i - q_i \rVert^2 \\
        \text{kld} &= \text{mean}_{b,h,i} \text{KL}(\text{softmax}(q_i) \,\Vert\, \text{softmax}(k_i)) \\
        \text{coral} &= \text{mean}_{b,h} \lVert C_q - C_k \rVert_F^2 / (4 d^2)

    with tokens i, softmax over the d entries of a token, and C the unbiased covariance over tokens. >= 0 (l2 and coral
    in squared units of the keys, kld in nats); 0 when keys and queries are equal.

    Args:
        kind: ``"l2"``, ``"kld"`` or ``"coral"``.

    Shape:
        - keys: ``(b, h, t, d)`` float, the teacher's; receive gradients.
        - queries: ``(b, h, t, d)`` float, the student's; no gradient. t may differ for ``coral``.
        - returns: ``()`` float32 (float64 is preserved).

    Raises:
        ValueError: shapes do not match, or there are fewer than 2 tokens for ``coral``.

    Source:
        App. D.4, which specifies neither the distributions of ``kld`` nor the scale of ``coral`` (here as in Deep
        CORAL, Sun and Saenko 2016), and minimizes it over a transformed source, which we omit.
    """

    def __init__(self, kind: AlignmentKind) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, keys: Tensor, queries: Tensor) -> Tensor:
        """Return the mean distance over images and heads."""
        fits = keys.ndim == 4 and queries.ndim == 4 and keys.shape[:2] == queries.shape[:2]
        if not fits or keys.shape[3] != queries.shape[3] or (self.kind != "coral" and keys.shape != queries.shape):
            raise ValueError(f"keys {tuple(keys.shape)} and queries {tuple(queries.shape)} do not match")
        with without_autocast(keys):
            k, q = promote(keys), promote(queries.detach())
            if self.kind == "l2":
                return (k - q).square().sum(dim=-1).mean()
            if self.kind == "kld":
                log_q, log_k = F.log_softmax(q, dim=-1), F.log_softmax(k, dim=-1)
                return (log_q.exp() * (log_q - log_k)).sum(dim=-1).mean()
            difference = _covariance(q) - _covariance(k)
            return difference.square().sum(dim=(-2, -1)).mean() / (4 * keys.shape[-1] ** 2)


class DistributionAlignmentLoss(nn.Module):
    r"""Cross-entropy against teacher targets whose class distribution is adjusted toward uniform.

    .. math::
        u = \text{softmax}(t / \tau_s), \quad
        \tilde u_k \propto u_k \frac{1/c}{\tilde p_k}, \quad
        q_k \propto \tilde u_k^{\tau_s / \tau_t}, \quad
        L = -\frac1b \sum_i \sum_k q_{ik} \log \text{softmax}(s_i / \tau_s)_k

    where :math:`\tilde p` is the running mean of u over unlabeled images, uniform at first, used before it is updated.
    In nats, >= 0; equal to `DistillationLoss` while :math:`\tilde p` is uniform.

    Args:
        num_classes: c >= 2.
        student_temperature: :math:`\tau_s > 0`.

    Shape:
        - student_logits: ``(b, c)`` float; receives gradients.
        - teacher_logits: ``(b, c)`` float; no gradient.
        - teacher_temperature: float > 0.
        - labels: ``(b,)`` int64; rows with -1 update the running mean, in training mode.
        - returns: ``()`` float32 (float64 is preserved).

    Source:
        App. D.4; the target distribution is uniform, since new classes have no labels to count.
    """

    def __init__(self, num_classes: int, student_temperature: float) -> None:
        super().__init__()
        self.student_temperature = student_temperature
        # a buffer, so that checkpoints include it
        self.shares: Tensor = nn.Buffer(torch.full((num_classes,), 1 / num_classes))

    def targets(self, teacher_logits: Tensor, teacher_temperature: float) -> Tensor:
        """Compute the aligned, sharpened targets (b, c), whose rows sum to 1 and which carry no gradient."""
        with without_autocast(teacher_logits):
            log_u = F.log_softmax(promote(teacher_logits.detach()) / self.student_temperature, dim=1)
            log_aligned = F.log_softmax(log_u - self.shares.to(log_u.dtype).log(), dim=1)
            return F.softmax(log_aligned * (self.student_temperature / teacher_temperature), dim=1)

    def forward(
        self, student_logits: Tensor, teacher_logits: Tensor, teacher_temperature: float, labels: Tensor
    ) -> Tensor:
        """Return the mean loss over the batch and, in training mode, update the running class distribution."""
        targets = self.targets(teacher_logits, teacher_temperature)
        with without_autocast(student_logits):
            log_prediction = F.log_softmax(promote(student_logits) / self.student_temperature, dim=1)
            loss = -(targets * log_prediction).sum() / max(len(targets), 1)
        if self.training:
            self._update_distribution(teacher_logits, labels)
        return loss

    @torch.no_grad()
    def _update_distribution(self, teacher_logits: Tensor, labels: Tensor) -> None:
        unlabeled = (labels < 0).to(self.shares.dtype)
        with without_autocast(teacher_logits):
            u = F.softmax(promote(teacher_logits) / self.student_temperature, dim=1).to(self.shares.dtype)
            # without unlabeled rows, the mean is the old value, so nothing changes
            count = unlabeled.sum()
            mean = torch.where(count > 0, unlabeled @ u / count.clamp(min=1), self.shares)
        self.shares.mul_(SHARES_DECAY).add_(mean, alpha=1 - SHARES_DECAY)


class ConfidentPseudoLabelLoss(nn.Module):
    r"""Cross-entropy against the teacher's predicted class where the teacher is confident (FixMatch).

    .. math:: L = \frac1b \sum_i 1[\max_k q_{ik} \ge \theta] \, \text{CE}(s_i / \tau_s, \arg\max_k q_{ik}),
        \quad q_i = \text{softmax}(t_i / \tau_t)

    divided by b, not by the number of images kept. In nats, >= 0; 0 when no image is kept.

    Args:
        student_temperature: :math:`\tau_s > 0`.
        threshold: :math:`\theta` in [0, 1].

    Shape:
        - student_logits: ``(b, c)`` float; receives gradients.
        - teacher_logits: ``(b, c)`` float; no gradient.
        - teacher_temperature: float > 0.
        - returns: ``()`` float32 (float64 is preserved), and the share of images kept.

    Source:
        Sohn et al., "FixMatch" (2020), as used in App. D.4; the threshold 0.95 is FixMatch's.
    """

    def __init__(self, student_temperature: float, threshold: float = 0.95) -> None:
        super().__init__()
        self.student_temperature = student_temperature
        self.threshold = threshold

    def forward(
        self, student_logits: Tensor, teacher_logits: Tensor, teacher_temperature: float
    ) -> tuple[Tensor, Tensor]:
        """Return the loss and the fraction of images above the confidence threshold."""
        with without_autocast(student_logits):
            targets = F.softmax(promote(teacher_logits.detach()) / teacher_temperature, dim=1)
            confidence, pseudo_labels = targets.max(dim=1)
            kept = (confidence >= self.threshold).to(targets.dtype)
            each = F.cross_entropy(promote(student_logits) / self.student_temperature, pseudo_labels, reduction="none")
            return (kept * each).sum() / max(len(kept), 1), kept.mean()


def _covariance(tokens: Tensor) -> Tensor:
    """Return the unbiased covariance over tokens, (..., t, d) to (..., d, d)."""
    if tokens.shape[-2] < 2:
        raise ValueError(f"a covariance requires at least 2 tokens, got {tokens.shape[-2]}")
    centered = tokens - tokens.mean(dim=-2, keepdim=True)
    return centered.transpose(-1, -2) @ centered / (tokens.shape[-2] - 1)
