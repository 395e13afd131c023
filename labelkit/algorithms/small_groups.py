"""Groups of a few odd rows are set aside while the others are grouped, so that they take no group from these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_ROUNDS: Final = 5
_MOST_ASIDE: Final = 0.05


def set_aside_small(
    run: Callable[[Ints], tuple[Ints, NDArray[np.floating]]],
    nearest: Callable[[Ints, NDArray[np.floating]], Ints],
    num_rows: int,
    *,
    min_size: int,
    num_named: int = 0,
    always: NDArray[np.bool_] | None = None,
) -> tuple[Ints, Ints]:
    """Group rows again without those of small groups, until no group is small; these rows then go to the nearest one.

    After five rounds, or once more than a twentieth of the rows would be set aside, groups that are still small are
    dissolved, the smallest first, and there are fewer groups.

    Args:
        run: groups some rows: places (m,) to ids (m,) in ``[0, k)`` and centroids (k, d). The first ``num_named``
            groups have a name and are kept however small they are.
        nearest: places (m,) and centroids (j, d) to the nearest centroid of each, (m,).
        num_rows: n.
        min_size: groups of fewer rows are small.
        num_named: see above.
        always: (n,) rows that are never set aside, since they have a label.

    Returns:
        ((n,) ids in ``[0, k)``, not all of which need be used; (a,) places of the rows that were set aside, or whose
        group was dissolved).
    """
    inside = np.ones(num_rows, dtype=bool)
    fixed = np.zeros(num_rows, dtype=bool) if always is None else always
    most = max(1, int(_MOST_ASIDE * num_rows))
    for _ in range(_ROUNDS):
        places = np.flatnonzero(inside)
        found, centroids = run(places)
        small = np.bincount(found, minlength=len(centroids)) < min_size
        small[:num_named] = False
        odd = places[small[found] & ~fixed[places]]
        if not len(odd) or num_rows - len(places) + len(odd) > most or len(places) - len(odd) < len(centroids):
            break
        inside[odd] = False
    ids = np.full(num_rows, -1, dtype=np.int64)
    ids[places] = found
    moved = ids < 0
    kept = np.arange(len(centroids))
    while len(kept) > 1:
        sizes = np.bincount(ids[ids >= 0], minlength=len(centroids))[kept]
        sizes[kept < num_named] = num_rows + 1
        if sizes.min() >= min_size:
            break
        # the smallest first: its rows may make the next one large enough
        gone = kept[sizes.argmin()]
        kept = kept[kept != gone]
        rows = np.flatnonzero(ids == gone)
        moved[rows] = True
        if len(rows):
            ids[rows] = kept[nearest(rows, centroids[kept])]
    rows = np.flatnonzero(ids < 0)
    if len(rows):
        ids[rows] = kept[nearest(rows, centroids[kept])]
    return ids, np.flatnonzero(moved)
