"""MixMatch: guess labels for unlabeled images, mix them with labeled images, and train on the mixtures.

Source: D. Berthelot et al., "MixMatch: A Holistic Approach to Semi-Supervised Learning" (NeurIPS 2019) and its released
code.
Each step, on equal numbers of labeled and unlabeled images, in two weak views:
    1. guess labels: the sharpened mean prediction for the two views
    2. mix every image and its label with another
    3. cross-entropy on labeled mixtures, squared error on the others with a ramped-up weight
    4. update the EMA network, which is used for evaluation and embedding
Departures: weight decay (decoupled, kernels only) is applied just before an update instead of just after it; the EMA
decay adapts to short runs; batch norm statistics are recomputed before evaluation, an option of the released code; the
accuracy is the last one, not the median of the last 20.
"""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from labelkit.data.batch import Batch, DataInfo, draw_blending_plan
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.views.spec import ViewSpec
from labelkit.methods.few_labels.losses import MixMatchLoss, SquaredConsistencyLoss, sharpen
from labelkit.methods.few_labels.options import MixMatchConfig, MixMatchOptions
from labelkit.methods.few_labels.recipe import (
    StudentNetwork,
    StudentNetworks,
    StudentObjective,
    StudentObjectiveMethod,
    head_logits,
    labeled_and_unlabeled_positions,
)
from labelkit.models.batch_norm import use_batch_statistics
from labelkit.training.distributed import check_divisible
from labelkit.training.method import StepOutput, TrainState
from labelkit.training.schedules import RampedWeight

#: Temperature that sharpens guessed labels (paper and released code, on all datasets).
TEMPERATURE: Final = 0.5
#: Parameter of Beta(alpha, alpha), from which mixing weights are drawn (released code, run scripts).
MIXUP_ALPHA: Final = 0.75


