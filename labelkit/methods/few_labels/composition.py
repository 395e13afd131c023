"""How a master is made of three versions of a student after each block of updates (LMCS, specification 3.4 and 3.5).

    1. take the student, the student of the block before and the average as they are; freeze them
    2. begin as their mean, decided on by the average's last layers
    3. train converters and last layers:  J_M = J_X + lambda (J_C + eta J_D)                       Eq. 3.5 to 3.7
    4. keep the average of the trained weights, with statistics taken anew; freeze
Random numbers are keyed by the block, so that masters change nothing that the student draws.
Departures: J_X, cross-entropy of blended labeled images, is ours: Eq. 3.7 has nothing that labels could reach; J_D has
the opposite sense of the printed one (``losses.py``); eta, which is not given, starts J_D at half of J_C.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import one_hot

from labelkit.algorithms.clustering import kmeans
from labelkit.data.batch import Batch, row_shares
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.samplers import Stream, StreamSampler
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import DivergenceError
from labelkit.methods.few_labels.composed_networks import ComposedNetwork
from labelkit.methods.few_labels.losses import (
    Discrimination,
    DiscriminationLoss,
    MixMatchLoss,
    SquaredConsistency,
    nearest_two,
)
from labelkit.methods.few_labels.recipe import recalibrate_bn
from labelkit.methods.few_labels.students import StudentNetwork
from labelkit.models.batch_norm import batch_statistics
from labelkit.models.ema import follow, slow_copy
from labelkit.training.method import FullPass, Phase, TrainState
from labelkit.training.schedules import EMADecay, horizon_decay

ETA_BATCHES: Final = 10
ETA_LIMITS: Final = (1e-4, 1e-1)
MAX_CENTROID_IMAGES: Final = 10_000
_SHORT: Final = 1000
# views of a master's images are drawn apart from those of the student's epochs
_EPOCH_OFFSET: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MasterRules:
    """How a master is trained.

    Attributes:
        steps: updates.
        lr: of Adam.
        decay: of the average of its weights.
        weight: lambda of the unlabeled part.
        supervised: with J_X.
        mixup_alpha: of the blends of J_X.
        discrimination: J_D; ``None``: without.
        num_centroids: of J_D, the classes.
        recalibrate: take statistics of batch normalization anew.
        seed: of the run.
    """

    steps: int
    lr: float
    decay: float
    weight: float
    supervised: bool
    mixup_alpha: float
    discrimination: Discrimination | None
    num_centroids: int
    recalibrate: bool
    seed: int

    @property
    def average(self) -> EMADecay:
        """Decay of the average of the trained weights at an update, counted from 1."""
        high = horizon_decay(self.steps, self.decay) if self.steps < _SHORT else self.decay
        return EMADecay(high, high, 0)


@dataclass(frozen=True, slots=True)
class MasterDiet:
    """What a master is trained on.

    Attributes:
        labels: (n,) int64, given and discovered, -1 = none.
        rows: (m,) images that can be read.
        view: how they are augmented.
        batch_size: images of a batch.
        labeled_per_batch: of these, labeled ones.
    """

    labels: NDArray[np.int64]
    rows: NDArray[np.int64]
    view: ViewSpec
    batch_size: int
    labeled_per_batch: int

    @property
    def unlabeled(self) -> NDArray[np.int64]:
        """Rows without a label."""
        return self.rows[self.labels[self.rows] < 0]

    def batches(self, state: TrainState, block: int, rules: MasterRules) -> Iterator[Batch]:
        """The batches of a block's master, the same each time they are asked for."""
        labeled = self.rows[self.labels[self.rows] >= 0]
        per_batch = self.labeled_per_batch if len(self.unlabeled) else self.batch_size
        streams = [
            Stream("master labeled", labeled, per_batch),
            Stream("master unlabeled", self.unlabeled, self.batch_size - per_batch),
        ]
        sampler = StreamSampler(streams, steps=rules.steps, seed=rules.seed, phase=block)
        return state.batches(Phase(1, (self.view,), sampler, labels=self.labels), _EPOCH_OFFSET + block)


