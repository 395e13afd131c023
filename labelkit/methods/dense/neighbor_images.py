"""Neighbors that images are pulled toward: found once, kept in a file, and one drawn for each image at every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.algorithms.neighbors import knn
from labelkit.data.keyed_random import keyed_uniform
from labelkit.data.views.spec import PairPlan
from labelkit.errors import Mismatch, StoreError
from labelkit.store.array_files import NeighborFile, read_neighbors, write_neighbors
from labelkit.training.method import TrainState


@dataclass(frozen=True)
class NeighborPlace:
    """Where neighbors are kept.

    Attributes:
        path: the file.
        dataset_digest: identity of the listing that rows refer to.
        chosen: a person named the file, so that one of something else is an error and not replaced.
        writes: keep what is found; a dry run does not.
    """

    path: Path
    dataset_digest: str
    chosen: bool
    writes: bool = True


def find_neighbors(
    state: TrainState,
    network: Callable[[Tensor], Tensor],
    rows: NDArray[np.int64],
    num_rows: int,
    k: int,
    *,
    weights_fingerprint: str,
    place: NeighborPlace | None,
) -> Tensor:
    """Return the neighbors of images: from the file if there is one, else found now and kept there.

    Args:
        state: embeds, and speaks to the other processes.
        network: images (b, c, h, w) to features (b, d).
        rows: (m,) rows that have neighbors, all among each other, increasing.
        num_rows: length of the table.
        k: neighbors of each.
        weights_fingerprint: identity of the network.
        place: of the file; ``None`` = nowhere.

    Returns:
        (num_rows, k) int32 on the CPU, equal on every process; -1 for other rows.

    Raises:
        StoreError: the file is damaged, or of other images or another network.
    """
    recipe = {
        "dataset_digest": "" if place is None else place.dataset_digest,
        "metric": "cosine",
        "num_images": len(rows),
        "weights_fingerprint": weights_fingerprint,
    }
    table = np.full((num_rows, k), -1, dtype=np.int32)
    found = _kept(place, recipe, rows, k) if state.is_main and place is not None else None
    # the main process decides, or some would wait for an exchange that others never begin
    if int(state.combine(torch.tensor([int(found is not None)]), "max")[0]) == 0:
        features = state.embed(network, rows)
        if state.is_main:
            scores, places = knn(features.numpy(), features.numpy(), k, exclude_self=True)
            found = NeighborFile(rows, rows[places], scores, recipe)
            if place is not None and place.writes:
                write_neighbors(place.path, found)
    if found is not None:
        table[rows] = found.neighbor_rows[:, :k]
    shared = torch.from_numpy(table if state.is_main else np.zeros_like(table))
    return state.combine(shared, "sum")


def _kept(place: NeighborPlace, recipe: dict[str, object], rows: NDArray[np.int64], k: int) -> NeighborFile | None:
    """Return what the file holds; ``None`` if there is none, or an outdated one that nobody asked for."""
    if not place.path.exists():
        return None
    try:
        found = read_neighbors(place.path)
        faults = [key for key, value in recipe.items() if found.recipe.get(key) != value]
        if not faults and not np.array_equal(found.query_rows, rows):
            faults = ["the images that can be read"]
        if not faults and found.neighbor_rows.shape[1] < k:
            faults = [f"only {found.neighbor_rows.shape[1]} neighbors an image, {k} wanted"]
        if faults:
            raise Mismatch(
                str(place.path),
                f"holds neighbors of something else: {', '.join(faults)}",
                "Name another file with --neighbors to have them found anew, or remove this one.",
            )
    except StoreError:
        if place.chosen:
            raise
        return None
    return found


class NeighborPairing:
    """Shows each image with one of its neighbors, drawn anew each time; see ``labelkit.data.views.boxes.Pairing``.

    Args:
        table: called when it is needed: (n, k) rows of neighbors, -1 = the image itself.
    """

    def __init__(self, table: Callable[[], NDArray[np.int32]]) -> None:
        self._table = table

    def plan(self, rows: NDArray[np.int64], keys: NDArray[np.int64], *, seed: int, epoch: int) -> PairPlan:
        """Return the plan of a batch."""
        table = self._table()
        u = keyed_uniform(seed, epoch, keys, 0, "neighbor", 1)[:, 0]
        known = rows < len(table)
        shown = rows.copy()
        places = (u[known] * table.shape[1]).astype(np.int64)
        chosen = table[rows[known], places]
        shown[known] = np.where(chosen >= 0, chosen, rows[known])
        return PairPlan(shown, np.full(len(rows), -1, dtype=np.int64), np.tile([-1.0, -1, 1, 1], (len(rows), 2, 1)))
