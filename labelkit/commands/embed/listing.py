"""Select the images to embed and their labels, according to the options or as in the training run."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.labels import encode_labels
from labelkit.commands.common.training_data import (
    PreparedData,
    apply_holdout,
    choose_images,
    has_own_splits,
    prepare_data,
    select_training_data,
)
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImageError
from labelkit.errors import ConfigError
from labelkit.options.base import to_flag
from labelkit.options.embed import EmbedConfig
from labelkit.progress import current_progress
from labelkit.store.embeddings import encode_image_set

#: Options that select the usable labels.
_CHOOSING: Final = ("label_split", "num_old_classes", "old_classes", "label_ratio", "num_labels")
#: Options that affect the sampling of labels.
_DRAWING: Final = ("label_seed", "imbalance_factor", "split_seed")
#: Options that hold out images, which applies before training.
_HOLDING: Final = ("holdout", "pool_splits", "holdout_classes")

#: Number of image files that are compared with those of the run.
_COMPARED: Final = 8


def select_by_label_split(config: EmbedConfig) -> tuple[ImageDataset, NDArray[np.bool_], NDArray[np.bool_]]:
    """Return the images to embed, and masks of labeled images and old classes, according to ``--label-split``."""
    return _collect_selection(prepare_data(config))


def _collect_selection(prepared: PreparedData) -> tuple[ImageDataset, NDArray[np.bool_], NDArray[np.bool_]]:
    split = prepared.split
    for warning in split.warnings:
        current_progress().warning(warning)
    old = np.zeros(len(prepared.dataset.class_names), dtype=bool)
    old[list(split.old_classes)] = split.labeled.any()
    return prepared.dataset, split.labeled, old


def select_by_run_split(
    config: EmbedConfig, run_split: Mapping[str, Any], num_outputs: int, dataset: ImageDataset
) -> tuple[ImageDataset, NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64] | None]:
    """Return the images, masks of labeled images and old classes, and the logit order as in the training run.

    For the dataset on which the run was trained (recognized by its labeled images and their files), the usable labels
    are those used in training. If training used no labels, ``--label-split`` may select some; images held out from
    training remain held out. For other datasets, ``--label-split`` selects the labels.

    Args:
        config: the options.
        run_split: content of ``split.json`` of the run.
        num_outputs: number of outputs of the run's classifier.
        dataset: the whole dataset.
    """
    is_own = was_trained_on(run_split, dataset) and _has_run_files(run_split, dataset)
    if is_own and config.labels is not None:
        current_progress().message(
            f"using the labels from {config.labels} instead of those on which {config.checkpoint} was trained"
        )
        dataset, labeled, old = select_by_label_split(config)
    elif is_own:
        is_drawn = not run_split["split"]["labeled"] and _is_any_set(config, _CHOOSING)
        for name in _HOLDING if is_drawn else (*_CHOOSING, *_DRAWING, *_HOLDING):
            if _is_any_set(config, (name,)):
                remedy = f"Remove {to_flag(name)}."
                if name not in _HOLDING:
                    remedy += " --label-split and --old-classes have an effect only if the run was trained without "
                    remedy += "labels (--label-split none)."
                problem = f"has no effect, since the label split of run {config.checkpoint} is used"
                raise ConfigError(to_flag(name), problem, remedy)
        own_splits = has_own_splits(dataset) and not run_split.get("replaces_splits")
        if run_split.get("held_out") and not own_splits:
            dataset = apply_holdout(dataset, run_split["held_out"])
        dataset = apply_run_labels(run_split, dataset)
        if is_drawn:
            dataset, labeled, old = _collect_selection(select_training_data(config, dataset))
        else:
            dataset = choose_images(config, dataset)
            labeled, old = find_run_labels(run_split, dataset)
    else:
        current_progress().message(
            f"{config.dataset} is not the dataset on which the run was trained ({run_split['dataset']}), so labels are "
            "selected by --label-split"
        )
        dataset, labeled, old = select_by_label_split(config)
        dataset, old = add_run_classes(run_split, dataset, labeled, old)
    order = output_column_order(run_split, num_outputs, dataset, old, include=config.logits)
    return dataset, labeled, old, order


def was_trained_on(run_split: Mapping[str, Any], dataset: ImageDataset) -> bool:
    """Return whether a run was trained on a dataset, judging by the names of its labeled images."""
    used = set(run_split["split"]["labeled"])
    present = len(used.intersection(dataset.sample_ids))
    # --labels may have added classes that the dataset does not have; earlier versions did not store them
    return ("labels" in run_split or set(_trained_names(run_split)) <= set(dataset.class_names)) and (
        # some images may have been removed since; other datasets may have some names in common
        2 * present > len(used) or (not used and dataset.name == run_split["dataset"])
    )


def _has_run_files(run_split: Mapping[str, Any], dataset: ImageDataset) -> bool:
    """Return whether most of the first labeled images have the same files as in the run (if it stored digests)."""
    used = set(run_split["split"]["labeled"])
    known = _split_keys(run_split.get("trained_labels") or "")
    if known <= _split_keys(encode_image_set(used, None)):  # only names were stored
        return True
    found = []
    for row in [row for row, name in enumerate(dataset.sample_ids) if name in used][:_COMPARED]:
        with suppress(BadImageError):
            found.append(np.frombuffer(dataset.source.read(row).sha256, dtype=np.uint8))
    own = sum(encode_image_set((), digest[None]) in known for digest in found)
    return 2 * own >= len(found)


def _split_keys(text: str) -> set[str]:
    return {text[start : start + 16] for start in range(0, len(text), 16)}


def apply_run_labels(run_split: Mapping[str, Any], dataset: ImageDataset) -> ImageDataset:
    """Return a dataset with the labels that a run used, which may have come from ``--labels``.

    If the dataset does not have all of their classes, its own labels are ignored.
    """
    if not run_split.get("labels"):
        return dataset
    names = run_split["class_names"]
    used = dict(zip(run_split["split"]["labeled"], (names[label] for label in run_split["labels"]), strict=True))
    texts = {row: used[name] for row, name in enumerate(dataset.sample_ids) if name in used}
    known = set(_trained_names(run_split)) <= set(dataset.class_names)
    labels, class_names = encode_labels(texts, dataset.class_names if known else (), len(dataset))
    given = labels >= 0
    if known:
        labels, given = np.where(given, labels, dataset.labels), given | dataset.given
    return replace(dataset, labels=labels, given=given, class_names=class_names)


def find_run_labels(run_split: Mapping[str, Any], dataset: ImageDataset) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return masks of the images (n,) and classes (k,) of a dataset whose labels a run used."""
    old = np.isin(dataset.class_names, _trained_names(run_split))
    used = set(run_split["split"]["labeled"])
    labeled = np.array([sample_id in used for sample_id in dataset.sample_ids], dtype=bool)
    labeled &= (dataset.labels >= 0) & old[dataset.labels] if len(old) else False
    return labeled, old


