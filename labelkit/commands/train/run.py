"""Train a method, and write a run folder with checkpoints and metrics.

Also warn about modules of a user's own method that are never called because of a misnamed attribute.
"""

import platform
import shlex
import sys

import numpy as np
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from labelkit import __version__
from labelkit.commands.common.networks import read_trained_labels
from labelkit.commands.common.results import Cell, CommandResult, Table, to_json_types
from labelkit.commands.train.dry_run import has_pretrained_features, plan_training
from labelkit.commands.train.reuse import plan_frozen_cache
from labelkit.commands.train.setup import RunSetup, build_trainer, choose_run_folder, prepare_training, set_up_runtime
from labelkit.errors import CheckpointDamaged, CheckpointMismatch, ConfigError, InputError, Interrupted, ResourceError
from labelkit.files import read_json_object
from labelkit.methods.registry import METHODS, OWN_SOURCES
from labelkit.methods.spec import MethodSource
from labelkit.models.weights.files import fingerprint
from labelkit.options.base import equals_constant, list_legacy_defaults, list_retired_options
from labelkit.options.training import RunConfig
from labelkit.progress import current_progress
from labelkit.store.commit import to_plain_json
from labelkit.store.embeddings import encode_image_set
from labelkit.training.checkpoint import load_checkpoint
from labelkit.training.devices import Runtime
from labelkit.training.method import count_parameters, trainable_parameter_names
from labelkit.training.run_dir import (
    IMAGES_SHA256,
    SPLIT,
    SUMMARY,
    RunDir,
    check_same_options,
    read_run_config,
    read_split,
)
from labelkit.training.saving import gpu_properties
from labelkit.training.trainer import FitResult, Trainer


def warn_of_unused_modules(method: nn.Module, code: MethodSource) -> None:
    """After the first step, warn about modules from the user's own file that the step has not called."""
    called: set[nn.Module] = set()
    watch = register_module_forward_pre_hook(lambda part, _: called.add(part))

    def after(*_: object) -> None:
        watch.remove()
        end.remove()
        for name, part in method.named_modules():
            source = getattr(sys.modules.get(type(part).__module__), "__file__", None)
            if name and part not in called and source == str(code.path):
                current_progress().warning(
                    f"{code.name}: the first step did not call {name!r} ({type(part).__name__}); unless a later phase "
                    "does, labelkit uses its own module under another name (see the guide on custom methods)"
                )

    end = method.register_forward_hook(after)


# retrieval scores before training
START = "before.json"
# versions, devices, threads
ENVIRONMENT = "environment.json"
# key in this file: name of a user's method file, and a list with its digest
OWN_CODE = "own_method"


def train_method(config: RunConfig) -> CommandResult:
    """Train the method specified by the options.

    Returns:
        Summary of the run: its folder, the metrics of the last epoch, and the last checkpoint.

    Raises:
        ConfigError, DatasetError, CheckpointError: the options, data or weights cannot be used.
        DivergenceError: training diverged.
        Interrupted: a signal interrupted the run, after a checkpoint was written.
    """
    method_name = config.command[1]
    if config.compile and not METHODS[method_name].load().runs_whole_backbone:
        problem = f"{method_name} uses intermediate layers of the backbone, so the backbone cannot be compiled"
        raise ConfigError("--compile", problem, "Remove --compile.")
    if config.dry_run:
        return plan_training(method_name, config)
    runtime = set_up_runtime(config)
    out = choose_run_folder(config)
    run = RunDir(out, writes=runtime.is_main)
    try:
        if runtime.is_main:
            run.open(resume=config.resume, overwrite=config.overwrite)
        runtime.barrier()
        return _train(method_name, config, runtime, run)
    except (ConfigError, InputError):
        if not config.resume:
            # delete the folder, so that the command works once the error is corrected
            run.remove_if_untrained()
        raise
    except Interrupted as interrupted:
        interrupted.resumable = config.resume or run.begun
        raise
    finally:
        run.close()
        if sys.exc_info()[0] is None:
            runtime.close()


