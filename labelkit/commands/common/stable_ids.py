"""Keep group ids stable between runs: groups that share enough images (by SHA-256) with an earlier group keep its id.

Source: H. W. Kuhn, "The Hungarian method for the assignment problem"; SciPy's solver is used.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linear_sum_assignment

from labelkit.errors import StoreError
from labelkit.options.shared import PreviousOptions
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import Result, read_result

NO_PARAMETERS = (
    "processes",
    "ray_address",
    "index",
    "result",
    "overwrite",
    "labels",
    "label_column",
    "own_labels",
    "previous",
    "previous_result",
    "max_memory",
)
"""Options that are not stored among a result's parameters, but elsewhere or not at all."""

# Minimum intersection over union, in images, for a group to continue an earlier one.
_KEEP_OVERLAP = 0.2
_NUMBERED = re.compile(r"new-(\d+)")


@dataclass(frozen=True)
class StoredGroups:
    """Groups of images, as stored in a result.

    Attributes:
        store: store of the images.
        result: the result.
        ids: (n,) int64 group id of each image, -1 = none.
        num_ids: number of ids ever used, 0 to ``num_ids - 1``.
        names: name of each id; None if the result has no names.
        is_class: (num_ids,) bool, whether the name is that of a labeled class.
    """

    store: EmbeddingStore
    result: Result
    ids: NDArray[np.int64]
    num_ids: int
    names: list[str] | None
    is_class: NDArray[np.bool_]


