"""Evaluate patch features by tracking: the masks of a video's first frame are propagated to the other frames.

Sources: A. Jabri et al., "Space-Time Correspondence as a Contrastive Random Walk" (NeurIPS 2020), with DINO's settings
(``facebookresearch/dino:eval_video_segmentation.py``); labelkit's CoTAP specification, section 6.
Difference: void pixels (255) are ignored. The DAVIS code ignores them only in its unsupervised task; in this
(semi-supervised) task, it counts predictions there as wrong.
"""

from collections import deque
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from labelkit.commands.common.results import Cell, CommandResult
from labelkit.commands.evaluate import dense
from labelkit.commands.evaluate.options import EvaluateTrackingConfig
from labelkit.data.datasets import IGNORE, ImageDataset, read_image_and_mask
from labelkit.data.views.transforms import resize_mask
from labelkit.errors import ConfigError, DatasetError
from labelkit.formatting import percent
from labelkit.metrics.segmentation import boundary_accuracy, region_similarity
from labelkit.options.shared import IMAGES_PER_SHEET
from labelkit.progress import current_progress

_LONG_SIDE_STEP = 64
# DINO's settings: shorter side of resized frames in pixels; number of previous frames, besides the first, from which
# masks are propagated; number of most similar patches whose masks are averaged.
_SHORTER_SIDE, _CONTEXT, _TOP_K = 480, 7, 5


