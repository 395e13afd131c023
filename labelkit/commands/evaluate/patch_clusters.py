"""Evaluate patch features without training, by comparing k-means clusters with the classes of pixels.

Source: labelkit's CoTAP specification, section 6.
"""

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.clustering import kmeans, nearest_centroids
from labelkit.algorithms.matching import cross_tabulate
from labelkit.algorithms.projection import principal_directions
from labelkit.commands.common.results import Cell, CommandResult
from labelkit.commands.evaluate import dense
from labelkit.commands.evaluate.options import EvaluatePatchClustersConfig
from labelkit.data.datasets import IGNORE
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError
from labelkit.metrics.segmentation import SegmentationCounts, SegmentationScores, iou_matrix
from labelkit.options.shared import IMAGES_PER_SHEET
from labelkit.progress import current_progress

# Maximum number of randomly drawn patches to which k-means is fitted.
_MAX_PATCHES = 200_000
# Number of principal components of the standardized features; number of k-means initializations and iterations.
_COMPONENTS, _NUM_INITS, _MAX_ITER = 50, 5, 50


def evaluate_patch_clusters(config: EvaluatePatchClustersConfig) -> CommandResult:
    """Cluster the patches of a split, match the clusters to classes, and score them as segmentation masks.

    Raises:
        ConfigError: the split does not exist, or there are fewer clusters than classes, or fewer patches than clusters.
        DatasetError: there are no masks, or they cannot be used.
        CheckpointError: the network cannot be loaded.
    """
    given = dense.load_dense_input(config, classes=True)
    names = given.dataset.mask_classes
    num_clusters = config.num_clusters or len(names)
    if num_clusters < len(names):
        raise ConfigError(
            "--num-clusters",
            f"{num_clusters} clusters cannot be matched to {len(names)} classes",
            f"Pass at least {len(names)}, one cluster per class.",
        )
    split, rows = dense.choose_split_rows(
        given.dataset, config.split, ("val", "test"), option="--split", limit=config.max_images, seed=config.seed
    )
    maps, images = _reduce_features(given, rows, config)
    scores: list[SegmentationScores] = []
    pictures: list[dense.MaskExample] = []
    for seed in range(config.seed, config.seed + config.seeds):
        groups = _cluster_patches(maps, num_clusters, seed)
        found, counts = _match_clusters(groups, [mask for _, _, mask in images], num_clusters, len(names))
        scores.append(dense.compute_mask_scores(counts, given.dataset))
        if not pictures:
            pictures = [
                dense.MaskExample(given.dataset.sample_ids[row], pixels, truth, prediction)
                for (row, pixels, truth), prediction in zip(images, found, strict=True)
            ][:IMAGES_PER_SHEET]
    summary = dense.average_mask_scores(scores, names)
    values: dict[str, object] = {
        "measured": f"{num_clusters} groups of patches of {given.dataset.name}/{split}",
        **summary,
        **given.record,
        "protocol": {
            "split": split,
            "images": len(rows),
            "num_clusters": num_clusters,
            "matching": "one to one" if num_clusters == len(names) else "many to one",
            "pca": _COMPONENTS,
            "restarts": _NUM_INITS,
            "iterations": _MAX_ITER,
            "absent_as_zero": False,
            "seeds": list(range(config.seed, config.seed + config.seeds)),
        },
    }
    row: list[Cell] = [
        given.network, f"{given.dataset.name}/{split}", len(rows), num_clusters,
        dense.format_percent_and_std(summary["mean_iou"]), dense.format_percent_and_std(summary["pixel_accuracy"]),
    ]  # fmt: skip
    title = f"clusters of patches in %: k-means, {config.seeds} seeds"
    columns = ["network", "split", "images", "clusters", "mean IoU", "pixel accuracy"]
    return dense.write_mask_result(config, values, pictures, names, title, columns, row)


