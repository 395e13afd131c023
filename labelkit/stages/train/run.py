"""Train a method: images, a split and options in; a run folder with checkpoints and metrics out."""

from __future__ import annotations

import json
import platform
import resource
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelkit import __version__
from labelkit.config.backbone import BackboneRunConfig
from labelkit.config.base import value_text
from labelkit.config.discovery import ContrastiveTrainConfig, DiscoveryTrainConfig
from labelkit.config.few_labels import FewLabelTrainConfig
from labelkit.config.methods.cotap import CoTAPConfig
from labelkit.config.methods.lmcs import LMCSConfig
from labelkit.config.methods.sela import SeLaConfig
from labelkit.config.methods.snowball import SnowballConfig
from labelkit.config.methods.tac_ccl import TACCCLConfig
from labelkit.config.metric_learning import MetricLearningConfig
from labelkit.config.representation import RepresentationRunConfig
from labelkit.config.supervised import SupervisedTrainConfig
from labelkit.config.train import RunConfig, TrainConfig
from labelkit.data.datasets import ImageDataset
from labelkit.data.image_bank import ImageBank
from labelkit.engine.checkpoint import load_checkpoint
from labelkit.engine.devices import Runtime
from labelkit.engine.method import Method, count_parameters, trainable_names
from labelkit.engine.monitors.classification import ClassificationMonitor
from labelkit.engine.monitors.groups import ClusteringMonitor, DiscoveryMonitor
from labelkit.engine.monitors.representation import HeldOut, RepresentationMonitor
from labelkit.engine.monitors.retrieval import RetrievalMonitor
from labelkit.engine.run_dir import SPLIT, SUMMARY, RunDir, check_same_options
from labelkit.engine.trainer import FitResult, Monitor, Trainer
from labelkit.errors import CheckpointDamaged, CheckpointMismatch, ConfigError, InputError, ResourceError
from labelkit.methods.dense.cotap import CoTAP
from labelkit.methods.dense.neighbor_images import NeighborPlace
from labelkit.methods.few_labels.growth_monitor import GrowthMonitor
from labelkit.methods.few_labels.snowball import Snowball
from labelkit.methods.registry import METHODS
from labelkit.models.weights import fingerprint
from labelkit.stages.progress import current_progress
from labelkit.stages.result import SimpleResult, Table, jsonable
from labelkit.stages.train.initialize import describe_weights, initialize_from, take_labels, without_weights
from labelkit.stages.train.prepare import PreparedData, eval_images, info_record, prepare_data, val_images
from labelkit.store.commit import canonical_json


def train_method(config: RunConfig) -> SimpleResult:
    """Train the method that the config belongs to.

    Returns:
        The run folder, the metrics of the last epoch and where the checkpoints are.

    Raises:
        ConfigError, DatasetError, CheckpointError: options, data or weights that cannot be used.
        DivergenceError: training became useless.
        Interrupted: a signal asked to stop; a checkpoint was written.
    """
    method_name = config.command[1]
    if config.dry_run:
        return _plan(method_name, config)
    runtime = Runtime(device=config.device, precision=config.precision, threads=config.threads)
    out = run_folder(config)
    run = RunDir(out, writes=runtime.is_main)
    try:
        if runtime.is_main:
            run.open(resume=config.resume, overwrite=config.overwrite)
        runtime.barrier()
        return _train(method_name, config, runtime, run)
    except (ConfigError, InputError):
        if not config.resume:
            # once corrected, the same command is to work
            run.discard_unless_trained()
        raise
    finally:
        run.close()
        if sys.exc_info()[0] is None:
            runtime.close()


def run_folder(config: RunConfig) -> Path:
    """Where a run goes: ``--out``, or ``runs/METHOD-DATASET``."""
    if config.out is not None:
        return config.out
    return Path("runs") / f"{config.command[1]}-{dataset_label(config.main_dataset)}"


def dataset_label(dataset: str) -> str:
    """A short name of a data set: its registered name, or that of its folder or file."""
    return Path(dataset).stem or Path(dataset).resolve().stem


