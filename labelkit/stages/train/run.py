"""Train a method: images, a split and options in; a run folder with checkpoints and metrics out."""

from __future__ import annotations

import json
import platform
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit import __version__
from labelkit.config.base import value_text, values_before
from labelkit.config.rows import RowOptions
from labelkit.config.train import RunConfig
from labelkit.data.datasets import ImageDataset
from labelkit.data.image_bank import ImageBank
from labelkit.engine.checkpoint import load_checkpoint
from labelkit.engine.devices import Runtime
from labelkit.engine.inputs import HeldOut, MonitorInputs, RunInputs
from labelkit.engine.method import Method, count_parameters, trainable_names
from labelkit.engine.run_dir import KEPT, SPLIT, SUMMARY, RunDir, check_same_options, read_split
from labelkit.engine.saving import gpu_facts
from labelkit.engine.trainer import FitResult, Trainer
from labelkit.errors import CheckpointMismatch, ConfigError, DatasetError, InputError, ResourceError
from labelkit.methods.registry import METHODS
from labelkit.models.weights import fingerprint
from labelkit.reading import read_object
from labelkit.stages.progress import current_progress
from labelkit.stages.result import Cell, SimpleResult, Table, jsonable
from labelkit.stages.several import check_same_on_all
from labelkit.stages.train.frozen_score import frozen_score
from labelkit.stages.train.initialize import describe_weights, initialize_from, without_weights
from labelkit.stages.train.prepare import PreparedData, deciding_images, eval_images, info_record, prepare_data
from labelkit.stages.train.reuse import keep_views, plan_reuse, stand_in
from labelkit.stages.train.verdict import starts_from_weights, training_verdict
from labelkit.store.commit import canonical_json

# scores of what training starts from
START = "before.json"


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
    if config.compile and not METHODS[method_name].load().runs_whole_backbone:
        raise ConfigError(
            "--compile", f"{method_name} looks inside the backbone, which is not run as a whole", "Leave it out."
        )
    if config.dry_run:
        return _plan(method_name, config)
    runtime = _runtime(config)
    check_same_on_all(config, runtime.texts)
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


def _runtime(config: RunConfig) -> Runtime:
    return Runtime(
        device=config.device, precision=config.precision, threads=config.threads, deterministic=config.deterministic
    )


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
        before = values_before(type(config))
        allowed = config.resumable_fields | (config.retired_fields - options.keys())
        check_same_options(run.path, method_name, options, allowed=allowed, before=before)
    checkpoint = load_checkpoint(run.path, say=progress.warning) if config.resume else None
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
    elif starts_from_weights(config):
        start = trainer.score_start()
        if start and runtime.is_main:
            run.write_json(START, start)
    try:
        _reuse_frozen(setup, config, runtime, run, trainer)
        with progress.task("train", total=trainer.total_steps()) as task:
            task.advance(trainer.clock.step)
            trainer.report = task
            fit = trainer.fit()
    except ResourceError as error:
        # the same command again would only say that the folder exists
        remedy = "Make room, then give the same command with --resume; earlier checkpoints are kept."
        raise ResourceError(error.where, error.problem, remedy) from error
    return _summarize(config, run, setup, trainer, fit)


def _reuse_frozen(setup: _Setup, config: RunConfig, runtime: Runtime, run: RunDir, trainer: Trainer) -> None:
    """With ``--reuse-frozen``: compute what the frozen part makes of views, and train on that."""
    reuse = plan_reuse(setup.method, setup.bank, config, runtime, trainer.phases[0])
    if reuse is None:
        return

    def begun(folder: Path) -> None:
        run.write_json(KEPT, {"folder": f"../{folder.name}"})

    trainer.train_on(keep_views(setup.method, setup.bank, config, runtime, reuse, run.path, begun))


