"""``embed --index``: apply a head trained on stored embeddings to a store, and write a new store."""

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelkit.commands.common.embeddings_as_images import EmbeddingDataset, load_store_as_dataset, read_embedding_model
from labelkit.commands.common.locations import find_image_location, record_image_location, record_model_location
from labelkit.commands.common.networks import (
    TrainedRun,
    collect_numerics_settings,
    combine_fingerprints,
    encode_trained_labels,
    load_run,
)
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.embed.listing import (
    add_run_classes,
    apply_run_labels,
    find_run_labels,
    output_column_order,
    was_trained_on,
)
from labelkit.errors import ConfigError, Mismatch, output_exists_error
from labelkit.models.headed import identity_with_head
from labelkit.options.embed import EmbedConfig
from labelkit.progress import current_progress
from labelkit.store.commit import json_digest
from labelkit.store.embeddings import EmbeddingStore, ModelIdentity, open_store
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.schema import IMAGE_COLUMNS
from labelkit.store.writing import write_imported_store
from labelkit.training.checkpoint import MODEL
from labelkit.training.devices import Runtime
from labelkit.training.run_dir import SPLIT

_ROWS_AT_A_TIME = 4096


def apply_head_to_store(config: EmbedConfig) -> CommandResult:
    """Pass the embeddings of a store through the head of a run that was trained on embeddings of the same model.

    Names, splits and image properties are kept. For the store on which the run was trained, or a store with its images,
    the usable labels are those used in training; other stores keep their own.

    Raises:
        CheckpointError: the run cannot be used.
        Mismatch: the run was trained on embeddings of another model.
        OutputExistsError: the output exists and has different content.
    """
    assert config.index is not None
    assert config.checkpoint is not None
    started = time.monotonic()
    run = load_run(config.checkpoint)
    made_by = read_embedding_model(run.run_split, str(run.folder / SPLIT))
    if made_by is None:
        problem = f"{config.checkpoint} was trained on images, but {config.index} contains embeddings"
        raise ConfigError("--index", problem, "Train on embeddings: `labelkit train simgcd --index STORE.h5`.")
    data = EmbeddingDataset.from_store(config.index)
    keys = made_by.differences(data.store.model)
    if run.method.network.input_spec.channels != data.store.dim:
        keys.append("dim")
    if keys:
        raise Mismatch(
            str(data.store.path),
            f"has embeddings of a different model than run {config.checkpoint}: {', '.join(keys)} differ",
            f"First embed the images with {made_by.name} from {made_by.source}.",
        )
    runtime = Runtime(device=config.device, threads=config.threads)
    head, of_rows = run.method.main_network(), data.store.model
    # the same identity as if the images had passed through both the model and the head
    model = ModelIdentity(
        **identity_with_head({"name": of_rows.name, "layer": of_rows.layer, "pooling": of_rows.pooling}, head),
        weights_fingerprint=combine_fingerprints(of_rows, head),
        weights_file_sha256=run.checkpoint.state["files"][MODEL]["sha256"],
        source=run.source,
        preprocess=of_rows.preprocess,
        numerics=collect_numerics_settings(runtime, "float32", _ROWS_AT_A_TIME),
        trained_labels=encode_trained_labels(run.run_split),
    )
    recipe: dict[str, Any] = {
        "rows_of": data.store.content_digest, "model": model.to_json(), "dtype": config.dtype, "logits": config.logits,
    }  # fmt: skip
    done = config.out.exists() and not config.overwrite
    if done and open_store(config.out).plan_digest != json_digest(recipe):
        raise output_exists_error(
            config.out, state="and was created from other embeddings, another model or other options"
        )
    if not done:
        _write(config, run, data, model, runtime, recipe)
    store = open_store(config.out)
    if store.model.weights_fingerprint:
        record_model_location(store.model.weights_fingerprint, run.checkpoint.folder)
    images = find_image_location(data.store.content_digest)
    if images is not None:
        record_image_location(store.content_digest, *images)
    return summarize_store(store, time.monotonic() - started, 0 if done else store.n, already_done=done)


