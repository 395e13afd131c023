"""Spatial assembly: a module that predicts, for each image, how feature vectors move between positions, and moves them.

Source: chapter 5 of "Deep Learning with Very Few and No Labels", Eq. 5.1-5.4; no code was released. Ours: the
predictor, how its weights are made doubly stochastic (Sinkhorn), and where they start.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast

MAX_POSITIONS = 400
# largest vote; normalizations of rows and columns (ours: the chapter says nothing of the predictor)
BOUND, SWEEPS = 10.0, 20


@dataclass(frozen=True, slots=True)
class Assembly:
    """How one batch was assembled.

    Attributes:
        weights: (b, n, n) float32, share of what input position u gives to output position v at [u, v]; columns sum
            to 1, rows nearly so.
        log_weights: (b, n, n), their logarithms.
        maps: (b, c, h, w), what was assembled, n = h w positions in rows.
    """

    weights: Tensor
    log_weights: Tensor
    maps: Tensor

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the maps."""
        return self.maps.shape[2], self.maps.shape[3]


def normalize_doubly(logits: Tensor, sweeps: int) -> Tensor:
    """Scale rows and columns in turn until both sum to 1 nearly; logarithms throughout, gradients flow.

    Args:
        logits: (..., n, n) float.
        sweeps: how often rows, then columns, are scaled; 0: never.

    Returns:
        logarithms of the weights; columns sum to 1 exactly, since they come last.

    Source:
        R. Sinkhorn (1964).
    """
    for _ in range(sweeps):
        logits = logits - logits.logsumexp(-1, keepdim=True)
        logits = logits - logits.logsumexp(-2, keepdim=True)
    return logits


def assemble(maps: Tensor, weights: Tensor) -> Tensor:
    """Give every output position its weighted sum of the input positions (Eq. 5.4).

    Args:
        maps: (b, c, h, w).
        weights: (b, n, n) at [input, output], n = h w.

    Returns:
        (b, c, h, w).
    """
    return torch.einsum("buv,bcu->bcv", weights, maps.flatten(2)).reshape(maps.shape)


def identity_logit(diagonal: float, num_positions: int) -> float:
    """Return the logit of a diagonal over zeros elsewhere whose assembly has this share on the diagonal."""
    return math.log(diagonal * (num_positions - 1) / (1 - diagonal))


class SpatialAssembly(nn.Module):
    """Predict the assembly of each image from its own feature maps, and apply it.

    The predictor: a 1x1 and a 3x3 convolution (which also sees where it is), plus a summary of the whole image, then a
    1x1 convolution that gives position u its votes for each position v, squeezed into plus and minus
    ``BOUND``. The vote for staying starts ahead of the others, and the layer starts at 0, so that at first a share of
    ``diagonal`` stays in place, whatever the image.

    Args:
        channels: c of the maps.
        grid: their rows and columns; others are refused.
        width: channels of the predictor.
        diagonal: share that stays in place at first, in (0, 1).

    Shape:
        - maps: ``(b, c, h, w)`` float.
        - returns: assembled maps of the same shape and dtype, and an `Assembly` (float32).

    Raises:
        ValueError: a number out of its range, one position or too many, or maps of another grid.
    """

    def __init__(
        self,
        channels: int,
        grid: tuple[int, int],
        *,
        width: int = 64,
        diagonal: float = 0.9,
    ) -> None:
        super().__init__()
        n = grid[0] * grid[1]
        if not 0 < diagonal < 1 or width < 1:
            raise ValueError(f"diagonal must be in (0, 1) and width positive, got {diagonal} and {width}")
        if not 1 < n <= MAX_POSITIONS:
            raise ValueError(f"it is for 2 to {MAX_POSITIONS} positions, got {n}")
        self.channels, self.grid = channels, grid
        #: leaves maps as they are, to see what the module does
        self.bypassed = False
        self.start = identity_logit(diagonal, n)
        self.stem = nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
        self.spatial = nn.Sequential(
            nn.Conv2d(width + 2, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.context = nn.Linear(width, width)
        self.votes = _Votes(width, n)

    def forward(self, maps: Tensor) -> tuple[Tensor, Assembly]:
        """Return the assembled maps, and how that was done."""
        _, c, h, w = maps.shape
        if (h, w) != self.grid or c != self.channels:
            raise ValueError(
                f"the assembly is for maps of {self.channels} x {self.grid[0]} x {self.grid[1]}, got {c} x {h} x {w}; "
                "images must have the size that it was trained with"
            )
        votes = self._votes(maps)
        with without_autocast(maps):
            # half precision would lose the sums of rows
            votes = BOUND * torch.tanh(promote(votes) / BOUND)
            logits = votes + self.start * torch.eye(h * w, device=maps.device, dtype=votes.dtype)
            logs = normalize_doubly(logits, SWEEPS)
            weights = logs.exp()
            moved = assemble(promote(maps), weights).to(maps.dtype)
        return moved, Assembly(weights, logs, maps)

    def _votes(self, maps: Tensor) -> Tensor:
        """(b, n, n) at [input, output]."""
        hidden = self.stem(maps)
        hidden = self.spatial(torch.cat([hidden, self._coordinates(hidden)], dim=1))
        hidden = hidden + torch.relu(self.context(hidden.mean(dim=(2, 3))))[:, :, None, None]
        votes: Tensor = self.votes(hidden)
        return votes

    def _coordinates(self, like: Tensor) -> Tensor:
        """Column and row of every cell's center in (-1, 1), (b, 2, h, w)."""
        h, w = self.grid
        x = (2 * torch.arange(w, device=like.device, dtype=like.dtype) + 1) / w - 1
        y = (2 * torch.arange(h, device=like.device, dtype=like.dtype) + 1) / h - 1
        return torch.stack([x.expand(h, w), y[:, None].expand(h, w)]).expand(len(like), -1, -1, -1)


class _Votes(nn.Module):
    """A 1x1 convolution: the votes of a position follow from its own features."""

    def __init__(self, width: int, n: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(width, n, 1)
        nn.init.zeros_(self.layer.weight)
        assert self.layer.bias is not None
        nn.init.zeros_(self.layer.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """(b, m, h, w) to (b, n, n)."""
        votes: Tensor = self.layer(hidden)
        return votes.flatten(2).transpose(1, 2)