def _check_same_data(run: RunDir, prepared: PreparedData) -> None:
    """Refuse to go on when images, labels or the split are no longer those of the run.

    Raises:
        CheckpointMismatch: naming the first thing that differs.
    """
    if not (run.path / SPLIT).exists():  # killed before it was written, so nothing was trained on it either
        return
    saved = read_split(run.path)
    now = json.loads(canonical_json(prepared.to_json()))
    if saved.get("dataset_digest") == now["dataset_digest"] and saved.get("split") == now["split"]:
        return
    then, images = saved.get("split", {}).get("num_samples"), now["split"]["num_samples"]
    raise CheckpointMismatch(
        str(run.path),
        f"the data are no longer those of the run ({images} images, {then} when it began; or other labels or rows)",
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
    progress = current_progress()
    prepared = prepare_data(config)
    if config.needs_unlabeled and not (prepared.labels < 0).any():
        raise DatasetError(
            config.main_dataset,
            f"every image is labeled, so that {method_name} finds no unlabeled image to learn from",
            "Pass --num-labels N to hide the others and measure how well N do; or learn from all labels with "
            "`labelkit train supervised`. In a CSV, empty labels mean unlabeled.",
        )
    info = prepared.info(config.view_size or 0)
    method = METHODS[method_name].load()(config if fresh else without_weights(config), info)
    if fresh and config.init_from is not None:
        initialize_from(method, config.init_from)
    else:
        describe_weights(method.network)

    def bank_of(dataset: ImageDataset, num_neighbors: int = 0) -> ImageBank:
        if prepared.rows is not None:
            return prepared.rows.bank(dataset, num_neighbors=num_neighbors, device=runtime.device)
        size = method.network.input_spec.size
        bank = ImageBank(dataset, channels=dataset.in_channels, base_size=size, device=runtime.device)
        bank.check(config.bad_limit)
        return bank

    def deciding(option: str, split: str) -> HeldOut:
        images = deciding_images(config, prepared, option, split)
        return HeldOut(bank_of(images), images.labels)

    def known(option: str) -> NDArray[np.int64]:
        progress.warning(f"{option} uses labels that are hidden from training: what comes out is a comparison alone")
        return prepared.dataset.labels

    method.attach(
        RunInputs(
            dataset_name=prepared.dataset.name,
            sample_ids=prepared.dataset.sample_ids,
            source=prepared.dataset.source,
            digest=lambda: prepared.objects_digest or prepared.dataset.digest(),
            folder=run_folder(config),
            is_new=fresh,
            writes=not config.dry_run,
            held_out=deciding,
            say=progress.message,
            truth=known,
        )
    )
    for note in prepared.dataset.notes:
        progress.message(note)
    judging = eval_images(config, prepared)
    held_out = None if judging is None else HeldOut(bank_of(judging), judging.labels)
    num_neighbors = 0
    if isinstance(config, RowOptions) and config.has_strong_views and config.row_mix > 0 and info.num_row_views == 0:
        num_neighbors = config.row_neighbors
    return _Setup(prepared, bank_of(prepared.dataset, num_neighbors), method, held_out)


def _trainer(setup: _Setup, config: RunConfig, runtime: Runtime, run: RunDir | None) -> Trainer:
    prepared, method = setup.prepared, setup.method
    known = MonitorInputs(setup.bank.rows, prepared.dataset.labels, prepared.dataset.sample_ids, setup.held_out)
    return Trainer(
        method,
        setup.bank,
        prepared.labels,
        config,
        runtime,
        run=run,
        monitor=method.monitor(known if run is None else replace(known, write_text=run.write_text)),
        message=current_progress().message,
        metadata={"method": config.command[1], **method.network.identity},
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
            **gpu_facts(runtime.device),
            "trained": trainable_names(setup.method),
        },
    )


def _summarize(config: RunConfig, run: RunDir, setup: _Setup, trainer: Trainer, fit: FitResult) -> SimpleResult:
    method_name = config.command[1]
    last = run.checkpoints / "last.json"
    values: dict[str, object] = {
        "method": method_name,
        "dataset": config.main_dataset,
        "run": run.path,
        "finished": fit.finished,
        **({} if config.in_epochs is None else {"epochs": config.in_epochs.epochs}),
        "steps": fit.step,
        "seconds": round(fit.seconds, 2),
        "samples": setup.prepared.counts(),
        "skipped": len(setup.bank.bad),
        "metrics": dict(fit.metrics),
        "weights_fingerprint": fingerprint(setup.method.headline()),
        "checkpoint": read_object(last, {"checkpoint": str})["checkpoint"] if last.exists() else None,
    }
    if fit.finished:
        run.write_json(SUMMARY, jsonable(values))
        for remark in setup.method.remarks(fit.metrics):
            current_progress().warning(remark)
    monitor = trainer.monitor
    scores = None if monitor is None else monitor.table(fit.metrics)
    if monitor is None or scores is None:
        return SimpleResult(values, (run.path,), ())
    rows: list[list[Cell]] = [[method_name, config.main_dataset, *scores.values, round(fit.seconds, 1)]]
    start = _scores_of_start(run)
    if start:
        values["before_training"] = start
        as_it_was = monitor.table(start)
        if as_it_was is not None and as_it_was.columns == scores.columns:
            rows.insert(0, ["before training", config.main_dataset, *as_it_was.values, None])
        warning = monitor.compare(start, fit.metrics) if fit.finished else None
        if warning is not None:
            current_progress().warning(warning)
    return SimpleResult(
        values, (run.path,), (Table(scores.title, ["method", "data", *scores.columns, "seconds"], rows),)
    )


