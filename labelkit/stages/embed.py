"""Embed every image of a data set; a store appears once, complete."""

from __future__ import annotations

import resource
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit import __version__
from labelkit.config.stages import EmbedConfig
from labelkit.data.datasets import ImageDataset, load_dataset
from labelkit.data.decode import Channels
from labelkit.data.loading import EvalLoader
from labelkit.data.splits import LabelSplit
from labelkit.data.transforms import Normalize
from labelkit.engine.devices import Runtime
from labelkit.errors import DivergenceError, Interrupted
from labelkit.stages.initialize import describe_weights
from labelkit.stages.locations import remember_images, remember_model
from labelkit.stages.networks import EmbeddingNetwork, embedding_network, numerics_record
from labelkit.stages.prepare import choose_split_rows, prepare_data
from labelkit.stages.progress import Task, current_progress
from labelkit.stages.result import SimpleResult, Table
from labelkit.store.embeddings import open_store
from labelkit.store.writing import EmbeddingPlan, EmbeddingRun


def embed_images(config: EmbedConfig) -> SimpleResult:
    """Embed a data set with the network of a run, a backbone, or the pixels themselves.

    A killed run goes on where it stopped when the same command is given again; rows are the same bytes either way.

    Raises:
        DatasetError: no images, or too many that cannot be read.
        CheckpointError: the run or the weights cannot be used.
        StoreError: the output exists and holds something else.
    """
    if config.checkpoint is None:
        prepared = prepare_data(config)
        dataset, labeled, old_classes, order = _from_prepared(prepared.dataset, prepared.split)
        model = embedding_network(config, dataset.in_channels)
    else:
        model = embedding_network(config, 3)
        dataset, labeled, old_classes, order = _from_run(config, model)
    runtime = Runtime(device=config.device, precision=config.precision, threads=config.threads)
    describe_weights(model.network)
    network = model.network.to(runtime.device)
    plan = _plan(config, runtime, model, dataset, labeled, old_classes)
    if config.dry_run:
        return _describe_plan(config, runtime, model, dataset, plan, order)
    progress = current_progress()
    for note in dataset.notes:
        progress.message(note)
    started = time.monotonic()
    run = EmbeddingRun.open(config.out, plan, overwrite=config.overwrite)
    for warning in run.warnings:
        progress.warning(warning)
    embedded_now = 0
    if not run.already_done:
        parts = run.pending_parts(runtime.rank, runtime.world_size)
        total = sum(run.part_range(k)[1] - run.part_range(k)[0] for k in parts)
        with progress.task("embed", total=total) as task, _stop_between_batches() as stop:
            for k in parts:
                embedded_now += _embed_part(run, k, dataset, model, network, runtime, config, order, task, stop)
        runtime.barrier()
        if runtime.is_main:
            run.publish(config.bad_limit)
        runtime.barrier()
    runtime.close()
    seconds = time.monotonic() - started
    store = open_store(config.out)
    if model.location is not None:
        remember_model(store.model.weights_fingerprint, model.location)
    remember_images(store.content_digest, config.dataset, config.data_root)
    labeled_rows = 0 if store.labeled is None else int(np.asarray(store.labeled).sum())
    values: dict[str, object] = {
        "index": config.out,
        "rows": store.n,
        "dim": store.dim,
        "labeled": labeled_rows,
        "skipped": [{"sample_id": name, "reason": reason} for name, reason in store.skipped],
        "model": {
            "name": store.model.name,
            "source": store.model.source,
            "fingerprint": store.model.weights_fingerprint,
        },
        "content_digest": store.content_digest,
        "already_done": run.already_done,
        "seconds": round(seconds, 2),
        "images_per_second": round(embedded_now / seconds, 1) if embedded_now else None,
    }
    shown = Table(
        "",
        ["index", "rows", "dim", "labeled", "skipped", "model", "seconds"],
        [[config.out, store.n, store.dim, labeled_rows, len(store.skipped), store.model.name, round(seconds, 1)]],
    )
    skipped = Table("images left out", ["image", "reason"], [list(pair) for pair in store.skipped[:20]])
    return SimpleResult(values, (config.out,), (shown, skipped) if store.skipped else (shown,))