def _train(method_name: str, config: RunConfig, runtime: Runtime, run: RunDir) -> SimpleResult:
    progress = current_progress()
    options = config.to_yaml_dict(operational=False)
    if config.resume:
        check_same_options(run.path, method_name, options, allowed=config.resumable_fields)
    checkpoint = load_checkpoint(run.path) if config.resume else None
    setup = _set_up(method_name, config, runtime, fresh=checkpoint is None)
    if config.resume and checkpoint is None:
        progress.message(f"{run.path} has no checkpoint yet: starting from the first epoch")
    runtime.barrier()
    if config.resume:
        _check_same_data(run, setup.prepared)
        run.extend(method_name, options)
    else:
        run.begin(method_name, options)
    if checkpoint is None:
        _write_facts(run, setup, runtime)
    runtime.barrier()

    for warning in setup.prepared.split.warnings:
        progress.warning(warning)
    if setup.bank.bad:
        progress.warning(f"{len(setup.bank.bad)} images could not be read and are left out; see skipped.json")
    total_parameters, trained_parameters = count_parameters(setup.method)
    progress.message(
        f"{method_name} on {config.main_dataset}: {setup.prepared.describe()}; "
        f"{total_parameters:,} parameters, {trained_parameters:,} trained, on {runtime.device}"
        + (f" x {runtime.world_size} processes" if runtime.world_size > 1 else "")
    )
    trainer = _trainer(setup, config, runtime, run)
    if checkpoint is not None:
        trainer.restore(checkpoint)
        progress.message(f"resumed at epoch {trainer.clock.epoch}, step {trainer.clock.step}")
    with progress.task("train", total=trainer.total_steps()) as task:
        task.advance(trainer.clock.step)
        trainer.report = task
        try:
            fit = trainer.fit()
        except ResourceError as error:
            # the same command again would only say that the folder exists
            remedy = "Make room, then give the same command with --resume; earlier checkpoints are kept."
            raise ResourceError(error.where, error.problem, remedy) from error
    return _summarize(method_name, config, run, setup, fit)


def _check_same_data(run: RunDir, prepared: PreparedData) -> None:
    """Refuse to go on when images, labels or the split are no longer those of the run.

    Raises:
        CheckpointMismatch: naming the first thing that differs.
    """
    try:
        saved = json.loads((run.path / SPLIT).read_bytes())
    except FileNotFoundError:  # killed before it was written, so nothing was trained on it either
        return
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(str(run.path / SPLIT), f"cannot be read: {error}", "Restore it.") from error
    now = json.loads(canonical_json(prepared.to_json()))
    if saved.get("dataset_digest") == now["dataset_digest"] and saved.get("split") == now["split"]:
        return
    then, images = saved.get("split", {}).get("num_samples"), now["split"]["num_samples"]
    raise CheckpointMismatch(
        str(run.path),
        f"the data are no longer those of the run ({images} images, {then} when it began; or other labels)",
        "Put them back as they were, or start a new run (--init-from takes the weights along).",
    )


@dataclass
class _Setup:
    """What is built before the first step."""

    prepared: PreparedData
    bank: ImageBank
    method: Method[Any]
    held_out: HeldOut | None = None


def _set_up(method_name: str, config: RunConfig, runtime: Runtime, *, fresh: bool) -> _Setup:
    """Read the listing, build the network, decode what fits into memory.

    Args:
        method_name: row of the table of methods.
        config: its options.
        runtime: where to compute.
        fresh: load the weights that the options name; a resumed run has all of them in its checkpoint.
    """
    prepared = prepare_data(config)
    image_size = None
    if isinstance(config, ContrastiveTrainConfig | BackboneRunConfig):
        image_size = config.image_size
    info = prepared.info(image_size or 0)
    build_with = config if fresh else without_weights(config)
    method = METHODS[method_name].load()(build_with, info)
    if fresh and config.init_from is not None:
        initialize_from(method, config.init_from)
    else:
        describe_weights(method.network)
    if fresh and isinstance(config, SeLaConfig) and config.labels_from is not None:
        take_labels(method, config.labels_from, prepared)
    if isinstance(config, TACCCLConfig) and config.matches is not None:
        from labelkit.stages.train.matched_pairs import take_matches  # for this method alone

        take_matches(method, config.matches, prepared.dataset)
    if isinstance(method, CoTAP):
        kept = config.neighbors if isinstance(config, CoTAPConfig) else None
        path = kept or run_folder(config) / "neighbors.h5"
        method.neighbor_place = NeighborPlace(
            path,
            prepared.objects_digest or prepared.dataset.digest(),
            chosen=kept is not None,
            writes=not config.dry_run,
        )
    for note in prepared.dataset.notes:
        current_progress().message(note)

    def bank_of(dataset: ImageDataset) -> ImageBank:
        size = method.network.input_spec.size
        bank = ImageBank(dataset, channels=dataset.in_channels, base_size=size, device=runtime.device)
        bank.check(config.bad_limit)
        return bank

    held_out = None
    if isinstance(config, BackboneRunConfig):
        images = eval_images(config, prepared)
        if images is not None:
            held_out = HeldOut(bank_of(images), images.labels)
    if isinstance(config, SnowballConfig) and config.val_split is not None:
        deciding = val_images(config, config.val_split, prepared)
        assert isinstance(method, Snowball)
        method.validation = HeldOut(bank_of(deciding), deciding.labels)
    return _Setup(prepared, bank_of(prepared.dataset), method, held_out)


