"""Cache the outputs of a network's frozen part for views of images, so that training need not recompute them.

The cache folder is ``kept-DIGEST``, with the first digits of the plan's digest: a run folder that does not become a
store, as described in ``docs/inside/file_format.txt``. Each part contains the values of m images, ``view0``, ``view1``,
... for each kind of view, (m, v, ...) with v views per image, followed by the view geometry if training requests it.
Several processes and several runs with the same plan share the cache.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import StoreError
from labelkit.store import schema
from labelkit.store.commit import json_digest, to_plain_json
from labelkit.store.parts import RunFolder, cast_finite, check_disk_space, part_names
from labelkit.store.reader import CheckedFile

KIND: Final = "kept-views"
_DIGITS: Final = 12
_PART_BYTES: Final = 32 << 20
_PART_PASSES: Final = 512
"""Maximum number of views per part, so that little work of a slow network is lost if the process is killed."""


@dataclass(frozen=True)
class CachedViewPlan:
    """Plan of a view cache: everything besides the images that determines its values.

    Attributes:
        recipe: everything that determines the values: network, views, seed, listing, ...; JSON values only.
        rows: (n,) int64 rows of the listing that are cached, increasing.
        counts: number of views per image of each kind, v.
        shapes: shape of the value of one view of each kind.
        dtypes: ``float16`` or ``float32`` for each kind of view.
    """

    recipe: Mapping[str, Any]
    rows: NDArray[np.int64]
    counts: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @property
    def bytes_per_image(self) -> int:
        """Size of the cached values of one image, in bytes."""
        kinds = zip(self.counts, self.shapes, self.dtypes, strict=True)
        return sum(count * int(np.prod(shape)) * np.dtype(dtype).itemsize for count, shape, dtype in kinds)

    @property
    def num_bytes(self) -> int:
        """Size in bytes of all cached values."""
        return len(self.rows) * self.bytes_per_image

    @property
    def images_per_part(self) -> int:
        """Number of images in each part of the cache."""
        return max(1, min(_PART_BYTES // self.bytes_per_image, _PART_PASSES // sum(self.counts)))

    @property
    def num_parts(self) -> int:
        """Number of parts of the cache."""
        return -(-len(self.rows) // self.images_per_part)

    def rows_of_part(self, number: int) -> NDArray[np.int64]:
        """Return the row indices of the images in one part of the cache."""
        return self.rows[number * self.images_per_part : (number + 1) * self.images_per_part]

    def to_json(self) -> dict[str, Any]:
        """Convert to the content of ``plan.json``, in which rows are ranges (first row, last row)."""
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
            "part_rows": self.images_per_part,
        }
        return to_plain_json(plan)


class CachedViews(RunFolder[tuple[NDArray[Any], ...]]):
    """Cache of a network's frozen part: its outputs for views of images, stored in parts.

    Args:
        beside: folder in which the cache folder is created.
        plan: plan of the cache.

    Attributes:
        folder: folder of the cache.
        warnings: messages for the user, such as damaged parts that will be recreated.
    """

    def __init__(self, beside: Path, plan: CachedViewPlan) -> None:
        self.plan = plan
        loaded = plan.to_json()
        super().__init__(beside / f"kept-{json_digest(loaded)[:_DIGITS]}", loaded, part_names(plan.num_parts))

    def write_part(self, number: int, values: Sequence[NDArray[Any]]) -> None:
        """Write one part of the cache, given as one array (m, v, ...) per kind of view.

        Raises ``StoreError`` if a value is not finite in the stored dtype, ``ValueError`` if shapes do not match.
        """
        datasets: dict[str, NDArray[Any]] = {}
        for kind, given in enumerate(values):
            shape = self._shape(number, kind)
            if given.shape != shape:
                raise ValueError(f"view {kind} of part {number} must have shape {shape}, got {given.shape}")
            flat, dtype = given.reshape(len(given), -1), np.dtype(self.plan.dtypes[kind])
            stored = cast_finite(flat, dtype, lambda _: str(self.folder), "output of the frozen part", "--reuse-dtype")
            datasets[_name(kind)] = stored.reshape(shape)
        self._commit(number, datasets)

    def open_cached_parts(self) -> list[tuple[NDArray[Any], ...]]:
        """Verify each cached part and open it as memory-mapped arrays, one of shape (m, v, ...) per kind of view."""
        for number in range(self.plan.num_parts):
            if not self.part_path(number).exists():
                remedy = "Run the same command again to recreate the part."
                raise StoreError(str(self.part_path(number)), "is missing", remedy)
        return [self.load_part(number) for number in range(self.plan.num_parts)]

    def _check_space(self) -> None:
        what = f"{sum(self.plan.counts)} views of {len(self.plan.rows):,} images"
        check_disk_space(self.folder, int(1.02 * self.plan.num_bytes), self.folder, what)

    def _shape(self, number: int, kind: int) -> tuple[int, ...]:
        return (len(self.plan.rows_of_part(number)), self.plan.counts[kind], *self.plan.shapes[kind])

    def _read(self, number: int, file: CheckedFile) -> tuple[NDArray[Any], ...]:
        # the digests of the part and of its plan agree, so it has these datasets with these shapes
        return tuple(
            np.memmap(
                self.part_path(number), dtype, "r", file.datasets[_name(kind)].offset or 0, self._shape(number, kind)
            )
            for kind, dtype in enumerate(self.plan.dtypes)
        )


def _name(kind: int) -> str:
    return f"view{kind}"
