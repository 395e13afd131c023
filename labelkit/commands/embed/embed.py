"""Embed all images of a dataset and write a store, which is visible only when complete, or estimate the time."""

import hashlib
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.commands.common.apply import check_ray_cluster, map_parallel
from labelkit.commands.common.initialize import report_loaded_weights
from labelkit.commands.common.locations import record_image_location, record_model_location
from labelkit.commands.common.networks import (
    EmbeddingNetwork,
    build_embedding_network,
    collect_numerics_settings,
    use_class_tokens_as_embedding,
)
from labelkit.commands.common.onnx_export import cache_onnx, find_missing_packages
from labelkit.commands.common.onnx_session import (
    OnnxNetwork,
    get_onnx_runtime_version,
    is_onnx_enabled,
    load_cached_onnx_network,
    read_onnx_record,
)
from labelkit.commands.common.patch_embeddings import PatchCollector, compute_patch_grid_shape, plan_patch_features
from labelkit.commands.common.results import Cell, CommandResult, Table, describe_dry_run
from labelkit.commands.common.training_data import list_dataset, warn_about_blank_images
from labelkit.commands.embed.listing import select_by_label_split, select_by_run_split
from labelkit.commands.embed.reuse import plan_reuse, read_columns
from labelkit.commands.embed.stored_embeddings import apply_head_to_store, summarize_store
from labelkit.data.datasets import ArraySource, FileSource, ImageDataset, ImageSource, SelectedSource, select_source
from labelkit.data.views.recipes import StoredRecipe, stored_view
from labelkit.data.views.spec import ViewSpec
from labelkit.data.workers import BatchReader, get_num_workers
from labelkit.errors import ConfigError, DatasetError, DivergenceError
from labelkit.options.embed import EmbedConfig
from labelkit.progress import Task, current_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.patch_writing import PatchRun
from labelkit.store.patches import open_patches, patches_folder
from labelkit.store.plans import (
    EmbeddingPlan,
    embedding_run_folder,
    read_recorded_numerics,
    read_stored_plan,
    resume_plan,
)
from labelkit.store.schema import VIEWS, encode_name
from labelkit.store.writer import shard_ranges
from labelkit.store.writing import EmbeddingRun
from labelkit.training.compute_device import default_batch_size
from labelkit.training.devices import Runtime


