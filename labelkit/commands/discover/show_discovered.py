"""Draw a contact sheet of discovered images, with one block per class."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelkit.commands.common.images.contact_sheet import IMAGES_PER_LINE, SheetCell, write_contact_sheet
from labelkit.commands.common.images.read import make_pixel_reader, open_source_dataset
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.discover.few import RESULT_KIND
from labelkit.commands.discover.few_options import ShowDiscoveredConfig
from labelkit.commands.discover.tables import DiscoveredImage, read_discovered_table
from labelkit.data.datasets import ImageDataset, natural_sort_key
from labelkit.data.registry import load_dataset
from labelkit.errors import ConfigError, DatasetError, NotAStore, StoreError
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import Result, list_results, read_result


@dataclass(frozen=True)
class _Shown:
    """Discovered images to draw.

    Attributes:
        found: the images, best rank first.
        truth: true labels by sample id, where known.
        classes: class names, in order.
        what: source of the images: a table or a result.
    """

    found: list[DiscoveredImage]
    truth: Mapping[str, str]
    classes: tuple[str, ...]
    what: str

    def is_correct(self, image: DiscoveredImage) -> bool | None:
        """Return whether a discovered image was labeled correctly, or ``None`` if its true label is unknown."""
        true = self.truth.get(image.sample_id)
        return None if true is None else true == image.label


def show_discovered(config: ShowDiscoveredConfig) -> CommandResult:
    """Draw a contact sheet of the images that a discovery command labeled.

    Raises:
        StoreError: the store or its result cannot be used.
        DatasetError: the table or the images cannot be used.
        ConfigError: the result or the images are not specified, or a class has no discovered images.
    """
    if config.index is None and config.table is None:
        raise ConfigError("--index", "is missing", "Pass a store with a result as --index, or a CSV as --table.")
    store = None if config.index is None else open_store(config.index)
    if store is not None:
        images = open_source_dataset(store, config.dataset, config.data_root)
    elif config.dataset is not None:
        images = load_dataset(config.dataset, data_root=config.data_root)
    else:
        problem = "is missing: without a store, the location of the images is unknown"
        raise ConfigError("--dataset", problem, "Pass --dataset or --index.")
    shown = _shown(config, store, images if store is None else store)
    cells = _class_cells(shown)
    classes = [
        {"class": row[0], "discovered": row[1], "wrong": row[2], "shown": min(int(str(row[1])), config.num_images)}
        for row in cells
    ]
    values = {"source": shown.what, "discovered": len(shown.found), "out": config.out, "classes": classes}
    path = _write_sheet(config, shown, images)
    return CommandResult(values, (path,), (Table("discovered", ["class", "images", "wrong"], cells),))


def _shown(config: ShowDiscoveredConfig, store: EmbeddingStore | None, of: EmbeddingStore | ImageDataset) -> _Shown:
    truth: dict[str, str] = {}
    if of.labels is not None:
        truth = {of.sample_ids[i]: of.class_names[label] for i, label in enumerate(of.labels.tolist()) if label >= 0}
    if config.table is not None:
        found, what = read_discovered_table(config.table), str(config.table)
    else:
        assert store is not None
        result = _read_result(config, store)
        found = _from_result(result, store)
        what = f"{result.name} ({result.stage})"
    known = set(of.sample_ids)
    strangers = [image.sample_id for image in found if image.sample_id not in known]
    if strangers:
        problem = f"{len(strangers)} of {len(found)} images are not in {config.index or config.dataset}, first: "
        problem += ", ".join(strangers[:3])
        raise DatasetError(str(config.table), problem, "Pass the store or dataset that the table belongs to.")
    there = {image.label for image in found}
    order = [*of.class_names, *sorted(there - set(of.class_names), key=natural_sort_key)]
    classes = tuple(name for name in order if name in there)
    if config.classes is not None:
        missing = [name for name in config.classes if name not in there]
        if missing:
            problem = (
                f"no image of {missing[0]!r} was discovered (classes with discovered images: {', '.join(classes)})"
            )
            raise ConfigError("--classes", problem, "Choose from these classes.")
        classes = config.classes
        found = [image for image in found if image.label in classes]
    if not found:
        problem = "the result has no discovered images"
        raise StoreError(str(config.index), problem, "Run the search with a higher --count.")
    return _Shown(found, truth, classes, what)


def _read_result(config: ShowDiscoveredConfig, store: EmbeddingStore) -> Result:
    """Read ``--result`` or, by default, the store's only result with discovered images."""
    remedy = "Run `labelkit discover snowball` or `labelkit discover lmcs` on this store first."
    if config.result is not None:
        result = read_result(store, config.result)
        if result.kind != RESULT_KIND:
            raise StoreError(result.where, f"was created by {result.stage} and has no discovered images", remedy)
        return result
    found = []
    for name in list_results(store):
        try:
            result = read_result(store, name)
        except StoreError as error:
            current_progress().warning(str(error))
            continue
        if result.kind == RESULT_KIND:
            found.append(result)
    if not found:
        raise NotAStore(str(store.path), "has no result with discovered images", remedy)
    if len(found) > 1:
        names = ", ".join(result.name for result in found)
        problem = f"{store.path} has {len(found)} results that this command can use: {names}"
        raise ConfigError("--result", problem, "Choose one of these results with --result.")
    return found[0]


def _from_result(result: Result, store: EmbeddingStore) -> list[DiscoveredImage]:
    """Return the discovered images of a result, best rank first."""
    arrays = result.arrays
    names = arrays["names"]
    columns = [arrays[f"discovered_{key}"].tolist() for key in ("rows", "labels", "scores", "rank", "round")]
    found = [
        DiscoveredImage(store.sample_ids[row], names[label], score, rank, number)
        for row, label, score, rank, number in zip(*columns, strict=True)
    ]
    return sorted(found, key=lambda image: image.rank)


def _class_cells(shown: _Shown) -> list[list[Cell]]:
    cells: list[list[Cell]] = []
    for name in shown.classes:
        judged = [shown.is_correct(image) for image in shown.found if image.label == name]
        wrong = judged.count(False)
        cells.append([name, len(judged), wrong if wrong or True in judged else None])
    return cells


def _write_sheet(config: ShowDiscoveredConfig, shown: _Shown, images: ImageDataset) -> Path:
    pixels_of = make_pixel_reader(images)
    lines: list[list[SheetCell]] = []
    for name, count, wrong in _class_cells(shown):
        mine = [image for image in shown.found if image.label == name][: config.num_images]
        told = f"{count} found" + ("" if wrong is None else f", {wrong} wrong")
        for start in range(0, len(mine), IMAGES_PER_LINE):
            heading = (str(name), told) if start == 0 else ()
            line = [SheetCell(None, heading, frame="none")]
            for image in mine[start : start + IMAGES_PER_LINE]:
                right = shown.is_correct(image)
                below = f"is {shown.truth[image.sample_id]}" if right is False else ""
                frame: Any = {None: "plain", True: "right", False: "wrong"}[right]
                texts = (f"{image.rank}: {image.score:.3g}", below)
                line.append(SheetCell(pixels_of(image.sample_id), texts, frame))
            lines.append(line)
    return write_contact_sheet(config.out, lines)
