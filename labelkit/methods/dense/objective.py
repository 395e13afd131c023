"""CoTAP's loss terms for a batch: the compared features, their targets, and diagnostics.

Source: "Semantic Concentration for Self-Supervised Dense Representations Learning", Eq. 2 to 16. Terms with weight 0
are not computed, and only features used by a term are projected.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.algorithms.regions import align_regions, crop_boxes_in_original, overlap_boxes, spans_min_tokens, to_unit
from labelkit.data.batch import Batch, move_arrays_to_device
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import DivergenceError
from labelkit.methods.dense.cotap_network import KERNEL, DenseNetwork
from labelkit.methods.dense.losses import (
    DenseRankingLoss,
    PrototypeEntropyLoss,
    SoftAssignmentLoss,
    batch_assignments,
    patch_similarity,
)
from labelkit.methods.dense.networks import Tokens
from labelkit.methods.dense.options import CoTAPConfig
from labelkit.methods.dense.ranking_loss import FLOOR, MARGIN, ranking_loss_and_gradient
from labelkit.methods.dense.recipe import assignment_entropy
from labelkit.training.distributed import get_rank_and_world_size
from labelkit.training.method import StepOutput, TrainState

GLOBAL_PAIRS = ((0, 1), (1, 0))
#: Minimum side, in tokens, of overlaps in dense terms (ours); in smaller ones, all cells show the same token.
MIN_TOKENS = 1.0
#: Entropy weight and iterations of Sinkhorn (Leopart).
SK_EPSILON, SK_ITERATIONS = 0.05, 3
#: Temperature of the prototypes' softmax over images (tau_3).
PROTOTYPE_TEMPERATURE = 0.1
#: Sample sizes of the diagnostics: large enough to be reliable, small enough to cost almost nothing.
MAX_VECTORS, MAX_PAIRS, MAX_ITEMS = 1024, 8, 4096
LARGE_RATIO = 100.0


@dataclass(frozen=True, slots=True)
class BranchOutput:
    """Features and projections computed by one network for each view of a batch."""

    # (o, p) unit projections of the class tokens of single-object images
    images: list[Tensor] = field(default_factory=list)
    # (b, h, w, p) unit projections of patches; empty if no term needs them
    patches: list[Tensor] = field(default_factory=list)
    tokens: list[Tokens] = field(default_factory=list)  # features before the filter
    filtered: list[Tokens] = field(default_factory=list)  # features after the filter


@dataclass(frozen=True, slots=True)
class AlignedFeatures:
    """Student and teacher features at the same locations in the overlap of two views."""

    online: Tensor  # (b, g, g, p) unit features of the student's view
    target: Tensor  # (b, g, g, p) unit features of the teacher's view at the same locations
    valid: NDArray[np.bool_]  # (b,) bool on the CPU, whether the overlap has enough tokens in both views
    places: Tensor  # (v,) int64, positions of the valid overlaps


class CoTAPObjective(nn.Module):
    """CoTAP's training loss, a weighted sum of terms; ``patch_size`` and ``image_size`` are in pixels."""

    def __init__(self, config: CoTAPConfig, *, patch_size: int, image_size: int) -> None:
        super().__init__()
        self.config = config
        self._patch_size = patch_size
        self._sizes = (image_size, image_size, *[config.local_size] * config.num_local_views)
        self.assignment = SoftAssignmentLoss(config.student_temperature)
        self.ranking = DenseRankingLoss(config.ranking_loss, is_finite=True)  # see ``_check_finite``
        self.entropy = PrototypeEntropyLoss(PROTOTYPE_TEMPERATURE)
        #: whether a loss term uses projected class tokens, and whether one uses small views
        self.uses_class_tokens = config.image_alignment > 0 or config.image_concentration > 0
        self.uses_small_views = self.uses_class_tokens or config.patch_alignment > 0

    def forward(
        self, batch: Batch, student: DenseNetwork, teacher: DenseNetwork, objects: Tensor, state: TrainState
    ) -> StepOutput:
        """Return the loss, with gradients only for the student, and the values to log.

        Args:
            batch: two large views, the small ones, and, with image concentration, a view of each image's neighbor.
            student: in training mode.
            teacher: in evaluation mode.
            objects: (o,) int64, positions of single-object images in the batch.
            state: training state.
        """
        config, views = self.config, batch.views
        shown = views[: 2 + config.num_local_views] if self.uses_small_views else views[:2]
        with torch.no_grad():
            large = [*views[:2], *([views[-1][objects]] if config.image_concentration else [])]
            target = self._branch(teacher, large, objects, len(batch.labels), num_maps=2)
        online = BranchOutput()
        if self.uses_small_views or config.patch_ranking:
            maps = len(shown) if config.patch_alignment else 2
            online = self._branch(student, shown, objects, len(batch.labels), num_maps=maps)
        self._check_finite((*online.images, *online.patches, *target.images, *target.patches), state)

        terms: dict[str, Tensor] = {}
        logs: dict[str, Tensor] = {}
        if self.uses_class_tokens:
            terms |= self._image_terms(online, target, state, logs)
        aligned = self._align_overlaps(batch, online, target)
        if config.patch_alignment:
            terms["patch_alignment"] = self._patch_alignment(aligned, state)
        if config.patch_ranking:
            terms["patch_ranking"] = self._patch_ranking(aligned, online, target, state, logs)
        if config.prototype_entropy:
            terms["prototype_entropy"] = self._prototype_entropy(student, target.tokens[0], objects, state, logs)
        if state.log_now:
            logs |= compute_feature_diagnostics(online)
        loss = torch.stack([getattr(config, name) * term for name, term in terms.items()]).sum()
        return StepOutput(loss, {name: term.detach() for name, term in terms.items()} | logs)

    def _branch(
        self, network: DenseNetwork, views: Sequence[Tensor], objects: Tensor, count: int, *, num_maps: int
    ) -> BranchOutput:
        """Run a network on views (b, c, h, w), or (o, c, h, w) of ``objects`` only, batching views of the same size.

        Patches of the first ``num_maps`` views are projected; ``count`` is b.
        """
        branch, needs_maps = BranchOutput(), self.config.patch_alignment > 0 or self.config.patch_ranking > 0
        end = 0
        for _, same_size in itertools.groupby(views, key=lambda view: view.shape[-1]):
            group = list(same_size)
            first, end = end, end + len(group)
            lengths = [len(view) for view in group]
            tokens = network.tokens(torch.cat(group))
            branch.tokens.extend(_split_views(tokens, lengths))
            if not (self.uses_class_tokens or needs_maps):
                continue
            parts = _split_views(network.filter_tokens(tokens), lengths)
            branch.filtered.extend(parts)
            if self.uses_class_tokens:
                images = [part.image if len(part.image) != count else part.image[objects] for part in parts]
                branch.images.extend(torch.split(network.project(torch.cat(images)), [len(part) for part in images]))
            if needs_maps and first < num_maps:
                maps = [part.patches for part in parts[: num_maps - first]]
                branch.patches.extend(torch.split(network.project(torch.cat(maps)), lengths[: len(maps)]))
        return branch

    def _check_finite(self, projections: tuple[Tensor, ...], state: TrainState) -> None:
        """Check that projections are finite, before Sinkhorn or ranking fail on them with a less clear error."""
        if projections and not bool(torch.isfinite(torch.stack([part.detach().sum() for part in projections])).all()):
            raise DivergenceError(
                f"epoch {state.epoch}, step {state.step + 1}",
                "the features of the networks are not finite",
                "The last checkpoint is not affected. Lower --lr, set --clip-grad-norm, or use --precision float32.",
            )

    def _assignments(self, logits: Tensor, state: TrainState) -> Tensor:
        return batch_assignments(
            logits.detach(),
            epsilon=SK_EPSILON,
            num_iterations=SK_ITERATIONS,
            # in a single process, the reduction would only copy to the CPU and back
            reduce=None if get_rank_and_world_size()[1] == 1 else state.combine,
        )

    def _image_terms(
        self, online: BranchOutput, target: BranchOutput, state: TrainState, logs: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Compute the losses of class tokens against the teacher's two large views, and against a neighbor's view."""
        logits = online.images  # the softmax is over the dimensions of the projection
        terms: dict[str, Tensor] = {}
        if self.config.image_alignment:
            losses = []
            for a in (0, 1):
                assigned = self._assignments(target.images[a], state)
                if a == 0 and state.log_now:
                    logs |= compute_assignment_diagnostics(assigned, logits[1], self.config.student_temperature)
                losses += [self.assignment(view, assigned) for v, view in enumerate(logits) if v != a]
            terms["image_alignment"] = torch.stack(losses).mean()
        if self.config.image_concentration:
            assigned = self._assignments(target.images[2], state)
            terms["image_concentration"] = torch.stack([self.assignment(view, assigned) for view in logits]).mean()
        return terms

    def _align_overlaps(
        self, batch: Batch, online: BranchOutput, target: BranchOutput
    ) -> dict[tuple[int, int], AlignedFeatures]:
        """Return the aligned features of overlapping views, keyed by the numbers of student and teacher view."""
        config = self.config
        if config.patch_alignment:
            pairs = [(v, a) for a in (0, 1) for v in range(len(online.patches)) if v != a]
        else:
            pairs = list(GLOBAL_PAIRS) if config.patch_ranking and config.ranking_views == "aligned" else []
        # on the CPU, where the matrices are: lengths depend on the valid overlaps, which would stall a GPU
        boxes = [crop_boxes_in_original(view.on_host) for view in batch.geometry]
        arrays: list[NDArray[np.generic]] = []
        for v, a in pairs:
            inside = [overlap_boxes(boxes[i], boxes[j], self._sizes[i]) for i, j in ((v, a), (a, v))]
            valid = [spans_min_tokens(box, self._patch_size, MIN_TOKENS) for box in inside]
            both = valid[0] & valid[1]
            # a placeholder if the overlap is not valid
            whole = [inside[k].new_tensor([0, 0, self._sizes[i], self._sizes[i]]) for k, i in enumerate((v, a))]
            chosen = [torch.where(both[:, None], box, full).numpy() for box, full in zip(inside, whole, strict=True)]
            arrays += [*chosen, both.numpy(), np.flatnonzero(both.numpy())]
        sent = move_arrays_to_device(arrays, batch.labels.device)
        found = {}
        for number, (v, a) in enumerate(pairs):
            online_boxes, target_boxes, _, places = sent[4 * number : 4 * number + 4]
            found[v, a] = AlignedFeatures(
                to_unit(align_regions(online.patches[v], online_boxes, config.roi_size, self._patch_size)),
                to_unit(align_regions(target.patches[a], target_boxes, config.roi_size, self._patch_size)),
                np.asarray(arrays[4 * number + 2], dtype=np.bool_),
                places,
            )
        return found

    def _patch_alignment(self, aligned: dict[tuple[int, int], AlignedFeatures], state: TrainState) -> Tensor:
        """Compute the alignment loss, with Sinkhorn on the teacher's aligned patches (Eq. 4), not on whole maps."""
        losses = []
        for pair in aligned.values():
            assigned = self._assignments(pair.target[pair.places].flatten(0, 2), state)
            losses.append(self.assignment(pair.online[pair.places].flatten(0, 2), assigned))
        return torch.stack(losses).mean()

    def _patch_ranking(
        self,
        aligned: dict[tuple[int, int], AlignedFeatures],
        online: BranchOutput,
        target: BranchOutput,
        state: TrainState,
        logs: dict[str, Tensor],
    ) -> Tensor:
        partners = self._draw_partners(len(target.tokens[0].image), state)
        scores: list[Tensor] = []
        wanted: list[Tensor] = []
        for a, b in GLOBAL_PAIRS:
            valid = np.ones(len(partners), dtype=np.bool_)
            if self.config.ranking_views == "same":
                online_maps, target_maps = online.patches[a], target.patches[a]
            else:
                pair = aligned[a, b]
                online_maps, target_maps, valid = pair.online, pair.target, pair.valid & pair.valid[partners]
            first, second = move_arrays_to_device((np.flatnonzero(valid), partners[valid]), online_maps.device)
            for features, made in ((online_maps, scores), (target_maps, wanted)):
                flat = features.flatten(1, 2)
                made.append(patch_similarity(flat[first], flat[second]).flatten(1))
        p, q = torch.cat(scores), torch.cat(wanted)
        if state.log_now:
            logs |= compute_ranking_diagnostics(p, q)
        return self.ranking(p, q)

    def _draw_partners(self, count: int, state: TrainState) -> NDArray[np.int64]:
        """Draw a random partner for each image from this process's batch, (b,) on the CPU."""
        rank, _ = get_rank_and_world_size()
        generator = keyed_generator(self.config.seed, "cotap image pairs", state.step, rank)
        return np.asarray((np.arange(count) + int(generator.integers(1, count))) % count, dtype=np.int64)

    def _prototype_entropy(
        self, student: DenseNetwork, tokens: Tokens, objects: Tensor, state: TrainState, logs: dict[str, Tensor]
    ) -> Tensor:
        assert student.filter is not None  # the config ensures it
        maps = tokens.patches[objects].float().permute(0, 3, 1, 2)
        pooled = F.adaptive_avg_pool2d(maps, KERNEL).permute(0, 2, 3, 1).flatten(1)
        prototypes = student.filter.prototypes.flatten(1)  # (m, 9f)
        if state.log_now:
            logs |= compute_prototype_diagnostics(prototypes, pooled)
        return self.entropy(prototypes, pooled)


def _split_views(tokens: Tokens, lengths: list[int]) -> list[Tokens]:
    return [Tokens(*pair) for pair in zip(*(torch.split(values, lengths) for values in tokens), strict=True)]


@torch.no_grad()
def compute_feature_diagnostics(online: BranchOutput) -> dict[str, Tensor]:
    """Compute the mean cosine between projected patches, and the effective rank of features, of the first view.

    Only the first ``MAX_VECTORS`` of each are used. The effective rank is the exponential of the entropy of the
    singular values' shares, 1 to d.
    """
    found: dict[str, Tensor] = {}
    if online.patches:
        n = len(values := online.patches[0].flatten(0, 2)[:MAX_VECTORS].double())
        found["diag/patch_cosine"] = ((values.sum(dim=0).square().sum() - n) / max(n * (n - 1), 1)).float()
    if online.filtered:
        values = online.filtered[0].patches.flatten(0, 2)[:MAX_VECTORS].double()
        spectrum = torch.linalg.svdvals(values - values.mean(dim=0))
        shares = spectrum / spectrum.sum().clamp(min=1e-12)
        found["diag/effective_rank"] = torch.special.entr(shares).sum().exp().float()
    return found


@torch.no_grad()
def compute_assignment_diagnostics(assignments: Tensor, logits: Tensor, temperature: float) -> dict[str, Tensor]:
    """Compute the normalized entropy of the mean prediction, and the spread of cluster sizes (0 if all are equal)."""
    shares = assignments.float().sum(dim=0) * (logits.shape[1] / max(len(assignments), 1))
    return {
        "diag/assignment_entropy": assignment_entropy(logits, temperature),
        "diag/sinkhorn_spread": shares.max() - shares.min(),
    }


@torch.no_grad()
def compute_ranking_diagnostics(scores: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Compute the fraction of image pairs with equal targets, the median of x (Eq. 12), and the fraction of x > 100."""
    if not len(scores):
        nothing = scores.new_zeros(())
        return {"diag/ranking_empty": nothing, "diag/ranking_median": nothing, "diag/ranking_large": nothing}
    p, q = scores[:MAX_PAIRS, :MAX_ITEMS], targets[:MAX_PAIRS, :MAX_ITEMS]
    _, _, ratios = ranking_loss_and_gradient(p, q, (q - FLOOR).clamp_min(0), MARGIN, gradient=False)
    return {
        "diag/ranking_empty": (targets.amax(dim=1) == targets.amin(dim=1)).float().mean(),
        "diag/ranking_median": ratios.median().float(),
        "diag/ranking_large": (ratios > LARGE_RATIO).float().mean(),
    }


@torch.no_grad()
def compute_prototype_diagnostics(prototypes: Tensor, images: Tensor) -> dict[str, Tensor]:
    """Compute the maximum cosine between two prototypes and the number of distinct images nearest to a prototype."""
    vectors = F.normalize(prototypes.float(), dim=1)
    cosines = (vectors @ vectors.T).fill_diagonal_(-1)
    nearest = (vectors @ F.normalize(images.float(), dim=1).T).argmax(dim=1)
    return {
        "diag/prototype_cosine": cosines.max(),
        "diag/prototype_images": torch.bincount(nearest, minlength=1).count_nonzero().float(),
    }
