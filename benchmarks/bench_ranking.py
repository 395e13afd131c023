"""Time the CoTAP loss against its double sum, forward and backward, and its memory at growing sizes."""

import json
import subprocess
import sys
from collections.abc import Iterator

import torch
from labelkit.methods.dense.ranking_loss import cotap_loss
from torch import Tensor

from benchmarks.measure import Row, Wanted, compare, seconds, with_check

SEED = 0
SEEDS = {"scores": SEED}
MARGIN, FLOOR = 0.5, -0.2
CHUNK = 64
# rounding error of the double sum, which sums up to 38,416 numbers in float32
SAME_GRADIENT = 1e-4
LARGE = 38_416  # pairs of patches of two images of 14 x 14 patches
MEMORY = """
import json, sys, torch
from pathlib import Path
from benchmarks.measure import memory
from labelkit.methods.dense.ranking_loss import cotap_loss
torch.set_num_threads(1)
def once(n):
    scores = torch.rand(1, n, requires_grad=True)
    cotap_loss(scores, torch.rand(1, n), implementation="fast").sum().backward()
once(1000)
Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
before = memory("VmRSS")
once(int(sys.argv[1]))
print(json.dumps(memory("VmHWM") - before))
"""


def made(n: int) -> tuple[Tensor, Tensor]:
    """Return scores that correlate loosely with targets, like similarities of patches."""
    generator = torch.Generator().manual_seed(SEED)
    targets = torch.rand(1, n, generator=generator)
    scores = (0.7 * targets + 0.3 * torch.rand(1, n, generator=generator)).requires_grad_()
    return scores, targets


def fast(scores: Tensor, targets: Tensor) -> None:
    """Compute the loss and its gradient in O(n log n)."""
    scores.grad = None
    cotap_loss(scores, targets, implementation="fast").sum().backward()


def double_sum(scores: Tensor, targets: Tensor) -> None:
    """Compute Equation 12 in float32 with autograd, in blocks of rows that fit in the cache."""
    scores.grad = None
    for start in range(0, scores.shape[1], CHUNK):
        _some_rows(scores[0], targets[0], slice(start, start + CHUNK))


def _some_rows(p: Tensor, q: Tensor, rows: slice) -> None:
    difference = p[rows, None] - p[None]
    surrogate = torch.where(difference < 0, 1 - 2 * difference / MARGIN, (1 - difference / MARGIN).clamp_min(0) ** 2)
    behind = (surrogate * (q[None] < q[rows, None])).sum(1)
    ratio = behind / ((q[None] >= q[rows, None]) & (difference <= 0)).sum(1)
    ((q[rows] - FLOOR).clamp_min(0) * ratio / (1 + ratio)).sum().div(len(p)).backward()


def peak_bytes(n: int) -> int:
    """Return the memory that one call adds, in a separate process."""
    done = subprocess.run([sys.executable, "-c", MEMORY, str(n)], check=True, capture_output=True, text=True)
    return int(json.loads(done.stdout))


SIZES = ((2401, 25.0, 5), (4096, 40.0, 5), (LARGE, 300.0, 1))


def rows() -> Iterator[Row]:
    """Yield a row for each of three sizes, and one for memory."""
    yield from speed_rows(*SIZES)
    yield memory_row()


def quick_rows() -> Iterator[Row]:
    """Yield the sizes at which the double sum is fast."""
    yield from speed_rows(*SIZES[:2])


def speed_rows(*sizes: tuple[int, float, int]) -> Iterator[Row]:
    """Yield a row for each number of pairs, with its bound and number of repetitions."""
    fast(*made(2401))
    for n, wanted, repetitions in sizes:
        ours, theirs = made(n), made(n)
        row = compare(
            f"CoTAP loss and gradient, n {n:,}: double sum in float32, {CHUNK} rows at a time / fast",
            seconds(lambda pair=ours: fast(*pair)),  # type: ignore[misc] # a default binds the loop's value
            seconds(lambda pair=theirs: double_sum(*pair)),  # type: ignore[misc] # likewise
            wanted=Wanted(">=", wanted),
            repetitions=repetitions,
            warmups=min(1, repetitions - 1),
        )
        gradient, expected = ours[0].grad, theirs[0].grad
        assert gradient is not None
        assert expected is not None
        apart = float((gradient - expected).norm() / expected.norm())
        yield with_check(row, f"gradient (to {SAME_GRADIENT:g} of its norm)", apart <= SAME_GRADIENT)


def memory_row() -> Row:
    """Return how memory grows with the number of pairs."""
    small, large = peak_bytes(LARGE), peak_bytes(8 * LARGE)
    return Row(
        name=f"CoTAP memory, n {8 * LARGE:,} / n {LARGE:,} (times are GB); {large / (8 * LARGE):.0f} bytes an item",
        ours_s=large / 1e9,
        peer_s=small / 1e9,
        ratio=large / small,
        wanted="<= 9",
        ok=large <= 9 * small,
    )
