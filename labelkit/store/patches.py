"""Read the patch features of a store, which are in separate files.

The format is described in ``docs/inside/file_format.txt``; ``labelkit.store.patch_writing`` writes the files.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Damaged, Mismatch, NotAStore, VersionError
from labelkit.files import parse_json
from labelkit.store import schema
from labelkit.store.commit import json_digest
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.reader import CheckedFile, LazyRows, open_checked_file, open_regular

SET_NAME = "SET.json"
_REMAKE = "Recreate the patches: `labelkit embed ... --dense --overwrite`."


@dataclass(frozen=True)
class ImagePatches:
    """Patch features of one image, with their grid cells.

    Attributes:
        features: (t, d) float, in the stored dtype.
        cells: (t, 2) int64 row and column of each patch, in order.
        grid: number of rows and columns.
        region: left, top, right, bottom of the grid in pixels of the oriented original.
    """

    features: NDArray[Any]
    cells: NDArray[np.int64]
    grid: tuple[int, int]
    region: tuple[float, float, float, float]

    def boxes(self) -> NDArray[np.float64]:
        """Return each patch's box (t, 4) as left, top, right and bottom, in pixels of the oriented original."""
        return compute_cell_boxes(self.cells, self.grid, self.region)


@dataclass(frozen=True)
class PatchBlock:
    """Patch features of consecutive images, read together.

    Attributes:
        features: (t, d) float, in the stored dtype.
        image_rows: (t,) int64, row of each patch's image in the store.
        cells: (t, 2) int64 row and column of each patch.
        start: index of the first patch in the set.
    """

    features: NDArray[Any]
    image_rows: NDArray[np.int64]
    cells: NDArray[np.int64]
    start: int


def compute_cell_boxes(
    cells: NDArray[np.int64], grid: tuple[int, int], region: tuple[float, float, float, float]
) -> NDArray[np.float64]:
    """Compute the boxes (t, 4) of grid cells (t, 2) as left, top, right, bottom, in the coordinates of the region."""
    left, top, right, bottom = region
    height, width = (bottom - top) / grid[0], (right - left) / grid[1]
    rows, columns = cells[:, 0].astype(np.float64), cells[:, 1].astype(np.float64)
    edges = (left + columns * width, top + rows * height, left + (columns + 1) * width, top + (rows + 1) * height)
    return np.stack(edges, axis=1)


def patches_folder(store: Path) -> Path:
    """Return the folder that contains the patches of a store."""
    return store.with_name(store.name + ".patches")


def read_patch_index(folder: Path) -> dict[str, Any]:
    """Read and check ``SET.json``, the index of a patch set; ``NotAStore`` if there is none."""
    path = folder / SET_NAME
    if not path.is_file():
        remedy = "Run the command that created the store again, with --dense."
        raise NotAStore(str(folder), "the store has no patches", remedy)
    with open_regular(path) as file:
        raw = file.read()
    try:
        loaded = parse_json(raw)
    except ValueError as error:
        raise Damaged(str(path), "is not JSON: the file was changed, or the disk is failing", _REMAKE) from error
    if not isinstance(loaded, dict) or loaded.get("format") != schema.FORMAT_PATCHES:
        raise NotAStore(str(path), "is not a set of patches", _REMAKE)
    major = str(loaded.get("format_version", "")).partition(".")[0]
    if not (major.isdecimal() and major.isascii()) or int(major) > schema.MAJOR_VERSION:
        problem = f"was written in format {loaded.get('format_version')!r}, not {schema.FORMAT_VERSION}"
        raise VersionError(str(path), problem, "Upgrade labelkit.")
    digest = loaded.pop("sha256", None)
    if digest != json_digest(loaded):
        raise Damaged(str(path), "digest differs: the file was changed, or the disk is failing", _REMAKE)
    return {**loaded, "sha256": digest}


class PatchFile:
    """File of a patch set, verified except for its features; it holds memory maps but no open file.

    ``entry`` is its entry in ``SET.json``, and ``listed`` the whole content of ``SET.json``.
    """

    def __init__(self, file: CheckedFile, entry: dict[str, Any], listed: dict[str, Any]) -> None:
        if file.content_digest != entry["content_digest"]:
            raise Mismatch(file.where, f"is not the file listed in {SET_NAME}: its content digest differs", _REMAKE)
        rows = entry["row_stop"] - entry["row_start"]
        known = {"n": rows, "o": rows + 1, "t": entry["patches"], "d": listed["dim"]}
        file.check_axes(schema.PATCH_COLUMNS, known, required=schema.PATCH_COLUMNS.keys() - {"cells"})
        self.grids: NDArray[np.int64] = file.read("grids").astype(np.int64)
        self.regions: NDArray[np.float32] = file.read("regions")
        self.cells: NDArray[np.int64] | None = None
        if "cells" in file.datasets:
            self.cells = file.read("cells").astype(np.int64)
        self.offsets: NDArray[np.int64] = file.read("patch_offsets").astype(np.int64)
        self.patches = LazyRows(file, "patches")
        self.row_start, self.row_stop = int(entry["row_start"]), int(entry["row_stop"])

    def cells_of_images(self, first: int, last: int) -> NDArray[np.int64]:
        """Return the cells (t, 2) of images ``first`` up to ``last`` (exclusive) in this file."""
        if self.cells is not None:
            return self.cells[self.offsets[first] : self.offsets[last]]
        shapes = [np.indices(tuple(grid)).reshape(2, -1).T for grid in self.grids[first:last].tolist()]
        return np.concatenate(shapes) if shapes else np.zeros((0, 2), dtype=np.int64)


