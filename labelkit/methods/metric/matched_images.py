"""Second views that show a matching image: choice of partners and crops, and corresponding locations.

Source: TAC-CCL, Sec. 4.3.4; crop sizes are ours.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.algorithms.attention import keypoint_heatmaps
from labelkit.algorithms.homographies import apply_homographies, compute_view_homographies, to_3x3_matrices
from labelkit.algorithms.precision import without_autocast
from labelkit.data.batch import Batch
from labelkit.data.decode import BadImageError
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views.spec import PairPlan
from labelkit.errors import StoreError
from labelkit.formatting import percent
from labelkit.progress import current_progress
from labelkit.store.array_files import Matches, read_matches
from labelkit.training.inputs import MethodInputs

# A crop is the box of the matching keypoints, with a margin, a minimum size and jitter.
_MARGIN = 0.25
_MIN_SIDE = 0.4
_JITTER = 0.05
_DRAWS = 8
# Probability of showing a partner with an image that has one in its cluster (ours).
_SHARE = 0.5
# Number of images whose bytes are compared, to detect other datasets with the same file names.
_NUM_CHECKED = 8


@dataclass(frozen=True)
class MatchedPairs:
    """Pairs of training images with matching keypoints."""

    matches: Matches  # pairs of dataset rows, in both directions
    image_sizes: NDArray[np.int64]  # (n, 2) height and width of each image; used only for images in pairs
    digest: str  # digest of the file with the matches


class MatchedPairing:
    """Pairing of images with a matching image, if they have one; see ``labelkit.data.views.spec.Pairing``.

    ``clusters`` returns the current cluster (n,) of each image; partners in another cluster are not used.
    """

    def __init__(self, images: MatchedPairs, clusters: Callable[[], NDArray[np.int64]]) -> None:
        self._images, self._clusters = images, clusters
        order = np.argsort(images.matches.pairs[:, 0], kind="stable")
        firsts = images.matches.pairs[order, 0]
        self._links = {
            int(row): links
            for row, links in zip(np.unique(firsts), np.split(order, np.flatnonzero(np.diff(firsts)) + 1), strict=False)
        }

    def plan(self, rows: NDArray[np.int64], keys: NDArray[np.int64], *, seed: int, epoch: int) -> PairPlan:
        """Draw a partner and the crops of both images for each image of a batch."""
        u = KeyedRNG(seed, epoch, keys).uniform(1, "matched pair", 2 + 2 * _DRAWS).astype(np.float64)
        clusters = self._clusters()
        seconds = self._images.matches.pairs[:, 1]
        links, shown = np.full(len(rows), -1, dtype=np.int64), rows.copy()
        boxes = np.tile(np.array([-1.0, -1, 1, 1]), (len(rows), 2, 1))
        for i, row in enumerate(rows.tolist()):
            found = self._links.get(row)
            if found is None or u[i, 0] >= _SHARE:
                continue
            usable = found[clusters[seconds[found]] == clusters[row]]
            if not len(usable):
                continue
            links[i] = usable[int(u[i, 1] * len(usable))]
            shown[i] = seconds[links[i]]
            for side, image in enumerate((row, int(shown[i]))):
                box = self._images.matches.boxes[links[i], side].astype(np.float64)
                height, width = self._images.image_sizes[image].tolist()
                boxes[i, side] = compute_crop_box(box, height, width, u[i, 2 + side * _DRAWS :][:_DRAWS])
        return PairPlan(shown, links, boxes)


def compute_crop_box(
    box: NDArray[np.float64], height: int, width: int, random_values: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Compute the crop of an image in a matched pair: a jittered square around the matched keypoints.

    It is square in pixels, and lies inside the image.

    Args:
        box: (4,) left, top, right, bottom of the keypoints in normalized coordinates.
        height: height of the image in pixels.
        width: width of the image in pixels.
        random_values: (3 or more,) uniform random numbers that jitter size and position.

    Returns:
        (4,) crop in the same coordinates, with a side at most as long as the image's shorter side.
    """
    sides = np.array([width, height], dtype=np.float64)
    low, high = (box[:2] + 1) / 2 * sides, (box[2:] + 1) / 2 * sides
    shorter = sides.min()
    side = max(float((high - low).max()) * (1 + _MARGIN), _MIN_SIDE * shorter)
    side = min(side * (1 + _JITTER * (2 * random_values[0] - 1)), shorter)
    start = (low + high) / 2 - side / 2 + _JITTER * side * (2 * random_values[1:3] - 1)
    start = np.clip(start, 0, sides - side)
    return np.concatenate((2 * start / sides - 1, 2 * (start + side) / sides - 1))


