"""Whether the datasets of a file have the types and lengths that its format says."""

from __future__ import annotations

from collections.abc import Mapping

from labelkit.errors import Mismatch, Refused
from labelkit.store import schema
from labelkit.store.digests import RESTORE
from labelkit.store.hdf5.reading import CheckedFile


def check_axes(
    file: CheckedFile,
    columns: Mapping[str, tuple[str, ...]],
    lengths: Mapping[str, int] | None = None,
    prefix: str = "",
) -> dict[str, int]:
    """Check types and shapes of the known datasets of a file against each other.

    Args:
        file: a checked file.
        columns: axes of each known dataset, as in ``labelkit.store.schema``.
        lengths: lengths that are known already, by letter.
        prefix: group of the datasets, such as ``label_sets/coarse/``.

    Returns:
        The length of each letter.

    Raises:
        Refused: a dataset has another type or number of axes.
        Mismatch: two datasets differ in the length of an axis that they share.
    """
    known = dict(lengths or {})
    owner = dict.fromkeys(known, "the file")
    for name, axes in columns.items():
        info = file.datasets.get(prefix + name)
        if info is None:
            continue
        place = file.place(prefix + name)
        kinds = schema.COLUMN_TYPES[name]
        kind = "S" if info.dtype.kind == "S" else info.dtype.str[1:]
        if kind not in kinds or info.dtype.byteorder == ">" or len(info.shape) != len(axes):
            raise Refused(
                place, f"type {info.dtype} of shape {info.shape}, expected {kinds[0]} ({', '.join(axes)})", RESTORE
            )
        for axis, length in zip(axes, info.shape, strict=True):
            expected = int(axis) if axis.isdecimal() else known.setdefault(axis, length)
            if length != expected:
                problem = f"{length} rows where {owner.get(axis, 'the format')} has {expected}"
                raise Mismatch(place, problem, RESTORE)
            owner.setdefault(axis, f"/{prefix}{name}")
    return known
