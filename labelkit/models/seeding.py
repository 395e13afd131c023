"""Seeded weight initialization that leaves the global random generator unchanged."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def seeded_init(seed: int) -> Iterator[None]:
    """Context manager that draws initial CPU weights from ``seed`` and restores the random generator afterwards.

    Args:
        seed: in ``[0, 2**63)``. The same seed yields the same weights on every machine.
    """
    with torch.random.fork_rng(devices=()):
        # torch.manual_seed would also reseed every GPU.
        torch.default_generator.manual_seed(seed)
        yield
