"""The loss of SimGCD and FlipClass: contrast, self-distillation and labels in one sum.

Source: SimGCD (CVMI-Lab/SimGCD:train.py) and "Flipped Classroom: Aligning Teacher Attention with
Student in Generalized Category Discovery", Sec. 4.2. With ``symmetric=True`` it is SimGCD's.
"""

from __future__ import annotations

from torch import Tensor, nn

from labelkit.losses.consistency import DistillationLoss, LabelLoss, MeanEntropyRegularizer
from labelkit.losses.contrastive import InfoNCELoss, SupConLoss


class DiscoveryLoss(nn.Module):
    r"""Weighted sum of the unsupervised and the supervised losses of category discovery.

    .. math::
        L &= (1 - \lambda)(L^u_\text{rep} + L^u_\text{cons}) + \lambda (L^s_\text{rep} + L^s_\text{cons}) \\
        L^u_\text{cons} &= \text{CE}(\text{teacher}, \text{student}) + \epsilon (\log c - H(\bar p))

    with the contrastive losses of `InfoNCELoss` (all images) and `SupConLoss` (labeled images),
    `DistillationLoss`, `MeanEntropyRegularizer` and `LabelLoss` (both views). In nats, >= 0.

    Args:
        supervised_weight: :math:`\lambda` in [0, 1].
        contrastive_temperature: of `InfoNCELoss`, > 0.
        supervised_temperature: of `SupConLoss`, > 0.
        student_temperature: of the predictions in all terms on logits, > 0.
        entropy_weight: :math:`\epsilon` >= 0.
        symmetric: average both directions, each view once as teacher; else view 0 teaches view 1.

    Shape:
        - projections: ``(2b, d)`` float; rows 0..b-1 are view 0 (teacher), the others view 1.
        - logits: ``(2b, c)`` float cosines, rows in the same order. The teacher's rows get
          gradients from the label and entropy terms only, unless ``symmetric``.
        - labels: ``(b,)`` int64 in ``[-1, c)``, -1 = unlabeled.
        - teacher_temperature: float > 0.
        - consistency: ``()`` float that takes the place of `DistillationLoss`, or ``None``.
        - returns: ``()`` float32 (float64 stays), and its parts, detached: ``rep_u``, ``rep_s``,
          ``cons_u_ce``, ``mean_entropy_gap`` (before the weight), ``cons_s``, ``n_labeled``.
          Without labels the supervised parts are exactly 0.

    Raises:
        ValueError: fewer than 2 images, row counts that do not fit, or an argument out of range.

    Source:
        SimGCD's code. The FlipClass text swaps the two contrastive temperatures; the code's 1.0
        (unsupervised) and 0.07 (supervised) are what produced the published baselines.
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
        """Return the loss and its parts."""
        b = len(labels)
        if b < 2:
            raise ValueError(f"need at least 2 images, got {b}")
        if len(projections) != 2 * b or len(logits) != 2 * b:
            raise ValueError(
                f"need two rows per image: {b} labels, {len(projections)} projections, {len(logits)} logits"
            )
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
