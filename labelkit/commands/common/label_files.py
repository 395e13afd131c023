"""Match labels in a CSV or a result to the images of a store or a dataset.

All matching happens here. For paths in a CSV, see ``labelkit.data.path_rule``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from labelkit.commands.common.images.read import find_image_folder
from labelkit.data.path_rule import SHOWN, escape_path, match_paths, similar_path_hint
from labelkit.data.tables import read_label_csv, read_paths_and_labels
from labelkit.errors import ConfigError, DatasetError, StoreError
from labelkit.formatting import join_first_few
from labelkit.progress import current_progress
from labelkit.store.csv_table import escape_name, needs_escape
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import Result, list_results, read_result
from labelkit.store.schema import RESULT_NAME

LABELS_KIND = "labels"


@dataclass(frozen=True)
class LabelFileImages:
    """Images that the paths in a label file may refer to.

    Attributes:
        where: description of the images in messages.
        sample_ids: ids of the n images.
        root: image folder; ``None``: unknown.
    """

    where: str
    sample_ids: Sequence[str]
    root: Path | None

    @classmethod
    def from_store(cls, store: EmbeddingStore) -> LabelFileImages:
        """Return the images of a store."""
        return cls(str(store.path), store.sample_ids, find_image_folder(store))


def find_labels_result(option: Path, store: EmbeddingStore) -> Result | None:
    """Return the store's result that ``--labels`` refers to, or ``None`` if it refers to a file.

    ``newest`` means the last of ``labels``, ``labels-1``, ``labels-2``, ..., unless a file or a result has this name.

    Raises:
        ConfigError: both a file and a result have this name.
        DatasetError: neither a file nor a result has this name.
        StoreError: the result does not contain labels.
    """
    results = list_results(store)
    numbered = [name for name in results if re.fullmatch(r"labels(-\d+)?", name)]
    if option == Path("newest") and numbered and not option.exists() and "newest" not in results:
        option = Path(max(numbered, key=lambda name: int(name.partition("-")[2] or 1)))
    could_be = len(option.parts) == 1 and RESULT_NAME.fullmatch(option.name) is not None
    is_there = could_be and option.name in results
    if is_there and option.exists():
        problem = f"{option} is both a file in the current folder and a result of {store.path}"
        raise ConfigError("--labels", problem, f"Pass the file as {option.absolute()}, or rename the file.")
    if not is_there and not option.exists():
        known = ", ".join(results) or "none"
        remedy = "Pass a result of `labelkit label`, or a CSV with the columns path,label."
        if (given := store.path.with_name("given.csv")).is_file():  # of `labelkit start`, from all rounds
            remedy = (
                f"The labels of `labelkit start` are in {given}: pass it as --labels, in `labelkit label` as --from."
            )
        raise DatasetError(
            str(option), f"is neither a file nor a result of {store.path} (its results: {known})", remedy
        )
    if not is_there:
        return None
    result = read_result(store, option.name)
    if result.kind != LABELS_KIND or not {"labels", "labeled", "class_names"} <= result.arrays.keys():
        problem = f"contains {result.kind} (from {result.stage}), not labels"
        raise StoreError(str(result.path), problem, "Choose a result of `labelkit label`.")
    return result


def read_csv_labels(
    path: Path, images: LabelFileImages, label_column: str | None = None, *, min_found: float = 1
) -> dict[int, str]:
    """Read labels from a CSV file; return a mapping from image position to label, in the order of the file.

    Labels of other images are ignored, with a warning, if at least the fraction ``min_found`` of the labeled images are
    found; with ``min_found`` 0, at least one must be found.

    Raises:
        DatasetError: the file cannot be read, images are unknown, a path is ambiguous, or an image has two labels.
    """
    if path.suffix == ".h5":
        remedy = "Pass a CSV, such as one written by `labelkit label --index STORE.h5 --labels NAME --csv labels.csv`."
        raise DatasetError(str(path), "is not a CSV", remedy)
    texts = read_label_csv(path, label_column)
    unknown = find_images_by_path(path, texts, images)[1] if min_found < 1 else []
    if 0 < len(unknown) < len(texts) and len(texts) - len(unknown) >= min_found * len(texts):
        show = current_progress().warning if min_found else current_progress().message
        ignored = f"{path}: ignoring {len(unknown)} of {len(texts)} labels"
        show(f"{ignored}, whose images are not in {images.where}: {join_first_few(unknown)}")
        texts = {name: text for name, text in texts.items() if name not in set(unknown)}
    return match_label_paths(path, texts, images)


def find_images_by_path(
    path: Path, texts: Iterable[str], images: LabelFileImages, show_message: Callable[[str], None] = lambda text: None
) -> tuple[dict[str, int], list[str]]:
    """Find the images that the paths in a CSV file refer to; see :func:`labelkit.data.path_rule.match_paths`.

    Raises:
        DatasetError: a path is ambiguous.
    """
    spellings = {escape_name(name): place for place, name in enumerate(images.sample_ids) if needs_escape(name)}
    return match_paths(
        texts, images.sample_ids, table=path, root=images.root, other_spellings=spellings, show_message=show_message
    )


def match_label_paths(path: Path, texts: Mapping[str, str], images: LabelFileImages) -> dict[int, str]:
    """Match the labels of a CSV file to images by path; see :func:`read_csv_labels`."""
    places, unknown = find_images_by_path(path, texts, images, current_progress().message)
    if unknown:
        known = [escape_path(name) for name in images.sample_ids]
        shown = ", ".join(f"{name}{similar_path_hint(name, known)}" for name in unknown[:SHOWN])
        problem = f"{len(unknown)} of {len(texts)} images are not in {images.where}, first: {shown}"
        remedy = "Use paths relative to the image folder or to the CSV, or unique endings of these paths."
        raise DatasetError(str(path), problem, remedy)
    first: dict[int, str] = {}
    for name, text in texts.items():
        other = first.setdefault(places[name], name)
        if texts[other] != text:
            problem = f"{name!r} is labeled {text!r}, but {other!r}, the same image, is labeled {texts[other]!r}"
            raise DatasetError(str(path), problem, "Keep only one label for this image.")
    return {place: texts[name] for place, name in first.items()}


def find_rows_listed_in_csv(table: Path | None, store: EmbeddingStore) -> set[int]:
    """Find the rows of a store whose images are listed in a CSV file, ignoring paths that are not in the store.

    Raises:
        DatasetError: the file cannot be read, or a path is ambiguous.
    """
    if table is None:
        return set()
    places, _ = find_images_by_path(table, read_paths_and_labels(table), LabelFileImages.from_store(store))
    return set(places.values())
