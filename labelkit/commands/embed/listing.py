"""Selection of the images to embed and of their labels: by the options, or as in the training run."""

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
    prepare_listing,
)
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImageError
from labelkit.errors import ConfigError
from labelkit.options.base import flag
from labelkit.options.embed import EmbedConfig
from labelkit.progress import current_progress
from labelkit.store.embeddings import label_keys

#: Options that choose the usable labels.
_CHOOSING: Final = ("label_split", "num_old_classes", "old_classes", "label_ratio", "num_labels")
#: Options that change a draw of labels.
_DRAWING: Final = ("label_seed", "imbalance_factor", "split_seed")
#: Options that hold out images, which happens before training.
_HOLDING: Final = ("holdout", "pool_splits", "holdout_classes")

#: Number of images whose files are compared with those of the run.
_COMPARED: Final = 8


def select_by_label_split(config: EmbedConfig) -> tuple[ImageDataset, NDArray[np.bool_], NDArray[np.bool_]]:
    """Select the images to embed, their labeled rows and the old classes according to ``--label-split``."""
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
    """Select the same images, labeled rows, old classes and order of classifier columns as the training run.

    For the dataset that the run was trained on, recognized by its labeled images and their files, the usable labels
    are those that training used. If training used none, ``--label-split`` may choose labels; images that the run held
    out stay held out. Labels of another dataset are chosen by ``--label-split``.

    Args:
        config: the options.
        run_split: content of ``split.json`` of the run.
        num_outputs: number of columns of its classifier.
        dataset: the whole listing.
    """
    is_own = is_run_dataset(run_split, dataset) and _has_run_files(run_split, dataset)
    if is_own and config.labels is not None:
        current_progress().message(
            f"using labels from {config.labels}, not those that {config.checkpoint} was trained with"
        )
        dataset, labeled, old = select_by_label_split(config)
    elif is_own:
        is_drawn = not run_split["split"]["labeled"] and _is_any_set(config, _CHOOSING)
        for name in _HOLDING if is_drawn else (*_CHOOSING, *_DRAWING, *_HOLDING):
            if _is_any_set(config, (name,)):
                remedy = f"Remove {flag(name)}."
                if name not in _HOLDING:
                    remedy += (
                        " --label-split and --old-classes apply only after training without labels "
                        "(--label-split none)."
                    )
                raise ConfigError(
                    flag(name), f"has no effect here: {config.checkpoint} is a run, so its split is used", remedy
                )
        own_splits = has_own_splits(dataset) and not run_split.get("replaces_splits")
        if run_split.get("held_out") and not own_splits:
            dataset = apply_holdout(dataset, run_split["held_out"])
        dataset = apply_run_labels(run_split, dataset)
        if is_drawn:
            dataset, labeled, old = _collect_selection(prepare_listing(config, dataset))
        else:
            dataset = choose_images(config, dataset)
            labeled, old = find_run_labels(run_split, dataset)
    else:
        current_progress().message(
            f"{config.dataset} is not the dataset that the run was trained on ({run_split['dataset']}): labels follow "
            "--label-split"
        )
        dataset, labeled, old = select_by_label_split(config)
    order = output_column_order(run_split, num_outputs, dataset, old, include=config.logits)
    return dataset, labeled, old, order


def is_run_dataset(run_split: Mapping[str, Any], dataset: ImageDataset) -> bool:
    """Return whether a dataset is the one that a run was trained on, judging by its labeled images."""
    used = set(run_split["split"]["labeled"])
    present = len(used.intersection(dataset.sample_ids))
    # labels of --labels may be of classes that the dataset does not have; an earlier version did not store them
    return ("labels" in run_split or set(_trained_names(run_split)) <= set(dataset.class_names)) and (
        # a few images may have been removed since; another dataset can have a few of the same names
        2 * present > len(used) or (not used and dataset.name == run_split["dataset"])
    )


def _has_run_files(run_split: Mapping[str, Any], dataset: ImageDataset) -> bool:
    """Return whether most of the first labeled images have the files of the run, as far as it stored their digests."""
    used = set(run_split["split"]["labeled"])
    known = _split_keys(run_split.get("trained_labels") or "")
    if known <= _split_keys(label_keys(used, None)):  # names alone
        return True
    found = []
    for row in [row for row, name in enumerate(dataset.sample_ids) if name in used][:_COMPARED]:
        with suppress(BadImageError):
            found.append(np.frombuffer(dataset.source.read(row).sha256, dtype=np.uint8))
    own = sum(label_keys((), digest[None]) in known for digest in found)
    return 2 * own >= len(found)


def _split_keys(text: str) -> set[str]:
    """Return the keys that ``label_keys`` joined."""
    return {text[start : start + 16] for start in range(0, len(text), 16)}


def apply_run_labels(run_split: Mapping[str, Any], dataset: ImageDataset) -> ImageDataset:
    """Return a run's dataset with the labels that the run used, which may have come from ``--labels``.

    If the dataset does not have all of their classes, its own labels are of another kind and are left out.
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
    """Return masks of the images (n,) and classes (k,) whose labels a run used."""
    old = np.isin(dataset.class_names, _trained_names(run_split))
    used = set(run_split["split"]["labeled"])
    labeled = np.array([sample_id in used for sample_id in dataset.sample_ids], dtype=bool)
    labeled &= (dataset.labels >= 0) & old[dataset.labels] if len(old) else False
    return labeled, old


def output_column_order(
    run_split: Mapping[str, Any], num_outputs: int, dataset: ImageDataset, old: NDArray[np.bool_], *, include: bool
) -> NDArray[np.int64] | None:
    """Return the class order of the classifier outputs in a store, or ``None`` if they are not stored.

    Args:
        run_split: content of ``split.json`` of the run.
        num_outputs: number of columns of the classifier; 0: there is no classifier.
        dataset: the images to embed.
        old: (k,) mask of its labeled classes.
        include: show a message if the output is not stored.
    """
    if not num_outputs:
        return None
    trained_names = _trained_names(run_split)
    names = [name for name, is_old in zip(dataset.class_names, old, strict=True) if is_old]
    if set(names) != set(trained_names):
        if include:
            current_progress().message(
                "the classes of the run's classifier differ from the labels here, so its logits are not stored"
            )
        return None
    # old classes ascending, then the anonymous columns
    columns = [trained_names.index(name) for name in names]
    return np.array([*columns, *range(len(columns), num_outputs)], dtype=np.int64)


def _trained_names(run_split: Mapping[str, Any]) -> list[str]:
    return [run_split["class_names"][label] for label in run_split["split"]["old_classes"]]


def _is_any_set(config: EmbedConfig, names: Iterable[str]) -> bool:
    return any(getattr(config, name) != type(config).model_fields[name].default for name in names)
