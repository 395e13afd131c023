"""Group the rows of a store; the result gets a name beside it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.clustering import kmeans, semi_supervised_kmeans, spherical_kmeans
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.commands.cluster.options import (
    ClusterConfig,
    KMeansConfig,
    PatchClusterConfig,
    SinkhornConfig,
    SphericalKMeansConfig,
    SSKMeansConfig,
)
from labelkit.commands.cluster.patches import cluster_patches
from labelkit.commands.common.embeddings import check_directions, split_rows
from labelkit.commands.common.labels import UsableLabels, label_agreement_warning, labeled_array, labels_to_use
from labelkit.commands.common.max_memory import bounded_rows
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.common.stable_ids import NO_PARAMETERS, Groups, assign_stable_ids, read_earlier
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, DatasetError
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import check_new_result, write_result

_NO_PARAMETERS = (*NO_PARAMETERS, "patches")


@dataclass(frozen=True)
class _Clusters:
    """Groups of some rows.

    Attributes:
        ids: (n,) int64, group of each row.
        centroids: (k, d).
        inertia: sum of squared distances.
        iterations: of the best start.
        classes: (k,) int64, class of each group, -1 = none; ``None`` without labels.
    """

    ids: NDArray[np.int64]
    centroids: NDArray[np.float32]
    inertia: float
    iterations: int
    classes: NDArray[np.int64] | None


def cluster_store(config: ClusterConfig) -> SimpleResult:
    """Cluster the embeddings of a store with the algorithm of the given options.

    Returns:
        The result file, sizes and inertia.

    Raises:
        StoreError: the store cannot be used, or has no labels where they are needed.
        ConfigError: more clusters than rows, or than labels leave room for.
    """
    store = open_store(config.index)
    if isinstance(config, PatchClusterConfig) and config.patches:
        if config.previous is not None:
            raise ConfigError("--previous", "clusters of patches cannot keep ids of an earlier run", "Omit --previous.")
        return cluster_patches(config, store)
    rows = split_rows(store, config.split)
    if config.num_clusters > len(rows):
        raise ConfigError(
            "--num-clusters",
            f"{config.num_clusters} clusters for {len(rows)} images in {config.index}",
            "Choose fewer clusters.",
        )
    if isinstance(config, SinkhornConfig):
        from labelkit.commands.cluster.balanced import cluster_balanced  # torch loads for this algorithm alone

        return cluster_balanced(config, store, rows)
    algorithm = config.command[1]
    name, params = config.result or algorithm, _params(config)
    assert isinstance(config, KMeansConfig | SphericalKMeansConfig | SSKMeansConfig)
    check_new_result(
        store, name, overwrite=config.overwrite, kind="clusters", stage=f"cluster {algorithm}", params=params
    )
    given = None
    if isinstance(config, SSKMeansConfig):
        given = labels_to_use(
            config.labels, store, rows, label_column=config.label_column, own_labels=config.own_labels
        )
    earlier = read_earlier(config, name)
    started = time.monotonic()
    with current_progress().task(f"{algorithm}, {config.num_clusters} clusters", total=None):
        found = _run(config, store, rows, given)
    return _write(config, store, rows, given, found, earlier, time.monotonic() - started)


def _params(config: ClusterConfig) -> dict[str, object]:
    return {key: value for key, value in config.to_yaml_dict().items() if key not in _NO_PARAMETERS}


def _write(
    config: ClusterConfig,
    store: EmbeddingStore,
    rows: NDArray[np.int64],
    given: UsableLabels | None,
    found: _Clusters,
    earlier: Groups | None,
    seconds: float,
) -> SimpleResult:
    """Give groups the ids of an earlier run, write them next to the store, and say what they are."""
    classes = None
    if found.classes is not None and given is not None:
        classes = [given.class_names[label] if label >= 0 else None for label in found.classes.tolist()]
    lasting = assign_stable_ids(
        earlier, store, rows, found.ids, len(found.centroids), keep_overlap=config.keep_overlap, classes=classes
    )
    cluster_ids = lasting.ids[found.ids]
    full = np.full(store.n, -1, dtype=np.int64)
    full[rows] = cluster_ids
    arrays: dict[str, NDArray[np.generic] | list[str]] = {
        "cluster_ids": full,
        "centroids": lasting.place(found.centroids.astype(np.float32)),
        **lasting.arrays(),
    }
    if found.classes is not None and given is not None:
        arrays["names"] = lasting.names(found.classes, given.class_names)
        arrays["new_classes"] = lasting.new_classes(found.classes).astype(np.uint8)
        arrays |= labeled_array(store, rows, given)
    params = _params(config)
    params |= {"labels": given.source} if given is not None and given.source else {}
    algorithm = config.command[1]
    name = config.result or algorithm
    path = write_result(
        store,
        name,
        kind="clusters",
        arrays=arrays,
        params={**params, **lasting.params(), "inertia": found.inertia, "iterations": found.iterations},
        stage=f"cluster {algorithm}",
        overwrite=config.overwrite,
    )
    sizes = np.bincount(cluster_ids, minlength=lasting.num_ids)
    values: dict[str, object] = {
        "index": config.index,
        "result": name,
        "path": path,
        "algorithm": algorithm,
        "num_clusters": config.num_clusters,
        "rows": len(rows),
        "inertia": found.inertia,
        "iterations": found.iterations,
        "seconds": round(seconds, 3),
        "sizes": sizes.tolist(),
        **lasting.to_json(),
    }
    used = sizes[~lasting.retired]
    if empty := int((used == 0).sum()):
        current_progress().warning(
            f"{empty} of {len(used)} groups are empty: {config.index} has only {len(used) - empty} distinct embeddings"
        )
    if (single := int((used == 1).sum())) and config.num_clusters < len(rows):
        current_progress().message(
            f"{single} of {config.num_clusters} groups have a single image, which may be an outlier or a sign of too "
            "many groups: check these groups, or lower --num-clusters"
        )
    columns = ["result", "clusters", "rows", "smallest", "largest", "inertia", "seconds", "path"]
    row: list[Cell] = [name, len(found.centroids), len(rows), int(used.min()), int(used.max())]
    shown = Table("", columns, [[*row, found.inertia, round(seconds, 2), path]])
    return SimpleResult(values, (path,), (shown,))


def _run(
    config: KMeansConfig | SphericalKMeansConfig | SSKMeansConfig,
    store: EmbeddingStore,
    rows: NDArray[np.int64],
    given: UsableLabels | None,
) -> _Clusters:
    """Group the rows as the config says."""
    features = bounded_rows(config, store, rows, unit=bool(getattr(config, "normalize", False)))
    if isinstance(config, SSKMeansConfig):
        assert given is not None
        labeled, labels = _check_labels(given, config.num_clusters)
        most = most_clusters(labeled, labels)
        if config.num_clusters > most:
            raise ConfigError(
                "--num-clusters",
                f"{config.num_clusters} clusters: {len(np.unique(labels))} are for the labeled classes, and only "
                f"{int((~labeled).sum())} unlabeled images remain for the other clusters",
                f"Choose at most {most}.",
            )
        if (wrong := label_agreement_warning(lambda places: features[places], given.labels, config.seed)) is not None:
            current_progress().warning(wrong)
    elif isinstance(config, SphericalKMeansConfig):
        check_directions(store, rows, features)
    generator = keyed_generator(config.seed, "cluster")
    if isinstance(config, SSKMeansConfig):
        assert given is not None
        labels = given.labels[given.labeled]
        return _Clusters(
            *semi_supervised_cluster(
                features,
                given.labeled,
                labels,
                config.num_clusters,
                generator=generator,
                num_inits=config.num_inits,
                max_iter=config.max_iterations,
                tol=config.tolerance,
                exchange=config.exchange,
            )
        )
    algorithm = spherical_kmeans if isinstance(config, SphericalKMeansConfig) else kmeans
    found = algorithm(
        features,
        config.num_clusters,
        generator=generator,
        num_inits=config.num_inits,
        max_iter=config.max_iterations,
        tol=config.tolerance,
    )
    return _Clusters(found.cluster_ids, found.centroids, found.inertia, found.num_iterations, None)


def _check_labels(given: UsableLabels, num_clusters: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return (mask over the rows, labels of the masked ones) that may be used.

    Raises:
        DatasetError: there are none.
        ConfigError: more classes than clusters.
    """
    if not given.labeled.any():
        raise DatasetError(
            given.where,
            "has no usable labels, but this command needs labels",
            "Embed with some labels (`labelkit embed --label-split gcd`), pass labels with --labels, or use `labelkit "
            "cluster k-means`.",
        )
    labels = given.labels[given.labeled]
    classes = len(np.unique(labels))
    if classes > num_clusters:
        raise ConfigError(
            "--num-clusters", f"{num_clusters} is less than the {classes} classes with labels", "Raise the number."
        )
    return given.labeled, labels


