"""Evaluate the embeddings of a store by kNN and linear classification, as in published results."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.feature_probes import knn_probabilities, linear_probe, logistic_regression
from labelkit.algorithms.projection import fit_principal_components, project_rows
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.commands.common.embeddings import find_labeled_rows, find_split_rows, find_zero_embeddings, load_rows
from labelkit.commands.common.labels import choose_usable_labels, override_store_labels
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.evaluate.dense import format_percent_and_std, mean_and_std
from labelkit.commands.evaluate.options import EvaluateKNNConfig, EvaluateLinearConfig
from labelkit.data.datasets import resolve_split
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, DatasetError, StoreError
from labelkit.formatting import percent
from labelkit.metrics.classification import per_class_accuracy, top_k_accuracy
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store


@dataclass(frozen=True)
class GalleryAndQueries:
    """Gallery and queries of an evaluation, with their embeddings and labels.

    Attributes:
        store: the store.
        gallery: (g, d) embeddings with known labels.
        gallery_labels: (g,) int64.
        queries: (q, d) embeddings to classify.
        query_labels: (q,) int64, for scoring only.
        class_names: class names, by class index.
        names: names of the two splits.
        own: (q,) int64, position of each query in the gallery; -1 = not in the gallery.
    """

    store: EmbeddingStore
    gallery: StoredRows
    gallery_labels: NDArray[np.int64]
    queries: StoredRows
    query_labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    names: tuple[str, str]
    own: NDArray[np.int64]

    @property
    def leave_one_out(self) -> bool:
        """Whether the gallery and the queries are the same rows."""
        return len(self.own) == len(self.gallery) and bool((self.own >= 0).all())


def choose_gallery_and_queries(
    config: EvaluateKNNConfig | EvaluateLinearConfig, store: EmbeddingStore, *, leave_one_out: bool = False
) -> GalleryAndQueries:
    """Choose the labeled rows of two splits as gallery and queries.

    With ``--labels``, only these labels are known in the gallery, and their rows are excluded from the queries, so the
    splits may be the same. If the store has no labels of these classes, or none for the queries, the labels passed are
    used for both.

    With ``leave_one_out``, the splits may be the same; in a store without splits, train and test both mean all rows.

    Raises:
        StoreError: the store has no labels in one of the splits, or all embeddings in the gallery are zero.
        DatasetError: ``--labels`` cannot be used, or has no labels for the gallery.
        ConfigError: a split does not exist, or both are the same.
    """
    gallery, queries = (resolve_split(split, store.split_names) for split in (config.gallery, config.queries))
    labels, label_column = config.labels, config.label_column
    every = np.arange(store.n, dtype=np.int64)
    known_in_store = choose_usable_labels(labels, store, every, label_column=label_column).truth >= 0
    if labels is not None and store.split_names:
        known_in_store = known_in_store[find_split_rows(store, queries, option="--queries")]
    if not known_in_store.any():
        store, labels, label_column = override_store_labels(store, labels, label_column), None, None
    if leave_one_out and not store.split_names and (gallery, queries) == ("train", "test"):
        gallery = queries = "all"
    if gallery == queries and labels is None and not leave_one_out:
        raise ConfigError(
            "--queries", f"{queries} is also the gallery, so images would match themselves", "Choose different splits."
        )
    if labels is None:
        known = find_labeled_rows(store, gallery, option="--gallery")
        query_rows = find_labeled_rows(store, queries, option="--queries")
        known_labels, class_names = np.asarray(store.labels, dtype=np.int64)[known], tuple(store.class_names)
    else:
        given = choose_usable_labels(labels, store, every, label_column=label_column, own_labels=False)
        known = find_split_rows(store, gallery, option="--gallery")
        known = known[given.labeled[known]]
        if not len(known):
            raise DatasetError(given.where, f"has no labels for split {gallery}", "Choose another --gallery.")
        query_rows = find_labeled_rows(store, queries, option="--queries")
        query_rows = query_rows[~given.labeled[query_rows]]
        if not len(query_rows):
            problem = f"all labeled images in split {queries} are also labeled in {given.where}, so no queries remain"
            raise StoreError(f"{store.path}:/labels", problem, "Choose another --queries.")
        known_labels, class_names = given.labels[known], given.class_names
    features = load_rows(store, known)
    if find_zero_embeddings(features).all():
        problem = f"all embeddings of {gallery} are zero"
        raise StoreError(f"{store.path}:/embeddings", problem, "Run `labelkit embed` again.")
    truth = np.asarray(store.labels, dtype=np.int64)[query_rows]
    places = np.full(store.n, -1, dtype=np.int64)
    places[known] = np.arange(len(known))
    found, own = load_rows(store, query_rows, in_blocks=True), places[query_rows]
    return GalleryAndQueries(store, features, known_labels, found, truth, class_names, (gallery, queries), own)


_SMALL: Final = 20_000
_LR: Final = {"sgd": 10.0, "adamw": 0.01}
# L2 penalty of the logistic regression.
_L2: Final = 1e-3


def evaluate_linear(config: EvaluateLinearConfig) -> CommandResult:
    """Evaluate embeddings by a linear classifier trained on one split and tested on another.

    All labels of the store are used, including those that were hidden from training. With ``--labels``, only these are
    used, and all other query images are classified.

    Raises:
        StoreError: the store has no labels in one of the splits.
        ConfigError: a split does not exist, or both are the same.
    """
    store = open_store(config.index)
    splits = choose_gallery_and_queries(config, store)
    store, gallery, gallery_labels = splits.store, splits.gallery, splits.gallery_labels
    if config.max_gallery is not None and len(gallery) > config.max_gallery:
        generator = keyed_generator(config.seed, "gallery of evaluate linear")
        kept = np.sort(generator.choice(len(gallery), config.max_gallery, replace=False))
        gallery, gallery_labels = gallery.subset(kept), gallery_labels[kept]
    num_classes = len(splits.class_names)
    solver = config.solver
    if solver == "auto":
        solver = "lbfgs" if len(gallery) <= _SMALL else "sgd"
    shown = ("gallery", "queries", "rescale", "max_gallery")
    protocol: dict[str, object] = {"solver": solver, **{name: getattr(config, name) for name in shown}}
    train = (gallery, gallery_labels, splits.queries)
    logits: NDArray[Any]
    with current_progress().task("train classifier", total=None):
        if solver == "lbfgs":
            logits = logistic_regression(*train, num_classes=num_classes, l2=_L2)
            protocol["l2"] = _L2
        else:
            lr = config.lr or _LR[solver]
            sgd: dict[str, Any] = {"epochs": config.epochs, "lr": lr, "batch_size": config.batch_size}
            options: dict[str, Any] = {"seed": config.seed, "rescale": config.rescale, **sgd}
            logits = linear_probe(*train, num_classes=num_classes, optimizer=solver, **options)
            protocol |= {**sgd, "seeds": [config.seed]}
    top1 = mean_and_std([top_k_accuracy(logits, splits.query_labels)])
    top5 = mean_and_std([top_k_accuracy(logits, splits.query_labels, 5)]) if num_classes > 5 else None
    right = per_class_accuracy(logits, splits.query_labels, num_classes)
    values: dict[str, object] = {
        "measured": f"linear classification of {config.queries} of {config.index}",
        "index": config.index,
        "gallery": {"split": config.gallery, "rows": len(gallery)},
        "queries": {"split": config.queries, "rows": len(splits.queries)},
        "accuracy": top1,
        "top5_accuracy": top5,
        "per_class": dict(zip(splits.class_names, right.tolist(), strict=True)),
        "model": {"name": store.model.name, "weights_fingerprint": store.model.weights_fingerprint},
        "protocol": protocol,
    }
    where: dict[str, Cell] = {"gallery": config.gallery, "queries": config.queries, "rows": len(splits.queries)}
    best: dict[str, Cell] = {
        "top 1": format_percent_and_std(top1),
        "top 5": None if top5 is None else format_percent_and_std(top5),
    }
    return CommandResult(values, (), (Table.from_row("accuracy in %", where | {"solver": solver} | best),))


def evaluate_knn(config: EvaluateKNNConfig) -> CommandResult:
    """Evaluate embeddings by kNN classification of one split with the labels of another.

    All labels of the store are used, including those that were hidden from training. With ``--labels``, only these are
    used, and all other query images are classified. An image never votes for itself: if the splits are the same, or
    the store has no splits, each image is classified by all others (leave-one-out).

    Raises:
        StoreError: the store has no labels in one of the splits.
        ConfigError: a split does not exist, or both are the same, with ``--linear`` or only one image.
    """
    store = open_store(config.index)
    splits = choose_gallery_and_queries(config, store, leave_one_out=True)
    gallery, queries = splits.names
    store, wanted, num_classes = splits.store, splits.query_labels, len(splits.class_names)
    if splits.leave_one_out:
        if config.linear:
            remedy = "Choose two splits with --gallery and --queries, or remove --linear."
            raise ConfigError("--linear", "the classifier would be evaluated on its training images", remedy)
        if len(splits.gallery) < 2:
            problem = f"{gallery} has only one labeled image"
            raise ConfigError("--gallery", problem, "Choose a split with at least two labeled images.")
        reason = "the two splits are the same" if store.split_names else f"{store.path} has no splits"
        current_progress().message(f"{reason}: each image is classified by all others (leave-one-out)")
    by_k, votes = _compute_votes(config, splits)
    linear: dict[str, float] = {}
    if config.linear:
        train = (splits.gallery, splits.gallery_labels, splits.queries)
        logits = linear_probe(*train, num_classes=num_classes, epochs=100, seed=config.seed)
        linear = {"linear_accuracy": top_k_accuracy(logits, wanted)}
    first = {name: value for name, value in by_k[0].items() if name != "k"}
    right = per_class_accuracy(votes, wanted, num_classes)
    values: dict[str, object] = {
        "index": config.index,
        "gallery": {"split": gallery, "rows": len(splits.gallery)},
        "queries": {"split": queries, "rows": len(splits.queries)},
        "leave_one_out": splits.leave_one_out,
        "k": by_k[0]["k"],
        "temperature": config.temperature,
        "pca": config.pca,
        **first,
        **linear,
        "by_k": by_k,
        "per_class": dict(zip(splits.class_names, right.tolist(), strict=True)),
    }
    columns = [name.removesuffix("_accuracy").replace("_", " ") for name in (*first, *linear)]
    rows: list[list[Cell]] = []
    for entry in by_k:
        scores = [percent(value) for key, value in entry.items() if key != "k"]
        scores += [percent(value) for value in linear.values()]
        rows.append([gallery, queries, len(splits.queries), int(entry["k"]), *scores])
    voted = "" if config.pca is None else f", on {config.pca} principal components"
    title = f"accuracy in %{voted}" + (", each image by all others (leave-one-out)" if splits.leave_one_out else "")
    table = Table(title, ["gallery", "queries", "rows", "k", *columns], rows)
    return CommandResult(values, (), (table,))


def _compute_votes(
    config: EvaluateKNNConfig, splits: GalleryAndQueries
) -> tuple[list[dict[str, float]], NDArray[np.float64]]:
    """Compute the scores for each k, and the votes (q, c) for the first k."""
    num_classes, wanted = len(splits.class_names), splits.query_labels
    queries: StoredRows | NDArray[np.float32] = splits.queries
    gallery: StoredRows | NDArray[np.float32] = splits.gallery
    if config.pca is not None:
        dim = gallery.shape[1]
        if config.pca > dim:
            problem = f"{config.pca} components were requested, but embeddings have only {dim} dimensions"
            raise ConfigError("--pca", problem, f"Pass at most {dim}.")
        components = fit_principal_components(gallery, config.pca)
        queries, gallery = (project_rows(side, *components) for side in (queries, gallery))
    by_k: list[dict[str, float]] = []
    votes: list[NDArray[np.float64]] = []
    for k in config.k:
        found = knn_probabilities(
            queries,
            gallery,
            splits.gallery_labels,
            num_classes=num_classes,
            k=k,
            temperature=config.temperature,
            self_indices=splits.own if (splits.own >= 0).any() else None,
        )
        votes = votes or [found]
        most = len(gallery) - int(splits.leave_one_out)
        entry: dict[str, float] = {"k": min(k, most), "knn_accuracy": top_k_accuracy(found, wanted)}
        if num_classes > 5:
            entry["knn_top5_accuracy"] = top_k_accuracy(found, wanted, 5)
        by_k.append(entry)
    return by_k, votes[0]
