"""Draw discovered images: a contact sheet with a block per class, and a map of all rows after each round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelkit.algorithms.projection import principal_plane, tsne_plane
from labelkit.commands.common.embeddings import check_features
from labelkit.commands.common.images.contact_sheet import IMAGES_PER_LINE, Picture, write_contact_sheet
from labelkit.commands.common.images.plots import MapPanel, write_map_plot
from labelkit.commands.common.images.read import indexed_images, pixels_by_name
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.discover.few import RESULT_KIND, SOURCES
from labelkit.commands.discover.few_options import ShowDiscoveredConfig
from labelkit.commands.discover.tables import DiscoveredImage, read_discovered_table
from labelkit.data.datasets import ImageDataset, natural_key
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.registry import load_dataset
from labelkit.errors import ConfigError, DatasetError, NotAStore, StoreError
from labelkit.formatting import percent
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import Result, list_results, read_result

# More panels than this are too small to see.
_MAX_PANELS = 8
# Images on the map; those that were not found are left out first.
_MAX_POINTS = 5000


@dataclass(frozen=True)
class _Shown:
    """What is to be drawn.

    Attributes:
        found: best rank first.
        given: label of the images that had one before, by sample id.
        truth: label of the images whose class is known, by sample id.
        classes: names in order.
        what: where it is from.
    """

    found: list[DiscoveredImage]
    given: Mapping[str, str]
    truth: Mapping[str, str]
    classes: tuple[str, ...]
    what: str

    def is_right(self, image: DiscoveredImage) -> bool | None:
        """Return whether the label of a discovered image is its true one; ``None`` if that is unknown."""
        true = self.truth.get(image.sample_id)
        return None if true is None else true == image.label


def show_discovered(config: ShowDiscoveredConfig) -> SimpleResult:
    """Draw the images that a discovery labeled, as a contact sheet or on a map.

    Raises:
        StoreError: the store or its result cannot be used.
        DatasetError: the table or the images cannot be used.
        ConfigError: nothing to draw or to draw from, pictures that would be overwritten, classes that are not there.
    """
    _check_request(config)
    store = None if config.index is None else open_store(config.index)
    images = None
    if config.out is not None or store is None:
        images = _images(config, store)
    shown = _shown(config, store, images)
    made: list[Path] = []
    values: dict[str, object] = {"source": shown.what, "discovered": len(shown.found)}
    if config.out is not None:
        assert images is not None
        made.append(_write_sheet(config, config.out, shown, images))
        values["out"] = config.out
    if config.map is not None:
        assert store is not None
        path, shares = _write_map(config, config.map, shown, store)
        made.append(path)
        values |= {"map": path, "projection": config.projection, "variance_shares": shares}
    cells = _class_cells(shown)
    values["classes"] = [
        {"class": row[0], "discovered": row[1], "wrong": row[2], "shown": min(int(str(row[1])), config.num_images)}
        for row in cells
    ]
    return SimpleResult(values, tuple(made), (Table("discovered", ["class", "images", "wrong"], cells),))


def _check_request(config: ShowDiscoveredConfig) -> None:
    """Check before anything is read that it can be done.

    Raises:
        ConfigError: nothing to draw or to draw from, or pictures that would be overwritten.
    """
    if config.out is None and config.map is None:
        raise ConfigError(
            "show discovered", "there is nothing to draw", "Pass --out (a contact sheet), --map (a 2-D map), or both."
        )
    if config.index is None and config.table is None:
        raise ConfigError("--index", "is missing", "Pass a store with a result, or a CSV with --table.")
    if config.index is None and config.map is not None:
        raise ConfigError("--map", "needs the features of a store", "Pass --index.")
    if config.index is None and config.dataset is None:
        raise ConfigError(
            "--dataset",
            "is missing: without a store, the location of the images is unknown",
            "Pass --dataset or --index.",
        )


def _images(config: ShowDiscoveredConfig, store: EmbeddingStore | None) -> ImageDataset:
    if store is not None:
        return indexed_images(store, config.dataset, config.data_root)
    assert config.dataset is not None
    return load_dataset(config.dataset, data_root=config.data_root)


def _shown(config: ShowDiscoveredConfig, store: EmbeddingStore | None, images: ImageDataset | None) -> _Shown:
    """Read result or table, with the truth where it is known."""
    given: dict[str, str] = {}
    of = store if store is not None else images
    assert of is not None
    truth: dict[str, str] = {}
    if of.labels is not None:
        truth = {of.sample_ids[i]: of.class_names[label] for i, label in enumerate(of.labels.tolist()) if label >= 0}
    if config.table is not None:
        found, what = read_discovered_table(config.table), str(config.table)
        if store is not None and store.labeled is not None:
            usable = np.flatnonzero(store.labeled)
            given = {name: truth[name] for name in (store.sample_ids[int(row)] for row in usable) if name in truth}
    else:
        assert store is not None
        result = _read_result(config, store)
        found, given = _from_result(result, store)
        what = f"{result.name} ({result.stage})"
    known = set(of.sample_ids)
    strangers = [image.sample_id for image in found if image.sample_id not in known]
    if strangers:
        raise DatasetError(
            str(config.table),
            f"{len(strangers)} of {len(found)} images are not in {config.index or config.dataset}, first: "
            f"{', '.join(strangers[:3])}",
            "Pass the store or data set that the table belongs to.",
        )
    there = {image.label for image in found}
    order = [*of.class_names, *sorted(there - set(of.class_names), key=natural_key)]
    classes = tuple(name for name in order if name in there)
    if config.classes is not None:
        missing = [name for name in config.classes if name not in there]
        if missing:
            raise ConfigError(
                "--classes",
                f"no image of {missing[0]!r} was discovered (classes with discovered images: {', '.join(classes)})",
                "Choose classes with discovered images.",
            )
        classes = config.classes
        found = [image for image in found if image.label in classes]
    if not found:
        raise StoreError(str(config.index), "the result contains no discovered images", "Repeat with a larger --count.")
    return _Shown(found, given, truth, classes, what)


def _read_result(config: ShowDiscoveredConfig, store: EmbeddingStore) -> Result:
    """Read the result that was named, or the only one of its kind.

    Raises:
        StoreError: there is none or more than one, or it is of another kind.
    """
    remedy = "Run `labelkit discover snowball` or `labelkit discover lmcs` on this store first."
    if config.result is not None:
        result = read_result(store, config.result)
        if result.kind != RESULT_KIND:
            raise StoreError(result.where, f"was made by {result.stage} and contains no discovered images", remedy)
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
        raise ConfigError("--result", problem, "Pass one of these.")
    return found[0]


def _from_result(result: Result, store: EmbeddingStore) -> tuple[list[DiscoveredImage], dict[str, str]]:
    """Return what was found, best rank first, and the labels given before."""
    arrays = result.arrays
    names = arrays["names"]
    columns = [arrays[f"discovered_{key}"].tolist() for key in ("rows", "labels", "scores", "rank", "round")]
    found = [
        DiscoveredImage(store.sample_ids[row], names[label], score, rank, number)
        for row, label, score, rank, number in zip(*columns, strict=True)
    ]
    rows = np.flatnonzero(arrays["sources"] == SOURCES.index("given"))
    given = {store.sample_ids[int(row)]: names[int(arrays["pseudo_labels"][row])] for row in rows}
    return sorted(found, key=lambda image: image.rank), given


def _class_cells(shown: _Shown) -> list[list[Cell]]:
    cells: list[list[Cell]] = []
    for name in shown.classes:
        judged = [shown.is_right(image) for image in shown.found if image.label == name]
        wrong = judged.count(False)
        cells.append([name, len(judged), wrong if wrong or True in judged else None])
    return cells


def _write_sheet(config: ShowDiscoveredConfig, path: Path, shown: _Shown, images: ImageDataset) -> Path:
    """A heading and lines of images for each class."""
    pixels_of = pixels_by_name(images)
    lines: list[list[Picture]] = []
    for name, count, wrong in _class_cells(shown):
        mine = [image for image in shown.found if image.label == name][: config.num_images]
        told = f"{count} found" + ("" if wrong is None else f", {wrong} wrong")
        for start in range(0, len(mine), IMAGES_PER_LINE):
            heading = (str(name), told) if start == 0 else ()
            line = [Picture(None, heading, frame="none")]
            for image in mine[start : start + IMAGES_PER_LINE]:
                right = shown.is_right(image)
                below = f"is {shown.truth[image.sample_id]}" if right is False else ""
                line.append(
                    Picture(
                        pixels_of(image.sample_id),
                        (f"{image.rank}: {image.score:.3g}", below),
                        frame="plain" if right is None else "right" if right else "wrong",
                    )
                )
            lines.append(line)
    return write_contact_sheet(path, lines)


def _write_map(
    config: ShowDiscoveredConfig, path: Path, shown: _Shown, store: EmbeddingStore
) -> tuple[Path, list[float] | None]:
    """Project the rows of the store and draw them after each round."""
    row_of = {sample_id: row for row, sample_id in enumerate(store.sample_ids)}
    drawn = {row_of[image.sample_id] for image in shown.found} | {row_of[name] for name in shown.given}
    others = np.setdiff1d(np.arange(store.n), list(drawn))
    room = max(0, _MAX_POINTS - len(drawn))
    if len(others) > room:
        current_progress().message(f"{len(others) - room} undiscovered images are left out of the map")
        others = np.sort(keyed_generator(config.seed, "map").permutation(others)[:room])
    rows = np.sort(np.concatenate([np.array(sorted(drawn), dtype=np.int64), others]))
    features = check_features(store, rows)
    shares: list[float] | None = None
    axes = ("t-SNE", "")
    with current_progress().task(f"projecting {len(rows)} rows", total=None):
        if config.projection == "pca" or len(rows) < 2:
            points, both = principal_plane(features)
            shares = list(both)
            axes = (f"first direction, {percent(both[0])} % of variance", f"second, {percent(both[1])} %")
        else:
            points = tsne_plane(features, seed=config.seed)
    place_of = {int(row): place for place, row in enumerate(rows)}
    others_given = sorted(set(shown.given.values()) - set(shown.classes), key=natural_key)
    number_of = {name: number for number, name in enumerate([*shown.classes, *others_given])}
    given = np.full(len(rows), -1, dtype=np.int64)
    for sample_id, name in shown.given.items():
        given[place_of[row_of[sample_id]]] = number_of[name]
    labels, rounds = np.full(len(rows), -1, dtype=np.int64), np.zeros(len(rows), dtype=np.int64)
    wrong = np.zeros(len(rows), dtype=bool)
    for image in shown.found:
        place = place_of[row_of[image.sample_id]]
        labels[place], rounds[place] = number_of[image.label], image.round
        wrong[place] = shown.is_right(image) is False
    panels = []
    for number in _panel_rounds(int(rounds.max())):
        there = (labels >= 0) & (rounds <= number)
        title = "given labels" if number == 0 else f"after round {number}: {int(there.sum())} discovered"
        if number and shown.truth:
            title += f", {int((there & wrong).sum())} wrong"
        panels.append(MapPanel(title, np.where(there, labels, -1), there & wrong))
    write_map_plot(path, points, given, panels, tuple(number_of), axis_names=axes)
    return path, shares


def _panel_rounds(last: int) -> list[int]:
    """Rounds to draw: 0, the last, and evenly spaced ones between."""
    if last < _MAX_PANELS:
        return list(range(last + 1))
    return sorted({round(last * number / (_MAX_PANELS - 1)) for number in range(_MAX_PANELS)})