def _train(method_name: str, config: RunConfig, runtime: Runtime, run: RunDir) -> CommandResult:
    progress = current_progress()
    options = config.to_yaml_dict(operational=False)
    checkpoint = None
    if config.resume:
        before, (_, written) = list_legacy_defaults(type(config)), read_run_config(run.path)
        retired = list_retired_options(type(config)).items()
        unchanged = {key for key, value in retired if equals_constant(value, written.get(key, value))}
        allowed = config.resumable_fields | unchanged
        longer = check_same_options(run.path, method_name, options, allowed=allowed, before=before)
        if longer is not None:
            progress.warning(longer)
        _check_same_code(run, method_name)
        checkpoint = load_checkpoint(run.path, show_message=progress.warning)
    setup = prepare_training(method_name, config, runtime, fresh=checkpoint is None)
    runtime.barrier()
    if config.resume:
        if checkpoint is None:
            progress.message(f"{run.path} has no checkpoint yet, so training starts with the first epoch")
        _check_same_data(run, setup)
        run.update_options(method_name, options)
    else:
        run.begin(method_name, options)
    if checkpoint is None:
        _write_facts(run, setup, runtime)
    runtime.barrier()

    if setup.bank.bad:
        progress.warning(f"skipping {len(setup.bank.bad)} unreadable images; see skipped.json in the run folder")
    total_parameters, trained_parameters = count_parameters(setup.method)
    progress.message(
        f"{method_name} on {config.main_dataset}: {setup.prepared.describe()}; "
        f"{total_parameters:,} parameters, {trained_parameters:,} trained, on {runtime.device}"
        + (f" x {runtime.world_size} processes" if runtime.world_size > 1 else "")
    )
    trainer = build_trainer(setup, config, runtime, run)
    if checkpoint is not None:
        trainer.restore(checkpoint)
        progress.message(f"resumed at epoch {trainer.clock.epoch}, step {trainer.clock.step}")
    elif has_pretrained_features(config):
        start = trainer.score_before_training()
        if start and runtime.is_main:
            run.write_json(START, start)
    if method_name in OWN_SOURCES and runtime.is_main:
        warn_of_unused_modules(setup.method, OWN_SOURCES[method_name])
    try:
        reuse = plan_frozen_cache(setup.method, setup.bank, trainer.config, runtime, trainer.phases[0])
        if reuse is not None:
            trainer.use_cached_views(reuse.build_cached_bank(run.path))
        with progress.task("train", total=trainer.total_steps()) as task:
            task.skip(trainer.clock.step)
            trainer.progress_task = task
            fit = trainer.fit()
    except ResourceError as error:
        if not isinstance(error.__cause__, OSError):  # not an error in writing files
            raise
        # without --resume, the same command would fail because the folder exists
        how = "--resume instead of --overwrite" if config.overwrite else "--resume"
        remedy = f"Free some disk space, and run the same command with {how}; earlier checkpoints are kept."
        raise ResourceError(error.where, error.problem, remedy) from error
    return _summarize(config, run, setup, trainer, fit)


def _check_same_code(run: RunDir, method_name: str) -> None:
    """Raise ``CheckpointMismatch`` if a user-defined method has changed since the run began."""
    path, own = run.path / ENVIRONMENT, OWN_SOURCES.get(method_name)
    if own is None or not path.exists():  # the run was killed before training
        return
    try:
        then = read_json_object(path, {OWN_CODE: dict})[OWN_CODE].get("sha256")
    except (OSError, ValueError) as error:
        raise CheckpointDamaged(str(path), f"cannot be read: {error}", "Restore the file.") from error
    if then != [own.sha256]:
        remedy = "Restore the file, or start a new run (to keep the weights, pass --init-from)."
        raise CheckpointMismatch(str(run.path), f"{own.name} has changed since the run began", remedy)


def _check_same_data(run: RunDir, setup: RunSetup) -> None:
    if not (run.path / SPLIT).exists():  # the run was killed before training
        return
    saved = read_split(run.path)
    now = to_plain_json(setup.prepared.to_json() | {IMAGES_SHA256: setup.bank.digest()})
    saved.setdefault(IMAGES_SHA256, now[IMAGES_SHA256])  # missing in runs of earlier versions
    if all(saved.get(key) == now[key] for key in ("dataset_digest", "split", IMAGES_SHA256)):
        return
    then, images = saved.get("split", {}).get("num_samples"), now["split"]["num_samples"]
    raise CheckpointMismatch(
        str(run.path),
        f"the images, labels or embeddings have changed since the run began ({images} images now, {then} then)",
        "Restore the data, or start a new run (to keep the weights, pass --init-from).",
    )


