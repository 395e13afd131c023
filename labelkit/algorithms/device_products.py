"""Products of rows on a device of torch: the rows nearest to queries.

What faiss does on the processor, a GPU does for many queries in a fraction of the time. One block of rows at a time
goes there, and some numbers per row come back. Scores are float32 without TF32, so that they are wrong by as little as
those of numpy; what they leave open is decided in float64 by who asked, on the processor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

Singles = NDArray[np.float32]

# Scores held at a time: 256 MB.
_SCORE_NUMBERS = 1 << 26


class DeviceProducts:
    """Products of float32 rows on a device.

    Args:
        device: as torch names it, such as ``cuda``, ``cuda:1``, ``mps`` or ``cpu``.
    """

    def __init__(self, device: str) -> None:
        import torch

        self._torch: Any = torch
        self._device = torch.device(device)

    def nearest(
        self, asked: Singles, parts: Iterable[tuple[slice, Singles]], k: int, *, by_distance: bool
    ) -> tuple[Singles, NDArray[np.int64]]:
        """Return the k largest products of each query and the rows they are of, or the k smallest squared distances.

        Args:
            asked: (q, d) queries.
            parts: (where, rows there) of a gallery, in order; k rows at least in all.
            k: how many.
            by_distance: squared distances instead of products.

        Returns:
            (q, k) float32 and (q, k) int64, the nearest first.
        """
        torch = self._torch
        found: list[tuple[Singles, NDArray[np.int64]]] = []
        listed = list(_pieces(asked, _SCORE_NUMBERS >> 12))
        best: list[tuple[Any, Any]] = [(None, None)] * len(listed)
        with self._exact():
            held = [self._sent(few) for few in listed]
            for where, part in parts:
                rows = self._sent(part)
                squares = rows.square().sum(1)
                for i, queries in enumerate(held):
                    scores = torch.addmm(squares, queries, rows.T, alpha=-2) if by_distance else queries @ rows.T
                    values, places = scores.topk(min(k, len(part)), dim=1, largest=not by_distance)
                    places = places + where.start
                    if best[i][0] is not None:
                        values, places = torch.cat([best[i][0], values], 1), torch.cat([best[i][1], places], 1)
                        values, order = values.topk(min(k, values.shape[1]), dim=1, largest=not by_distance)
                        places = places.gather(1, order)
                    best[i] = values, places
            for queries, (values, places) in zip(held, best, strict=True):
                if by_distance:
                    values = (values + queries.square().sum(1, keepdim=True)).clamp_min(0)
                found.append((values.cpu().numpy(), places.cpu().numpy()))
        scores, places = (np.concatenate(both) for both in zip(*found, strict=True))
        return scores, places

    def _sent(self, values: Singles) -> Any:
        return self._torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    @contextmanager
    def _exact(self) -> Iterator[None]:
        """Float32 products of full precision, whatever the process has set, without gradients."""
        before = self._torch.get_float32_matmul_precision()
        self._torch.set_float32_matmul_precision("highest")
        try:
            with self._torch.no_grad():
                yield
        finally:
            self._torch.set_float32_matmul_precision(before)


def _pieces(rows: Singles, numbers_per_row: int) -> Iterator[Singles]:
    """Cut rows into pieces whose scores are held at a time."""
    step = max(1, _SCORE_NUMBERS // numbers_per_row)
    for start in range(0, len(rows), step):
        yield rows[start : start + step]