def _write(
    config: EmbedConfig,
    run: TrainedRun,
    data: EmbeddingDataset,
    model: ModelIdentity,
    runtime: Runtime,
    recipe: dict[str, Any],
) -> None:
    store, network = data.store, run.method.main_network().to(runtime.device)
    dataset = load_store_as_dataset(store)
    labeled = dataset.given
    if was_trained_on(run.run_split, dataset):
        dataset = apply_run_labels(run.run_split, dataset)
        labeled, old = find_run_labels(run.run_split, dataset)
    else:
        used = np.isin(np.arange(len(dataset.class_names)), dataset.labels[labeled])
        dataset, old = add_run_classes(run.run_split, dataset, labeled, used)
    order = (
        output_column_order(run.run_split, network.num_outputs, dataset, old, include=True) if config.logits else None
    )
    embedded: list[Tensor] = []
    outputs: list[Tensor] = []
    with current_progress().task("embed", total=store.n) as task, torch.inference_mode():
        for start in range(0, store.n, _ROWS_AT_A_TIME):
            part = torch.from_numpy(data.features[start : start + _ROWS_AT_A_TIME]).to(runtime.device)
            found = network.embed(part)
            embedded.append(found.cpu())
            outputs.append(network.classify(found).cpu())
            task.advance(len(part))
    embeddings, has_classes = torch.cat(embedded).float().numpy(), bool(dataset.class_names)
    plan = EmbeddingPlan(
        sample_ids=store.sample_ids,
        model=model,
        dim=embeddings.shape[1],
        batch_size=1,
        dtype=config.dtype,
        labels=dataset.labels if has_classes else store.labels,
        class_names=dataset.class_names,
        labeled=labeled if has_classes else None,
        old_classes=old if has_classes else None,
        splits=store.splits,
        split_names=store.split_names,
    )
    write_imported_store(
        config.out,
        plan,
        embeddings=embeddings,
        order=np.arange(store.n, dtype=np.int64),
        images={name: getattr(store, name) for name in IMAGE_COLUMNS} if store.has_images else None,
        recipe=recipe,
        extras=None if order is None else {"logits": torch.cat(outputs).float().numpy()[:, order]},
        shards=config.shards,
        overwrite=config.overwrite,
    )


def summarize_store(
    store: EmbeddingStore, seconds: float, embedded_now: int, *, already_done: bool, num_reused: int = 0
) -> CommandResult:
    """Return a summary of a newly embedded store for a command's output.

    Args:
        store: the store.
        seconds: elapsed time in seconds.
        embedded_now: number of embeddings computed in this time.
        already_done: whether the store already existed.
        num_reused: number of copied embeddings.
    """
    labeled = 0 if store.labeled is None else int(np.asarray(store.labeled).sum())
    model = store.model
    values: dict[str, object] = {
        "index": store.path,
        "rows": store.n,
        "dim": store.dim,
        "shards": store.num_shards,
        "labeled": labeled,
        "reused": num_reused,
        **({"views": store.view_recipe} if store.view_recipe else {}),
        "skipped": [{"sample_id": name, "reason": reason} for name, reason in store.skipped],
        "model": {"name": model.name, "source": model.source, "fingerprint": model.weights_fingerprint},
        "content_digest": store.content_digest,
        "already_done": already_done,
        "seconds": round(seconds, 2),
        "images_per_second": round(embedded_now / seconds, 1) if embedded_now else None,
    }
    row: dict[str, Cell] = {"store": store.path, "rows": store.n, "dim": store.dim, "labeled": labeled}
    row |= {"skipped": len(store.skipped), "model": model.name, "seconds": round(seconds, 1)}
    return CommandResult(values, (store.path,), (Table.from_row("", row),), unchanged=already_done)
