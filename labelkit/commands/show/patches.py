"""Draw the patches of a store: similarity to a chosen patch, and principal components as colors."""

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.projection import color_by_principal_components
from labelkit.commands.common.embeddings import check_rows, normalize_embeddings
from labelkit.commands.common.images.contact_sheet import SheetCell, draw_box, write_contact_sheet
from labelkit.commands.common.images.read import make_pixel_reader, open_source_dataset
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.common.search_queries import find_class_name, parse_patch_position
from labelkit.commands.show.options import ShowPatchesConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.views.spec import ViewSpec
from labelkit.data.views.transforms import resize_box
from labelkit.errors import ConfigError, DatasetError
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.patches import ImagePatches, open_patches

_DEFAULT_IMAGES = 4
_SIDE = 224


def show_patches(config: ShowPatchesConfig) -> CommandResult:
    """Draw images of a store with the similarity map of a patch and the principal components of all patches.

    Similarity is the cosine with the framed patch of the first image, from blue to yellow on a common scale; the first
    three principal components of all patches shown are drawn as red, green and blue.

    Raises:
        StoreError: the store has no patches.
        ConfigError: only some patches are stored, a row or patch does not exist, or the output exists.
        DatasetError: the images are missing or cannot be read.
    """
    store = open_store(config.index)
    patches = open_patches(store)
    if patches.is_sampled:
        problem = "contains only some patches of each image, so similarity maps cannot be drawn"
        raise ConfigError("--index", f"{config.index} {problem}", "Embed the images again with --dense.")
    drawn_rows = np.sort(keyed_generator(config.seed, "show patches").permutation(store.n)[:_DEFAULT_IMAGES])
    rows = drawn_rows.tolist() if config.rows is None else check_rows(store, config.rows, "--rows")
    maps = [patches.get_image(row) for row in rows]
    height, width = maps[0].grid
    row, column = height // 2, width // 2
    if config.patch is not None:
        row, column = parse_patch_position(config.patch, maps[0].grid, store.sample_ids[rows[0]])
    pixels = _crop_network_views(config, store, rows, maps)
    chosen = np.asarray(maps[0].features[row * maps[0].grid[1] + column], dtype=np.float32)
    direction = normalize_embeddings(chosen[None])[0]
    similarities = [normalize_embeddings(np.asarray(found.features, np.float32)) @ direction for found in maps]
    limits = (float(min(s.min() for s in similarities)), float(max(s.max() for s in similarities)))
    colors = color_by_principal_components(np.concatenate([np.asarray(found.features, np.float32) for found in maps]))
    from labelkit.commands.common.images.plots import overlay_heatmap  # matplotlib takes a second to load

    headings = (("network", "input"), ("similarity to", f"patch {row},{column}"), ("principal", "components"))
    drawn = [[SheetCell(None, lines, "none") for lines in headings]]
    described: list[dict[str, object]] = []
    cells: list[list[Cell]] = []
    start = 0
    for number, (at, found, similarity) in enumerate(zip(rows, maps, similarities, strict=True)):
        name, label = store.sample_ids[at], find_class_name(store, at)
        best = int(similarity.argmax())
        place = [int(cell) for cell in found.cells[best]]
        view = pixels[number]
        if number == 0:
            high, wide = (_SIDE / count for count in found.grid)
            frame = (column * wide, row * high, (column + 1) * wide, (row + 1) * high)
            # keep frames at the border visible
            view = draw_box(view, np.clip(frame, 4, _SIDE - 4).tolist())
        below = (name, *([label] if label is not None else []))
        heat = similarity.reshape(found.grid)
        color = colors[start : start + len(similarity)].reshape(*found.grid, 3)
        start += len(similarity)
        lines = (f"max: {place[0]},{place[1]}, {similarity[best]:.3f}",)
        similar = SheetCell(overlay_heatmap(pixels[number], heat, limits), lines)
        drawn.append([SheetCell(view, below), similar, SheetCell((255 * color).round().astype(np.uint8), ())])
        described.append({"row": at, "image": name, "label": label, "best": place, "cosine": float(similarity[best])})
        cells.append([at, name, label, f"{place[0]},{place[1]}", float(similarity[best]), float(similarity.mean())])
    write_contact_sheet(config.out, drawn)
    values: dict[str, object] = {"picture": config.out, "index": config.index, "patch": [row, column]}
    values |= {"layer": patches.layer, "images": described}
    title = f"cosine with patch {row},{column} of {store.sample_ids[rows[0]]}"
    shown = (Table(title, ["row", "image", "label", "nearest patch", "cosine", "mean"], cells),)
    return CommandResult(values, (config.out,), shown)


def _crop_network_views(
    config: ShowPatchesConfig, store: EmbeddingStore, rows: list[int], maps: list[ImagePatches]
) -> list[NDArray[np.uint8]]:
    """Return the region of each image that the network saw, (side, side, c) uint8."""
    pixels_of = make_pixel_reader(open_source_dataset(store, config.dataset, config.data_root))
    views = []
    for row, found in zip(rows, maps, strict=True):
        name = store.sample_ids[row]
        pixels = pixels_of(name)
        if pixels is None:
            raise DatasetError(name, "no longer exists, or cannot be read", "Choose other rows, or pass --dataset.")
        views.append(resize_box(pixels, found.region, ViewSpec(_SIDE, interpolation="bicubic")))
    return views