def _from_prepared(
    dataset: ImageDataset, split: LabelSplit
) -> tuple[ImageDataset, NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]:
    old = np.zeros(len(dataset.class_names), dtype=bool)
    old[list(split.old_classes)] = split.labeled.any()
    return dataset, split.labeled, old, np.zeros(0, dtype=np.int64)


def _from_run(
    config: EmbedConfig, model: EmbeddingNetwork
) -> tuple[ImageDataset, NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]]:
    """Images, labeled rows, old classes, and the order of the classifier's columns.

    The labels that training used are those the store calls usable, if it is the same data set; another data set
    gets its labels as ``--label-split`` says.
    """
    assert model.run_split is not None
    dataset = load_dataset(config.dataset, data_root=config.data_root, download=config.download)
    names, saved = list(dataset.class_names), model.run_split
    num_outputs = model.network.num_outputs
    trained_order = [int(label) for label in saved["split"]["old_classes"]]
    # old classes ascending, then the anonymous columns: what readers of a store rely on
    order = np.concatenate([np.argsort(trained_order), np.arange(len(trained_order), num_outputs)]).astype(np.int64)
    if num_outputs == 0:
        order = np.zeros(0, dtype=np.int64)
    if dataset.name != saved["dataset"] or names != saved["class_names"]:
        current_progress().message(
            f"{config.dataset} is not what the run was trained on ({saved['dataset']}): labels as --label-split says"
        )
        prepared = prepare_data(config)
        dataset, labeled, old, _ = _from_prepared(prepared.dataset, prepared.split)
        return dataset, labeled, old, np.zeros(0, dtype=np.int64)
    dataset = dataset.select(choose_split_rows(dataset, config.split))
    used = set(saved["split"]["labeled"])
    labeled = np.array([sample_id in used for sample_id in dataset.sample_ids], dtype=bool)
    old = np.zeros(len(names), dtype=bool)
    old[trained_order] = True
    return dataset, labeled, old, order