def interleave(blocks: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Swap row ranges between the first block and each other block, so that all blocks share batch statistics.

    Part j of block 0 is exchanged with part j of block j; a second call undoes this.

    Args:
        blocks: k tensors (b, ...) of one shape; each is cut into k parts of b / k rows, rounded down, the last parts
            one row longer.

    Raises:
        ValueError: there are no blocks, or their numbers of rows differ.

    Source:
        ``google-research/mixmatch:libml/layers.py`` (``interleave``).
    """
    if len({len(block) for block in blocks}) != 1:
        raise ValueError(f"blocks must have the same number of rows, got {[len(block) for block in blocks]}")
    count, rows = len(blocks), len(blocks[0])
    sizes = [rows // count + (part >= count - rows % count) for part in range(count)]
    parts = [list(torch.split(block, sizes)) for block in blocks]
    for other in range(1, count):
        parts[0][other], parts[other][other] = parts[other][other], parts[0][other]
    return tuple(torch.cat(pieces) for pieces in parts)


class MixMatchObjective(StudentObjective):
    r"""MixMatch's training loss: cross-entropy on mixed labeled rows and squared error on the other mixed rows.

    .. math:: J = J_X + \lambda(t) (J_U + J_M)

    1. guess labels: sharpened mean prediction for two views, with batch statistics, leaving the running ones unchanged
    2. mix each row of (labeled, first views, second views) with another, the row itself having the larger weight
    3. interleave the three blocks, so that each has batch statistics of all; only the first updates the running ones
    4. :math:`J_X` on the first block, :math:`J_U` on the others; with a master, :math:`J_M`: squared difference from
       its predictions for unmixed labeled images

    Departure: each process mixes its own rows, with weights and partners that are equal on all processes.

    Args:
        view: augmentation of an image, applied twice.
        weight: schedule of :math:`\lambda` over the updates of the run.
        seed: seed of the run.
    """

    def __init__(self, view: ViewSpec, *, weight: RampedWeight, seed: int) -> None:
        super().__init__()
        self.views = view, view
        self.unlabeled_weight = weight
        self._seed = seed
        self.teacher_in_train_mode, self.runs_master = False, weight.full > 0
        self.loss = MixMatchLoss()
        self.consistency = SquaredConsistencyLoss()

    @torch.no_grad()
    def guess_labels(self, student: StudentNetwork, views: tuple[Tensor, Tensor]) -> Tensor:
        """Compute a student's sharpened mean prediction (u, k) for two views (u, c, h, w) of unlabeled images."""
        with use_batch_statistics(student):
            predictions = [head_logits(student, view)[0].float().softmax(dim=1) for view in views]
        return sharpen(torch.stack(predictions).mean(0), TEMPERATURE)

    def forward(self, batch: Batch, networks: StudentNetworks, state: TrainState) -> StepOutput:
        """Return the loss, with gradients only for the student; the teacher is not used.

        A batch has equal numbers of labeled and unlabeled rows, or only labeled ones, which are mixed with each other.

        Raises:
            ValueError: the batch has unlabeled rows, but not as many as labeled ones.
        """
        student, (labeled, unlabeled) = networks.student, labeled_and_unlabeled_positions(batch)
        first, second = batch.views[0], batch.views[1]
        images, others = first[labeled], (first[unlabeled], second[unlabeled])
        rows = len(images)
        if len(others[0]) not in (0, rows):
            raise ValueError(
                f"a batch must have as many unlabeled as labeled rows, or none, got {len(others[0])} and {rows}"
            )
        targets = one_hot(batch.labels[labeled], student.num_outputs).float()
        generator = keyed_generator(self._seed, "mixmatch", state.step)
        weight = self.unlabeled_weight(state.step)
        logs: dict[str, Tensor] = {}
        if not len(others[0]):
            shares = draw_blending_plan(rows, MIXUP_ALPHA, generator, images.device)
            logits, targets = head_logits(student, shares.blend(images))[0], shares.blend(targets)
        else:
            guesses = self.guess_labels(student, others)
            logs["guess_confidence"] = guesses.amax(dim=1).mean()
            shares = draw_blending_plan(3 * rows, MIXUP_ALPHA, generator, images.device)
            logits = self._interleaved_logits(student, torch.split(shares.blend(torch.cat([images, *others])), rows))
            targets = shares.blend(torch.cat([targets, guesses, guesses]))
        cross_entropy, unlabeled = self.loss(logits, targets, rows)
        loss = cross_entropy + weight * unlabeled
        logs |= {"cross_entropy": cross_entropy.detach(), "unlabeled": unlabeled.detach()}
        if networks.master is not None and weight > 0:
            agreement = self._master_term(batch, networks, labeled)
            loss = loss + weight * agreement
            logs["master_consistency"] = agreement.detach()
        return StepOutput(loss, logs)

    def _interleaved_logits(self, student: StudentNetwork, blocks: tuple[Tensor, ...]) -> Tensor:
        """Compute the logits of three blocks, each with batch statistics of rows from all of them."""
        mixed = interleave(blocks)
        logits = [head_logits(student, mixed[0])[0]]
        with use_batch_statistics(student):
            logits += [head_logits(student, block)[0] for block in mixed[1:]]
        return torch.cat(interleave(logits))

    def _master_term(self, batch: Batch, networks: StudentNetworks, labeled: Tensor) -> Tensor:
        """Compute the mean squared difference between student and master on labeled images."""
        assert networks.master is not None
        with torch.no_grad():
            # all rows, since batch statistics of a few images would be noisy
            target = head_logits(networks.master, batch.views[1])[0][labeled]
        with use_batch_statistics(networks.student):
            own = head_logits(networks.student, batch.views[0][labeled])[0]
        difference: Tensor = self.consistency(own, target)
        return difference.mean()


def unlabeled_weight_schedule(steps: int, options: MixMatchOptions) -> RampedWeight:
    """Return the weight schedule of the unlabeled loss; ``steps`` is the length of the first (or only) phase."""
    return RampedWeight(options.unlabeled_weight, options.unlabeled_ramp * steps)


class MixMatch(StudentObjectiveMethod[MixMatchConfig]):
    """MixMatch training method: mixup of images with given and guessed labels; needs at least one label per class."""

    def __init__(self, config: MixMatchConfig, data: DataInfo) -> None:
        super().__init__(config, data, dropout=0.0)  # the method adds its own noise
        check_divisible("--labeled-batch-size", config.labeled_batch_size)
        weight = unlabeled_weight_schedule(config.steps, config)
        self.objective = MixMatchObjective(self.weak_view, weight=weight, seed=config.seed)
