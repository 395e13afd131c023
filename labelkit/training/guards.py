"""Signs that training goes wrong, and what is done about them: a warning, or an end with the last good checkpoint kept.

What is looked at costs next to nothing:

- at a logged step, the loss, which is read then anyhow;
- after an epoch, the lengths of the weights;
- after an epoch, but not after each of a small set, features and predictions of a few images, always the same ones;
- after each epoch, of a method that pulls images together, how these features differ from those before training.

A sign is believed when it is there several times in a row, since a network from scratch tells nothing apart at first,
and a single batch may be odd. Weights that are not finite are not a matter of taste: they end every run.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import DivergenceError
from labelkit.formatting import percent
from labelkit.training.method import FullPass, Method, TrainState
from labelkit.training.monitors.groups import MIN_COLLAPSED_STEPS

GuardMode = Literal["none", "warn", "stop"]

#: Images that are trained on from one look to the next, so that looking costs less than a hundredth of the training.
LOOK_EVERY: Final = 8192
#: Images whose features are looked at: enough for their spread, few beside what an epoch embeds.
SAMPLE: Final = 64
WARN_AFTER, STOP_AFTER = 2, 3
ALIKE_PROTOTYPES: Final = 0.999  # mean cosine of different ones
ONE_LINE: Final = 1.05  # effective rank
# Measured with TAC-CCL on Omniglot, 3 seeds, while the spread is below 0.3: with weights that collapse, 0.33 to 0.35 of
# the directions after one epoch, 0.24 to 0.27 after two, 0.18 to 0.24 later; with others, never below 0.35 (0.37, 0.36,
# 0.35 in a row). On CIFAR-10 the spread stays above 0.35. A run ends midway between both, if it was on the way before.
NEARLY_ALIKE: Final = 0.3  # feature spread; mean cosine 0.91
FEWER_DIRECTIONS: Final = 0.4  # effective rank over that before training: on the way
FEW_DIRECTIONS: Final = 0.31  # the same: collapsing
ONE_CLUSTER: Final = 0.99  # share of the largest
MIN_STANDING_STEPS: Final = 20  # scaling of a half-precision loss skips a few updates at the start
NO_LR: Final = 1e-9  # of the highest learning rate
MUCH_OF_THE_RUN: Final = 0.1


@dataclass(frozen=True, slots=True)
class NetworkMeasurements:
    """Measurements of a network's features, predictions, class vectors and groups after an epoch.

    Attributes:
        feature_spread: standard deviation of the features over their length (root mean squares over images and
            dimensions), 0 = all alike, at most 1.
        effective_rank: exponential of the entropy of the shares of the centered features' singular values; 1 = they
            differ along one line.
        predicted_classes: different classes that are predicted; ``None`` without a classifier.
        prototype_cosine: mean cosine of different class vectors, of the head where it is largest; ``None`` without.
        largest_cluster: share of the images in the largest group that the method made; ``None`` without groups.
    """

    feature_spread: float
    effective_rank: float
    predicted_classes: int | None = None
    prototype_cosine: float | None = None
    largest_cluster: float | None = None

    def metrics(self) -> dict[str, float]:
        """Return the measurements that are logged."""
        values = {"feature_spread": self.feature_spread, "effective_rank": self.effective_rank}
        if self.prototype_cosine is not None:
            values["prototype_cosine"] = self.prototype_cosine
        return {f"guard/{name}": value for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class Sign:
    """A sign of failed training, with its problem and remedy.

    Attributes:
        name: of the kind of sign, for counting.
        problem: what is seen.
        remedy: what to try.
        ends: worth an end of the run, if it lasts.
        sure: believed at once, and worth an end the second time in a row.
        begun: the last look saw it coming, which counts as a first time.
    """

    name: str
    problem: str
    remedy: str
    ends: bool = True
    sure: bool = False
    begun: bool = False


@dataclass
class Guard:
    """Detector of failed training that warns once of each sign and stops the run if one persists.

    Args:
        mode: ``stop``, only ``warn``, or look at ``none``.
        loss_ratio: a loss has exploded above this multiple of the loss of the first step.
        min_spread: features whose ``feature_spread`` is below are all alike.
        say: shows a line to a person.

    Attributes:
        good_step: step of the last checkpoint that was written without any sign; 0 = none yet.
        first_rank: effective rank of the features before training; ``None``: not compared with.
    """

    mode: GuardMode
    loss_ratio: float
    min_spread: float
    say: Callable[[str], None]
    good_step: int = 0
    first_rank: float | None = None
    _first_loss: float | None = None
    _seen: dict[str, list[int]] = field(default_factory=dict)  # times in a row, and step of the first of them
    _warned: set[str] = field(default_factory=set)
    _weights: str = ""
    _changed_at: int = 0
    _looked_at: int = 0
    _shrinking: bool = False  # at the last look

    # ------------------------------------------------------------------ what is seen

    def at_labels(self, labels: NDArray[np.int64], *, beside_others: bool) -> None:
        """Check that the training labels have more than one class.

        Args:
            labels: (m,) int64 training labels of the images that can be read, -1 = unlabeled.
            beside_others: images without a label are another source of classes, as in discovery.

        Raises:
            DivergenceError: all labels are of one class, and nothing else could tell classes apart.
        """
        known = labels[labels >= 0]
        if self.mode == "none" or len(np.unique(known)) != 1:
            return
        problem = f"all {len(known)} labels are of one class"
        remedy = (
            "Check the labels and the options that choose them (--label-split, --num-labels): two classes are needed."
        )
        if not beside_others and self.mode == "stop":
            raise DivergenceError("labels", problem, remedy)
        self.say(f"warning: {problem}. {remedy}")

    def at_schedule(self, zero_lr_share: float) -> None:
        """Warn if the learning rate is 0 in a large final part of the run."""
        if self.mode != "none" and zero_lr_share > MUCH_OF_THE_RUN:
            self.say(
                f"warning: the learning rate is 0 in the last {percent(zero_lr_share)} % of the run, where nothing "
                "will change: shorten the training, or check the options that begin with --lr"
            )

    def at_images(self, pixels: Tensor) -> None:
        """Check before the first step that prepared images (m, p) float are not all equal.

        Raises:
            DivergenceError: they are equal to the last bit.
        """
        if self.mode == "none" or len(pixels) < 2 or not bool((pixels == pixels[0]).all()):
            return
        problem = f"{len(pixels)} images drawn from the training set are all equal"
        remedy = "Check the files and --image-size: nothing can be learned from equal images."
        if self.mode == "stop":
            raise DivergenceError("images", problem, remedy)
        self.say(f"warning: {problem}. {remedy}")

    def at_loss(self, loss: float, step: int) -> None:
        """Check that the loss has not exploded compared with the first step.

        Raises:
            DivergenceError: it has exploded.
        """
        if self._first_loss is None:
            self._first_loss = loss
            return
        limit = self.loss_ratio * max(1.0, abs(self._first_loss))
        signs = []
        if abs(loss) > limit:
            problem = f"the loss rose from {self._first_loss:.4g} at the first step to {loss:.4g}"
            signs.append(
                Sign(
                    "loss",
                    f"{problem}, so training diverges",
                    "Lower --lr, set --clip-grad-norm, or train with a warm-up.",
                )
            )
        self._judge(signs, {"loss"}, step, lasting=0)

    def measurement_is_due(self, step: int, batch_size: int) -> bool:
        """Return whether enough images were trained on since the last measurement, or every epoch is measured."""
        enough = self.first_rank is not None or (step - self._looked_at) * batch_size >= LOOK_EVERY
        return self.mode != "none" and enough

    def at_epoch_end(self, look: NetworkMeasurements | None, norms: Sequence[float], step: int) -> None:
        """Check features, predictions, groups and weights for signs of failure after an epoch.

        Args:
            look: what was seen, if it was time to look.
            norms: lengths of the trained weights, tensor by tensor.
            step: updates so far.

        Raises:
            DivergenceError: a sign has lasted.
        """
        if self.mode == "none":
            return
        digest = hashlib.sha256(np.asarray(norms, dtype=np.float64).tobytes()).hexdigest()
        if digest != self._weights:
            self._weights, self._changed_at = digest, step
        standing = step - self._changed_at
        if standing >= MIN_STANDING_STEPS:
            problem = f"no weight has changed in {standing} steps"
            self._act(
                Sign(
                    "weights", problem, "The learning rate is too small or 0: check the options that begin with --lr."
                ),
                step,
                ends=True,
            )
        if look is None:
            return
        self._looked_at = step
        self._judge(self._signs(look), set(_NAMES), step, lasting=MIN_COLLAPSED_STEPS)
        self._shrinking = self._shrinks(look, FEWER_DIRECTIONS)
        if not self._seen:
            self.good_step = step

    def _signs(self, look: NetworkMeasurements) -> list[Sign]:
        signs = []
        if not look.feature_spread >= self.min_spread:
            problem = f"the features of all images are nearly equal (relative spread {look.feature_spread:.1e})"
            signs.append(Sign("features", f"{problem}: training collapsed", _LESS))
        elif look.effective_rank < ONE_LINE:
            problem = f"features differ in only one direction (effective rank {look.effective_rank:.2f})"
            signs.append(Sign("rank", problem, _LESS, ends=False))
        elif self._shrinks(look, FEW_DIRECTIONS):
            problem = (
                f"features become similar: their relative spread is {percent(look.feature_spread)} %, and their "
                f"effective rank fell from {self.first_rank:.1f} to {look.effective_rank:.1f}"
            )
            sign = Sign("shrinking", f"{problem}: training collapses", _LESS, sure=True, begun=self._shrinking)
            signs.append(sign)
        if look.prototype_cosine is not None and not look.prototype_cosine <= ALIKE_PROTOTYPES:
            problem = f"all class vectors are nearly equal (mean cosine {look.prototype_cosine:.4f})"
            signs.append(Sign("prototypes", f"{problem}: training collapsed", _LESS))
        if look.predicted_classes == 1:
            problem = "the same class is predicted for all sampled images"
            signs.append(
                Sign(
                    "predictions",
                    problem,
                    "Pass --clip-grad-norm 1, raise --entropy-weight or lower --lr.",
                    ends=False,
                )
            )
        if look.largest_cluster is not None and look.largest_cluster > ONE_CLUSTER:
            problem = f"one cluster has {percent(look.largest_cluster)} % of the images"
            signs.append(Sign("clusters", problem, "Check the images, lower --lr, or use fewer clusters."))
        return signs

    def _shrinks(self, look: NetworkMeasurements, share: float) -> bool:
        """Whether features that are close together differ in less than a share of the directions of before training."""
        if self.first_rank is None or look.feature_spread >= NEARLY_ALIKE:
            return False
        return look.effective_rank < share * self.first_rank

    # ------------------------------------------------------------------ what is done

    def _judge(self, signs: Iterable[Sign], names: set[str], step: int, *, lasting: int) -> None:
        """Count signs of some kinds; those that are not there any more start again."""
        if self.mode == "none":
            return
        found = {sign.name: sign for sign in signs}
        for name in names - found.keys():
            self._seen.pop(name, None)
        for name, sign in found.items():
            counted = self._seen.setdefault(name, [int(sign.begun), step])
            counted[0] += 1
            lasts = counted[0] >= STOP_AFTER and step - counted[1] >= lasting
            ends = sign.ends and (lasts or (sign.sure and counted[0] >= WARN_AFTER))
            if counted[0] >= WARN_AFTER or sign.sure:
                self._act(sign, step, ends=ends)

    def _act(self, sign: Sign, step: int, *, ends: bool) -> None:
        if ends and self.mode == "stop":
            kept = f"; the checkpoint of step {self.good_step} is from before and is kept" if self.good_step else ""
            raise DivergenceError(f"step {step}", f"{sign.problem}{kept}", f"{sign.remedy} (--guard warn continues.)")
        if sign.name not in self._warned:
            self._warned.add(sign.name)
            self.say(f"warning: step {step}: {sign.problem}. {sign.remedy}")

    def extra_state(self) -> dict[str, Any]:
        """Return the JSON values that a resumed run needs."""
        return {
            "good_step": self.good_step,
            "first_rank": self.first_rank,
            "first_loss": self._first_loss,
            "seen": self._seen,
            "weights": self._weights,
            "changed_at": self._changed_at,
            "looked_at": self._looked_at,
            "shrinking": self._shrinking,
        }

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by ``extra_state``, which is empty in checkpoints older than the guard."""
        if state:
            self.good_step, self._first_loss = int(state["good_step"]), state["first_loss"]
            self._seen = {name: [int(value) for value in counted] for name, counted in state["seen"].items()}
            self._weights, self._changed_at = str(state["weights"]), int(state["changed_at"])
            self._looked_at = int(state["looked_at"])
            # a checkpoint of 0.1 has none
            self.first_rank, self._shrinking = state.get("first_rank"), bool(state.get("shrinking"))


