"""Cluster the embeddings of a store, and write the clusters as a named result next to the store."""

import time
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.clustering import kmeans, semi_supervised_kmeans
from labelkit.commands.cluster.grouping import ClusteringOutput
from labelkit.commands.cluster.options import (
    ClusterConfig,
    SinkhornConfig,
    SphericalKMeansConfig,
    SSKMeansConfig,
)
from labelkit.commands.common.apply import apply_to_rows, check_ray_cluster
from labelkit.commands.common.embeddings import (
    check_nonzero_embeddings,
    find_split_rows,
    load_rows_within_memory_limit,
    mention_splits,
)
from labelkit.commands.common.labels import UsableLabels, build_labeled_mask, check_label_agreement, read_usable_labels
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.common.stable_ids import NO_PARAMETERS, assign_stable_ids, read_previous_groups
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, DatasetError
from labelkit.options.memory import ProcessesConfig
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import check_new_result, write_result


def cluster_store(config: ClusterConfig) -> CommandResult:
    """Cluster the embeddings of a store using the algorithm specified by the options.

    Returns:
        The result file, the sizes of the clusters, and facts about the clustering.

    Raises:
        StoreError: the store cannot be used, or lacks required labels.
        ConfigError: the number of clusters does not suit the rows or labels, or the prior is invalid.
        InputError: the file of the prior cannot be used.
    """
    if isinstance(config, ProcessesConfig):
        check_ray_cluster(config.ray_address)
    store = open_store(config.index)
    rows = find_split_rows(store, config.split)
    if config.num_clusters > len(rows):
        problem = f"{config.num_clusters} clusters are too many for {len(rows)} images in {config.index}"
        raise ConfigError("--num-clusters", problem, "Lower --num-clusters.")
    algorithm = config.command[1]
    name = config.result or algorithm
    stage, overwrite = " ".join(config.command), config.overwrite
    params = {key: value for key, value in config.to_yaml_dict().items() if key not in NO_PARAMETERS}
    check_new_result(store, name, overwrite=overwrite, kind="clusters", stage=stage, params=params)
    given = None
    if isinstance(config, SSKMeansConfig):
        mention_splits(config, store)
        given = read_usable_labels(config, store, rows)
    earlier = read_previous_groups(config, name)
    started = time.monotonic()
    with current_progress().task(f"{algorithm}, {config.num_clusters} clusters", total=None):
        if isinstance(config, SinkhornConfig):
            from labelkit.commands.cluster.balanced import assign_balanced_groups  # imports PyTorch

            found = assign_balanced_groups(config, store, rows)
        else:
            found = _cluster_rows(config, store, rows, given)
    seconds = time.monotonic() - started
    classes = None
    if found.classes is not None and given is not None:
        classes = [given.class_names[label] if label >= 0 else None for label in found.classes.tolist()]
    lasting = assign_stable_ids(earlier, store, rows, found.ids, config.num_clusters, classes=classes)
    cluster_ids = lasting.ids[found.ids]
    full = np.full(store.n, -1, dtype=np.int64)
    full[rows] = cluster_ids
    arrays: dict[str, NDArray[np.generic] | list[str]] = {"cluster_ids": full}
    for key, values_of_rows in found.of_rows.items():
        arrays[key] = one = np.zeros(store.n, dtype=values_of_rows.dtype)
        one[rows] = values_of_rows
    arrays |= {key: lasting.values_by_id(array) for key, array in found.of_groups.items()} | lasting.result_arrays()
    if found.classes is not None and given is not None:
        arrays["names"] = lasting.name_ids(found.classes, given.class_names)
        arrays["new_classes"] = lasting.new_class_mask(found.classes).astype(np.uint8)
        arrays |= build_labeled_mask(store, rows, given)
        params |= {"labels": given.source} if given.source else {}
    params |= {**lasting.result_params(), **found.facts}
    sizes = np.bincount(cluster_ids, minlength=lasting.num_ids)
    used = sizes[~lasting.retired]
    progress, empty, single = current_progress(), int((used == 0).sum()), int((used == 1).sum())
    balanced = isinstance(config, SinkhornConfig)
    if empty and not balanced:
        progress.warning(
            f"{empty} of {len(used)} clusters are empty, since only {len(used) - empty} embeddings are distinct"
        )
    if single and config.num_clusters < len(rows) and not balanced:
        progress.message(
            f"{single} of {config.num_clusters} clusters contain a single image, which may be an outlier or a sign of "
            "too many clusters; check these clusters, or lower --num-clusters"
        )
    path = write_result(store, name, kind="clusters", arrays=arrays, params=params, stage=stage, overwrite=overwrite)
    head = {"index": config.index, "result": name, "path": path, "algorithm": algorithm}
    values = {"num_clusters": config.num_clusters, "rows": len(rows), **found.facts, **found.more}
    values |= {"seconds": round(seconds, 3), "sizes": sizes.tolist(), **lasting.to_json()}
    row: dict[str, Cell] = {"result": name, "clusters": config.num_clusters, "rows": len(rows)}
    row |= {"smallest": int(used.min()), "largest": int(used.max()), **found.shown}
    table = Table.from_row("", row | {"seconds": round(seconds, 2), "path": path})
    return CommandResult({**head, **values}, (path,), (table,))