def evaluate_tracking(config: EvaluateTrackingConfig) -> CommandResult:
    """Evaluate patch features by propagating object masks through videos, scored by J and F.

    Raises:
        ConfigError: the split does not exist, or has no object to score.
        DatasetError: the dataset has no videos, or the masks cannot be used.
        CheckpointError: the network cannot be loaded.
    """
    given = dense.load_dense_input(config, classes=False)
    split, rows = dense.choose_split_rows(given.dataset, config.split, ("val", "all"), option="--split")
    films: dict[str, list[int]] = {}  # a video is the images of one folder, in order
    for frame in rows.tolist():
        films.setdefault(given.dataset.sample_ids[frame].rpartition("/")[0], []).append(frame)
    spec = given.frozen.network.input_spec
    # patch size in pixels, that is, the height of one row of the feature map
    patch = max(1, spec.size // given.frozen.features(torch.zeros(1, spec.channels, spec.size, spec.size)).shape[1])
    scores: list[dict[str, Any]] = []
    pictures: list[dense.MaskExample] = []
    with current_progress().task("track", total=len(films)) as task:
        for film, frames in films.items():
            predictions = _track(config, given.frozen, given.dataset, frames, patch)
            scores += _score(film, given.dataset, frames, predictions)
            if len(pictures) < IMAGES_PER_SHEET:
                pixels, truth = read_image_and_mask(given.dataset, int(frames[-1]))
                pictures.append(dense.MaskExample(given.dataset.sample_ids[frames[-1]], pixels, truth, predictions[-1]))
            task.advance()
    if not scores:
        raise ConfigError(
            "--split", f"no video in {split} has an object and at least three frames", "Choose another split."
        )
    region, boundary = (float(np.mean([one[key] for one in scores])) for key in ("j", "f"))
    values: dict[str, object] = {
        "measured": f"objects of {given.dataset.name}/{split}",
        "jf": (region + boundary) / 2,
        "j": region,
        "f": boundary,
        "objects": scores,
        **given.record,
        "protocol": {
            "split": split,
            "films": len(films),
            "patch": patch,
            "short_side": _SHORTER_SIDE,
            "radius": config.radius,
            "context": _CONTEXT,
            "top_k": _TOP_K,
            "temperature": config.temperature,
        },
    }
    title, columns = "tracking by label propagation, in %", "network, split, videos, objects, J&F, J, F".split(", ")
    row: list[Cell] = [given.network, f"{given.dataset.name}/{split}", len(films), len(scores)]
    row += [percent(value) for value in ((region + boundary) / 2, region, boundary)]
    return dense.write_mask_result(config, values, pictures, ("background",), title, columns, row)


def compute_frame_size(height: int, width: int, short_side: int, patch_size: int) -> tuple[int, int]:
    """Return the height and width in pixels to which a video frame is resized.

    The shorter side becomes ``short_side`` (smaller sides are kept), rounded down to a multiple of the patch size; the
    longer side is scaled in proportion, and rounded down to a multiple of 64 (below 64, of the patch size).
    """
    shorter, longer = sorted((height, width))
    short = max(patch_size, min(short_side, shorter) // patch_size * patch_size)
    long = int(longer * min(short_side, shorter) / shorter + 1e-9)
    step = _LONG_SIDE_STEP if long >= _LONG_SIDE_STEP and _LONG_SIDE_STEP % patch_size == 0 else patch_size
    long = max(short, long // step * step)
    return (short, long) if height <= width else (long, short)


def _track(
    config: EvaluateTrackingConfig, frozen: dense.FrozenNetwork, dataset: ImageDataset, frames: list[int], patch: int
) -> list[NDArray[np.uint8]]:
    """Return the predicted mask (h, w) uint8 of each frame; for the first frame, the true mask."""
    _, first = read_image_and_mask(dataset, frames[0])
    numbers = [int(number) for number in np.unique(first) if number not in (0, IGNORE)]
    values = np.array([0, *numbers], dtype=np.uint8)
    predictions = [first]
    features = _frame_features(frozen, dataset, frames[0], patch)
    small = torch.from_numpy(resize_mask(first, *features.shape[:2]))
    # ignored pixels belong to no object
    shares = torch.stack([(small == value).float() for value in values.tolist()], dim=-1).to(features.device)
    origin = (features, shares)
    recent: deque[tuple[Tensor, Tensor]] = deque(maxlen=_CONTEXT)
    for frame in frames[1:]:
        features = _frame_features(frozen, dataset, frame, patch)
        context, masks = (torch.stack(parts) for parts in zip(origin, *recent, strict=True))
        limits = {"radius": config.radius, "top_k": _TOP_K}
        shares = propagate_masks(features, context, masks, **limits, temperature=config.temperature)
        recent.append((features, shares))
        _, truth = read_image_and_mask(dataset, frame)
        large = functional.interpolate(
            shares.permute(2, 0, 1)[None], truth.shape, mode="bilinear", align_corners=False
        )[0].permute(1, 2, 0)
        predictions.append(values[rescale_masks(large).argmax(-1).cpu().numpy()])
    return predictions


def _frame_features(frozen: dense.FrozenNetwork, dataset: ImageDataset, row: int, patch: int) -> Tensor:
    """Return the normalized patch features (rows, cols, d) of one frame."""
    pixels, _ = read_image_and_mask(dataset, row)
    size = compute_frame_size(pixels.shape[0], pixels.shape[1], _SHORTER_SIDE, patch)
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255
    resized = functional.interpolate(image, size, mode="bicubic", antialias=True).clamp(0, 1)
    return functional.normalize(frozen.features(resized)[0], dim=-1)


def _score(
    film: str, dataset: ImageDataset, frames: list[int], predictions: list[NDArray[np.uint8]]
) -> list[dict[str, Any]]:
    """Return, for each object in the first frame, the mean J and F over all frames except the first and the last."""
    truths = [read_image_and_mask(dataset, frame)[1] for frame in frames]
    if len(frames) < 3:
        return []
    for frame, truth, prediction in zip(frames, truths, predictions, strict=True):
        if truth.shape != prediction.shape:
            problem = "differs in size from the first frame"
            raise DatasetError(dataset.sample_ids[frame], problem, "Resize all frames to the same size.")
    scores = []
    for number in np.unique(truths[0]).tolist():
        if number in (0, IGNORE):
            continue
        pairs = [
            ((prediction == number) & (truth != IGNORE), truth == number)
            for truth, prediction in zip(truths[1:-1], predictions[1:-1], strict=True)
        ]
        region = float(np.mean([region_similarity(found, true) for found, true in pairs]))
        boundary = float(np.mean([boundary_accuracy(found, true) for found, true in pairs]))
        scores.append({"film": film, "object": number, "frames": len(pairs), "j": region, "f": boundary})
    return scores


def propagate_masks(
    features: Tensor, context: Tensor, masks: Tensor, *, radius: int, top_k: int, temperature: float
) -> Tensor:
    """Propagate soft object masks from earlier video frames to a frame by patch similarity.

    Each patch of the frame gets the weighted mean of the masks of its ``top_k`` most similar patches in all context
    frames, at most ``radius`` rows and columns away, with weights exp(cosine / temperature).

    Args:
        features: (rows, cols, d) float, unit vectors.
        context: (f, rows, cols, d) float, unit vectors of f frames.
        masks: (f, rows, cols, o) float, fraction of each of o objects in each patch.
        radius: maximum distance in patches; 0 = no limit.
        top_k: number of patches, >= 1.
        temperature: > 0.

    Returns:
        (rows, cols, o) float, summing to 1 where the context's masks do.
    """
    rows, columns, width = features.shape
    frames = len(context)
    cosines = context.reshape(-1, width) @ features.reshape(-1, width).T  # (f rows cols, rows cols)
    if radius:
        y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
        places = torch.stack((y.flatten(), x.flatten()), dim=1)
        far = ((places[:, None] - places).abs() > radius).any(dim=2).to(features.device)
        cosines = cosines.view(frames, rows * columns, -1).masked_fill(far, -torch.inf).view(cosines.shape)
    values, sources = cosines.topk(min(top_k, len(cosines)), dim=0)
    # scale the largest weight to 1, so that small temperatures do not overflow
    weights = ((values - values[:1]) / temperature).exp()
    weights = weights / weights.sum(0)
    shares = masks.reshape(len(cosines), -1)[sources]  # (k, rows cols, o)
    return (weights[..., None] * shares).sum(0).view(rows, columns, -1)


def rescale_masks(masks: Tensor) -> Tensor:
    """Rescale the mask of each object (..., o) to the range [0, 1]; constant masks are not changed."""
    flat = masks.flatten(0, -2)
    low, high = flat.min(0).values, flat.max(0).values
    span = high - low
    return torch.where(span > 0, (masks - low) / span.clamp(min=1e-12), masks)