class PairCorrespondence:
    """Computes which locations in first and second views correspond, to compare their attention maps."""

    def __init__(self, images: MatchedPairs | None) -> None:
        self._tables: tuple[Tensor, Tensor, Tensor] | None = None
        if images is not None and len(images.matches):
            matches = images.matches
            present = np.arange(matches.keypoints.shape[1])[None] < matches.keypoint_counts[:, None]
            self._tables = (
                torch.from_numpy(matches.homographies.astype(np.float32)),
                torch.from_numpy(matches.keypoints.astype(np.float32)),
                torch.from_numpy(present),
            )

    def __call__(self, batch: Batch, size: tuple[int, int]) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Return homographies and masks for a batch of pairs with attention maps of the given height and width.

        Returns:
            ``(b, 3, 3)`` homographies from first to second views; and, if some second views show another image, masks
            ``(b, h, w)`` to multiply the maps of both views by: 1 without a match, otherwise high near keypoints.
        """
        first, second = (to_3x3_matrices(view.matrices) for view in batch.geometry[:2])
        if batch.links is None or self._tables is None:
            return compute_view_homographies(first, second), None
        self._tables = tuple(table.to(first.device) for table in self._tables)  # type: ignore[assignment] # three
        assert self._tables is not None
        over, keypoints, present = self._tables
        is_linked, links = (batch.links >= 0)[:, None, None], batch.links.clamp(min=0)
        same = torch.eye(3, device=first.device)
        with without_autocast(first):  # half precision would move points by .006, and solve_ex does not support it
            homographies = torch.linalg.solve_ex(second, torch.where(is_linked, over[links], same) @ first).result
        masks = []
        for side, matrices in enumerate((first, second)):
            points, inside = apply_homographies(keypoints[links, :, side], torch.linalg.inv_ex(matrices).inverse)
            mask = keypoint_heatmaps(points, inside & present[links], size)
            masks.append(torch.where(is_linked, mask, 1.0))
        return homographies, (masks[0], masks[1])


def read_matched_images(path: Path, inputs: MethodInputs) -> MatchedPairs:
    """Read the pairs of training images from a file written by ``labelkit match``.

    Raises:
        StoreError: the file cannot be used, or belongs to other images.
    """
    found = read_matches(path)
    position = {sample_id: row for row, sample_id in enumerate(inputs.sample_ids)}
    rows = np.array([position.get(sample_id, -1) for sample_id in found.sample_ids], dtype=np.int64)
    pairs = rows[found.matches.pairs]
    kept = np.flatnonzero((pairs >= 0).all(axis=1))
    where = str(path)
    if not len(kept):
        known = int((rows >= 0).sum())
        raise StoreError(
            where,
            f"contains no pairs of training images ({known} of its {len(rows)} images are in {inputs.dataset_name})",
            "Match the images of this dataset with `labelkit match`, or remove --matches.",
        )
    for place in np.flatnonzero(rows >= 0)[:_NUM_CHECKED].tolist():
        try:
            sha256 = inputs.source.read(int(rows[place])).sha256
        except BadImageError:
            continue
        if sha256 != found.sha256[place].tobytes():
            problem = f"was computed from other versions of the images ({found.sample_ids[place]} has changed)"
            raise StoreError(where, problem, "Run `labelkit embed` and `labelkit match` again.")
    count = len(inputs.sample_ids)
    sizes = np.ones((count, 2), dtype=np.int64)
    sizes[rows[rows >= 0]] = found.image_sizes[rows >= 0]
    images = MatchedPairs(replace(found.matches.select(kept), pairs=pairs[kept]), sizes, found.content_digest)
    coverage = float(np.isin(np.arange(count), images.matches.pairs[:, 0]).mean())
    current_progress().message(
        f"{len(kept)} matches; {percent(coverage)}% of the images have a partner; the others match themselves"
    )
    return images
