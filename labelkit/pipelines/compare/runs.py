"""Train and evaluate the methods of a comparison: their options, training lengths, runs and scores.

Each run is a separate process. Every network is evaluated in the same ways, regardless of how it was trained.
"""

import contextlib
import os
import re
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
from labelkit.commands.discover.categories import classify_by_logits
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
from labelkit.files import read_bytes, read_json_object
from labelkit.methods.registry import METHODS, compute_method_digest
from labelkit.options.embed import EmbedConfig
from labelkit.options.presets import resolve_config
from labelkit.options.training import RunConfig
from labelkit.pipelines.compare.options import CompareConfig
from labelkit.store.commit import commit_bytes, commit_json
from labelkit.store.embeddings import open_store

JUDGES = ("knn_accuracy", "clustering_accuracy", "recall_at_1")
"""Scores available for every network, in [0, 1]; networks with a classifier also have ``own_accuracy``."""

# a run that takes more than this multiple of the budget is marked as over budget
_SLACK = 1.25
# a run is stopped after this multiple of the budget, plus these seconds for starting and reading images
_LIMIT_TIMES, _LIMIT_SECONDS = 3, 120
# seconds to write a checkpoint after a run is stopped
_END_SECONDS = 60


@dataclass(frozen=True)
class DatasetInfo:
    """Properties of the dataset that all runs of a comparison share."""

    num_classes: int  # number of classes
    test_split: str  # split of the held-out images for evaluation
    holdout: float | None  # fraction of held-out images; ``None`` for a dataset with its own splits


