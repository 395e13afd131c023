"""Time the assignment of classes to prototypes with a warm start against scipy, on matrices as training makes them.

A small network learns to point at the prototypes of its classes, by the loss of DL2PA; class means are moving averages,
and at the end of every epoch each class gets its prototype anew. ``LABELKIT_BENCH_CLASSES=10000`` makes the problem
that large: some minutes, and 2 GB. Classes then keep their first prototypes for some epochs, since scipy alone takes
minutes for a matrix of that size from the first epochs.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from labelkit.algorithms.assignment import Assignment, assign
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from benchmarks.measure import Row, Wanted

SEEDS = {"data": 0, "network": 0}
NUM_CLASSES = int(os.environ.get("LABELKIT_BENCH_CLASSES", "1000"))
DIM, INPUT_DIM, WIDTH = 128, 256, 512
ROWS_PER_CLASS, BATCH_SIZE, LR, MOMENTUM = (20 if NUM_CLASSES <= 2000 else 5), 256, 0.1, 0.9
NUM_EPOCHS = 14
FIRST_EPOCH = 0 if NUM_CLASSES <= 2000 else 7
MEAN_DECAY = 0.9
TOLERANCE = 1e-9
REPETITIONS = 3 if NUM_CLASSES <= 2000 else 1


@dataclass(frozen=True)
class Timed:
    """One assignment by both sides.

    Attributes:
        epoch: number of the assignment, from 0.
        how: what the warm start did.
        ours_s: its seconds.
        peer_s: seconds of scipy.
        is_same: both reached the same total.
    """

    epoch: int
    how: str
    ours_s: float
    peer_s: float
    is_same: bool


class Training:
    """A network that is pulled to the prototypes of its classes."""

    def __init__(self) -> None:
        torch.manual_seed(SEEDS["network"])
        generator = np.random.default_rng(SEEDS["data"])
        centers = generator.standard_normal((NUM_CLASSES, INPUT_DIM), dtype=np.float32)
        noise = generator.standard_normal((NUM_CLASSES * ROWS_PER_CLASS, INPUT_DIM), dtype=np.float32)
        self.labels = torch.arange(NUM_CLASSES).repeat_interleave(ROWS_PER_CLASS)
        self.rows = torch.from_numpy(centers)[self.labels] + torch.from_numpy(noise)
        vectors = torch.from_numpy(generator.standard_normal((NUM_CLASSES, DIM), dtype=np.float32))
        self.prototypes = torch.nn.functional.normalize(vectors, dim=1)
        self.means = torch.zeros(NUM_CLASSES, DIM)
        self.network = torch.nn.Sequential(
            torch.nn.Linear(INPUT_DIM, WIDTH),
            torch.nn.ReLU(),
            torch.nn.Linear(WIDTH, WIDTH),
            torch.nn.ReLU(),
            torch.nn.Linear(WIDTH, DIM),
        )
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=LR, momentum=MOMENTUM)

    def epoch(self, columns: torch.Tensor) -> NDArray[np.float32]:
        """Train once over the data; return the scores of classes and prototypes."""
        for index in torch.randperm(len(self.labels)).split(BATCH_SIZE):
            labels = self.labels[index]
            embeddings = torch.nn.functional.normalize(self.network(self.rows[index]), dim=1)
            classes, inverse = labels.unique(return_inverse=True)
            sums = torch.zeros(len(classes), DIM).index_add_(0, inverse, embeddings.detach())
            seen = self.means[classes].norm(dim=1, keepdim=True) > 0
            decay = MEAN_DECAY * seen
            mean = decay * self.means[classes] + (1 - decay) * torch.nn.functional.normalize(sums, dim=1)
            self.means[classes] = torch.nn.functional.normalize(mean, dim=1)
            cosines = (embeddings * self.prototypes[columns[labels]]).sum(dim=1)
            loss = 4 * (1 - cosines).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        scores: NDArray[np.float32] = (self.means @ self.prototypes.T).numpy()
        return scores


def run() -> Iterator[Timed]:
    """Train, and time every assignment from the second on; the first has nothing to start from."""
    training = Training()
    found: Assignment | None = None
    rows = np.arange(NUM_CLASSES)
    columns = torch.arange(NUM_CLASSES)
    for epoch in range(NUM_EPOCHS):
        scores = training.epoch(columns)
        if epoch < FIRST_EPOCH:
            continue
        if found is None:
            now = assign(scores)
        else:
            ours, peer = [], []
            for _ in range(REPETITIONS):
                # both sides run on this thread; neighbors, and threads of torch that wait for work, must not count
                begin = time.thread_time()
                now = assign(scores, found)
                ours.append(time.thread_time() - begin)
                begin = time.thread_time()
                best = linear_sum_assignment(np.negative(scores, dtype=np.float64))[1]
                peer.append(time.thread_time() - begin)
            value = float(scores[rows, best].sum(dtype=np.float64))
            is_same = abs(value - now.value) <= TOLERANCE * NUM_CLASSES
            yield Timed(epoch, now.how, statistics.median(ours), statistics.median(peer), is_same)
        found, columns = now, torch.from_numpy(now.columns)


def rows() -> Iterator[Row]:
    """Compare where classes still changed their prototypes, and where they no longer did."""
    timed = list(run())
    for what, part in (
        ("some classes change", [one for one in timed if one.how != "kept"]),
        ("no class changes", [one for one in timed if one.how == "kept"]),
    ):
        if not part:
            continue
        ratios = [one.peer_s / one.ours_s for one in part]
        ratio = statistics.median(ratios)
        same = all(one.is_same for one in part)
        # early, when many classes change, scipy does the work on both sides
        wanted = Wanted(">=", 2.0) if part[0].how == "kept" else Wanted("")
        yield Row(
            name=f"assign {NUM_CLASSES:,} classes, {what} ({len(part)} epochs): scipy / warm start, "
            f"{'same' if same else 'DIFFERENT'} totals",
            ours_s=statistics.median(one.ours_s for one in part),
            peer_s=statistics.median(one.peer_s for one in part),
            ratio=ratio,
            wanted=str(wanted),
            ok=wanted.is_met(ratio) and same,
            ratio_min=min(ratios),
            ratio_max=max(ratios),
            repetitions=len(part),
        )


quick_rows = rows
