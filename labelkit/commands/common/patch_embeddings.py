"""Select and write patch features while images are embedded."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit.data.keyed_random import KeyedRNG, keyed_generator
from labelkit.data.loaders import EvalBatch
from labelkit.data.views.boxes import draw_crop_boxes
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import ConfigError, DivergenceError
from labelkit.models.inference import InferenceNetwork
from labelkit.options.embed import EmbedConfig
from labelkit.store.patch_writing import PatchRun
from labelkit.store.plans import EmbeddingPlan, PatchPlan


def compute_patch_grid_shape(network: InferenceNetwork, view: ViewSpec) -> tuple[int, int, int]:
    """Compute the rows, columns and feature dimension of a network's patch grid by passing it an all-zero image.

    Raises:
        UnsupportedBackboneError: the network has no feature map.
        ConfigError: the images are too small for the network.
    """
    weight = next(network.parameters(), None)
    device = "cpu" if weight is None else weight.device
    image = torch.zeros(1, network.input_spec.channels, view.size, view.size, device=device)
    with torch.inference_mode():
        shape = network.patch_features(image).shape
    return int(shape[1]), int(shape[2]), int(shape[3])


def plan_patch_features(
    config: EmbedConfig, network: InferenceNetwork, plan: EmbeddingPlan, shape: tuple[int, int, int]
) -> PatchPlan:
    """Plan how patch features are stored next to the image embeddings.

    Raises:
        ConfigError: more patches are requested than an image has.
    """
    rows, columns, dim = shape
    if config.patches_per_image is not None and config.patches_per_image > rows * columns:
        problem = f"{config.patches_per_image} patches were requested, but each image has only {rows} x {columns}"
        raise ConfigError(
            "--patches-per-image", problem, "Lower this number, or remove the option to store all patches."
        )
    return PatchPlan(
        rows=plan,
        layer=network.patch_identity["layer"],
        grid=(rows, columns),
        dim=dim,
        dtype=config.patch_dtype,
        per_image=config.patches_per_image,
        seed=0,
    )


def compute_view_regions(image_sizes: NDArray[np.integer], view: ViewSpec) -> NDArray[np.float64]:
    """Return the region of each original image that the network sees, (m, 4): left, top, right, bottom in pixels.

    ``image_sizes`` (m, 2) are heights and widths. The patch grid covers exactly this region.
    """
    heights, widths = image_sizes[:, 0], image_sizes[:, 1]
    return draw_crop_boxes(view, heights, widths, KeyedRNG(0, 0, np.zeros(len(image_sizes), np.int64)), 0)


def sample_patch_cells(plan: PatchPlan, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Sample the patches to store: (m, c) sorted grid cells per image, which depend only on the seed and the row."""
    cells = plan.grid[0] * plan.grid[1]
    if plan.per_image is None:
        return np.tile(np.arange(cells), (len(rows), 1))
    drawn = [
        keyed_generator(plan.seed, "patches", epoch=int(row)).permutation(cells)[: plan.num_patches] for row in rows
    ]
    return np.sort(np.array(drawn, dtype=np.int64).reshape(len(rows), plan.num_patches), axis=1)


class PatchCollector:
    """Collector of the patch features of one part of a store, batch by batch, which writes each complete chunk."""

    def __init__(self, run: PatchRun, part: int, view: ViewSpec) -> None:
        self._run, self._view = run, view
        self._pieces = run.chunks_of_part(part)
        self._batches: list[tuple[Any, ...]] = []

    def add(self, batch: EvalBatch, keep: NDArray[np.int64], maps: torch.Tensor, where: str) -> None:
        """Add the patch features (b, rows, cols, d) of a batch, of which images ``keep`` (m,) could be read.

        If the batch completes the current chunk, write it.

        Raises:
            DivergenceError: a feature is NaN or infinite.
            ResourceError: writing failed, for example because the disk is full.
        """
        plan = self._run.plan
        rows = np.asarray(batch.rows, dtype=np.int64)[keep]
        chosen = sample_patch_cells(plan, rows)
        flat = maps.flatten(1, 2).cpu()[torch.from_numpy(keep)]
        if not bool(torch.isfinite(flat).all()):
            raise DivergenceError(
                f"{where} rows {int(batch.rows[0])} to {int(batch.rows[-1])}",
                "the network produces NaN or infinite patch features",
                "Use --precision float32, or another checkpoint.",
            )
        if plan.samples_cells:
            flat = flat.gather(1, torch.from_numpy(chosen)[:, :, None].expand(-1, -1, plan.dim))
        # cast here, where it is fast; values that overflow float16 are reported when they are written
        overflows = bool((flat.abs() > torch.finfo(torch.float16).max).any())
        features = flat.float() if plan.dtype == "float32" or overflows else flat.half()
        assert batch.crops is not None
        cells = np.stack(np.divmod(chosen, plan.grid[1]), axis=2) if plan.samples_cells else None
        self._batches.append((rows, features.numpy(), cells, compute_view_regions(batch.crops.sizes[keep], self._view)))
        if int(batch.rows[-1]) + 1 == plan.chunks[self._pieces[0]][2]:
            joined_rows, values, places, regions = zip(*self._batches, strict=True)
            joined = None if cells is None else np.concatenate(places)
            piece = np.concatenate(joined_rows), np.concatenate(values), joined, np.concatenate(regions)
            self._batches = []
            self._run.write_chunk(self._pieces.pop(0), *piece)
