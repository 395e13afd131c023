"""Group the rows of a store, and save the groups as a named result next to it."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.clustering import kmeans, semi_supervised_kmeans, spherical_kmeans
from labelkit.commands.cluster.grouping import Grouping
from labelkit.commands.cluster.options import (
    ClusterConfig,
    PatchClusterConfig,
    SinkhornConfig,
    SphericalKMeansConfig,
    SSKMeansConfig,
)
from labelkit.commands.cluster.patches import cluster_patches
from labelkit.commands.common.apply import apply_to_rows, check_cluster
from labelkit.commands.common.embeddings import check_nonzero_embeddings, load_within_memory_limit, split_rows
from labelkit.commands.common.labels import (
    UsableLabels,
    choose_usable_labels,
    label_agreement_warning,
    make_labeled_array,
)
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.common.stable_ids import NO_PARAMETERS, Groups, assign_stable_ids, read_previous_groups
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, DatasetError
from labelkit.options.memory import ProcessesConfig
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import check_new_result, write_result

_NO_PARAMETERS = (*NO_PARAMETERS, "patches")


def cluster_store(config: ClusterConfig) -> SimpleResult:
    """Cluster the embeddings of a store using the algorithm specified by the options.

    Returns:
        The result file, the sizes of the clusters, and how they were found.

    Raises:
        StoreError: the store cannot be used, or has no labels where they are needed.
        ConfigError: more clusters than rows, or than the labels allow; an impossible prior or balance.
        InputError: the file of the prior cannot be used.
    """
    if isinstance(config, ProcessesConfig):
        check_cluster(config.ray_address)
    store = open_store(config.index)
    if isinstance(config, PatchClusterConfig) and config.patches:
        if config.previous is not None:
            problem = "clusters of patches cannot keep the ids of an earlier run"
            raise ConfigError("--previous", problem, "Remove --previous.")
        return cluster_patches(config, store)
    rows = split_rows(store, config.split)
    if config.num_clusters > len(rows):
        raise ConfigError(
            "--num-clusters",
            f"{config.num_clusters} clusters are too many for {len(rows)} images in {config.index}",
            "Choose fewer clusters.",
        )
    algorithm = config.command[1]
    name, params = config.result or algorithm, _params(config)
    check_new_result(
        store, name, overwrite=config.overwrite, kind="clusters", stage=f"cluster {algorithm}", params=params
    )
    given = None
    if isinstance(config, SSKMeansConfig):
        given = choose_usable_labels(
            config.labels, store, rows, label_column=config.label_column, own_labels=config.own_labels
        )
    earlier = read_previous_groups(config, name)
    started = time.monotonic()
    with current_progress().task(f"{algorithm}, {config.num_clusters} clusters", total=None):
        if isinstance(config, SinkhornConfig):
            from labelkit.commands.cluster.balanced import balanced_groups  # loads torch, for this algorithm only

            found = balanced_groups(config, store, rows)
        else:
            found = _run(config, store, rows, given)
    return _write(config, store, rows, given, found, earlier, time.monotonic() - started)


def _params(config: ClusterConfig) -> dict[str, object]:
    return {key: value for key, value in config.to_yaml_dict().items() if key not in _NO_PARAMETERS}


def _write(
    config: ClusterConfig,
    store: EmbeddingStore,
    rows: NDArray[np.int64],
    given: UsableLabels | None,
    found: Grouping,
    earlier: Groups | None,
    seconds: float,
) -> SimpleResult:
    """Give groups the ids of an earlier run, write them next to the store, and return the result."""
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
    arrays |= {key: lasting.place(array) for key, array in found.of_groups.items()} | lasting.arrays()
    params = _params(config)
    if found.classes is not None and given is not None:
        arrays["names"] = lasting.names(found.classes, given.class_names)
        arrays["new_classes"] = lasting.new_classes(found.classes).astype(np.uint8)
        arrays |= make_labeled_array(store, rows, given)
        params |= {"labels": given.source} if given.source else {}
    algorithm = config.command[1]
    name = config.result or algorithm
    path = write_result(
        store,
        name,
        kind="clusters",
        arrays=arrays,
        params={**params, **lasting.params(), **found.facts},
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
        **found.facts,
        **found.more,
        "seconds": round(seconds, 3),
        "sizes": sizes.tolist(),
        **lasting.to_json(),
    }
    used = sizes[~lasting.retired]
    if not isinstance(config, SinkhornConfig):
        _report_group_sizes(config, used, len(rows))
    columns = ["result", "clusters", "rows", "smallest", "largest", *found.shown, "seconds", "path"]
    row: list[Cell] = [name, config.num_clusters, len(rows), int(used.min()), int(used.max())]
    row += [*found.shown.values(), round(seconds, 2), path]
    return SimpleResult(values, (path,), (Table("", columns, [row]),))


def _report_group_sizes(config: ClusterConfig, sizes: NDArray[np.int64], count: int) -> None:
    """Warn about groups that are empty or have a single image."""
    if empty := int((sizes == 0).sum()):
        current_progress().warning(
            f"{empty} of {len(sizes)} groups are empty: {config.index} has only {len(sizes) - empty} distinct "
            "embeddings"
        )
    if (single := int((sizes == 1).sum())) and config.num_clusters < count:
        current_progress().message(
            f"{single} of {config.num_clusters} groups have a single image, which may be an outlier or a sign of too "
            "many groups: check these groups, or lower --num-clusters"
        )


def _run(config: ClusterConfig, store: EmbeddingStore, rows: NDArray[np.int64], given: UsableLabels | None) -> Grouping:
    """Group the rows by k-means, according to the config."""
    features = load_within_memory_limit(config, store, rows, unit=bool(getattr(config, "normalize", False)))
    options: dict[str, Any] = {
        "generator": keyed_generator(config.seed, "cluster"),
        "num_inits": config.num_inits,
        "max_iter": config.max_iterations,
        "tol": config.tolerance,
    }
    if isinstance(config, ProcessesConfig):
        features.spread = partial(apply_to_rows, config=config, name="assigning images")
    classes: NDArray[np.int64] | None = None
    if isinstance(config, SSKMeansConfig):
        assert given is not None
        _check_labels(given, config.num_clusters)
        if (wrong := label_agreement_warning(lambda places: features[places], given.labels, config.seed)) is not None:
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
        algorithm = kmeans
        if isinstance(config, SphericalKMeansConfig):
            check_nonzero_embeddings(store, rows, features)
            algorithm = spherical_kmeans
        found = algorithm(features, config.num_clusters, **options)
        ids, centroids, inertia, iterations = found.cluster_ids, found.centroids, found.inertia, found.num_iterations
    facts = {"inertia": inertia, "iterations": iterations}
    return Grouping(ids, {"centroids": centroids.astype(np.float32)}, facts, {"inertia": inertia}, classes=classes)


def _check_labels(given: UsableLabels, num_clusters: int) -> None:
    """Check that labels exist, that each of their classes has a cluster, and each other cluster an unlabeled row.

    Raises:
        DatasetError: there are no labels.
        ConfigError: more classes than clusters, or more clusters than labels leave rows for.
    """
    if not given.labeled.any():
        raise DatasetError(
            given.where,
            "has no usable labels, but this command needs labels",
            "Embed with some labels (`labelkit embed --label-split gcd`), pass labels with --labels, or use `labelkit "
            "cluster k-means`.",
        )
    classes, free = len(np.unique(given.labels[given.labeled])), int((~given.labeled).sum())
    if classes > num_clusters:
        problem = f"{num_clusters} is less than {classes}, the number of labeled classes"
        raise ConfigError("--num-clusters", problem, "Raise --num-clusters.")
    if num_clusters > classes + free:
        raise ConfigError(
            "--num-clusters",
            f"cannot initialize {num_clusters} clusters: {classes} are for the labeled classes, and only {free} "
            "unlabeled images are available to initialize the others",
            f"Choose at most {classes + free} clusters.",
        )