def _trainer(setup: _Setup, config: RunConfig, runtime: Runtime, run: RunDir | None) -> Trainer:
    prepared, progress = setup.prepared, current_progress()
    old = np.zeros(max(1, len(prepared.dataset.class_names)), dtype=bool)
    old[list(prepared.split.old_classes)] = True
    unlabeled = np.flatnonzero(prepared.labels < 0)
    unlabeled = unlabeled[np.isin(unlabeled, setup.bank.rows)]
    truth, network = prepared.dataset.labels, setup.method.network
    monitor: Monitor | None = None
    if isinstance(config, MetricLearningConfig):
        monitor = RetrievalMonitor(setup.bank.rows, truth, setup.held_out, config.recall_ks)
    elif isinstance(config, RepresentationRunConfig):
        monitor = RepresentationMonitor(
            setup.bank.rows,
            truth,
            setup.held_out,
            num_classes=len(prepared.dataset.class_names),
            k=config.knn_neighbors,
            temperature=config.knn_temperature,
            linear=config.linear_monitor,
            seed=config.seed,
        )
    elif isinstance(config, SupervisedTrainConfig | FewLabelTrainConfig):
        monitor = judge = ClassificationMonitor(setup.held_out, prepared.split.class_order)
        if isinstance(config, SnowballConfig | LMCSConfig):
            monitor = GrowthMonitor(
                judge,
                prepared.dataset.sample_ids,
                truth,
                prepared.split.class_order,
                prepared.dataset.class_names,
                (lambda name, text: None) if run is None else run.write_text,
            )
    elif network.num_outputs:
        # only discovery is stopped when it collapses
        patience = sys.maxsize
        if isinstance(config, DiscoveryTrainConfig) and config.guard == "stop":
            patience = config.collapse_patience_epochs
        monitor = DiscoveryMonitor(unlabeled, truth, old, len(prepared.split.old_classes), patience=patience)
    elif setup.method.num_clusters is not None:
        monitor = ClusteringMonitor(setup.bank.rows, prepared.labels, truth, old, config.seed)
    return Trainer(
        setup.method,
        setup.bank,
        prepared.labels,
        config,
        runtime,
        run=run,
        monitor=monitor,
        message=progress.message,
        metadata={"method": config.command[1], **setup.method.network.identity},
    )


def _write_facts(run: RunDir, setup: _Setup, runtime: Runtime) -> None:
    prepared = setup.prepared
    run.write_json(SPLIT, {**prepared.to_json(), "info": info_record(setup.method.data)})
    skipped = {prepared.dataset.sample_ids[row]: reason for row, reason in sorted(setup.bank.bad.items())}
    if skipped:
        run.write_json("skipped.json", skipped)
    run.write_json(
        "environment.json",
        {
            "labelkit": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "platform": platform.platform(),
            "device": str(runtime.device),
            "processes": runtime.world_size,
            "threads": torch.get_num_threads(),
            "trained": trainable_names(setup.method),
        },
    )


def _summarize(method_name: str, config: RunConfig, run: RunDir, setup: _Setup, fit: FitResult) -> SimpleResult:
    metrics = dict(fit.metrics)
    last = run.checkpoints / "last.json"
    values: dict[str, object] = {
        "method": method_name,
        "dataset": config.main_dataset,
        "run": run.path,
        "finished": fit.finished,
        **({"epochs": config.epochs} if isinstance(config, TrainConfig) else {}),
        "steps": fit.step,
        "seconds": round(fit.seconds, 2),
        "samples": setup.prepared.counts(),
        "skipped": len(setup.bank.bad),
        "metrics": metrics,
        "weights_fingerprint": fingerprint(setup.method.headline()),
        "checkpoint": json.loads(last.read_text())["checkpoint"] if last.exists() else None,
    }
    if fit.finished:
        run.write_json(SUMMARY, jsonable(values))
        network = setup.method.network
        if isinstance(config, DiscoveryTrainConfig) and 2 * metrics.get("used_clusters", np.inf) < network.num_outputs:
            current_progress().warning(
                f"only {int(metrics['used_clusters'])} of {network.num_outputs} classes are in use on the unlabeled "
                "images; raise --entropy-weight, or check --num-classes"
            )
    rows: list[list[str | int | float | Path | None]] = []
    if "all_accuracy" in metrics:
        percent = [100 * metrics[f"{name}_accuracy"] for name in ("all", "old", "new")]
        rows.append([method_name, config.dataset, *percent, int(metrics["used_clusters"]), round(fit.seconds, 1)])
    shown = (
        [
            Table(
                "unlabeled training images, accuracy v2 in %",
                ["method", "data", "All", "Old", "New", "clusters", "seconds"],
                rows,
            )
        ]
        if rows
        else []
    )
    if "knn_accuracy" in metrics or ("nmi" in metrics and "map_at_r" not in metrics):
        shown.append(_representation_table(method_name, config.main_dataset, metrics, fit.seconds))
    if "accuracy" in metrics:
        shown.append(_classification_table(method_name, config.dataset, metrics, fit.seconds))
    if "map_at_r" in metrics:
        shown.append(_retrieval_table(method_name, config.dataset, metrics, fit.seconds))
    return SimpleResult(values, (run.path,), tuple(shown))