@dataclass(frozen=True, slots=True)
class MasterRecord:
    """What the training of a master came to.

    Attributes:
        cross_entropy, agreement, discrimination: means of J_X, J_C and J_D over the last quarter of the updates.
        eta: weight of J_D beside J_C.
        centroids: distinct ones; J_D needs two.
        current, previous, averaged: length of the converter of each network; (channels)^0.5 / 3 at the start.
    """

    cross_entropy: float
    agreement: float
    discrimination: float
    eta: float
    centroids: float
    current: float
    previous: float
    averaged: float

    def to_dict(self) -> dict[str, float]:
        """For the log."""
        return asdict(self)


@dataclass(slots=True)
class _Centroids:
    """Where features are compared with, renewed four times."""

    places: Tensor | None = None
    margin: float = 0.0


class MasterTraining:
    """Trains one block's master.

    Args:
        master: gets new networks and new weights.
        rules: how.
        diet: on what.
        state: of the event.
        block: number of the block in the run, from 0.
    """

    def __init__(
        self, master: ComposedNetwork, rules: MasterRules, diet: MasterDiet, state: TrainState, block: int
    ) -> None:
        self.master, self.rules, self.diet, self.state, self.block = master, rules, diet, state, block
        self._consistency, self._label_loss = SquaredConsistency(), MixMatchLoss()
        self._discrimination = None if rules.discrimination is None else DiscriminationLoss(rules.discrimination)
        self._centroids = _Centroids()

    def run(self, student: StudentNetwork, teacher: StudentNetwork, *, first: bool) -> MasterRecord:
        """Compose and train.

        Args:
            student: as it is after the block, with statistics to be judged with.
            teacher: its average, likewise.
            first: no master was composed before, so that the student is also its own predecessor.
        """
        master, rules = self.master, self.rules
        master.previous.load_state_dict((student if first else master.current).state_dict())
        master.current.load_state_dict(student.state_dict())
        master.averaged.load_state_dict(teacher.state_dict())
        master.composition.start_from(master.averaged)
        device = next(master.parameters()).device
        composition, generator = master.composition, self.state.generator("lmcs/master")
        sums = torch.zeros(4, device=device)
        self._place_centroids(generator)
        eta = self._eta()
        composition.requires_grad_(True)
        shadow = slow_copy(composition)
        optimizer = torch.optim.Adam(composition.parameters(), lr=rules.lr)
        last_quarter = rules.steps - max(1, rules.steps // 4)
        for step, batch in enumerate(self.diet.batches(self.state, self.block, rules)):
            if step and step % max(1, rules.steps // 4) == 0:
                self._place_centroids(generator)
            # dropout and shake draw from the global generator, which the trainer sets anew before each update
            composition.train()
            parts = self.losses(batch, step)
            composition.eval()
            total = parts[0] + rules.weight * (parts[1] + eta * parts[2])
            optimizer.zero_grad()
            total.backward()  # type: ignore[no-untyped-call] # torch has no types
            self.state.average_gradients(composition.parameters())
            optimizer.step()
            follow(shadow, composition, rules.average(step + 1), buffers="copy")
            if step >= last_quarter:
                sums += torch.stack([*(part.detach() for part in parts), torch.ones((), device=device)])
        composition.requires_grad_(False)
        composition.load_state_dict(shadow.state_dict())
        if rules.recalibrate:
            recalibrate_bn(master, self.state, self.diet.rows, part=composition)
        cross_entropy, agreement, discrimination, _ = (sums / sums[3]).tolist()
        current, previous, averaged = (float(_matrix(converter).norm()) for converter in composition.converters)
        places = self._centroids.places
        centroids = 0.0 if places is None else float(len(places))
        return MasterRecord(cross_entropy, agreement, discrimination, eta, centroids, current, previous, averaged)

    def losses(self, batch: Batch, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """J_X, J_C and J_D of a batch; a part that is left out is 0."""
        master, images, labels = self.master, batch.images, batch.labels
        labeled = labels >= 0
        count = int(labeled.sum())
        targets = one_hot(labels[labeled], master.num_outputs).float()
        generator = keyed_generator(self.rules.seed, "lmcs/master mixup", self.block * self.rules.steps + step)
        shares = row_shares(count, self.rules.mixup_alpha, generator, images.device)
        inputs = master.inputs(torch.cat([shares.blend(images[labeled]), images[~labeled]]))
        features = master.composition(inputs)
        logits = master.classify(features)
        zero = logits.sum() * 0
        cross_entropy = agreement = discrimination = zero
        if self.rules.supervised:
            cross_entropy = self._label_loss(logits[:count], shares.blend(targets), count).labeled
        if len(logits) > count:
            teacher = master.averaged_logits(tuple(maps[count:] for maps in inputs))
            agreement = self._consistency(logits[count:], teacher).mean()
            places = self._centroids.places
            if self._discrimination is not None and places is not None and len(places) > 1:
                discrimination = self._discrimination(features[count:], places, self._centroids.margin)
        return cross_entropy, agreement, discrimination

    @torch.no_grad()
    def _eta(self) -> float:
        """Weight of J_D: what makes it half of J_C before the first update, within ``ETA_LIMITS``."""
        if self._discrimination is None:
            return 0.0
        sums = torch.zeros(2)
        with batch_statistics(self.master.composition):
            for step, batch in enumerate(self.diet.batches(self.state, self.block, self.rules)):
                if step == ETA_BATCHES:
                    break
                _, agreement, discrimination = self.losses(batch, step)
                sums += torch.stack([agreement, discrimination]).cpu()
        agreement, discrimination = self.state.combine(sums, "sum").tolist()
        if discrimination <= 0:
            return ETA_LIMITS[0]
        return float(np.clip(0.5 * agreement / discrimination, *ETA_LIMITS))

    def _place_centroids(self, generator: np.random.Generator) -> None:
        """Cluster the master's features of images without a label."""
        rows = self.diet.unlabeled
        if self._discrimination is None or not len(rows):
            return
        if len(rows) > MAX_CENTROID_IMAGES:
            rows = np.sort(keyed_generator(self.rules.seed, "lmcs/centroids").permutation(rows)[:MAX_CENTROID_IMAGES])
        composition, is_trained = self.master.composition, self._centroids.places is not None

        def look(images: Tensor) -> Tensor:
            # trained by the statistics of batches, so compared by these
            with batch_statistics(composition) if is_trained else nullcontext():
                return self.master.embed(images)

        features = self.state.embed(look, rows, FullPass(order="fixed"))
        if not bool(features.isfinite().all()):
            raise DivergenceError(
                f"step {self.state.step}", "features of the master are not finite", "Lower --lr or --master-lr."
            )
        wanted = min(self.rules.num_centroids, len(rows))
        centroids = torch.zeros(wanted, features.shape[1])
        if self.state.is_main:  # all at once would share out the processor among as many equal runs
            found = kmeans(features.numpy(), wanted, generator=generator, num_inits=1, max_iter=20)
            centroids = torch.from_numpy(np.asarray(found.centroids, dtype=np.float32))
        places = torch.from_numpy(np.unique(self.state.combine(centroids, "sum").numpy(), axis=0))
        if len(places) < 2:
            self.state.warn("warning: master features form a single cluster, so that they are not kept apart")
        elif not is_trained:
            near, far = nearest_two(features, places)
            self._centroids.margin = float((far.sqrt() - near.sqrt()).median())
        self._centroids.places = places.to(next(self.master.parameters()).device)


def _matrix(converter: nn.Module) -> Tensor:
    weight = converter.weight
    assert isinstance(weight, Tensor)
    return weight.detach()
