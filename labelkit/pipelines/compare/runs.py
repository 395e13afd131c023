"""One method of a comparison: its options, its length, its runs in separate processes, its scores.

Every network is evaluated in the same ways, regardless of how it was trained.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml

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
from labelkit.commands.train.run import train_method
from labelkit.errors import InputError, LabelkitError
from labelkit.files import read_bytes, read_object
from labelkit.methods.registry import METHODS, compute_method_digest
from labelkit.options.embed import EmbedConfig
from labelkit.options.presets import resolve
from labelkit.options.training import RunConfig
from labelkit.pipelines.compare.options import CompareConfig
from labelkit.store.commit import commit_bytes, commit_json
from labelkit.store.embeddings import open_store

JUDGES = ("knn_accuracy", "clustering_accuracy", "recall_at_1")
"""Scores that every network has, in [0, 1]; networks with a classifier also have ``own_accuracy``."""

# a run that takes more than this multiple of the budget is marked
_SLACK = 1.25
# a run is stopped after this multiple of the budget plus these seconds, for starting and reading images
_LIMIT_TIMES, _LIMIT_SECONDS = 3, 120
# time to write a checkpoint after a run is stopped
_END_SECONDS = 60


def embed_for_evaluation(config: CompareConfig, out: Path, holdout: float | None, **model: Any) -> None:
    """Embed the training and held-out images with one network, for evaluation.

    Args:
        config: options that select the images.
        out: store to write.
        holdout: share of held-out images; ``None`` for a set with splits.
        model: options of ``embed`` that name a network.
    """
    # embed knows the split of a run's own data from the run
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


def evaluate_store(index: Path, test_split: str, *, neighbors: int, seed: int, own: str) -> dict[str, float]:
    """Evaluate a store's embeddings by kNN, k-means and retrieval, and the network's own output if there is one.

    Args:
        index: the store.
        test_split: held-out images; those of training are in split train.
        neighbors: number of neighbors that vote for a class.
        seed: seed of k-means.
        own: kind of the network's own output: ``names`` of classes, unnamed ``groups``, or ``nothing``.

    Returns:
        Scores of the held-out images in [0, 1]: ``knn_accuracy`` by neighbors among the training images;
        ``clustering_accuracy`` and ``nmi`` of k-means over all images with as many groups as classes (v2);
        ``recall_at_1`` and ``map_at_r`` among each other; ``own_accuracy``, with groups matched with classes (v2).
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
            EvaluateClassificationConfig(index=index, split=test_split, bootstrap=0)
        ).to_json()
        scores["own_accuracy"] = named["scores"][0]["accuracy"]
    return scores


def _grouping(index: Path, test_split: str, result: str) -> dict[str, Any]:
    config = EvaluateClusteringConfig(index=index, results=(result,), split=test_split, rows="all", bootstrap=0)
    scored: Any = evaluate_clustering(config).to_json()["scores"]
    found: dict[str, Any] = scored[0]
    return found


class RunError(Exception):
    """Raised for a run that did not finish; the message gives the reason."""


@dataclass(frozen=True)
class DataFacts:
    """Properties of the data set that all runs of a comparison share.

    Attributes:
        num_classes: number of classes.
        test_split: split of the held-out images for evaluation.
        holdout: share of held-out images; ``None`` for a set with its own splits.
    """

    num_classes: int
    test_split: str
    holdout: float | None


def method_config(name: str, config: CompareConfig, data: DataFacts, seed: int, fraction: float = 1.0) -> RunConfig:
    """Return the training options of one run: the method's preset, adapted to the comparison's images and labels.

    Args:
        name: name of the method.
        config: options of the comparison.
        data: the common images.
        seed: seed of the weights and of the draw of a few labels.
        fraction: share of the preset's length.

    Raises:
        ConfigError: the options do not fit together.
    """
    spec = METHODS[name]
    common: dict[str, object] = {
        "dataset": config.dataset,
        "data_root": config.data_root,
        **config.listing(),
        "holdout": data.holdout,
        "holdout_classes": None,
        "max_per_class": config.max_per_class,
        "split_seed": config.split_seed,
        "num_labels": None,
        "seed": seed,
        "threads": config.threads,
        "device": config.device,
    }
    preset = resolve(spec.config, overrides={"dataset": config.dataset}).config
    kind = preset.label_kind
    if kind == "few":
        common |= {"num_labels": config.labels_per_class * data.num_classes, "label_seed": seed}
        common["label_split"] = "few-labels"
    elif kind == "some":
        common |= {"label_split": "gcd", "label_ratio": config.label_ratio}
        common |= {"num_old_classes": config.num_old_classes, "old_classes": config.old_classes}
    else:
        common["label_split"] = "given" if kind == "all" else "none"
    values = preset.to_yaml_dict(operational=False) | common | preset.shortened(fraction)
    made: RunConfig = spec.config.model_validate(values)
    return made


