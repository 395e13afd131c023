"""Group the patches of a store, and save the group of each patch as a named result next to the store."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.clustering import Clustering, kmeans, nearest_centroids, spherical_kmeans
from labelkit.commands.cluster.options import PatchClusterConfig, SphericalKMeansConfig
from labelkit.commands.common.embeddings import block_bytes, find_zero_embeddings, split_rows, unit_rows
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.common.stable_ids import NO_PARAMETERS
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.patches import PatchBlock, PatchSet, open_patches
from labelkit.store.results import check_new_result, write_result

_BLOCK_BYTES = 64 << 20
# Maximum number of patches, drawn at random, that centroids are fitted to; all patches get a group.
_MAX_PATCHES = 100_000


def cluster_patches(config: PatchClusterConfig, store: EmbeddingStore) -> SimpleResult:
    """Cluster the patches of a store: fit centroids on a random sample, then assign all patches block by block.

    Returns:
        The result file, sizes and inertia.

    Raises:
        StoreError: the store has no patches, or they cannot be used.
        ConfigError: more clusters than patches.
    """
    patches = open_patches(store)
    rows = split_rows(store, config.split)
    algorithm = config.command[1]
    name, stage = config.result or f"{algorithm}-patches", f"cluster {algorithm}"
    params = {key: value for key, value in config.to_yaml_dict().items() if key not in NO_PARAMETERS}
    check_new_result(store, name, overwrite=config.overwrite, kind="patch_clusters", stage=stage, params=params)
    chosen = np.zeros(store.n, dtype=np.bool_)
    chosen[rows] = True
    started = time.monotonic()
    with current_progress().task(f"{algorithm} of patches, {config.num_clusters} clusters", total=None):
        found, ids, num_sampled = _run(config, patches, chosen)
    seconds = time.monotonic() - started
    sizes = np.bincount(ids[ids >= 0], minlength=config.num_clusters)
    path = write_result(
        store,
        name,
        kind="patch_clusters",
        arrays={"patch_cluster_ids": ids, "centroids": found.centroids.astype(np.float32)},
        params={
            **params,
            "patches_digest": patches.digest,
            "inertia": found.inertia,
            "iterations": found.num_iterations,
            "sample": num_sampled,
        },
        stage=stage,
        overwrite=config.overwrite,
    )
    values: dict[str, object] = {
        "index": config.index,
        "result": name,
        "path": path,
        "algorithm": algorithm,
        "num_clusters": config.num_clusters,
        "rows": len(rows),
        "patches": int(sizes.sum()),
        "sample": num_sampled,
        "inertia": found.inertia,
        "iterations": found.num_iterations,
        "seconds": round(seconds, 3),
        "sizes": sizes.tolist(),
    }
    columns = ["result", "clusters", "patches", "sample", "smallest", "largest", "inertia", "seconds", "path"]
    row: list[Cell] = [name, config.num_clusters, int(sizes.sum()), num_sampled, int(sizes.min()), int(sizes.max())]
    return SimpleResult(values, (path,), (Table("", columns, [[*row, found.inertia, round(seconds, 2), path]]),))


def _run(
    config: PatchClusterConfig, patches: PatchSet, chosen: NDArray[np.bool_]
) -> tuple[Clustering, NDArray[np.int32], int]:
    """Cluster a sample of the patches of chosen images; return the clustering, the groups, and the sample size."""
    is_spherical = isinstance(config, SphericalKMeansConfig)
    scaled = is_spherical or bool(getattr(config, "normalize", False))
    sample = _sample(patches, chosen, _MAX_PATCHES, config.seed, without_zeros=is_spherical)
    if config.num_clusters > len(sample):
        problem = f"{config.num_clusters} clusters are too many for {len(sample)} patches of {config.index}"
        raise ConfigError("--num-clusters", problem, "Choose fewer clusters.")
    group = spherical_kmeans if is_spherical else kmeans
    found = group(
        unit_rows(sample) if scaled else sample,
        config.num_clusters,
        generator=keyed_generator(config.seed, "cluster patches"),
        num_inits=config.num_inits,
        max_iter=config.max_iterations,
        tol=config.tolerance,
    )
    size = block_bytes(config, _BLOCK_BYTES)
    ids = _assigned(patches, chosen, found.centroids, size, scaled=scaled, is_spherical=is_spherical)
    return found, ids, len(sample)


def _sample(
    patches: PatchSet, chosen: NDArray[np.bool_], max_patches: int, seed: int, *, without_zeros: bool
) -> NDArray[np.float32]:
    """Draw at most ``max_patches`` patches of the chosen images at random; return them in stored order."""
    counts = np.diff(patches.offsets())
    numbers = np.flatnonzero(np.repeat(chosen, counts))
    if len(numbers) > max_patches:
        drawn = keyed_generator(seed, "sample of patches").choice(len(numbers), max_patches, replace=False)
        numbers = numbers[np.sort(drawn)]
    taken = [np.zeros((0, patches.dim), np.float32)]
    for block in patches.blocks():
        low, high = np.searchsorted(numbers, (block.start, block.start + len(block.features)))
        taken.append(block.features[numbers[low:high] - block.start].astype(np.float32))
    sample = np.concatenate(taken)
    return sample[~find_zero_embeddings(sample)] if without_zeros else sample


def _assigned(
    patches: PatchSet,
    chosen: NDArray[np.bool_],
    centroids: NDArray[np.floating],
    size: int,
    *,
    scaled: bool,
    is_spherical: bool,
) -> NDArray[np.int32]:
    """Return the (t,) nearest centroids of patches; -1 for those of other images, or without direction."""

    def ids_of(block: PatchBlock) -> NDArray[np.int32]:
        ids = np.full(len(block.features), -1, dtype=np.int32)
        wanted = chosen[block.image_rows]
        features = np.asarray(block.features, dtype=np.float32)
        if is_spherical:
            wanted &= ~find_zero_embeddings(features)
        rows = unit_rows(features[wanted]) if scaled else features[wanted]
        if len(rows):
            ids[wanted] = nearest_centroids(rows, centroids)
        return ids

    return np.concatenate([np.zeros(0, np.int32), *(ids_of(block) for block in patches.blocks(size))])