_NAMES: Final = ("features", "rank", "shrinking", "prototypes", "predictions", "clusters")
_LESS: Final = "Lower --lr or the weights of added losses, or raise what keeps images apart (--entropy-weight)."


def zero_lr_share(lrs: Sequence[float], peak: float) -> float:
    """Return the final fraction of the run in which the learning rate is negligible compared with its peak."""
    alive = [position for position, lr in enumerate(lrs, start=1) if lr > NO_LR * peak]
    return 1 - (alive[-1] if alive else 0) / len(lrs) if lrs else 0.0


def sample_rows(rows: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Draw the fixed sample of rows, (m,) int64 in increasing order, that the guard examines during a run."""
    drawn = keyed_generator(seed, "guard").permutation(len(rows))[:SAMPLE]
    return np.sort(rows[drawn])


def first_rank(method: Method[Any], state: TrainState, rows: NDArray[np.int64]) -> float:
    """Compute the effective rank of the features of (m,) rows before training, with their batch statistics."""
    # running statistics of a network that was never trained say nothing
    how = FullPass("batch-statistics", order="fixed", batch_size=len(rows))
    return effective_rank(state.embed(method.network.embed, rows, how))


def measure_network(method: Method[Any], state: TrainState, rows: NDArray[np.int64]) -> NetworkMeasurements:
    """Compute a network's features and predictions for a few images, with the method's class vectors and groups.

    Args:
        method: in evaluation mode.
        state: runs the images through it, over all processes.
        rows: (m,) int64.
    """
    network = method.network

    def both(images: Tensor) -> Tensor:
        features = network.embed(images)
        return torch.cat([features.float(), network.classify(features).float()], dim=1)

    table = state.embed(both, rows, FullPass(by_network=True))
    features, scores = table[:, : network.embed_dim], table[:, network.embed_dim :]
    cosines = [mean_cosine(vectors) for vectors in network.class_vectors().values() if len(vectors) > 1]
    return NetworkMeasurements(
        feature_spread=feature_spread(features),
        effective_rank=effective_rank(features),
        predicted_classes=len(np.unique(scores.argmax(dim=1).numpy())) if scores.shape[1] > 1 else None,
        prototype_cosine=max(cosines) if cosines else None,
        largest_cluster=_largest_cluster(method.groupings()),
    )


def feature_spread(features: Tensor) -> float:
    """Return the standard deviation of features (n, d) divided by their root mean square; 0 if not finite."""
    values = features.double()
    length = values.square().mean().sqrt()
    spread = (values - values.mean(dim=0)).square().mean().sqrt() / length
    return float(spread) if bool(torch.isfinite(spread)) else 0.0


def effective_rank(features: Tensor) -> float:
    """Return the effective rank of features: the exponential entropy of normalized singular values; 1 if all equal."""
    centered = features.double() - features.double().mean(dim=0)
    if not bool(torch.isfinite(centered).all()):
        return 1.0
    spectrum = torch.linalg.svdvals(centered)
    total = spectrum.sum()
    return float(torch.special.entr(spectrum / total).sum().exp()) if float(total) > 0 else 1.0


@torch.no_grad()
def mean_cosine(vectors: Tensor) -> float:
    """Return the mean cosine of different rows of vectors (k, d), k >= 2, or 1 if no row has a direction."""
    unit = nn.functional.normalize(vectors.detach().double().flatten(1), dim=1, eps=1e-30)
    k = len(unit)
    cosine = float((unit.sum(dim=0).square().sum() - unit.square().sum()) / (k * (k - 1)))
    return cosine if math.isfinite(cosine) and bool(unit.any()) else 1.0


def _largest_cluster(groupings: Mapping[str, Tensor]) -> float | None:
    shares = []
    for ids in groupings.values():
        kept = ids[ids >= 0]
        if len(kept):
            shares.append(float(torch.bincount(kept.long()).max()) / len(kept))
    return max(shares) if shares else None


@torch.no_grad()
def weight_norms(parameters: Iterable[Tensor]) -> list[float]:
    """Return the norm of each tensor."""
    norms = [parameter.detach().norm().float() for parameter in parameters]
    # one copy for all: each would wait for the GPU
    found: list[float] = torch.stack([norm.to(norms[0].device) for norm in norms]).tolist() if norms else []
    return found


def check_weights(module: nn.Module, where: str) -> None:
    """Check that all weights and running statistics are finite.

    Raises:
        DivergenceError: naming the first ones.
    """
    named: dict[str, Tensor] = dict(module.named_parameters())
    named |= {name: value for name, value in module.named_buffers() if name.endswith(("running_mean", "running_var"))}
    norms = weight_norms(named.values())
    broken = [name for name, norm in zip(named, norms, strict=True) if not math.isfinite(norm)]
    # the square of a large, still finite number may not be
    broken = [name for name in broken if not bool(torch.isfinite(named[name]).all())]
    if broken:
        more = f" and {len(broken) - 3} more" if len(broken) > 3 else ""
        raise DivergenceError(
            where,
            f"weights are not finite: {', '.join(broken[:3])}{more}",
            "The last checkpoint predates this. Lower --lr, set --clip-grad-norm, or use --precision float32.",
        )