def most_clusters(labeled: NDArray[np.bool_], labels: NDArray[np.int64]) -> int:
    """Return the maximum number of clusters of semi-supervised k-means: one per labeled class and unlabeled row."""
    return len(np.unique(labels)) + int((~labeled).sum())


def semi_supervised_cluster(
    features: NDArray[np.float32] | StoredRows,
    labeled: NDArray[np.bool_],
    labels: NDArray[np.int64],
    num_clusters: int,
    *,
    generator: np.random.Generator,
    num_inits: int,
    max_iter: int,
    tol: float,
    exchange: bool = True,
) -> tuple[NDArray[np.int64], NDArray[np.float32], float, int, NDArray[np.int64]]:
    """Run semi-supervised k-means; return (ids, centroids, inertia, iterations, class of each cluster or -1)."""
    free, fixed = np.flatnonzero(~labeled), np.flatnonzero(labeled)
    found = semi_supervised_kmeans(
        features.subset(free) if isinstance(features, StoredRows) else features[free],
        features.subset(fixed) if isinstance(features, StoredRows) else features[fixed],
        labels,
        num_clusters,
        generator=generator,
        num_inits=num_inits,
        max_iter=max_iter,
        tol=tol,
        exchange=exchange,
    )
    cluster_ids = np.empty(len(features), dtype=np.int64)
    cluster_ids[~labeled] = found.unlabeled_ids
    cluster_ids[labeled] = found.labeled_ids
    return cluster_ids, found.centroids, found.inertia, found.num_iterations, found.class_of_cluster
