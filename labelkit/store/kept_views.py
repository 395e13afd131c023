"""What the frozen part of a network makes of views of images, in parts, so that training need not compute it again.

A folder ``kept-DIGEST``, DIGEST being the first digits of its plan's: a run folder of which no store is made, as
described in ``docs/inside/file_format.txt``. Each part has the values of some images, ``view0``, ``view1``, ... for
each kind of view, (m, v, ...): m images, v views; behind them their geometry, where training asks for it. Several
processes and several runs of the same plan share it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Mismatch, StoreError
from labelkit.store import schema
from labelkit.store.commit import plain_json
from labelkit.store.digests import RESTORE
from labelkit.store.parts import Parts, check_space, part_names, translate_os_errors
from labelkit.store.plans import plan_digest
from labelkit.store.reader import CheckedFile

KIND: Final = "kept-views"
_DIGITS: Final = 12
_PART_BYTES: Final = 32 << 20
_PART_PASSES: Final = 512
"""Views of a part at most, so that a kill loses little of what a slow network makes."""


@dataclass(frozen=True)
class CachedViewPlan:
    """Plan of a cache of views: everything besides the images that determines its values.

    Attributes:
        recipe: what made them: network, views, seed, listing, ...; JSON values.
        rows: (n,) int64 rows of the listing that are kept, increasing.
        counts: views of each kind for each image, v.
        shapes: of a value of each kind of view.
        dtypes: ``float16`` or ``float32`` for each kind of view.
    """

    recipe: Mapping[str, Any]
    rows: NDArray[np.int64]
    counts: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def image_bytes(self) -> int:
        """Size of the cached values of one image in bytes."""
        kinds = zip(self.counts, self.shapes, self.dtypes, strict=True)
        return sum(count * int(np.prod(shape)) * np.dtype(dtype).itemsize for count, shape, dtype in kinds)

    @property
    def num_bytes(self) -> int:
        """Size of all cached values in bytes."""
        return len(self.rows) * self.image_bytes

    @property
    def part_rows(self) -> int:
        """Number of images in each part of the cache."""
        return max(1, min(_PART_BYTES // self.image_bytes, _PART_PASSES // sum(self.counts)))

    @property
    def num_parts(self) -> int:
        """Number of parts that the cache is split into."""
        return -(-len(self.rows) // self.part_rows)

    def part(self, number: int) -> NDArray[np.int64]:
        """Return the row indices of the images in one part of the cache."""
        return self.rows[number * self.part_rows : (number + 1) * self.part_rows]

    def to_json(self) -> dict[str, Any]:
        """Convert to the content of ``plan.json``, with rows as ranges from first to last."""
        breaks = np.flatnonzero(np.diff(self.rows) != 1)
        starts, ends = [0, *(breaks + 1).tolist()], [*breaks.tolist(), len(self.rows) - 1]
        pieces = [[int(self.rows[start]), int(self.rows[end])] for start, end in zip(starts, ends, strict=True)]
        plan = {
            "format": schema.FORMAT_PLAN,
            "format_version": schema.FORMAT_VERSION,
            "kind": KIND,
            "recipe": dict(self.recipe),
            "rows": pieces,
            "num_rows": len(self.rows),
            "counts": list(self.counts),
            "shapes": [list(shape) for shape in self.shapes],
            "dtypes": list(self.dtypes),
            "part_rows": self.part_rows,
        }
        return plain_json(plan)


class CachedViews:
    """Cache of the outputs of a network's frozen part for views of images, stored in parts.

    Args:
        beside: folder that the folder of the parts is made in.
        plan: what to make.

    Attributes:
        folder: of the parts.
        parts: the files in it.
        warnings: what the user should know, such as parts that were damaged and are made again.
    """

    def __init__(self, beside: Path, plan: CachedViewPlan) -> None:
        self.plan = plan
        loaded = plan.to_json()
        self.folder = beside / f"kept-{plan_digest(loaded)[:_DIGITS]}"
        self.parts = Parts(
            self.folder,
            loaded,
            part_names(plan.num_parts),
            read=self.places,
            published=lambda: None,
            overwrite=False,
        )
        self.warnings = self.parts.warnings

    def begin(self) -> None:
        """Create the folder of the cache, or continue an existing one.

        Raises:
            ResourceError: no permission, or not enough free space.
            BusyError: another process makes the folder and does not end.
        """
        size = int(1.02 * self.plan.num_bytes)
        what = f"{sum(self.plan.counts)} views of {len(self.plan.rows):,} images"
        self.parts.begin(lambda: False, lambda: check_space(self.folder, size, self.folder, what))

    def missing(self) -> list[int]:
        """Return the numbers of the parts that are still to be made. A damaged part is renamed, with a warning.

        Raises:
            ResourceError: a part cannot be read or renamed.
        """
        return [number for number in range(self.plan.num_parts) if not self.parts.is_done(number)]

    def is_there(self, number: int) -> bool:
        """Return whether a part exists, without reading it."""
        return self.parts.path(number).exists()

    def commit(self, number: int, values: Sequence[NDArray[Any]]) -> None:
        """Write one part of the cache: for each kind of view, (m, v, ...) numbers.

        Raises:
            StoreError: a number is not finite in the stored type.
            ResourceError: the disk is full, ...
            ValueError: shapes do not fit the plan.
        """
        datasets: dict[str, NDArray[Any]] = {}
        for kind, given in enumerate(values):
            shape = self._shape(number, kind)
            if given.shape != shape:
                raise ValueError(f"view {kind} of part {number} has shape {given.shape}, expected {shape}")
            with np.errstate(over="ignore"):
                stored = given.astype(self.plan.dtypes[kind])
            if not np.isfinite(stored).all():
                large = bool(np.isfinite(given).all())
                problem = f"a value of the frozen part is {'too large for float16' if large else 'not finite'}"
                remedy = "Pass --reuse-dtype float32." if large else "The weights are broken; check the weights file."
                raise StoreError(str(self.folder), problem, remedy)
            datasets[_name(kind)] = stored
        self.parts.commit(number, datasets)

    def open_all(self) -> list[tuple[NDArray[Any], ...]]:
        """Open the verified values of each part as memory maps, (m, v, ...) for each kind of view.

        Raises:
            StoreError: a part is missing or damaged.
            ResourceError: it cannot be read.
        """
        found: list[tuple[NDArray[Any], ...]] = []
        for number in range(self.plan.num_parts):
            path = self.parts.path(number)
            if not path.exists():
                raise StoreError(str(path), "is missing", "Run the same command again to recreate the part.")
            with translate_os_errors(path):
                places = self.parts.load(number)
                shapes = [self._shape(number, kind) for kind in range(len(places))]
                kinds = zip(self.plan.dtypes, places, shapes, strict=True)
                maps = [np.memmap(path, dtype, "r", offset, shape) for dtype, offset, shape in kinds]
                found.append(tuple(maps))
        return found

    def _shape(self, number: int, kind: int) -> tuple[int, ...]:
        return (len(self.plan.part(number)), self.plan.counts[kind], *self.plan.shapes[kind])

    def places(self, number: int, file: CheckedFile) -> list[int]:
        """Return the byte offsets of the values of each kind of view in the file of a part."""
        places = []
        for kind in range(len(self.plan.shapes)):
            info = file.datasets.get(_name(kind))
            if info is None or info.shape != self._shape(number, kind) or info.offset is None:
                raise Mismatch(file.where, "contains other values than its plan states", RESTORE)
            places.append(info.offset)
        return places


def _name(kind: int) -> str:
    return f"view{kind}"
