"""What a student descends on a batch of labeled and unlabeled images: MixMatch's blends or FreeMatch's pseudo-labels.

Methods that train one of these networks in different ways (alone, growing, guided by a master) share these; each is
given the network, a batch and the number of the update, and returns a loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from labelkit.data.batch import Batch
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.mixing import row_shares
from labelkit.data.transforms import SemiSupervisedRecipe, ViewSpec, semi_supervised_views
from labelkit.engine.method import StepOutput
from labelkit.losses.freematch import AdaptiveThreshold, FairnessLoss, PseudoLabelLoss
from labelkit.losses.mixmatch import MixMatchLoss, sharpen
from labelkit.losses.prototype import WeightedCrossEntropy
from labelkit.models.batch_norm import batch_statistics
from labelkit.models.inference import InferenceNetwork
from labelkit.models.interleave import interleave

Pairing = Literal["mixmatch", "labeled-unlabeled"]
Sum = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Situation:
    """Where the run is, and what else is known of the batch.

    Attributes:
        step: updates finished.
        total: sum of a small tensor over processes.
        advice: (u, c) probabilities of another network for the first views of the unlabeled rows, which the guessed
            labels are averaged with; no gradient.
    """

    step: int
    total: Sum = lambda value: value
    advice: Tensor | None = None


class StudentObjective(Protocol):
    """A loss on two views of labeled and unlabeled images."""

    def views(self, size: int, recipe: SemiSupervisedRecipe, *, chiral: bool, photographic: bool) -> tuple[ViewSpec, ...]:
        """What to make of each image."""

    def unlabeled_weight(self, step: int) -> float:
        """Weight of what is learned from unlabeled images at an update, counted from 0."""

    def __call__(self, network: InferenceNetwork, batch: Batch, now: Situation) -> StepOutput:
        """Loss of a batch; rows with label -1 are the unlabeled ones."""


class MixMatchObjective(nn.Module):
    """Guess labels, blend images and labels across the batch, fit the blends (MixMatch).

    1. guess: mean prediction of two views, with the statistics of each batch and without changing the running ones;
       sharpened
    2. blend each row of (labeled, first views, second views) with another one of them, more of itself
    3. interleave the three blocks, so that each has statistics of all; only the first one moves the running ones
    4. cross-entropy of the labeled blends, squared error of the others with a weight that grows

    Source: ``google-research/mixmatch:mixmatch.py``.
    Departure: the batch of a process is blended by itself, with shares and partners equal on all of them.

    Args:
        num_classes: c.
        temperature: of the sharpening.
        alpha: of the Beta distribution that shares are drawn from.
        weight: of the unlabeled part after the warm-up.
        warmup_steps: updates in which it grows from 0; 0: at once.
        pairing: ``mixmatch``; ``labeled-unlabeled``: only labeled images, each blended with the first view of an
            unlabeled one, and no unlabeled part (the dissertation's Eq. 3.1 to 3.3).
        seed: of the run.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        temperature: float,
        alpha: float,
        weight: float,
        warmup_steps: int,
        pairing: Pairing = "mixmatch",
        seed: int,
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.temperature, self.alpha = temperature, alpha
        self.weight, self.warmup_steps = weight, warmup_steps
        self.pairing, self.seed = pairing, seed
        self.loss = MixMatchLoss()

    def views(
        self, size: int, recipe: SemiSupervisedRecipe, *, chiral: bool, photographic: bool
    ) -> tuple[ViewSpec, ...]:
        """Two weak views."""
        weak, _ = semi_supervised_views(size, recipe, chiral=chiral, photographic=photographic)
        return (weak, weak)

    def unlabeled_weight(self, step: int) -> float:
        """Linear from 0 to ``weight``."""
        return self.weight * (min(step / self.warmup_steps, 1.0) if self.warmup_steps else 1.0)

    @torch.no_grad()
    def guess(self, network: InferenceNetwork, views: tuple[Tensor, Tensor], advice: Tensor | None) -> Tensor:
        """Sharpened mean prediction of two views, (u, c)."""
        with batch_statistics(network):
            predictions = [logits_of(network, view).float().softmax(dim=1) for view in views]
        if advice is not None:
            predictions.append(advice)
        return sharpen(torch.stack(predictions).mean(0), self.temperature)

    def forward(self, network: InferenceNetwork, batch: Batch, now: Situation) -> StepOutput:
        """Both parts, weighted; as many labeled rows as unlabeled ones.

        Raises:
            ValueError: other numbers of rows.
        """
        labeled = batch.labels >= 0
        if 2 * int(labeled.sum()) != len(labeled):
            raise ValueError(f"{int(labeled.sum())} of {len(labeled)} rows are labeled, must be half of them")
        first, second = batch.views[0], batch.views[1]
        images = first[labeled]
        targets = nn.functional.one_hot(batch.labels[labeled], self.num_classes).float()
        guesses = self.guess(network, (first[~labeled], second[~labeled]), now.advice)
        generator = keyed_generator(self.seed, "mixmatch", now.step)
        rows = len(images)
        if self.pairing == "labeled-unlabeled":
            shares = row_shares(rows, self.alpha, generator, images.device).shares
            mixed = torch.lerp(first[~labeled], images, shares[:, None, None, None])
            terms = self.loss(logits_of(network, mixed), torch.lerp(guesses, targets, shares[:, None]), rows)
            return StepOutput(terms.labeled, {"labeled": terms.labeled.detach()})
        everything = torch.cat([images, first[~labeled], second[~labeled]])
        shares = row_shares(3 * rows, self.alpha, generator, images.device)
        blocks = interleave(shares.blend(everything).split(rows))
        logits = [logits_of(network, blocks[0])]
        with batch_statistics(network):
            logits += [logits_of(network, block) for block in blocks[1:]]
        terms = self.loss(
            torch.cat(interleave(logits)), shares.blend(torch.cat([targets, guesses, guesses])), rows
        )
        loss = terms.labeled + self.unlabeled_weight(now.step) * terms.unlabeled
        surest = guesses.amax(dim=1).mean()
        logs = {"labeled": terms.labeled.detach(), "unlabeled": terms.unlabeled.detach(), "guess": surest}
        return StepOutput(loss, logs)


class FreeMatchObjective(nn.Module):
    """Name weakly changed images, and learn the sure names on strongly changed ones (FreeMatch, FixMatch).

    1. one pass over labeled images, weak and strong views of the unlabeled ones
    2. thresholds follow the mean confidence and the mix of predicted classes; or one is fixed (FixMatch)
    3. cross-entropy of labeled images; of strong views with the class of the weak one where it is sure
    4. FreeMatch's term on the mix of classes

    Source: ``microsoft/Semi-supervised-learning:semilearn/algorithms/freematch``.

    Args:
        num_classes: c.
        decay: of the averages behind the thresholds.
        fixed_threshold: FixMatch's; ``None``: adaptive.
        weight: of the pseudo-labels.
        fairness_weight: of step 4; 0 leaves it out.
    """

    def __init__(
        self,
        num_classes: int,
        *,
        decay: float,
        fixed_threshold: float | None,
        weight: float,
        fairness_weight: float,
    ) -> None:
        super().__init__()
        self.threshold = AdaptiveThreshold(num_classes, decay, fixed_threshold)
        self.weight, self.fairness_weight = weight, fairness_weight
        self.labels, self.pseudo_labels, self.fairness = WeightedCrossEntropy(), PseudoLabelLoss(), FairnessLoss()

    def views(
        self, size: int, recipe: SemiSupervisedRecipe, *, chiral: bool, photographic: bool
    ) -> tuple[ViewSpec, ...]:
        """A weak and a strong view."""
        return semi_supervised_views(size, recipe, chiral=chiral, photographic=photographic)

    def unlabeled_weight(self, step: int) -> float:
        """The same from the start: few rows are sure then."""
        del step
        return self.weight

    def forward(self, network: InferenceNetwork, batch: Batch, now: Situation) -> StepOutput:
        """All parts, weighted."""
        labeled = batch.labels >= 0
        weak, strong = batch.views[0], batch.views[1]
        count = int((~labeled).sum())
        logits = logits_of(network, torch.cat([weak[labeled], weak[~labeled], strong[~labeled]]))
        own, weak_logits, strong_logits = logits.split([len(labeled) - count, count, count])
        with torch.no_grad():
            predictions = weak_logits.float().softmax(dim=1)
            if now.advice is not None:
                predictions = (predictions + now.advice) / 2
            self.threshold.update(predictions, now.total)
            kept = self.threshold(predictions)
        supervised = self.labels(own, batch.labels[labeled])
        pseudo = self.pseudo_labels(strong_logits, predictions.argmax(dim=1), kept)
        loss = supervised + self.weight * pseudo
        logs: dict[str, Tensor] = {
            "labeled": supervised.detach(),
            "unlabeled": pseudo.detach(),
            "kept": kept.float().mean(),
            "threshold": self.threshold.confidence.clone(),
        }
        if self.fairness_weight:
            shares = self.threshold.class_shares, self.threshold.predicted_shares
            fairness = self.fairness(strong_logits, kept, *shares)
            loss = loss + self.fairness_weight * fairness
            logs["fairness"] = fairness.detach()
        return StepOutput(loss, logs)


def logits_of(network: InferenceNetwork, images: Tensor) -> Tensor:
    """Images (b, c, h, w) to logits (b, classes)."""
    return network.classify(network.embed(images))