def _scores_of_start(run: RunDir) -> dict[str, float]:
    """Scores of the features that the run started from; empty where they were not measured."""
    path = run.path / START
    if not path.exists():
        return {}
    found = read_object(path, {})
    return {name: float(value) for name, value in found.items()}


def _plan(method_name: str, config: RunConfig) -> SimpleResult:
    """Build everything, time a few steps on real batches, write nothing."""
    runtime = _runtime(config)
    before = runtime.peak_memory()
    asked = config
    if config.stand_ins:  # features of noise and of random weights are all alike, which guards would refuse
        config = without_weights(config).model_copy(update={"guard": "none"})
    setup = _set_up(method_name, config, runtime, fresh=True)
    steps = 4
    limited = config.model_copy(update={"stop_after_steps": 1, "tensorboard": False})
    trainer = _trainer(setup, limited, runtime, None)
    score, search = None, {}
    if not config.stand_ins:
        search = trainer.score_start() if starts_from_weights(config) else {}
        score = frozen_score(trainer, setup.method, setup.prepared.labels, config.seed)
    reuse = plan_reuse(setup.method, setup.bank, config, runtime, trainer.phases[0])
    if reuse is not None:
        trainer.train_on(stand_in(setup.method, setup.bank, config, runtime, reuse))
    started = time.perf_counter()
    trainer.fit()
    runtime.wait()
    first = time.perf_counter() - started
    started = time.perf_counter()
    trainer.config = config.model_copy(update={"stop_after_steps": 1 + steps, "tensorboard": False})
    finished = trainer.fit().step - 1
    runtime.wait()
    seconds = (time.perf_counter() - started) / max(1, finished)
    total = trainer.total_steps()
    parameters, trained = count_parameters(setup.method)
    memory = runtime.peak_memory() - before
    values: dict[str, object] = {
        "method": method_name,
        "config": asked.to_yaml_dict(),
        "run": run_folder(config),
        "samples": setup.prepared.counts(),
        "skipped": len(setup.bank.bad),
        "in_memory": setup.bank.in_memory,
        "parameters": parameters,
        "trained_parameters": trained,
        "steps_per_epoch": trainer.steps_per_epoch(0),
        "steps": total,
        "seconds_per_step": round(seconds, 4),
        "start_minutes": round(max(0.0, first - seconds) / 60, 1),
        "estimated_minutes": round(total * seconds / 60, 1),
        "memory_mib": round(memory / 2**20),
        "device": str(runtime.device),
    }
    verdict = None
    if not config.stand_ins:  # noise tells nothing of what training gains
        known = setup.method.data
        num_classes = max(known.num_known_classes or known.num_old_classes, setup.method.headline().num_outputs)
        verdict = training_verdict(
            method_name, config, setup.prepared.labels, num_classes, num_row_views=known.num_row_views
        )
        values["verdict"] = verdict.to_json()
    if score is not None:
        values["before_training"] = asdict(score)
    if search:
        values["search_before_training"] = search
    if reuse is not None:
        values["kept_gib"] = round(reuse.plan.num_bytes / 2**30, 3)
        values["kept_minutes"] = round(reuse.seconds / 60, 1)
    in_words = ("config", "samples", "before_training", "search_before_training", "verdict")
    rows = [[key, str(value)] for key, value in values.items() if key not in in_words]
    rows.insert(2, ["samples", setup.prepared.describe()])
    if score is not None:
        rows.append(["before_training", score.describe()])
    if search and trainer.monitor is not None:
        told = trainer.monitor.table(search)
        if told is not None:
            pairs = ", ".join(f"{name} {value}" for name, value in zip(told.columns, told.values, strict=True))
            rows.append(["search before training", f"{pairs} (held-out images)"])
    if verdict is not None:
        rows.append(["will training help?", verdict.describe()])
    options = [[key, value_text(value, longest=None)] for key, value in asked.to_yaml_dict().items()]
    shown = (
        Table("configuration", ["option", "value"], options),
        Table("plan (nothing was written)", ["what", "value"], rows),
    )
    return SimpleResult(values, (), shown)