def _plan(
    config: EmbedConfig,
    runtime: Runtime,
    model: EmbeddingNetwork,
    dataset: ImageDataset,
    labeled: NDArray[np.bool_],
    old_classes: NDArray[np.bool_],
) -> EmbeddingPlan:
    has_labels = len(dataset.class_names) > 0
    network = model.network
    part_rows = -(-config.part_rows // config.batch_size) * config.batch_size
    return EmbeddingPlan(
        sample_ids=dataset.sample_ids,
        labels=dataset.labels if has_labels else None,
        labeled=labeled.astype(np.uint8) if has_labels else None,
        class_names=dataset.class_names,
        old_classes=old_classes.astype(np.uint8) if has_labels else None,
        splits=dataset.splits if dataset.split_names else None,
        split_names=dataset.split_names,
        model=model.identity(numerics_record(runtime, config.precision, config.batch_size)),
        dim=network.embed_dim,
        dtype=config.dtype,
        extras={"logits": network.num_outputs} if config.logits and network.num_outputs else {},
        batch_size=config.batch_size,
        part_rows=part_rows,
        normalized=False,
        metric="cosine",
        created_by=f"labelkit {__version__}",
    )


def _embed_part(
    run: EmbeddingRun,
    k: int,
    dataset: ImageDataset,
    model: EmbeddingNetwork,
    network: Any,
    runtime: Runtime,
    config: EmbedConfig,
    order: NDArray[np.int64],
    task: Task,
    stop: list[int],
) -> int:
    start, end = run.part_range(k)
    spec = network.input_spec
    loader = EvalLoader(
        dataset,
        model.view,
        rows=np.arange(start, end, dtype=np.int64),
        batch_size=config.batch_size,
        normalize=Normalize(spec.mean, spec.std),
        channels=_channels(spec.channels),
        device=runtime.device,
        num_workers=config.num_workers,
        identify=True,
    )
    embedded: list[NDArray[np.float32]] = []
    logits: list[NDArray[np.float32]] = []
    digests: list[NDArray[np.uint8]] = []
    file_sizes: list[NDArray[np.uint64]] = []
    image_sizes: list[NDArray[np.uint32]] = []
    skipped: list[tuple[int, str]] = []
    for batch in loader:
        if stop:
            raise Interrupted(stop[0])
        with torch.inference_mode(), runtime.autocast():
            features = network.embed(batch.images)
            outputs = network.classify(features) if run.plan.extras else None
        broken = {row for row, _ in batch.bad}
        skipped.extend(batch.bad)
        keep = np.array([i for i, row in enumerate(batch.rows) if int(row) not in broken], dtype=np.int64)
        rows = features.float().cpu().numpy()[keep]
        if not np.isfinite(rows).all():
            raise DivergenceError(
                f"{config.dataset} rows {int(batch.rows[0])} to {int(batch.rows[-1])}",
                "the network gives NaN or infinite embeddings",
                "Use --precision float32, or another checkpoint.",
            )
        embedded.append(rows)
        if outputs is not None:
            table = outputs.float().cpu().numpy()[keep]
            logits.append(table[:, order] if len(order) else table)
        assert batch.sha256 is not None
        assert batch.file_sizes is not None
        assert batch.image_sizes is not None
        digests.append(batch.sha256[keep])
        file_sizes.append(batch.file_sizes[keep])
        image_sizes.append(batch.image_sizes[keep])
        task.advance(len(batch.rows))
    run.write_part(
        k,
        embeddings=np.concatenate(embedded),
        sha256=np.concatenate(digests),
        file_sizes=np.concatenate(file_sizes),
        image_sizes=np.concatenate(image_sizes),
        extras={"logits": np.concatenate(logits)} if logits else {},
        skipped=skipped,
    )
    return end - start


def _channels(number: int) -> Channels:
    return 1 if number == 1 else 3


@contextmanager
def _stop_between_batches() -> Iterator[list[int]]:
    """Turn SIGINT and SIGTERM into a note that is read between batches."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)

    try:
        before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: whoever runs us there owns the signals
        before = {}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _describe_plan(
    config: EmbedConfig,
    runtime: Runtime,
    model: EmbeddingNetwork,
    dataset: ImageDataset,
    plan: EmbeddingPlan,
    order: NDArray[np.int64],
) -> SimpleResult:
    """Time two batches on real images, write nothing."""
    spec = model.network.input_spec
    rows = np.arange(min(len(dataset), 2 * config.batch_size), dtype=np.int64)
    loader = EvalLoader(
        dataset,
        model.view,
        rows=rows,
        batch_size=config.batch_size,
        normalize=Normalize(spec.mean, spec.std),
        channels=_channels(spec.channels),
        device=runtime.device,
    )
    started = time.perf_counter()
    with torch.inference_mode(), runtime.autocast():
        for batch in loader:
            model.network.embed(batch.images)
    seconds = (time.perf_counter() - started) / len(rows)
    width = plan.dim * (2 if config.dtype == "float16" else 4)
    unit = 1 if sys.platform == "darwin" else 1024
    parameters = sum(p.numel() for p in model.network.parameters())
    values: dict[str, object] = {
        "config": config.to_yaml_dict(),
        "images": len(dataset),
        "dim": plan.dim,
        "model": model.network.identity["name"],
        "parameters": parameters,
        "store_mib": round(len(dataset) * (width + 48) / 2**20, 2),
        "memory_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20),
        "estimated_minutes": round(len(dataset) * seconds / 60, 2),
        "device": str(runtime.device),
    }
    rows_shown = [[key, str(value)] for key, value in values.items() if key != "config"]
    return SimpleResult(values, (), (Table("plan (nothing was written)", ["what", "value"], rows_shown),))