def embed_for_evaluation(config: CompareConfig, data: DatasetInfo, out: Path, **model: Any) -> None:
    """Embed the training and held-out images with the network specified by the ``embed`` options in ``model``."""
    # embed takes the split of a run's own dataset from the run
    split: dict[str, Any] = {"holdout": data.holdout, "split_seed": config.split_seed, "label_split": "none"}
    embed_images(
        EmbedConfig(
            dataset=config.dataset,
            data_root=config.data_root,
            **config.listing_kwargs(),
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


def evaluate_store(
    config: CompareConfig, data: DatasetInfo, index: Path, *, seed: int, output_kind: str
) -> dict[str, float]:
    """Evaluate a store's embeddings by kNN, k-means and retrieval, and the network's own output if there is one.

    Args:
        config: options of the comparison.
        data: the shared dataset, whose training images are in split ``train``.
        index: the store.
        seed: seed of k-means.
        output_kind: kind of the network's own output: ``names`` of classes, unnamed ``groups``, or ``nothing``.

    Returns:
        Scores on the held-out images in [0, 1]: ``knn_accuracy`` with neighbors from the training images;
        ``clustering_accuracy`` (v2) and ``nmi`` of k-means on all images with one cluster per class; ``recall_at_1``
        and ``map_at_r`` of held-out queries among each other; ``own_accuracy``, with groups matched to classes (v2).
    """
    split = data.test_split

    def score_groups(result: str) -> dict[str, Any]:
        options = EvaluateClusteringConfig(index=index, results=(result,), split=split, rows="all", bootstrap=0)
        scored: Any = evaluate_clustering(options).to_json()["scores"]
        return dict(scored[0])

    knn: Any = evaluate_knn(EvaluateKNNConfig(index=index, k=(config.neighbors,), queries=split)).to_json()
    cluster_store(KMeansConfig(index=index, num_clusters=data.num_classes, seed=seed, overwrite=True))
    groups = score_groups("k-means")
    queries = EvaluateRetrievalConfig(index=index, k=(1,), split=(split,), nmi_seeds=0)
    retrieval: Any = evaluate_retrieval(queries).to_json()
    scores: dict[str, float] = {
        "knn_accuracy": knn["knn_accuracy"],
        "clustering_accuracy": groups["all_accuracy"],
        "nmi": groups["nmi"],
        "recall_at_1": retrieval["recall"]["1"],
        "map_at_r": retrieval["map_at_r"],
    }
    has_output = open_store(index).has_logits
    if output_kind == "groups" and has_output:
        classify_by_logits(DiscoverHeadConfig(index=index, overwrite=True))
        scores["own_accuracy"] = score_groups("head")["all_accuracy"]
    elif output_kind == "names" and has_output:
        options = EvaluateClassificationConfig(index=index, split=split, bootstrap=0)
        named: Any = evaluate_classification(options).to_json()
        scores["own_accuracy"] = named["scores"][0]["accuracy"]
    return scores


class FailedRunError(Exception):
    """Raised if a run does not finish; the message gives the reason."""


def method_config(name: str, config: CompareConfig, data: DatasetInfo, seed: int, fraction: float = 1.0) -> RunConfig:
    """Return the training options of one run: the preset of the method, adapted to the images and labels compared.

    ``seed`` also determines which images are labeled; ``fraction`` scales the preset's training length.

    Raises:
        ConfigError: the options are incompatible.
    """
    spec = METHODS[name]
    common: dict[str, object] = {
        "dataset": config.dataset,
        "data_root": config.data_root,
        **config.listing_kwargs(),
        "holdout": data.holdout,
        "holdout_classes": None,
        "max_per_class": config.max_per_class,
        "split_seed": config.split_seed,
        "num_labels": None,
        "seed": seed,
        "threads": config.threads,
        "device": config.device,
    }
    preset = resolve_config(spec.config, overrides={"dataset": config.dataset}).config
    kind = preset.label_kind
    if kind == "few":
        common |= {"num_labels": config.labels_per_class * data.num_classes, "label_seed": seed}
        common["label_split"] = "few-labels"
    elif kind == "some":
        common |= {"label_split": "gcd", "label_ratio": config.label_ratio}
        common |= {"num_old_classes": None, "old_classes": config.old_classes}
    else:
        common["label_split"] = "given" if kind == "all" else "none"
    values = preset.to_yaml_dict(operational=False) | common | preset.shortened_options(fraction)
    return spec.config.model_validate(values)


def train_and_evaluate(name: str, config: CompareConfig, data: DatasetInfo, folder: Path, seed: int) -> dict[str, Any]:
    """Train and evaluate one method with one seed, unless the folder already has the record; return the record.

    Raises:
        FailedRunError, LabelkitError: the run failed; the message gives the reason.
    """
    record = folder / f"{name}-s{seed}.json"
    if record.exists():
        return read_stored_record(record)
    try:
        length = _compute_length(name, config, data, folder)
        options = method_config(name, config, data, seed, length["fraction"])
        run, store = folder / f"{name}-s{seed}", folder / f"{name}-s{seed}.h5"
        peak_memory = _train(name, config, options, run)
        summary = read_stored_record(run / "summary.json")
        embed_for_evaluation(config, data, store, checkpoint=run)
        scores = evaluate_store(config, data, store, seed=seed, output_kind=options.own_output)
    except Exception as error:
        if isinstance(error, FailedRunError | LabelkitError) or compute_method_digest(name) is None:
            raise
        raise FailedRunError(f"{type(error).__name__}: {error}") from error  # a user's own code can raise any error
    values = {
        "method": name,
        "seed": seed,
        "labels": summary["samples"]["labeled"],
        "labeled_classes": summary["samples"]["old_classes"] if summary["samples"]["labeled"] else 0,
        "network": getattr(options, "backbone", None),
        "length": options.length_options(),
        "share_of_preset": min(1.0, length["fraction"]),
        "steps": summary["steps"],
        "seconds": summary["seconds"],
        "over_budget": summary["seconds"] > _SLACK * config.budget_seconds,
        "peak_memory_mib": peak_memory,
        "scores": scores,
    }
    commit_json(record, values)
    return values


def _compute_length(name: str, config: CompareConfig, data: DatasetInfo, folder: Path) -> dict[str, Any]:
    """Return the fraction of the preset's length that fits the budget, by timing a few steps; saved for all seeds."""
    kept = folder / f"{name}.length.json"
    if kept.exists():
        return read_stored_record(kept)
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


def _train(name: str, config: CompareConfig, options: RunConfig, run: Path) -> float:
    """Train in a subprocess; return its peak memory in MiB."""
    if run.exists():
        # it was interrupted, so the cost of the whole run would be unknown
        shutil.rmtree(run)
    written = run.with_name(f"{run.name}.yaml")
    commit_bytes(written, yaml.safe_dump(options.to_yaml_dict(operational=False), sort_keys=False).encode())
    command = [
        *(sys.executable, "-m", "labelkit", "train", name, "--preset", "none"),
        *("--config", str(written), "--out", str(run), "--json"),
    ]
    log = run.with_name(f"{run.name}.log")
    limit = _LIMIT_TIMES * config.budget_seconds + _LIMIT_SECONDS
    environment = os.environ | {"OMP_NUM_THREADS": str(config.threads)}
    peak_memory, code = run_process(command, log, time_limit=limit, environment=environment)
    if code == 0:
        return peak_memory
    text = read_bytes(log).decode(errors="replace").strip()
    *_, reason = re.split(r"^error: ", text, flags=re.MULTILINE)
    if reason == text:
        reason = f"exit code {code}" + (f": {text.splitlines()[-1]}" if text else "")
    raise FailedRunError(reason)


def read_stored_record(path: Path) -> dict[str, Any]:
    """Read a JSON record written by a comparison or one of its runs.

    Raises:
        InputError: the file is damaged.
    """
    try:
        return read_json_object(path)
    except (OSError, ValueError) as error:
        raise InputError(str(path), f"cannot be read: {error}", "Delete the file; it will be recreated.") from error


def run_process(
    command: Sequence[str], log: Path, *, time_limit: float, environment: dict[str, str]
) -> tuple[float, int]:
    """Run a subprocess with a time limit in seconds, and log its stderr; return its peak memory in MiB and exit code.

    Raises:
        FailedRunError: the process took longer than ``time_limit`` and was stopped.
    """
    deadline = time.monotonic() + time_limit
    peak = 0.0
    with log.open("wb") as errors:
        process = psutil.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, env=environment)
        try:
            while process.poll() is None and time.monotonic() <= deadline:
                with contextlib.suppress(psutil.Error):  # the process has ended
                    peak = max(peak, process.memory_info().rss / 2**20)
                time.sleep(0.05)
        finally:  # also if the comparison is interrupted
            in_time = process.poll() is not None
            if not in_time:
                process.terminate()
                try:
                    process.wait(_END_SECONDS)
                except psutil.TimeoutExpired:
                    process.kill()
                    process.wait()
    if not in_time:
        raise FailedRunError(f"did not finish within {time_limit:.0f} s, so it was stopped")
    return round(peak, 1), process.returncode
