"""The judges of a comparison: the same for every network, whatever it was trained with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import KMeansConfig
from labelkit.commands.discover.categories import discover_head
from labelkit.commands.discover.options import DiscoverHeadConfig
from labelkit.commands.embed.embed import embed_images
from labelkit.commands.evaluate.classification import evaluate_classification
from labelkit.commands.evaluate.groups import evaluate_clustering
from labelkit.commands.evaluate.knn import evaluate_knn
from labelkit.commands.evaluate.options import (
    EvaluateClassificationConfig,
    EvaluateClusteringConfig,
    EvaluateKNNConfig,
    EvaluateRetrievalConfig,
)
from labelkit.commands.evaluate.retrieval import evaluate_retrieval
from labelkit.options.embed import EmbedConfig
from labelkit.pipelines.compare.options import CompareConfig
from labelkit.store.embeddings import open_store

JUDGES = ("knn_accuracy", "clustering_accuracy", "recall_at_1")
"""Scores that every network has, in [0, 1]; ``own_accuracy`` those with a classifier."""


def embed_for_judges(config: CompareConfig, out: Path, holdout: float | None, **model: Any) -> None:
    """Embed all images, of training and held out.

    Args:
        config: which images.
        out: store to write.
        holdout: share that is held out; ``None`` for a set with splits.
        model: options of ``embed`` that name a network.
    """
    # of what a run was trained on, embed knows the split from the run
    split: dict[str, Any] = {"holdout": holdout, "split_seed": config.split_seed, "label_split": "none"}
    embed_images(
        EmbedConfig(
            dataset=config.dataset,
            data_root=config.data_root,
            **config.listing(),
            split="all",
            max_per_class=config.max_per_class,
            device=config.device,
            threads=config.threads,
            out=out,
            overwrite=True,
            **({} if "checkpoint" in model else split),
            **model,
        )
    )


def judge_store(index: Path, test_split: str, *, neighbors: int, seed: int, own: str) -> dict[str, float]:
    """Score a store with training and held-out images.

    Args:
        index: the store.
        test_split: held-out images; those of training are in split train.
        neighbors: that vote for a class.
        seed: of k-means.
        own: what the network's own output is: ``names`` of classes, unnamed ``groups``, or ``nothing``.

    Returns:
        Of the held-out images, in [0, 1]: ``knn_accuracy`` among the training images; ``clustering_accuracy`` and
        ``nmi`` of k-means over all images with as many groups as classes (v2); ``recall_at_1`` and ``map_at_r`` among
        each other; ``own_accuracy`` of the own output, groups matched with classes (v2).
    """
    store = open_store(index)
    num_classes, has_output = len(store.class_names), "logits" in store.extras
    scores: dict[str, float] = {}
    knn: dict[str, Any] = evaluate_knn(EvaluateKNNConfig(index=index, k=(neighbors,), queries=test_split)).to_json()
    scores["knn_accuracy"] = knn["knn_accuracy"]
    cluster_store(KMeansConfig(index=index, num_clusters=num_classes, seed=seed, overwrite=True))
    groups = _grouping(index, test_split, "k-means")
    scores |= {"clustering_accuracy": groups["all_accuracy"], "nmi": groups["nmi"]}
    retrieval: dict[str, Any] = evaluate_retrieval(
        EvaluateRetrievalConfig(index=index, k=(1,), split=(test_split,), nmi_seeds=0)
    ).to_json()
    scores |= {"recall_at_1": retrieval["recall"]["1"], "map_at_r": retrieval["map_at_r"]}
    if own == "groups" and has_output:
        discover_head(DiscoverHeadConfig(index=index, overwrite=True))
        scores["own_accuracy"] = _grouping(index, test_split, "head")["all_accuracy"]
    elif own == "names" and has_output:
        named: dict[str, Any] = evaluate_classification(
            EvaluateClassificationConfig(index=index, split=test_split, bootstrap=0, groups="none")
        ).to_json()
        scores["own_accuracy"] = named["scores"][0]["accuracy"]
    return scores


def _grouping(index: Path, test_split: str, result: str) -> dict[str, Any]:
    config = EvaluateClusteringConfig(index=index, results=(result,), split=test_split, rows="all", bootstrap=0)
    scored: Any = evaluate_clustering(config).to_json()["scores"]
    found: dict[str, Any] = scored[0]
    return found
