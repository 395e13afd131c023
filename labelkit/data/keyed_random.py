"""Random numbers that are computed from a key instead of drawn in sequence.

A number depends only on seed, purpose, epoch, sample and view, so neither the number of workers
or processes, nor the batch size, nor a resume in the middle of an epoch changes it.
Source of the mixing function: Steele, Lea, Flood, "Fast splittable pseudorandom number
generators" (2014), the finalizer known as SplitMix64.
"""

from __future__ import annotations

import functools
import hashlib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

_GAMMA: Final = np.uint64(0x9E3779B97F4A7C15)
_MIX_1: Final = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2: Final = np.uint64(0x94D049BB133111EB)


def _digest(*parts: int | str) -> bytes:
    text = "\0".join(f"{type(part).__name__}:{part}" for part in parts)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _splitmix64(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix 64 bits; arithmetic modulo 2**64 on arrays."""
    z = state + _GAMMA
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    return z ^ (z >> np.uint64(31))


@functools.lru_cache(maxsize=256)
def _base(kind: str, seed: int, epoch: int, view: int, purpose: str) -> np.uint64:
    """Return the part of the key that all samples share; cached, as a worker needs it for each image that it reads."""
    return np.uint64(int.from_bytes(_digest(kind, seed, epoch, view, purpose)[:8], "little"))


def _signed(value: int) -> int:
    """Return the signed integer with the same 64 bits, since torch cannot compute with unsigned ones."""
    return value - (1 << 64) if value >= 1 << 63 else value


def _splitmix64_torch(state: torch.Tensor) -> torch.Tensor:
    """Mix 64 bits like ``_splitmix64``, on any device; the masks remove the sign bits that right shifts copy."""
    z = state + _signed(int(_GAMMA))
    z = (z ^ ((z >> 30) & ((1 << 34) - 1))) * _signed(int(_MIX_1))
    z = (z ^ ((z >> 27) & ((1 << 37) - 1))) * _signed(int(_MIX_2))
    return z ^ ((z >> 31) & ((1 << 33) - 1))


@dataclass(frozen=True, slots=True)
class KeyedRNG:
    """Random number generator for a batch of samples, keyed by seed, epoch, sample, view and purpose.

    Attributes:
        seed: seed of the run.
        epoch: pass over the dataset, from 0.
        keys: (b,) int64, one for each drawn sample, usually its row; equal keys yield equal numbers.
    """

    seed: int
    epoch: int
    keys: NDArray[np.int64]

    def subset(self, selection: slice | NDArray[np.int64]) -> KeyedRNG:
        """Return a generator for a subset of the samples, with the same random numbers for each."""
        return KeyedRNG(self.seed, self.epoch, self.keys[selection])

    def uniform(self, view: int, purpose: str, count: int) -> NDArray[np.float32]:
        """Return ``count`` uniform random numbers for each sample.

        Args:
            view: number of the view.
            purpose: name of the use, which makes different uses of the same key independent.
            count: number of random numbers per sample.

        Returns:
            (b, count) float32 in ``[0, 1)``, multiples of 2**-24; row i depends only on ``keys[i]``.
        """
        state = self._mix("uniform", view, purpose)[:, None]
        bits = _splitmix64(_splitmix64(state + np.arange(1, count + 1, dtype=np.uint64) * _GAMMA))
        return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)

    def normal(self, view: int, purpose: str, count: int, device: str | torch.device = "cpu") -> torch.Tensor:
        """Return ``count`` standard normal random numbers for each sample, computed on the device.

        Args:
            view: number of the view.
            purpose: name of the use.
            count: number of random numbers per sample.
            device: device of the result.

        Returns:
            (b, count) float32, at most 5.8 in absolute value; row i depends only on ``keys[i]``. Devices may
            differ in the last bits (logarithm, cosine).
        """
        import torch

        from labelkit.data.batch import array_to_device

        state = array_to_device(self._mix("normal", view, purpose).view(np.int64), torch.device(device))[:, None]
        pairs = -(-count // 2)
        steps = torch.arange(1, pairs + 1, device=device) * _signed(int(_GAMMA))
        bits = _splitmix64_torch(state + steps)
        # Box-Muller: two normal numbers from two uniform ones, the first in (0, 1]
        radius = torch.sqrt(-2 * torch.log((((bits >> 40) & 0xFFFFFF) + 1).float() * 2.0**-24))
        angle = (bits & 0xFFFFFF).float() * (2 * math.pi * 2.0**-24)
        return torch.cat([radius * torch.cos(angle), radius * torch.sin(angle)], dim=1)[:, :count]

    def _mix(self, kind: str, view: int, purpose: str) -> NDArray[np.uint64]:
        index = np.asarray(self.keys, dtype=np.int64)
        return _splitmix64(index.view(np.uint64) ^ _base(kind, self.seed, self.epoch, view, purpose))


def keyed_generator(seed: int, purpose: str, epoch: int = 0, rank: int = 0) -> np.random.Generator:
    """Return a numpy generator that depends only on seed, purpose, epoch and rank."""
    return np.random.default_rng(int.from_bytes(_digest("generator", seed, purpose, epoch, rank), "little"))