class PatchSet:
    """Patch features of a store, open for reading; created by ``open_patches``.

    It holds memory maps but no open file. Each file, and each block of its patches, is verified on first use.

    Attributes:
        folder: folder of the files.
        n: number of images, equal to that of the store.
        dim: dimension of the patch features, d.
        dtype: ``float16`` or ``float32``.
        num_patches: total number of patches.
        layer: network layer from which the patches were taken.
        recipe: everything other than the store that determines the patches.
        digest: digest that identifies the patch set, 64 hexadecimal digits.
    """

    def __init__(self, folder: Path, listed: dict[str, Any]) -> None:
        self.folder = folder
        self._listed = listed
        self._files: dict[int, PatchFile] = {}
        self._stops = np.array([entry["row_stop"] for entry in listed["files"]], dtype=np.int64)
        counts = [0, *(entry["patches"] for entry in listed["files"])]
        self._first_patches = np.cumsum(np.array(counts, dtype=np.int64))
        self.n, self.dim, self.dtype = int(listed["rows"]), int(listed["dim"]), str(listed["dtype"])
        self.num_patches = int(listed["patches"])
        self.recipe: dict[str, Any] = listed["recipe"]
        self.layer = str(self.recipe.get("layer", ""))
        self.digest = str(listed["sha256"])

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PatchSet cannot be pickled: call open_patches in each process")

    def get_image(self, row: int) -> ImagePatches:
        """Return the patch features of one image.

        Raises:
            IndexError: the row does not exist.
            StoreError: the file with its patches is damaged or does not match.
        """
        if not 0 <= row < self.n:
            raise IndexError(f"row {row} is out of range for {self.n} rows")
        file = self._file(int(np.searchsorted(self._stops, row, side="right")))
        local = row - file.row_start
        start, stop = int(file.offsets[local]), int(file.offsets[local + 1])
        (rows, columns), (left, top, right, bottom) = file.grids[local].tolist(), file.regions[local].tolist()
        cells = file.cells_of_images(local, local + 1)
        return ImagePatches(file.patches.array[start:stop], cells, (rows, columns), (left, top, right, bottom))

    def offsets(self) -> NDArray[np.int64]:
        """Return (n + 1,) offsets: the index of each image's first patch in the set, then the total patch count."""
        firsts = self._first_patches
        parts = [first + self._file(number).offsets[:-1] for number, first in enumerate(firsts[:-1])]
        return np.concatenate([*parts, firsts[-1:]])

    def iterate_blocks(self, max_bytes: int = 64 << 20) -> Iterator[PatchBlock]:
        """Yield all patches in order, in blocks of about ``max_bytes``, each with one or more whole images.

        Raises:
            StoreError: a file is damaged or does not match.
        """
        limit = max(1, max_bytes // (self.dim * np.dtype(self.dtype).itemsize))
        row = 0
        while row < self.n:
            number = int(np.searchsorted(self._stops, row, side="right"))
            file = self._file(number)
            first, end = row - file.row_start, file.row_stop - file.row_start
            fitting = int(np.searchsorted(file.offsets, file.offsets[first] + limit, side="right")) - 1
            last = min(end, max(first + 1, fitting))
            low, high = int(file.offsets[first]), int(file.offsets[last])
            counts = np.diff(file.offsets[first : last + 1])
            image_rows = np.repeat(np.arange(file.row_start + first, file.row_start + last), counts)
            begin = int(self._first_patches[number]) + low
            yield PatchBlock(file.patches.array[low:high], image_rows, file.cells_of_images(first, last), begin)
            row = file.row_start + last

    def verify(self) -> None:
        """Verify all files and patches against their digests.

        Raises:
            StoreError: a file is damaged or does not match.
        """
        for _ in self.iterate_blocks():
            pass

    def _file(self, number: int) -> PatchFile:
        if number not in self._files:
            entry = self._listed["files"][number]
            with open_checked_file(self.folder / entry["name"], schema.FORMAT_STORE) as file:
                self._files[number] = PatchFile(file, entry, self._listed)
        return self._files[number]


def check_patch_owner(folder: Path, listed: dict[str, Any], store: EmbeddingStore) -> None:
    """Reject patches that belong to another version of the store; ``listed`` is the content of ``SET.json``."""
    if listed["store_digest"] != store.content_digest or listed["rows"] != store.n:
        raise Mismatch(str(folder), f"the patches belong to a different version of {store.path}", _REMAKE)


def open_patches(store: EmbeddingStore) -> PatchSet:
    """Open the patches of a store; each block is verified against its digest on first use.

    Raises:
        NotAStore: the store has no patches.
        Mismatch: the patches belong to a different version of the store.
        StoreError: the index is damaged; each file is checked on first use.
    """
    folder = patches_folder(store.path)
    listed = read_patch_index(folder)
    check_patch_owner(folder, listed, store)
    for entry in listed["files"]:
        if not (folder / entry["name"]).is_file():
            raise Damaged(str(folder / entry["name"]), f"is listed in {SET_NAME}, but does not exist", _REMAKE)
    return PatchSet(folder, listed)
