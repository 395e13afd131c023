"""Read and write tables of discovered images, as written by ``discover`` and by training runs."""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from labelkit.errors import DatasetError
from labelkit.files import open_regular_file
from labelkit.store.csv_table import csv_bytes

TABLE_COLUMNS = ("path", "label", "score", "rank", "round")
_GENERATION = "generation"
_ITERATION = "iteration"  # name of a round in training runs


class DiscoveredImage(NamedTuple):
    """Image labeled by a discovery command, with its class, score, rank, and round (counted from 1)."""

    sample_id: str
    label: str
    score: float
    rank: int
    round: int


def format_discovered_table(images: Sequence[DiscoveredImage]) -> bytes:
    """Format discovered images as a CSV table, best rank first."""
    best_first = sorted(images, key=lambda image: image.rank)
    lines = ([one.sample_id, one.label, f"{one.score:.6g}", one.rank, one.round] for one in best_first)
    return csv_bytes(TABLE_COLUMNS, lines)


def read_discovered_table(path: Path) -> list[DiscoveredImage]:
    """Read discovered images from a CSV with at least ``path,label,score,rank,round``, sorted by round and rank.

    Tables of training runs have ``iteration`` instead of ``round``; of these, only the last generation is read.

    Raises:
        DatasetError: the file cannot be read, a column is missing, or a value is not a number.
    """
    where = str(path)
    try:
        with io.TextIOWrapper(open_regular_file(path), encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            columns = list(reader.fieldnames or [])
            rows = list(reader)
    except OSError as error:
        raise DatasetError(where, f"cannot be read: {error.strerror}", "Check its name and permissions.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(where, f"is not a table: {error}", "Pass a CSV file in UTF-8.") from error
    number_column = _ITERATION if _ITERATION in columns and "round" not in columns else "round"
    missing = [column for column in (*TABLE_COLUMNS[:-1], number_column) if column not in columns]
    if missing:
        raise DatasetError(
            where,
            f"has no column {missing[0]!r} (its columns: {', '.join(columns) or 'none'})",
            f"Pass a table with the columns {', '.join(TABLE_COLUMNS)} (or {_ITERATION}).",
        )
    found: list[tuple[int, DiscoveredImage]] = []
    for line, row in enumerate(rows, start=2):
        try:
            rank, number = int(row["rank"]), int(row[number_column])
            image = DiscoveredImage(row["path"], row["label"], float(row["score"]), rank, number)
            if not math.isfinite(image.score):
                raise ValueError(f"score must be finite, got {image.score}")
            found.append((int(row[_GENERATION]) if _GENERATION in columns else 0, image))
        except (TypeError, ValueError) as error:
            raise DatasetError(where, f"line {line} is invalid: {error}", "Recreate the table.") from error
    if not found:
        raise DatasetError(where, "contains no images", "Pass a table with at least one image.")
    last = max(number for number, _ in found)
    chosen = (image for number, image in found if number == last)
    return sorted(chosen, key=lambda image: (image.round, image.rank))
