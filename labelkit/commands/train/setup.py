"""Set up a training run: list the images, build the network, and decode the images that fit in memory."""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.initialize import initialize_weights, remove_weight_sources, report_loaded_weights
from labelkit.commands.common.training_data import (
    PreparedData,
    choose_eval_images,
    prepare_data,
    warn_about_blank_images,
)
from labelkit.data.datasets import ImageDataset
from labelkit.data.image_bank import ImageBank
from labelkit.errors import DatasetError
from labelkit.methods.registry import METHODS
from labelkit.options.embeddings import StrongEmbeddingInputOptions
from labelkit.options.training import RunConfig
from labelkit.progress import current_progress
from labelkit.training.devices import Runtime
from labelkit.training.inputs import HeldOutImages, MethodInputs, MonitorInputs
from labelkit.training.method import Method
from labelkit.training.run_dir import RunDir
from labelkit.training.trainer import Trainer


def set_up_runtime(config: RunConfig) -> Runtime:
    """Set up the device, precision and threads for a training run."""
    return Runtime(
        device=config.device, precision=config.precision, threads=config.threads, deterministic=config.deterministic
    )


def choose_run_folder(config: RunConfig) -> Path:
    """Return the run folder: ``--out``, or ``runs/METHOD-DATASET``."""
    return config.out or Path("runs") / f"{config.command[1]}-{short_dataset_name(config.main_dataset)}"


def short_dataset_name(dataset: str) -> str:
    """Return a short name for a dataset: its registered name, or the name of its folder or file."""
    return Path(dataset).stem or Path(dataset).resolve().stem


@dataclass
class RunSetup:
    """Data and method of a training run, ready for the first step."""

    prepared: PreparedData
    bank: ImageBank
    method: Method[Any]
    held_out: HeldOutImages | None = None


def prepare_training(method_name: str, config: RunConfig, runtime: Runtime, *, fresh: bool) -> RunSetup:
    """Prepare a training run: list the data, build the network, and decode the images that fit in memory.

    If ``fresh``, initial weights are loaded as specified by the options; a resumed run loads them from its checkpoint.
    """
    progress = current_progress()
    prepared = prepare_data(config)
    for warning in prepared.split.warnings:
        progress.warning(warning)  # before reading images, which may take long
    if config.needs_unlabeled and not (prepared.labels < 0).any():
        raise DatasetError(
            config.main_dataset,
            f"all images are labeled, so {method_name} has no unlabeled images to learn from",
            "Pass --num-labels N to hide all labels but N (for an evaluation), or learn from all labels with `labelkit "
            "train supervised`. In a CSV, leave the labels of unlabeled images empty.",
        )
    info = prepared.build_data_info(config.view_size or 0)
    method = METHODS[method_name].load()(config if fresh else remove_weight_sources(config), info)
    labeled = prepared.labels[prepared.labels >= 0]
    if config.learns_from_labels and config.label_kind != "none" and len(np.unique(labeled)) == 1:
        remedy = "Check the labels and the options that select them (--label-split, --num-labels); use at least two "
        raise DatasetError(config.main_dataset, "all labels belong to the same class", f"{remedy}classes.")
    if fresh and config.init_from is not None:
        initialize_weights(method, config.init_from)
    else:
        report_loaded_weights(method.network)

    def bank_of(dataset: ImageDataset, num_neighbors: int = 0) -> ImageBank:
        if prepared.embeddings is not None:
            return prepared.embeddings.build_bank(dataset, num_neighbors=num_neighbors, device=runtime.device)
        size = method.network.input_spec.size
        bank = ImageBank(dataset, base_size=size, device=runtime.device)
        bank.check_readable(config.max_bad)
        warn_about_blank_images(dataset, bank.lost)
        return bank

    @cache
    def training_bank() -> ImageBank:
        num_neighbors = 0
        if isinstance(config, StrongEmbeddingInputOptions) and config.row_mix > 0 and info.num_row_views == 0:
            num_neighbors = config.row_neighbors
        return bank_of(prepared.dataset, num_neighbors)

    def known(option: str) -> NDArray[np.int64]:
        progress.warning(f"{option} uses labels that are otherwise hidden from training; use it only for comparisons")
        return prepared.dataset.labels

    method.attach(
        MethodInputs(
            dataset_name=prepared.dataset.name,
            sample_ids=prepared.dataset.sample_ids,
            source=prepared.dataset.source,
            digest=lambda: prepared.objects_digest or prepared.dataset.digest(),
            images_digest=lambda rows: training_bank().digest(rows),
            folder=choose_run_folder(config),
            is_new=fresh,
            writes=not config.dry_run,
            truth=known,
        )
    )
    for note in prepared.dataset.notes:
        progress.message(note)
    judging = choose_eval_images(config, prepared)
    held_out = None if judging is None else HeldOutImages(bank_of(judging), judging.labels)
    return RunSetup(prepared, training_bank(), method, held_out)


def build_trainer(setup: RunSetup, config: RunConfig, runtime: Runtime, run_dir: RunDir | None) -> Trainer:
    """Build the trainer of a run; it writes nothing if ``run_dir`` is ``None``."""
    prepared, method = setup.prepared, setup.method
    known = MonitorInputs(setup.bank.rows, prepared.dataset.labels, prepared.dataset.sample_ids, setup.held_out)
    return Trainer(
        method,
        setup.bank,
        prepared.labels,
        config,
        runtime,
        run=run_dir,
        monitor=method.monitor(known if run_dir is None else replace(known, write_text=run_dir.write_text)),
        message=current_progress().message,
        metadata={"method": config.command[1], **method.network.identity},
    )