def add_run_classes(
    run_split: Mapping[str, Any], dataset: ImageDataset, labeled: NDArray[np.bool_], old: NDArray[np.bool_]
) -> tuple[ImageDataset, NDArray[np.bool_]]:
    """Add a run's classes to a dataset without usable labels, and return them as old classes (k,).

    With usable labels, which may contradict the run's classes, nothing changes.
    """
    names = _trained_names(run_split)
    if not names or labeled.any():
        return dataset, old
    class_names = (*dataset.class_names, *(name for name in names if name not in dataset.class_names))
    return replace(dataset, class_names=class_names), np.isin(class_names, names)


def output_column_order(
    run_split: Mapping[str, Any], num_outputs: int, dataset: ImageDataset, old: NDArray[np.bool_], *, include: bool
) -> NDArray[np.int64] | None:
    """Return the class order of the classifier outputs in a store, or ``None`` if they are not stored.

    Args:
        run_split: content of ``split.json`` of the run.
        num_outputs: number of outputs of the classifier; 0: there is no classifier.
        dataset: images to embed.
        old: (k,) mask of its labeled classes.
        include: show a message if the logits are not stored.
    """
    if not num_outputs:
        return None
    trained_names = _trained_names(run_split)
    names = [name for name, is_old in zip(dataset.class_names, old, strict=True) if is_old]
    if set(names) != set(trained_names):
        if include:
            current_progress().message(
                "the run's classifier has other classes than the labels here, so its logits are not stored (with "
                "--dataset, --label-split none ignores the labels here)"
            )
        return None
    # old classes in class order, then the outputs without a class
    columns = [trained_names.index(name) for name in names]
    return np.array([*columns, *range(len(columns), num_outputs)], dtype=np.int64)


def _trained_names(run_split: Mapping[str, Any]) -> list[str]:
    return [run_split["class_names"][label] for label in run_split["split"]["old_classes"]]


def _is_any_set(config: EmbedConfig, names: Iterable[str]) -> bool:
    return any(getattr(config, name) != type(config).model_fields[name].default for name in names)