def _cluster_rows(
    config: ClusterConfig, store: EmbeddingStore, rows: NDArray[np.int64], given: UsableLabels | None
) -> ClusteringOutput:
    features = load_rows_within_memory_limit(config, store, rows, normalize=bool(getattr(config, "normalize", False)))
    options: dict[str, Any] = {
        "generator": keyed_generator(config.seed, "cluster"),
        "num_inits": config.num_inits,
        "max_iter": config.max_iterations,
        "tol": config.tolerance,
    }
    if isinstance(config, ProcessesConfig):
        features.map_parts = partial(apply_to_rows, config=config, name="assigning images")
    classes: NDArray[np.int64] | None = None
    if isinstance(config, SSKMeansConfig):
        assert given is not None
        _check_labels(given, config.num_clusters)
        if (wrong := check_label_agreement(lambda places: features[places], given.labels, config.seed)) is not None:
            current_progress().warning(wrong)
        free, fixed = np.flatnonzero(~given.labeled), np.flatnonzero(given.labeled)
        guided = semi_supervised_kmeans(
            features.subset(free),
            features.subset(fixed),
            given.labels[fixed],
            config.num_clusters,
            exchange=config.exchange,
            **options,
        )
        ids = np.empty(len(rows), dtype=np.int64)
        ids[free], ids[fixed] = guided.unlabeled_ids, guided.labeled_ids
        centroids, inertia, iterations = guided.centroids, guided.inertia, guided.num_iterations
        classes = guided.class_of_cluster
    else:
        if is_spherical := isinstance(config, SphericalKMeansConfig):
            check_nonzero_embeddings(store, rows, features)
        found = kmeans(features, config.num_clusters, spherical=is_spherical, **options)
        ids, centroids, inertia, iterations = found.cluster_ids, found.centroids, found.inertia, found.num_iterations
    facts = {"inertia": inertia, "iterations": iterations}
    return ClusteringOutput(
        ids, {"centroids": centroids.astype(np.float32)}, facts, {"inertia": inertia}, classes=classes
    )


def _check_labels(given: UsableLabels, num_clusters: int) -> None:
    """Check that there are labels, a cluster for each of their classes, and an unlabeled row for each other cluster."""
    if not given.labeled.any():
        raise DatasetError(
            given.where,
            "has no usable labels, but this command requires some",
            "Embed with some labels (`labelkit embed --label-split gcd`), pass labels with --labels, or use `labelkit "
            "cluster k-means`.",
        )
    classes, free = len(np.unique(given.labels[given.labeled])), int((~given.labeled).sum())
    if classes > num_clusters:
        problem = f"{num_clusters} is less than {classes}, the number of labeled classes"
        raise ConfigError("--num-clusters", problem, "Raise --num-clusters.")
    if num_clusters > classes + free:
        problem = f"cannot initialize {num_clusters} clusters: {classes} belong to the labeled classes, and there are "
        problem += f"only {free} unlabeled images to initialize the others"
        raise ConfigError("--num-clusters", problem, f"Choose at most {classes + free} clusters.")