def train_and_evaluate(name: str, config: CompareConfig, data: DataFacts, folder: Path, seed: int) -> dict[str, Any]:
    """Train and evaluate one method with one seed, reusing results that already exist in the folder.

    Args:
        name: name of the method.
        config: options of the comparison.
        data: the common images.
        folder: folder for runs, stores and scores.
        seed: seed of the run.

    Returns:
        The record of the run.

    Raises:
        RunError: the run failed; the message is the reason.
    """
    record = folder / f"{name}-s{seed}.json"
    if record.exists():
        return stored_record(record)
    try:
        length = _length(name, config, data, folder)
        options = method_config(name, config, data, seed, length["fraction"])
        run, store = folder / f"{name}-s{seed}", folder / f"{name}-s{seed}.h5"
        cost = _train(name, config, options, run)
        summary = stored_record(run / "summary.json")
        embed_for_evaluation(config, store, data.holdout, checkpoint=run)
        scores = evaluate_store(store, data.test_split, neighbors=config.neighbors, seed=seed, own=options.own_output)
    except LabelkitError as error:
        raise RunError(str(error).strip()) from error
    except Exception as error:
        if compute_method_digest(name) is None or isinstance(error, RunError):
            raise
        raise RunError(f"{type(error).__name__}: {error}") from error  # code of a user can raise any error
    values = {
        "method": name,
        "seed": seed,
        "labels": summary["samples"]["labeled"],
        "labeled_classes": summary["samples"]["old_classes"] if summary["samples"]["labeled"] else 0,
        "network": getattr(options, "backbone", None),
        "length": options.length(),
        "share_of_preset": min(1.0, length["fraction"]),
        "seconds_per_step_probed": length["seconds_per_step"],
        "steps": summary["steps"],
        "seconds": summary["seconds"],
        "over_budget": summary["seconds"] > _SLACK * config.budget_seconds,
        **cost,
        "scores": scores,
    }
    commit_json(record, values)
    return values


def _length(name: str, config: CompareConfig, data: DataFacts, folder: Path) -> dict[str, Any]:
    """Return the share of the preset's length that fits the budget, by the time of a few steps; stored for all."""
    kept = folder / f"{name}.length.json"
    if kept.exists():
        return stored_record(kept)
    options = method_config(name, config, data, 0).model_copy(update={"dry_run": True})
    plan: dict[str, Any] = train_method(options).to_json()
    seconds = plan["seconds_per_step"] * plan["steps"]
    length = {
        "seconds_per_step": plan["seconds_per_step"],
        "steps": plan["steps"],
        "fraction": min(1.0, config.budget_seconds / seconds) if seconds else 1.0,
    }
    commit_json(kept, length)
    return length


def _train(name: str, config: CompareConfig, options: RunConfig, run: Path) -> dict[str, float]:
    """Train in a separate process; return the CPU time and memory that it took."""
    if run.exists():
        # it was stopped, so the cost of the whole run would not be known
        shutil.rmtree(run)
    written = run.with_name(f"{run.name}.yaml")
    commit_bytes(written, yaml.safe_dump(options.to_yaml_dict(operational=False), sort_keys=False).encode())
    command = [
        *(sys.executable, "-m", "labelkit", "train", name, "--preset", "none"),
        *("--config", str(written), "--out", str(run), "--json"),
    ]
    said = run.with_name(f"{run.name}.log")
    limit = _LIMIT_TIMES * config.budget_seconds + _LIMIT_SECONDS
    environment = os.environ | {"OMP_NUM_THREADS": str(config.threads)}
    cost, code = run_process(command, said, limit=limit, environment=environment)
    if code != 0:
        raise RunError(_reason(said, code))
    return cost


def stored_record(path: Path) -> dict[str, Any]:
    """Read a JSON record written by a comparison or one of its runs.

    Raises:
        InputError: the file is damaged.
    """
    try:
        return read_object(path)
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"cannot be read: {error}", "Delete the file; it will be recreated.") from error


def run_process(
    command: Sequence[str], said: Path, *, limit: float, environment: dict[str, str]
) -> tuple[dict[str, float], int]:
    """Run a subprocess with a time limit; return its CPU seconds, peak memory in MiB and exit code.

    Args:
        command: words of the command.
        said: file for its stderr.
        limit: seconds after which it is stopped.
        environment: environment of the process.

    Raises:
        RunError: it took longer than ``limit``; the process has ended.
    """
    deadline = time.monotonic() + limit
    peak = cpu_seconds = 0.0
    with said.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        try:
            while process.poll() is None and time.monotonic() <= deadline:
                with contextlib.suppress(psutil.Error):  # the process has ended
                    running = psutil.Process(process.pid)
                    times, memory = running.cpu_times(), running.memory_info()
                    cpu_seconds = max(cpu_seconds, times.user + times.system)
                    peak = max(peak, memory.rss / 2**20)
                time.sleep(0.05)
        finally:  # also if the comparison is stopped
            in_time = process.poll() is not None
            if not in_time:
                process.terminate()
                try:
                    process.wait(_END_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
    if not in_time:
        raise RunError(f"did not finish within {limit:.0f} s, so it was stopped")
    return {"cpu_seconds": round(cpu_seconds, 2), "peak_memory_mib": round(peak, 1)}, process.returncode


def _reason(said: Path, code: int) -> str:
    """Return the error that a process ended with."""
    text = read_bytes(said).decode(errors="replace").strip()
    at = text.rfind("error: ")
    if at >= 0 and (at == 0 or text[at - 1] == "\n"):
        return text[at + len("error: ") :]
    return f"exit code {code}" + (f": {text.splitlines()[-1]}" if text else "")