@dataclass(frozen=True)
class StableIds:
    """Group ids of a run, chosen so that groups which continue those of an earlier run keep their ids.

    Attributes:
        ids: (k,) int64 id of each group.
        num_ids: number of ids ever used, 0 to ``num_ids - 1``.
        earlier: groups of the earlier run; None: there is none, and group i has id i.
        shared: number of images that have a group in both runs.
        kept: ids that continue an earlier group.
    """

    ids: NDArray[np.int64]
    num_ids: int
    earlier: StoredGroups | None
    shared: int
    kept: list[int]

    @property
    def retired(self) -> NDArray[np.bool_]:
        """Mask (num_ids,) of earlier ids that are no longer assigned to a group."""
        is_retired = np.ones(self.num_ids, dtype=bool)
        is_retired[self.ids] = False
        return is_retired

    def values_by_id(self, values: NDArray[Any]) -> NDArray[Any]:
        """Convert values per group (k, ...) to values per id (num_ids, ...); retired ids get NaN or, if integer, -1."""
        fill = np.nan if values.dtype.kind == "f" else -1
        placed = np.full((self.num_ids, *values.shape[1:]), fill, dtype=values.dtype)
        placed[self.ids] = values
        return placed

    def name_ids(self, class_of_group: NDArray[np.int64], class_names: Sequence[str]) -> list[str]:
        """Name each id after its class or its earlier group, or else ``new-N`` with an unused number."""
        before = [] if self.earlier is None or self.earlier.names is None else self.earlier.names
        names = [*before, *[""] * (self.num_ids - len(before))]
        taken = [*before, *class_names]
        numbers = [int(found.group(1)) for name in taken if (found := _NUMBERED.fullmatch(name))]
        fresh = max(numbers, default=0)
        for group, label in sorted(zip(self.ids.tolist(), class_of_group.tolist(), strict=True)):
            if label >= 0:
                names[group] = class_names[label]
            elif (
                group >= len(before) or before[group] in class_names or (self.earlier and self.earlier.is_class[group])
            ):
                fresh += 1
                names[group] = f"new-{fresh}"
        return [name or f"retired-{group}" for group, name in enumerate(names)]

    def new_class_mask(self, class_of_group: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask (num_ids,) of ids that are not labeled classes; retired ids keep their earlier value."""
        new = np.ones(self.num_ids, dtype=bool)
        if self.earlier is not None:
            new[: self.earlier.num_ids] = ~self.earlier.is_class
        new[self.ids] = class_of_group < 0
        return new

    def result_arrays(self) -> dict[str, NDArray[np.uint8]]:
        """Return the array ``retired`` for the result, a mask of the retired ids; empty without an earlier run."""
        return {} if self.earlier is None else {"retired": self.retired.astype(np.uint8)}

    def result_params(self) -> dict[str, object]:
        """Return the result parameters that name the earlier run; empty without an earlier run."""
        if self.earlier is None:
            return {}
        source = {"result": self.earlier.result.name, "content_digest": self.earlier.result.content_digest}
        return {"previous": {**source, "shared_images": self.shared}}

    def to_json(self) -> dict[str, object]:
        """Return the kept, new and retired ids as JSON; empty without an earlier run."""
        if self.earlier is None:
            return {}
        new = sorted(set(self.ids.tolist()) - set(self.kept))
        counts = {"shared_images": self.shared, "kept": self.kept, "new": new}
        return {"previous": {**counts, "retired": np.flatnonzero(self.retired).tolist()}}


def match_groups(
    counts: ArrayLike, *, min_overlap: float = _KEEP_OVERLAP, fixed: Sequence[tuple[int, int]] = ()
) -> NDArray[np.int64]:
    """Match each later group with the earlier group that it continues.

    Two groups may match if their intersection over union is at least ``min_overlap``. Of all one-to-one matchings of
    such pairs, one that maximizes the number of images in matched pairs is chosen.

    Args:
        counts: (p, q) number of images that each earlier group (row) shares with each later one (column).
        min_overlap: minimum intersection over union, in (0, 1].
        fixed: pairs (earlier, later) that match regardless of their images.

    Returns:
        (q,) int64 earlier group of each later one, -1 = none.
    """
    shared = np.asarray(counts)
    earlier = np.full(shared.shape[1], -1, dtype=np.int64)
    union = shared.sum(axis=1, keepdims=True) + shared.sum(axis=0, keepdims=True) - shared
    gains = np.where((shared > 0) & (shared >= min_overlap * union), shared, 0)
    for before, after in fixed:
        earlier[after] = before
        gains[before], gains[:, after] = 0, 0
    rows, columns = linear_sum_assignment(gains, maximize=True)
    for row, column in zip(rows.tolist(), columns.tolist(), strict=True):
        if gains[row, column] > 0:
            earlier[column] = row
    return earlier


def read_previous_groups(config: PreviousOptions, default_result: str) -> StoredGroups | None:
    """Read the groups of the store ``--previous``, by default from its result ``default_result``; ``None`` without it.

    Raises:
        StoreError: the store or the result cannot be used.
    """
    if config.previous is None:
        return None
    return read_stored_groups(open_store(config.previous), config.previous_result or default_result)


def assign_stable_ids(
    earlier: StoredGroups | None,
    store: EmbeddingStore,
    rows: NDArray[np.int64],
    group_ids: NDArray[np.int64],
    num_groups: int,
    *,
    classes: Sequence[str | None] | None = None,
) -> StableIds:
    """Assign the ids of matching earlier groups to the groups of a run, and unused ids to new groups.

    Groups of the same labeled class match; the others are matched by :func:`match_groups`, using the images that have
    a group in both runs.

    Args:
        earlier: groups of the earlier run; None: ids are not changed.
        store: store of the new groups.
        rows: (m,) rows that were grouped.
        group_ids: (m,) int64 in ``[0, k)``.
        num_groups: number of groups, k.
        classes: (k,) labeled class of each group, None for groups of new classes.

    Raises:
        StoreError: no image has a group in both runs.
    """
    if earlier is None:
        return StableIds(np.arange(num_groups, dtype=np.int64), num_groups, None, 0, [])
    ids = np.full(store.n, -1, dtype=np.int64)
    ids[rows] = group_ids
    before, after = pair_shared_rows(earlier.store, store)
    both = (earlier.ids[before] >= 0) & (ids[after] >= 0)
    before, after = before[both], after[both]
    if not len(before):
        raise StoreError(
            str(earlier.result.path),
            f"contains none of the images of {store.path} (images are matched by the SHA-256 of their files, or by id "
            "if there are no files)",
            "Pass a store with mostly the same images, or remove --previous.",
        )
    counts = np.zeros((earlier.num_ids, num_groups), dtype=np.int64)
    np.add.at(counts, (earlier.ids[before], ids[after]), 1)
    place: dict[str | None, int] = {
        name: group for group, name in enumerate(earlier.names or ()) if earlier.is_class[group]
    }
    named = {group: name for group, name in enumerate(classes or ()) if name is not None}
    for group, name in named.items():
        # a labeled class never continues a different class
        counts[[other for other in place.values() if other != place.get(name)], group] = 0
    lasting = match_groups(counts, fixed=[(place[name], group) for group, name in named.items() if name in place])
    fresh = lasting < 0
    kept = sorted(lasting[~fresh].tolist())
    lasting[fresh] = earlier.num_ids + np.arange(int(fresh.sum()))
    current_progress().message(
        f"{len(kept)} of {num_groups} groups keep their ids from {earlier.result.name} in {earlier.store.path}, based "
        f"on {len(before)} shared images"
    )
    return StableIds(lasting, earlier.num_ids + int(fresh.sum()), earlier, len(before), kept)


def read_stored_groups(store: EmbeddingStore, name: str) -> StoredGroups:
    """Read the groups of images in a result.

    Raises:
        StoreError: the result does not exist, or does not group images.
    """
    result = read_result(store, name)
    ids = result.group_ids(best_guess=True)
    if ids is None or not (ids >= 0).any():
        raise StoreError(
            str(result.path), f"has {result.kind} (from {result.stage}), not groups of images", "Choose another result."
        )
    names = result.arrays.get("names")
    lengths = [len(result.arrays[key]) for key in ("names", "centroids", "prototypes") if key in result.arrays]
    num_ids = max([int(ids.max()) + 1, *lengths])
    is_class = np.zeros(num_ids, dtype=bool)
    if names is not None and "new_classes" in result.arrays:
        is_class[: len(names)] = ~np.asarray(result.arrays["new_classes"], dtype=bool)
    return StoredGroups(store, result, ids, num_ids, None if names is None else list(names), is_class)


def pair_shared_rows(before: EmbeddingStore, after: EmbeddingStore) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pair the rows of two stores that contain the same image, identified by the SHA-256 of its file.

    If a store contains identical files, they are paired in order: the first with the first of the other store, and so
    on. If a store was imported without image files, rows are paired by their ids.
    """
    rows_of: dict[str | bytes, list[int]] = {}
    keys_before, keys_after = _read_image_keys(before, after)
    for row, key in enumerate(keys_before):
        rows_of.setdefault(key, []).append(row)
    left = {key: iter(rows) for key, rows in rows_of.items()}
    pairs = [(first, row) for row, key in enumerate(keys_after) if (first := next(left.get(key, iter(())), -1)) >= 0]
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def find_images_in_other_store(before: EmbeddingStore, after: EmbeddingStore) -> NDArray[np.bool_]:
    """Return a mask (n,) of the rows of ``after`` whose image is also in ``before``; see ``pair_shared_rows``."""
    keys_before, keys_after = _read_image_keys(before, after)
    there = set(keys_before)
    return np.array([key in there for key in keys_after], dtype=bool)


def _read_image_keys(before: EmbeddingStore, after: EmbeddingStore) -> list[list[str | bytes]]:
    if before.has_images and after.has_images:
        return [[bytes(row) for row in np.asarray(store.sha256)] for store in (before, after)]
    return [list(store.sample_ids) for store in (before, after)]