def _representation_table(method: str, dataset: str, metrics: Mapping[str, float], seconds: float) -> Table:
    """Features judged by held-out images, groups by the truth of training images; mean over the groupings."""
    accuracies = [100 * metrics[name] if name in metrics else None for name in ("knn_accuracy", "linear_accuracy")]
    groups = [metrics.get(name) for name in ("nmi", "ari", "majority_accuracy")]
    return Table(
        "held-out images: kNN and linear accuracy in %; groups against the truth: NMI, ARI, purity",
        ["method", "data", "kNN", "linear", "NMI", "ARI", "purity", "seconds"],
        [[method, dataset, *accuracies, *groups, round(seconds, 1)]],
    )


def _retrieval_table(method: str, dataset: str, metrics: Mapping[str, float], seconds: float) -> Table:
    """Each held-out image a query among all others."""
    recall = [name for name in metrics if name.startswith("recall_at_")]
    return Table(
        "held-out images, in %: a match among the K nearest (R@K), mean average precision at R (MAP@R)",
        ["method", "data", *(f"R@{name.removeprefix('recall_at_')}" for name in recall), "MAP@R", "seconds"],
        [[method, dataset, *(100 * metrics[name] for name in recall), 100 * metrics["map_at_r"], round(seconds, 1)]],
    )


def _classification_table(method: str, dataset: str, metrics: Mapping[str, float], seconds: float) -> Table:
    """Share of held-out images that are named rightly; the best epoch is chosen by these very images."""
    names = ("accuracy", "best_accuracy", "top5_accuracy")
    percent = [100 * metrics[name] if name in metrics else None for name in names]
    return Table(
        "held-out images, accuracy in %: last epoch, best of all epochs, and among the five likeliest",
        ["method", "data", "top 1", "best", "top 5", "seconds"],
        [[method, dataset, *percent, round(seconds, 1)]],
    )


def _plan(method_name: str, config: RunConfig) -> SimpleResult:
    """Build everything, time a few steps on real batches, write nothing."""
    runtime = Runtime(device=config.device, precision=config.precision, threads=config.threads)
    before = _peak_memory(runtime)
    setup = _set_up(method_name, config, runtime, fresh=True)
    steps = 4
    limited = config.model_copy(update={"stop_after_steps": 1, "tensorboard": False})
    trainer = _trainer(setup, limited, runtime, None)
    trainer.fit()
    started = time.perf_counter()
    trainer.config = config.model_copy(update={"stop_after_steps": 1 + steps, "tensorboard": False})
    finished = trainer.fit().step - 1
    seconds = (time.perf_counter() - started) / max(1, finished)
    total = trainer.total_steps()
    parameters, trained = count_parameters(setup.method)
    memory = _peak_memory(runtime) - before
    values: dict[str, object] = {
        "method": method_name,
        "config": config.to_yaml_dict(),
        "run": run_folder(config),
        "samples": setup.prepared.counts(),
        "skipped": len(setup.bank.bad),
        "in_memory": setup.bank.in_memory,
        "parameters": parameters,
        "trained_parameters": trained,
        "steps_per_epoch": trainer.steps_per_epoch(0),
        "steps": total,
        "seconds_per_step": round(seconds, 4),
        "estimated_minutes": round(total * seconds / 60, 1),
        "memory_mib": round(memory / 2**20),
        "device": str(runtime.device),
    }
    rows = [[key, str(value)] for key, value in values.items() if key != "config"]
    options = [[key, value_text(value, longest=None)] for key, value in config.to_yaml_dict().items()]
    shown = (
        Table("configuration", ["option", "value"], options),
        Table("plan (nothing was written)", ["what", "value"], rows),
    )
    return SimpleResult(values, (), shown)


def _peak_memory(runtime: Runtime) -> int:
    """Largest memory so far in bytes: of the GPU, or of this process."""
    if runtime.device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(runtime.device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
