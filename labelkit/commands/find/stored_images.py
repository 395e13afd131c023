"""Read, measure and draw the images of a store, and write the table of ``labelkit find``."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.images.contact_sheet import IMAGES_PER_LINE, SheetCell, write_contact_sheet
from labelkit.commands.common.images.read import (
    make_pixel_reader,
    map_in_threads,
    open_source_dataset,
    read_store_image,
)
from labelkit.commands.find.options import FindConfig
from labelkit.data.datasets import ImageDataset
from labelkit.errors import DatasetError
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes
from labelkit.store.csv_table import csv_bytes
from labelkit.store.embeddings import EmbeddingStore

T = TypeVar("T")

# maximum number of lines of a contact sheet
_MAX_LINES = 100


class StoredImages:
    """Image files from which given rows of a store were embedded.

    Args:
        store: the store.
        rows: (m,) int64 rows of the store.
        config: options, including the location of the images.

    Attributes:
        files: dataset with the images.
        left_out: number of skipped images by reason; filled by :meth:`apply_to_images`.

    Raises:
        DatasetError: the images are missing.
        Mismatch: the store was imported without images.
    """

    def __init__(self, store: EmbeddingStore, rows: NDArray[np.int64], config: FindConfig) -> None:
        self.store, self.rows, self._digests = store, rows, np.asarray(store.sha256)
        self.files: ImageDataset = open_source_dataset(store, config.dataset, config.data_root)
        self.left_out: Counter[str] = Counter()

    def apply_to_images(
        self,
        function: Callable[[NDArray[np.uint8]], T],
        min_side: int,
        description: str,
        positions: NDArray[np.int64] | None = None,
        num_others: int = 0,
    ) -> Iterator[tuple[int, T]]:
        """Apply a function to the gray pixels of each image, and yield (position, result) in order.

        Images that are missing, unreadable, or changed since they were embedded are skipped with a warning.

        Args:
            function: function of pixels (h, w, 1) uint8; called in threads.
            min_side: minimum side length in pixels to which the decoder may downscale.
            description: label of the progress bar.
            positions: (w,) positions of the images to read, among the rows; ``None``: all.
            num_others: number of images that need not be read, for the warning.

        Raises:
            DatasetError: no image can be read.
        """
        row_of = {name: row for row, name in enumerate(self.files.sample_ids)}

        def one(place: int) -> T | str:
            row = int(self.rows[place])
            file_row = row_of.get(self.store.sample_ids[row])
            pixels = read_store_image(self.files, file_row, self._digests[row], 1, min_side)
            return pixels if isinstance(pixels, str) else function(pixels)

        places = range(len(self.rows)) if positions is None else positions.tolist()
        for place, found in zip(places, map_in_threads(one, places, description), strict=True):
            if isinstance(found, str):
                self.left_out[found] += 1
            else:
                yield place, found
        if not self.left_out:
            return
        total = len(places) + num_others
        number, reasons = self.left_out.total(), ", ".join(f"{n} {reason}" for reason, n in self.left_out.most_common())
        where = str(self.files.root or self.files.name)
        if number == total:
            problem = f"none of the images of {self.store.path} can be read: {reasons}"
            raise DatasetError(where, problem, "Pass the folder that contains the images as --dataset.")
        current_progress().warning(f"skipped {number} of {total} images in {where}: {reasons}")

    def describe_skipped_images(self) -> list[dict[str, object]]:
        """Return the number of skipped images for each reason, as JSON."""
        return [{"reason": reason, "images": number} for reason, number in self.left_out.most_common()]

    def path(self, position: int) -> str:
        """Return the path of the image at a position among the rows, as recorded in the store."""
        return self.store.sample_ids[int(self.rows[position])]

    def write_sheet(self, config: FindConfig, lines: Sequence[Sequence[tuple[int, tuple[str, ...]]]]) -> None:
        """Write the contact sheet, if requested and not empty; each line is a list of (position, captions) pairs."""
        if config.sheet is None:
            return
        if not lines:
            current_progress().message(f"nothing was found, so {config.sheet} is not written")
            return
        if len(lines) > _MAX_LINES:
            current_progress().message(f"{config.sheet} shows the first {_MAX_LINES} of {len(lines)} lines")
        pixels_of = make_pixel_reader(self.files)
        shown = [
            [SheetCell(pixels_of(self.path(place)), texts) for place, texts in line[:IMAGES_PER_LINE]]
            for line in lines[:_MAX_LINES]
        ]
        write_contact_sheet(config.sheet, shown)

    def write_grouped_sheet(self, config: FindConfig, groups: Sequence[Sequence[tuple[int, tuple[str, ...]]]]) -> None:
        """Write the contact sheet, if requested, keeping each group of (position, captions) pairs together."""
        per_line = IMAGES_PER_LINE // len(groups[0]) if groups else 1
        self.write_sheet(
            config, [list(chain(*groups[start : start + per_line])) for start in range(0, len(groups), per_line)]
        )


def write_findings(config: FindConfig, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write the findings to the output CSV."""
    commit_bytes(config.out, csv_bytes(columns, rows))