def embed_images(config: EmbedConfig) -> CommandResult:
    """Embed the images of a dataset with the network of a run, a backbone or raw pixels, and write a store.

    If the process is killed, repeating the command resumes it, with byte-identical results.

    Raises:
        DatasetError: there are no images, or too many cannot be read.
        CheckpointError: the run or the weights cannot be used.
        OutputExistsError: the output exists and has different content.
    """
    if config.index is not None:
        return apply_head_to_store(config)
    if config.threads is None and (config.processes > 1 or config.ray_address is not None):
        # all processes use the same number of threads, since it affects rounding
        share = max(1, (os.cpu_count() or 1) // config.processes) if config.ray_address is None else 1
        config = config.model_copy(update={"threads": share})
    check_ray_cluster(config.ray_address)
    job = _prepare(config)
    if config.dry_run:
        return _time_dry_run(job)
    progress = current_progress()
    for note in job.dataset.notes:
        progress.message(note)
    started = time.monotonic()
    job.start()
    embedded_now = job.embed_pending()
    store = job.publish()
    warn_about_blank_images(job.dataset, job.blank_reasons)
    for warning in [*job.run.warnings, *(job.patches.warnings if job.patches is not None else [])]:
        progress.warning(warning)
    if job.model.location is not None:
        record_model_location(store.model.weights_fingerprint, job.model.location)
    record_image_location(store.content_digest, config.dataset, config.data_root)
    return job.summarize(store, embedded_now, time.monotonic() - started)


def _choose_views(
    config: EmbedConfig, dataset: ImageDataset, plain: ViewSpec
) -> tuple[ViewSpec | None, dict[str, Any] | None]:
    """Return the augmentation for further views and its record in the store; ``None`` if no views are requested."""
    if config.views is None:
        return None, None
    auto: StoredRecipe = "box" if dataset.photographic else "digits"
    recipe = auto if config.view_augmentation == "auto" else config.view_augmentation
    spec = stored_view(
        plain.size, recipe, interpolation=plain.interpolation, chiral=dataset.chiral, photographic=dataset.photographic
    )
    unchanged = asdict(ViewSpec(spec.size))
    numbers = {key: value for key, value in asdict(spec).items() if key == "size" or value != unchanged[key]}
    return spec, {"count": config.views, "augmentation": recipe, "seed": config.view_seed, "view": numbers}


class _PartToDo(NamedTuple):
    number: int
    needs_embeddings: bool
    needs_patches: bool


@dataclass
class _EmbeddingJob:
    """Embedding of a dataset, with the network on its device.

    Attributes:
        class_order: order of the classifier's columns; ``None``: logits are not stored.
        dataset: images to embed: all rows of the plan except those of a store to be extended.
        reused: stores from which rows are copied; with ``--extend``, the first is the store to be extended.
        view: augmentation for further views; ``None``: no further views.
        patch_shape: shape of the feature map; ``None``: patch features are not stored.
        reader: reader that decodes images.
        onnx: the network in ONNX Runtime; ``None``: PyTorch is used.
        blank_reasons: by row, the reason why an image is almost blank after decoding.
        run: the run that writes the store, set by ``start``.
        patches: the run that writes the patch features; ``None``: none are stored.
    """

    config: EmbedConfig
    model: EmbeddingNetwork
    dataset: ImageDataset
    plan: EmbeddingPlan
    runtime: Runtime
    class_order: NDArray[np.int64] | None
    reused: tuple[EmbeddingStore, ...]
    view: ViewSpec | None
    patch_shape: tuple[int, int, int] | None
    reader: BatchReader
    onnx: OnnxNetwork | None = None
    blank_reasons: dict[int, str] = field(default_factory=dict)
    run: EmbeddingRun = field(init=False)
    patches: PatchRun | None = None

    @property
    def uses_onnx(self) -> bool:
        """Whether ONNX Runtime computes the embeddings."""
        return _ONNX in self.plan.model.numerics

    def embed(self, images: Tensor) -> Tensor:
        """Return embeddings (b, d) of images (b, c, size, size)."""
        if self.onnx is not None:
            return torch.from_numpy(self.onnx.embed(images.contiguous().numpy()))
        return self.model.network.embed(images)

    def start(self) -> None:
        """Open the runs that write the store and the patch features, or join them, and load the network as ONNX."""
        config, plan, network = self.config, self.plan, self.model.network
        if self.patch_shape is not None:
            patch_plan = plan_patch_features(config, network, plan, self.patch_shape)
        self.run = EmbeddingRun.open(config.out, plan, overwrite=config.overwrite)
        if self.patch_shape is not None:
            self.patches = PatchRun.open(config.out, patch_plan, overwrite=config.overwrite)
        if self.uses_onnx and not self.run.already_done:
            cache_onnx(network, plan.model)
            self.load_onnx()
            if self.onnx is None:
                reason = (read_onnx_record(plan.model) or {}).get("failed", "the model could not be cached")
                problem = f"{plan.model.name} is not available as ONNX: {reason}"
                raise ConfigError("--runtime onnx", problem, "Use --runtime torch.")

    def load_onnx(self) -> None:
        """Load the network in ONNX Runtime, if it is cached."""
        self.onnx = load_cached_onnx_network(self.plan.model, threads=torch.get_num_threads())

    def embed_pending(self) -> int:
        """Compute the missing parts of the embeddings and patch features; return the number of embedded images."""
        run, patches, config, embedded = self.run, self.patches, self.config, 0
        rows_missing = set(run.pending_parts())
        patches_missing = set() if patches is None else set(patches.pending_parts())
        parts = [_PartToDo(k, k in rows_missing, k in patches_missing) for k in sorted(rows_missing | patches_missing)]
        sizes = {k: stop - start for k, *_ in parts for start, stop in [run.part_range(k)]}
        if not parts:
            return 0
        if config.processes > len(parts):
            current_progress().message(
                f"only {len(parts)} of {config.processes} processes are used, since each part has "
                f"{run.plan.part_rows:,} images; to use more, lower --part-rows"
            )
        with current_progress().task("embed", total=sum(sizes.values())) as task:
            if run.plan.reused is not None:  # at once, since the time estimate is for the other images
                task.skip(sum(int((run.plan.reused[slice(*run.part_range(k)), 0] >= 0).sum()) for k, *_ in parts))
            if config.ray_address is None and min(config.processes, len(parts)) == 1:
                for part in parts:
                    embedded += self.embed_part(part, task)
                return embedded
            device = self.runtime.device.type  # other nodes could otherwise choose another device
            options = config.to_yaml_dict() | ({"device": device} if config.device == "auto" else {})
            elsewhere = map_parallel(
                partial(_embed_part_elsewhere, json.dumps(options)),
                parts,
                processes=config.processes,
                ray_address=config.ray_address,
                gpus=device == "cuda" and not config.device.startswith("cuda:"),
            )
            for _, (count, blank_reasons) in elsewhere:
                embedded += count
                self.blank_reasons.update(blank_reasons)
                task.advance(count)
        return embedded

    def embed_part(self, part: _PartToDo, task: Task) -> int:
        """Embed the images of a part, and copy embeddings from other stores; return the number of embedded images.

        Batches do not cross parts, so that the bytes of a part depend only on the plan.
        """
        plan, (start, end), collector = self.run.plan, self.run.part_range(part.number), None
        if part.needs_patches and self.patches is not None:
            collector = PatchCollector(self.patches, part.number, self.model.view)
        rows = np.arange(start, end, dtype=np.int64)
        copied = rows[:0]
        if plan.reused is not None:
            is_copied = plan.reused[start:end, 0] >= 0
            rows, copied = rows[~is_copied], rows[is_copied]
        columns, skipped = self.embed_rows(rows - plan.base_rows, collector, task)
        skipped = [(plan.base_rows + row, reason) for row, reason in skipped]
        if not part.needs_embeddings:
            return len(rows)
        if len(copied):
            assert plan.reused is not None
            others = read_columns(self.reused, plan.reused[copied], list(columns))
            broken = {row for row, _ in skipped}
            kept = [row for row in rows.tolist() if row not in broken]
            order = np.argsort(np.concatenate([copied, np.array(kept, dtype=np.int64)]))
            columns = {name: np.concatenate([others[name], columns[name]])[order] for name in columns}
        self.run.write_part(part.number, **columns, skipped=skipped)
        return len(rows)

    def embed_rows(
        self, rows: NDArray[np.int64], collector: PatchCollector | None, task: Task
    ) -> tuple[dict[str, NDArray[Any]], list[tuple[int, str]]]:
        """Embed the given images; return the columns of the readable images, and unreadable rows with reasons."""
        runtime, config, network, plan = self.runtime, self.config, self.model.network, self.plan
        found: dict[str, list[NDArray[Any]]] = {
            name: [np.zeros(shape, dtype)] for name, (dtype, shape) in plan.part_shapes(0).items()
        }
        views: dict[str, Any] = {}
        if self.view is not None:
            # the random keys of an image depend only on its name
            digests = b"".join(hashlib.sha256(encode_name(name)).digest()[:8] for name in self.dataset.sample_ids)
            keys = np.frombuffer(digests, dtype="<i8").astype(np.int64)
            views = {"more_views": (self.view,) * plan.num_views, "keys": keys, "seed": config.view_seed}
        skipped: list[tuple[int, str]] = []
        loader = self.model.build_loader(
            self.dataset,
            plan.batch_size,
            rows=rows,
            device=runtime.device,
            reader=self.reader,
            identify=True,
            fast_decode=config.fast_decode,
            **views,
        )
        for batch in loader if len(rows) else ():
            crops, keep = batch.crops, batch.readable_positions
            assert crops is not None
            skipped.extend(batch.bad)
            self.blank_reasons.update(crops.lost)
            with torch.inference_mode(), runtime.autocast():
                if collector is None:
                    features, maps = self.embed(batch.images), None
                else:
                    features, maps = network.embed_with_patches(batch.images)
                outputs = network.classify(features) if plan.extras else None
                of_views = [self.embed(images).float().cpu().numpy()[keep] for images in batch.views]
            found["embeddings"].append(features.float().cpu().numpy()[keep])
            if views:
                found[VIEWS].append(np.concatenate(of_views, axis=1))
            if not all(np.isfinite(found[name][-1]).all() for name in ("embeddings", *([VIEWS] if views else []))):
                raise DivergenceError(
                    f"{config.dataset} rows {batch.rows[0]} to {batch.rows[-1]}",
                    "the network produces NaN or infinite embeddings",
                    "Use --precision float32, or another checkpoint.",
                )
            if outputs is not None:
                assert self.class_order is not None
                found["logits"].append(outputs.float().cpu().numpy()[keep][:, self.class_order])
            found["sha256"].append(crops.sha256[keep])
            found["file_sizes"].append(crops.file_sizes[keep])
            found["image_sizes"].append(crops.sizes[keep].astype(np.uint32))
            if collector is not None and maps is not None:
                collector.add(batch, keep, maps, config.dataset)
            task.advance(len(batch.rows))
        return {name: np.concatenate(pieces) for name, pieces in found.items()}, skipped

    def publish(self) -> EmbeddingStore:
        """Join the parts of the store and then those of the patch features; return the store."""
        run, patches, out, shards = self.run, self.patches, self.config.out, self.config.shards
        if not run.already_done:
            run.publish(self.config.max_bad, shards, self.reused[0] if run.plan.base_rows else None)
        if patches is not None:
            patches.publish(open_store(out))
        store = open_store(out)
        expected = 0 if shards is None else len(shard_ranges(store.n, shards))
        if run.already_done and not run.plan.base_rows and store.num_shards != expected:
            held = f"in {store.num_shards} shards" if store.num_shards else "in one file"
            current_progress().warning(f"{store.path} already exists {held}; to change this, use `labelkit pack`")
        if run.already_done:
            _warn_of_changed_files(self.dataset.root, store)
        if patches is not None and patches.already_done:
            # verify that all patch files are complete
            open_patches(store).verify()
        return store

    def summarize(self, store: EmbeddingStore, embedded_now: int, seconds: float) -> CommandResult:
        """Return a summary of the store and of its patch features."""
        run, patches, out = self.run, self.patches, self.config.out
        already_done = run.already_done and (patches is None or patches.already_done)
        plain = summarize_store(store, seconds, embedded_now, already_done=already_done, num_reused=run.plan.num_reused)
        values, tables, paths = plain.values, list(plain.shown), [out]
        if patches is not None:
            plan, folder, count = patches.plan, patches_folder(out), open_patches(store).num_patches
            mib = round(sum(path.stat().st_size for path in folder.iterdir()) / 2**20, 2)
            record = {"path": folder, "patches": count, "grid": list(plan.grid)}
            facts = {name: getattr(plan, name) for name in ("dim", "dtype", "layer")}
            values["patches"] = record | facts | {"mib": mib}
            paths.append(folder)
            row: dict[str, Cell] = {"patches": count, "grid": f"{plan.grid[0]} x {plan.grid[1]}"}
            row |= {"dim": plan.dim, "type": plan.dtype, "layer": plan.layer}
            tables.append(Table.from_row("", row | {"MiB": mib, "path": folder}))
        if store.skipped:
            tables.append(Table("skipped images", ["image", "reason"], [list(pair) for pair in store.skipped[:20]]))
        return CommandResult(values, tuple(paths), tuple(tables), unchanged=already_done)


@lru_cache(maxsize=1)
def _start_once(options: str) -> _EmbeddingJob:
    """Join the run in a worker process, only once per process."""
    job = _prepare(EmbedConfig.model_validate(json.loads(options)))
    job.start()
    return job


def _embed_part_elsewhere(options: str, part: _PartToDo) -> tuple[int, dict[int, str]]:
    job = _start_once(options)
    job.blank_reasons.clear()
    return job.embed_part(part, Task()), dict(job.blank_reasons)


def _prepare(config: EmbedConfig) -> _EmbeddingJob:
    """List the images, load the network, and plan the run without writing anything."""
    order: NDArray[np.int64] | None = None
    if config.checkpoint is None:
        dataset, labeled, old_classes = select_by_label_split(config)
        allow_pair = config.last_blocks == 1 and not (config.dense or config.mean_patch or config.image_size)
        model = build_embedding_network(config, dataset.in_channels, allow_pair=allow_pair)
    else:
        model = build_embedding_network(config, 3)
        assert model.run_split is not None
        dataset = list_dataset(config)
        dataset, labeled, old_classes, order = select_by_run_split(
            config, model.run_split, model.network.num_outputs, dataset
        )
    if config.max_images is not None and config.max_images < len(dataset):
        rows = np.arange(config.max_images) * len(dataset) // config.max_images
        dataset, labeled = dataset.select(rows), labeled[rows]
    runtime = Runtime(device=config.device, precision=config.precision, threads=config.threads)
    report_loaded_weights(model.network)
    model = use_class_tokens_as_embedding(model, config.last_blocks, mean_patch=config.mean_patch)
    shape = compute_patch_grid_shape(model.network, model.view) if config.dense else None
    network = model.network.to(runtime.device)
    with_logits = config.logits and order is not None and network.num_outputs > 0
    numerics = _choose_numerics(config, runtime, model, len(dataset), with_logits=with_logits)
    view, view_recipe = _choose_views(config, dataset, model.view)
    batch_size, has_labels = int(numerics["batch_size"]), len(dataset.class_names) > 0
    unfinished = read_stored_plan(embedding_run_folder(config.out))
    default_part_rows = 256 if runtime.device.type == "cpu" else 1024  # at most about a minute is lost
    part_rows = config.part_rows or (unfinished.part_rows if unfinished else default_part_rows)
    plan = EmbeddingPlan(
        sample_ids=dataset.sample_ids,
        labels=dataset.labels if has_labels else None,
        labeled=labeled.astype(np.uint8) if has_labels else None,
        class_names=dataset.class_names,
        old_classes=old_classes.astype(np.uint8) if has_labels else None,
        splits=dataset.splits if dataset.split_names else None,
        split_names=dataset.split_names,
        model=model.build_identity(numerics),
        dim=network.embed_dim,
        dtype=config.dtype,
        extras={"logits": network.num_outputs} if with_logits else {},
        views=view_recipe,
        batch_size=batch_size,
        part_rows=-(-part_rows // batch_size) * batch_size,
    )
    others = (*(() if config.extend is None else (config.extend,)), *(config.reuse or ()))
    reused = tuple(open_store(path) for path in others)
    if reused:
        plan = plan_reuse(plan, reused, dataset, extend=config.extend is not None)
    # an unfinished run keeps its original list of images; images added since then are ignored
    plan = resume_plan(config.out, plan)
    dataset = _restore_listing(dataset, plan)
    pixels = model.view.size**2 + (0 if view is None else plan.num_views * view.size**2)
    source = dataset.source.source if isinstance(dataset.source, SelectedSource) else dataset.source
    num_workers = get_num_workers(
        config.num_workers,
        0 if isinstance(source, ArraySource) else len(dataset),  # images in memory need no decoding processes
        plan.batch_size * network.input_spec.channels * pixels,
    )
    reader = BatchReader(dataset.source, model.channels, num_workers)
    return _EmbeddingJob(config, model, dataset, plan, runtime, order, reused, view, shape, reader)


def _warn_of_changed_files(root: Path | None, store: EmbeddingStore) -> None:
    """Warn if files, which are recognized by name, have changed in size since they were embedded."""
    if root is None or not store.has_images:
        return
    changed = []
    for name, size in zip(store.sample_ids, store.file_sizes.tolist(), strict=True):
        with suppress(OSError):
            if (root / name).stat().st_size != size:
                changed.append(name)
    if changed:
        count = "1 image file was" if len(changed) == 1 else f"{len(changed):,} image files were"
        current_progress().warning(
            f"{count} changed after {store.path} was created (the first is {changed[0]}); the store is not updated: to "
            "embed all images again, pass --overwrite"
        )


def _restore_listing(dataset: ImageDataset, plan: EmbeddingPlan) -> ImageDataset:
    """Return the dataset with the images of a plan; deleted files are reported when they are read."""
    old, ids = set(plan.sample_ids[: plan.base_rows]), tuple(plan.sample_ids[plan.base_rows :])
    if old:
        dataset = dataset.select([row for row, name in enumerate(dataset.sample_ids) if name not in old])
    if dataset.sample_ids == ids:
        return dataset
    source: ImageSource
    if dataset.root is None:
        place = {name: row for row, name in enumerate(dataset.sample_ids)}
        missing = [name for name in ids if name not in place]
        if missing:
            problem = f"{len(missing)} images have disappeared since this run began, first: {missing[0]!r}"
            raise DatasetError(dataset.name, problem, "Restore these images, or choose another --out.")
        source = select_source(dataset.source, np.array([place[name] for name in ids], dtype=np.int64))
    else:
        source = FileSource(dataset.root, ids)
    current_progress().message("the dataset has changed since this run began; the images listed then are embedded")
    n = len(ids)
    return replace(
        dataset,
        sample_ids=ids,
        draw_order=None,
        masks=None,
        labels=plan.labels[len(old) :] if plan.labels is not None else np.full(n, -1, dtype=np.int64),
        given=np.zeros(n, dtype=bool),
        splits=plan.splits[len(old) :] if plan.splits is not None else np.full(n, -1, dtype=np.int16),
        source=source,
    )


def _time_dry_run(job: _EmbeddingJob) -> CommandResult:
    """Estimate the time for embedding from two batches after a warm-up batch, without writing a store."""
    config, runtime, model, dataset = job.config, job.runtime, job.model, job.dataset
    plan, shape = job.plan, job.patch_shape
    if job.uses_onnx:
        job.load_onnx()
    rows = np.arange(min(len(dataset), 2 * plan.batch_size), dtype=np.int64)
    job.embed_rows(rows[: plan.batch_size], None, Task())  # warm-up
    started = time.perf_counter()
    job.embed_rows(rows, None, Task())
    seconds = (time.perf_counter() - started) / max(1, len(rows))
    at_once = min(config.processes, plan.num_parts)
    width = (1 + plan.num_views) * plan.dim * (2 if config.dtype == "float16" else 4)
    parameters = sum(p.numel() for p in model.network.parameters())
    values: dict[str, object] = {
        "config": config.to_yaml_dict(),
        "images": len(plan.sample_ids),
        "dim": plan.dim,
        **({} if plan.views is None else {"views": f"{plan.num_views}, {plan.views['augmentation']}"}),
        **({"reused": plan.num_reused} if plan.reused is not None else {}),
        "model": model.network.identity["name"],
        "parameters": parameters,
        "store_mib": round(len(dataset) * (width + 48) / 2**20, 2),
        "memory_mib": round(runtime.peak_memory() / 2**20),
        "estimated_minutes": round((len(plan.sample_ids) - plan.num_reused) * seconds / 60 / at_once, 2),
        "device": str(runtime.device),
        "batch_size": plan.batch_size,
        "precision": config.precision,
        "runtime": "onnx" if job.uses_onnx else "torch",
    }
    if shape is not None:
        patches = plan_patch_features(config, model.network, plan, shape)
        values["patches"] = f"{patches.num_patches} of {shape[0]} x {shape[1]}, {shape[2]} values, {patches.dtype}"
        values["patches_mib"] = round(patches.estimated_bytes() / 2**20, 2)
    rows_shown: list[list[Cell]] = [[key, str(value)] for key, value in values.items() if key != "config"]
    return describe_dry_run(config, values, rows_shown)


# ---- runtime: chosen once and recorded, so that a resumed run uses the same one

#: Minimum number of images for which ONNX export (once per network, as long as 100 images or more) pays off.
_WORTH_AN_EXPORT: Final = 200
_ONNX: Final = "onnxruntime"


def _choose_numerics(
    config: EmbedConfig, runtime: Runtime, model: EmbeddingNetwork, num_images: int, *, with_logits: bool
) -> dict[str, Any]:
    """Choose runtime and batch size: from the options, else from an unfinished run, else a suitable default.

    Returns:
        Numerics record of the store, including ``batch_size`` and, with ONNX Runtime, its version.
    """
    before = read_recorded_numerics(config.out, overwrite=config.overwrite)
    if not before and config.extend is not None:
        before = read_recorded_numerics(config.extend)
    batch_size = config.batch_size or int(before.get("batch_size") or default_batch_size(runtime.device))
    numerics = collect_numerics_settings(runtime, config.precision, batch_size)
    numerics |= {"fast_decode": True} if config.fast_decode else {}
    if config.runtime == "torch":
        return numerics
    if runtime.device.type != "cpu" or config.precision != "float32":
        needs = "a CPU and float32"
    elif config.dense or with_logits:
        needs = "--no-logits, and is not possible with --dense"
    elif not is_onnx_enabled() or find_missing_packages():
        needs = "the packages of `pip install onnx onnxruntime onnxscript`"
    else:
        needs = ""
    if config.runtime == "onnx" and needs:
        raise ConfigError("--runtime onnx", f"requires {needs}", "Use --runtime torch or auto.")
    is_chosen = not needs
    if config.runtime == "auto" and is_chosen and before:
        is_chosen = _ONNX in before
    elif config.runtime == "auto" and is_chosen:
        is_chosen = num_images >= _WORTH_AN_EXPORT and _is_depthwise(model.network) and _can_export(model)
    return numerics | {_ONNX: get_onnx_runtime_version()} if is_chosen else numerics


def _can_export(model: EmbeddingNetwork) -> bool:
    identity = model.build_identity({})
    cache_onnx(model.network, identity)
    return "failed" not in (read_onnx_record(identity) or {"failed": "not cached"})


def _is_depthwise(network: nn.Module) -> bool:
    """Return whether a network has depthwise convolutions, which are slow in PyTorch on a CPU."""
    convolutions = (module for module in network.modules() if isinstance(module, nn.Conv2d))
    return any(one.groups == one.in_channels > 1 and max(one.kernel_size) > 1 for one in convolutions)
