"""Select and write patch features while images are embedded."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.loaders import EvalBatch
from labelkit.data.views.boxes import draw_crop_boxes
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import DivergenceError
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
    """Plan how patch features are stored next to the image embeddings."""
    rows, columns, dim = shape
    layer = network.patch_identity["layer"]
    return PatchPlan(rows=plan, layer=layer, grid=(rows, columns), dim=dim, dtype=config.patch_dtype)


def compute_view_regions(image_sizes: NDArray[np.integer], view: ViewSpec) -> NDArray[np.float64]:
    """Return the region of each original image that the network sees, (m, 4): left, top, right, bottom in pixels.

    ``image_sizes`` (m, 2) are heights and widths. The patch grid covers exactly this region.
    """
    heights, widths = image_sizes[:, 0], image_sizes[:, 1]
    return draw_crop_boxes(view, heights, widths, KeyedRNG(0, 0, np.zeros(len(image_sizes), np.int64)), 0)


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
        flat = maps.flatten(1, 2).cpu()[torch.from_numpy(keep)]
        if not bool(torch.isfinite(flat).all()):
            raise DivergenceError(
                f"{where} rows {int(batch.rows[0])} to {int(batch.rows[-1])}",
                "the network produces NaN or infinite patch features",
                "Use --precision float32, or another checkpoint.",
            )
        # cast here, where it is fast; values that overflow float16 are reported when they are written
        overflows = bool((flat.abs() > torch.finfo(torch.float16).max).any())
        features = flat.float() if plan.dtype == "float32" or overflows else flat.half()
        assert batch.crops is not None
        self._batches.append((rows, features.numpy(), compute_view_regions(batch.crops.sizes[keep], self._view)))
        if int(batch.rows[-1]) + 1 == plan.chunks[self._pieces[0]][2]:
            piece = map(np.concatenate, zip(*self._batches, strict=True))
            self._run.write_chunk(self._pieces.pop(0), *piece)
            self._batches = []
