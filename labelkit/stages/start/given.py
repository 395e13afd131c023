"""Labels that ``start`` knows: those of earlier calls, those filled in in its own suggestions, and those of a file."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from labelkit.data.datasets import ImageDataset
from labelkit.data.path_rule import written_name
from labelkit.data.tables import read_label_csv
from labelkit.stages.progress import current_progress
from labelkit.stages.read.label_files import LabeledImages, placed_csv

GIVEN, NEXT = "given.csv", "next.csv"


def collect_labels(
    folder: Path, labels: Path | None, dataset: ImageDataset, label_column: str | None = None
) -> dict[int, str]:
    """Return the label of each photo that has one, by place in the listing; later sources win.

    Args:
        folder: of ``start``; may not exist.
        labels: a CSV of the user; ``None`` for none.
        dataset: the photos.
        label_column: header of the column of labels in the CSV of the user; ``None`` for the usual one.

    Raises:
        DatasetError: a file cannot be used, or names photos that are not there.
    """
    images = LabeledImages(f"the folder {dataset.root}", dataset.sample_ids, None, dataset.root)
    place_of = {written_name(name): place for place, name in enumerate(dataset.sample_ids)}
    known: dict[int, str] = {}
    gone = 0
    for file in (folder / GIVEN, folder / NEXT):
        if not file.is_file():
            continue
        for path, text in read_label_csv(file, empty_ok=True).items():
            if path in place_of:
                known[place_of[path]] = text
            else:
                gone += 1
    if gone:
        current_progress().warning(f"{gone} labels are of photos that are gone: they are left out")
    if labels is not None:
        fresh = placed_csv(labels, images, label_column)
        changed = sum(known.get(place, text) != text for place, text in fresh.items())
        if changed:
            current_progress().warning(f"{labels}: {changed} photos had another label before; the new one is taken")
        known |= fresh
    return known


def given_csv(dataset: ImageDataset, labels: dict[int, str]) -> bytes:
    """Return the labels as CSV, by path."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["path", "label"])
    for place in sorted(labels):
        writer.writerow([dataset.sample_ids[place], labels[place]])
    # bytes of a file name that are no text become backslash escapes
    return buffer.getvalue().encode("utf-8", "backslashreplace")