def _write_facts(run: RunDir, setup: RunSetup, runtime: Runtime) -> None:
    prepared, own = setup.prepared, OWN_SOURCES.get(setup.method.config.command[1])
    facts = {"trained_labels": _trained_labels(setup), "info": setup.method.data.to_json()}
    facts[IMAGES_SHA256] = setup.bank.digest()
    run.write_json(SPLIT, prepared.to_json() | facts)
    skipped = {prepared.dataset.sample_ids[row]: reason for row, reason in sorted(setup.bank.bad.items())}
    if skipped:
        run.write_json("skipped.json", skipped)
    run.write_json(
        ENVIRONMENT,
        {
            "labelkit": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "platform": platform.platform(),
            "device": str(runtime.device),
            "processes": runtime.world_size,
            "threads": torch.get_num_threads(),
            **gpu_properties(runtime.device),
            **({} if own is None else {OWN_CODE: {"name": own.name, "sha256": [own.sha256]}}),
            "trained": trainable_parameter_names(setup.method),
        },
    )


def _trained_labels(setup: RunSetup) -> str:
    """Return the images on whose labels the network is trained, including those of the runs from which it starts."""
    prepared, config = setup.prepared, setup.method.config
    used = np.flatnonzero(prepared.split.labeled)
    before = [read_trained_labels(path) for name in ("init_from", "weights") if (path := getattr(config, name, None))]
    if prepared.embeddings is not None:
        before.append(prepared.embeddings.store.model.trained_labels)
    return encode_image_set((prepared.dataset.sample_ids[row] for row in used), setup.bank.sha256[used], *before)


def _summarize(config: RunConfig, run: RunDir, setup: RunSetup, trainer: Trainer, fit: FitResult) -> CommandResult:
    method_name = config.command[1]
    last = run.checkpoints / "last.json"
    values: dict[str, object] = {
        "method": method_name,
        "dataset": config.main_dataset,
        "run": run.path,
        "finished": fit.finished,
        **({} if config.epoch_config is None else {"epochs": config.epoch_config.epochs}),
        "steps": fit.step,
        "seconds": round(fit.seconds, 2),
        "samples": setup.prepared.counts(),
        "skipped": len(setup.bank.bad),
        "metrics": dict(fit.metrics),
        "weights_fingerprint": fingerprint(setup.method.main_network()),
        "checkpoint": read_json_object(last, {"checkpoint": str})["checkpoint"] if last.exists() else None,
    }
    if fit.finished:
        run.write_json(SUMMARY, to_json_types(values))
        for remark in setup.method.remarks(fit.metrics):
            current_progress().warning(remark)
    path = run.path / START
    start = {name: float(value) for name, value in read_json_object(path, {}).items()} if path.exists() else {}
    monitor = trainer.monitor
    if fit.finished:
        index = getattr(config, "index", None)
        images = ["--index", str(index)] if index is not None else ["--dataset", config.main_dataset]
        words = ["labelkit", "embed", *images, "--checkpoint", str(run.path), "--out", f"{run.path.name}.h5"]
        current_progress().message(f"next, embed images with it: {shlex.join(words)}")
    scores = None if monitor is None else monitor.table(fit.metrics)
    if monitor is None or scores is None:
        return CommandResult(values, (run.path,), ())
    rows: list[list[Cell]] = [[method_name, config.main_dataset, *scores.values, round(fit.seconds, 1)]]
    if start:
        values["search_before_training"] = start
        as_it_was = monitor.table(start)
        if as_it_was is not None and as_it_was.columns == scores.columns:
            rows.insert(0, ["before training", config.main_dataset, *as_it_was.values, None])
    table = Table(scores.title, ["method", "data", *scores.columns, "seconds"], rows)
    return CommandResult(values, (run.path,), (table,))