def _reduce_features(
    given: dense.DenseInput, rows: NDArray[np.int64], config: EvaluatePatchClustersConfig
) -> tuple[NDArray[np.float32], list[tuple[int, NDArray[np.uint8], NDArray[np.uint8]]]]:
    """Return the principal components of all standardized patch features, (n, rows, cols, d), and the n images.

    An image is its row in the dataset, its pixels, and its mask.
    """
    batches: list[dense.ImageBatch] = []
    with current_progress().task("features", total=len(rows)) as task:
        for batch in dense.iterate_image_batches(given.frozen, given.dataset, rows):
            batches.append(batch)
            task.advance(len(batch.rows))
    features = np.concatenate([batch.features.cpu().numpy() for batch in batches])
    flat = features.reshape(-1, features.shape[-1])
    available = min(len(flat), _MAX_PATCHES)
    if available < (config.num_clusters or len(given.dataset.mask_classes)):
        problem = f"there are only {available} patches"
        raise ConfigError("--num-clusters", problem, "Lower --num-clusters, or use more images.")
    mean, spread = flat.mean(axis=0, dtype=np.float64), flat.std(axis=0, dtype=np.float64)
    standardized = ((flat - mean) / np.where(spread > 0, spread, 1)).astype(np.float32)
    directions, _ = principal_directions(standardized, min(_COMPONENTS, standardized.shape[1]))
    reduced = (standardized @ directions.astype(np.float32)).reshape(*features.shape[:3], -1)
    images = [one for batch in batches for one in zip(batch.rows.tolist(), batch.pixels, batch.masks, strict=True)]
    return reduced, images


def _cluster_patches(maps: NDArray[np.float32], num_clusters: int, seed: int) -> list[NDArray[np.int64]]:
    generator = keyed_generator(seed, "patch clusters")
    seen = flat = maps.reshape(-1, maps.shape[-1])
    if len(flat) > _MAX_PATCHES:
        seen = flat[np.sort(generator.choice(len(flat), _MAX_PATCHES, replace=False))]
    clustering = kmeans(seen, num_clusters, generator=generator, num_inits=_NUM_INITS, max_iter=_MAX_ITER)
    return [
        nearest_centroids(one.reshape(-1, one.shape[-1]), clustering.centroids).reshape(one.shape[:2]) for one in maps
    ]


def _match_clusters(
    groups: list[NDArray[np.int64]], truths: list[NDArray[np.uint8]], num_clusters: int, num_classes: int
) -> tuple[list[NDArray[np.uint8]], SegmentationCounts]:
    """Match each cluster to a class; return the predicted masks and their pixel counts."""
    # for each pixel, the cluster of the patch that contains it
    stretched = []
    for ids, truth in zip(groups, truths, strict=True):
        cells = [np.arange(size) * count // size for size, count in zip(truth.shape, ids.shape, strict=True)]
        stretched.append(ids[np.ix_(*cells)])
    together = np.zeros((num_clusters, num_classes), dtype=np.int64)
    for ids, truth in zip(stretched, truths, strict=True):
        seen = truth != IGNORE
        if seen.any():
            together += cross_tabulate(ids[seen], truth[seen], num_clusters=num_clusters, num_classes=num_classes)
    class_of_group = match_clusters_by_iou(together)
    found = [class_of_group[ids].astype(np.uint8) for ids in stretched]
    counts = SegmentationCounts(num_classes)
    for prediction, truth in zip(found, truths, strict=True):
        counts.add(prediction, truth)
    return found, counts


def match_clusters_by_iou(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Match clusters to classes so that the sum of IoUs is maximal, given the counts (k, c) of shared pixels.

    With equal numbers of clusters and classes, the matching is one to one; otherwise, each cluster gets the class with
    the largest IoU. Clusters that have no pixels in common with their class become class 0, the background.
    """
    from scipy.optimize import linear_sum_assignment

    iou = np.nan_to_num(iou_matrix(counts))
    class_of_group: NDArray[np.int64] = iou.argmax(axis=1)
    if counts.shape[0] == counts.shape[1]:
        groups, classes = linear_sum_assignment(iou, maximize=True)
        class_of_group[groups] = classes
    class_of_group[iou[np.arange(len(iou)), class_of_group] == 0] = 0
    return class_of_group
