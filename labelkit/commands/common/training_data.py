"""Select the images and labels for training according to the data options."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.embeddings_as_images import EmbeddingDataset, load_store_as_dataset
from labelkit.commands.common.labels import override_dataset_labels
from labelkit.data.batch import DataInfo
from labelkit.data.datasets import HELD_OUT_SPLITS, ImageDataset, join_datasets, resolve_split
from labelkit.data.named.benchmark_classes import read_benchmark_classes
from labelkit.data.registry import DATASETS, load_dataset
from labelkit.data.splits import (
    ClassLabels,
    LabelSplit,
    draw_holdout_rows,
    make_dataset_label_split,
    make_few_labels_split,
    make_gcd_split,
    make_long_tail_split,
    make_unlabeled_split,
    parse_holdout_classes,
    resolve_classes,
    select_first_per_class,
)
from labelkit.errors import ConfigError, DatasetError
from labelkit.options.base import to_flag
from labelkit.options.data import DataConfig
from labelkit.options.embeddings import EmbeddingInputOptions
from labelkit.options.shared import LabelsOption
from labelkit.options.training import RunConfig
from labelkit.progress import current_progress

_AUTO_SHARE = 0.2


def has_own_splits(dataset: ImageDataset) -> bool:
    """Return whether a dataset has predefined splits besides train."""
    return not set(dataset.split_names) <= {"train"}


def apply_holdout(dataset: ImageDataset, held_out: Collection[str]) -> ImageDataset:
    """Split a dataset into train and test, with the held-out images in test."""
    names = set(held_out)
    splits = np.array([int(name in names) for name in dataset.sample_ids], dtype=np.int16)
    return replace(dataset, splits=splits, split_names=("train", "test"))


def _draw_holdout(dataset: ImageDataset, config: DataConfig) -> NDArray[np.int64]:
    """Choose the rows held out by ``--holdout``: a random fraction of each class, or every second image."""
    holdout = config.holdout
    assert holdout is not None
    option = f"--holdout {holdout if isinstance(holdout, str) else format(holdout, 'g')}"
    if config.pool_splits and not has_own_splits(dataset):
        raise ConfigError("--pool-splits", f"{dataset.name} has no predefined splits", "Remove --pool-splits.")
    if has_own_splits(dataset) and not config.pool_splits:
        names = ", ".join(dataset.split_names)
        remedy = "Pass --holdout none, or --pool-splits to sample from all images."
        raise ConfigError(option, f"{dataset.name} has predefined splits ({names})", remedy)
    if holdout == "odd":
        rows = np.arange(1, len(dataset), 2)
    else:
        share = _AUTO_SHARE if holdout == "auto" else holdout
        rows = draw_holdout_rows(dataset.labels, share, seed=config.split_seed)
    if len(rows) == 0:
        problem = "no image can be held out, since each class must keep at least one image for training"
        raise ConfigError(option, problem, "Use a dataset with more images.")
    return rows


@dataclass(frozen=True)
class PreparedData:
    """Images for training, and the labels that may be used.

    Attributes:
        dataset: the selected n images.
        split: selection of usable labels.
        labels: (n,) int64 training labels, -1 = unlabeled; old classes first.
        listing: all images of the dataset, with their splits; ``None`` if unknown.
        held_out: names of the images held out by ``--holdout`` or ``--holdout-classes``.
        replaces_splits: whether the held-out images are the only test images, regardless of the dataset's own splits.
        num_objects: number of object-centric images, which come first, before scenes; ``None`` = all.
        objects_digest: digest of the dataset of object-centric images; empty if it is that of ``dataset``.
        embeddings: the store, if training uses its embeddings instead of images.
    """

    dataset: ImageDataset
    split: LabelSplit
    labels: NDArray[np.int64]
    listing: ImageDataset | None = None
    held_out: tuple[str, ...] = ()
    replaces_splits: bool = False
    num_objects: int | None = None
    objects_digest: str = ""
    embeddings: EmbeddingDataset | None = None

    def counts(self) -> dict[str, int]:
        """Count all, labeled and unlabeled images, and old and new classes."""
        return {
            "images": len(self.labels),
            "labeled": int((self.labels >= 0).sum()),
            "unlabeled": int((self.labels < 0).sum()),
            "old_classes": len(self.split.old_classes),
            "new_classes": len(self.split.new_classes),
        }

    def describe(self) -> str:
        """Return a one-line summary of the numbers of images, labels and classes."""
        counts = self.counts()
        return (
            f"{counts['images']:,} images, {counts['labeled']:,} labeled; "
            f"{counts['old_classes']} old and {counts['new_classes']} new classes known"
        )

    def build_data_info(self, image_size: int) -> DataInfo:
        """Build the dataset properties that a method may use, without the true labels of unlabeled images."""
        known_in_all, stored = len(self.split.class_order), self.embeddings
        open_ended = self.split.kind == "given" and bool((self.dataset.labels < 0).any())
        return DataInfo(
            num_samples=len(self.labels),
            labels=self.labels,
            class_names=self.dataset.class_names,
            class_order=tuple(self.split.class_order),
            num_old_classes=len(self.split.old_classes),
            num_known_classes=None if open_ended or known_in_all == 0 else known_in_all,
            in_channels=self.dataset.in_channels,
            image_size=image_size,
            chiral=self.dataset.chiral,
            photographic=self.dataset.photographic,
            num_objects=self.num_objects,
            row_dim=None if stored is None else stored.store.dim,
            num_row_views=0 if stored is None or stored.views is None else stored.views.shape[1],
            row_center=None if stored is None else stored.select_embeddings(self.dataset).mean(axis=0),
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON record of the training data for a run: the dataset and the ids of the labeled samples."""
        return {
            "dataset": self.dataset.name,
            "dataset_digest": self.dataset.digest(),
            "class_names": list(self.dataset.class_names),
            "split": self.split.to_json(self.dataset.sample_ids),
            "labels": self.dataset.labels[self.split.labeled].tolist(),
            "held_out": list(self.held_out),
            "replaces_splits": self.replaces_splits,
            **({} if self.embeddings is None else {"rows": self.embeddings.to_json()}),
        }


def list_dataset(config: DataConfig) -> ImageDataset:
    """List the images of ``--dataset``, with labels from ``--label-column`` unless ``--labels`` is passed.

    Raises:
        DatasetError: the dataset cannot be listed.
    """
    column = getattr(config, "label_column", None) if _labels_file(config) is None else None
    return load_dataset(
        config.dataset,
        data_root=config.data_root,
        download=config.download,
        any_classes=config.has_label_split,
        label_column=column,
        **config.listing_kwargs(),
    )


def list_with_holdout(
    config: DataConfig, stored: EmbeddingDataset | None = None
) -> tuple[ImageDataset, tuple[str, ...]]:
    """List the dataset and apply the holdout options; return the dataset and the names of the held-out images.

    Raises:
        DatasetError: the dataset cannot be listed.
        ConfigError: ``--label-column`` is passed without a file, or ``--labels`` together with sampling of labels;
            ``--holdout`` for a dataset with predefined splits that are not pooled, or with too few images;
            ``--holdout-classes`` with an unknown class, or with all classes.
    """
    labels, column = _labels_file(config), getattr(config, "label_column", None)
    if stored is not None and labels is None and column is not None:
        raise ConfigError("--label-column", "requires --labels FILE with columns", "Pass --labels FILE.")
    dataset = list_dataset(config) if stored is None else load_store_as_dataset(stored.store)
    if labels is not None:
        dataset = _replace_labels(config, dataset, labels, column)
    if config.holdout_classes is not None:
        with _raise_as_option_error("--holdout-classes"):
            chosen = parse_holdout_classes(config.holdout_classes, dataset.class_names)
        rows = np.flatnonzero(np.isin(dataset.labels, chosen))
    elif config.holdout is None or (config.holdout == "auto" and has_own_splits(dataset) and not config.pool_splits):
        return dataset, ()
    else:
        rows = _draw_holdout(dataset, config)
    held_out = tuple(dataset.sample_ids[row] for row in rows)
    return apply_holdout(dataset, held_out), held_out


def _replace_labels(config: DataConfig, dataset: ImageDataset, labels: Path, column: str | None) -> ImageDataset:
    if config.label_split not in ("auto", "given", "none"):
        problem = f"samples labels, but {labels} already specifies them"
        raise ConfigError(f"--label-split {config.label_split}", problem, "Remove --label-split or --labels.")
    own: Literal["drop", "hide", "keep"] = "keep"
    if config.label_split == "none" or (config.label_split == "auto" and config.dataset in DATASETS):
        own = "hide"
    elif config.label_split == "auto" and _is_own_folder(config):
        own = "drop"
        if dataset.given.any():
            current_progress().message(
                f"labels are read from {labels}, not from folder names (to use both, pass --label-split given)"
            )
    return override_dataset_labels(dataset, labels, column, own_labels=own)


def _choose_split_rows(dataset: ImageDataset, split: str) -> NDArray[np.int64]:
    """Return the rows of a split: a name, ``all``, or ``auto`` (train if it exists, otherwise all)."""
    if split == "all" or (split == "auto" and "train" not in dataset.split_names):
        return np.arange(len(dataset.sample_ids), dtype=np.int64)
    with _raise_as_option_error("--split"):
        rows = dataset.rows_in_split("train" if split == "auto" else split)
    return rows


def choose_images(config: DataConfig, dataset: ImageDataset) -> ImageDataset:
    """Return the images selected by ``--split`` and ``--max-per-class``.

    Raises:
        ConfigError: the split does not exist.
    """
    rows = _choose_split_rows(dataset, config.split)
    chosen = _limit_per_class(config, dataset.select(rows))
    if config.split == "auto" and len(rows) < len(dataset):
        counts = Counter(dataset.split_names[i] if i >= 0 else "no split" for i in np.delete(dataset.splits, rows))
        others = ", ".join(f"{count:,} in {name}" for name, count in counts.items())
        share = f"the {len(rows):,}" if len(chosen) == len(rows) else f"{len(chosen):,} of the {len(rows):,}"
        current_progress().message(
            f"--split auto uses {share} images in train, and others ({others}) at most for evaluation (to use all, "
            "pass --split all)"
        )
    return chosen


def _limit_per_class(config: DataConfig, images: ImageDataset) -> ImageDataset:
    if config.max_per_class is None:
        return images
    return images.select(select_first_per_class(images.labels, images.splits, config.max_per_class))


def warn_about_blank_images(dataset: ImageDataset, reasons: Mapping[int, str]) -> None:
    """Warn about images that look blank because decoding lost their content, once for each reason."""
    for reason, count in Counter(reasons.values()).items():
        first = dataset.sample_ids[min(row for row in reasons if reasons[row] == reason)]
        current_progress().warning(f"{count:,} of {len(dataset):,} images look almost blank (first: {first}): {reason}")


def prepare_data(config: DataConfig) -> PreparedData:
    """Prepare the images and labels selected by the data options.

    Raises:
        DatasetError, ConfigError: the data or the options cannot be used.
    """
    scene_config = config.scene_config()
    if scene_config is None:
        return _prepare_images_or_embeddings(config)
    if not config.uses_object_images:
        return replace(_prepare_images_or_embeddings(scene_config), num_objects=0)
    objects = _prepare_images_or_embeddings(config)
    scenes = choose_images(scene_config, list_with_holdout(scene_config)[0])
    # object-centric images with their labels, then scenes, whose labels are not used
    return replace(
        objects,
        dataset=join_datasets(objects.dataset, scenes),
        split=replace(objects.split, labeled=np.pad(objects.split.labeled, (0, len(scenes)))),
        labels=np.pad(objects.labels, (0, len(scenes)), constant_values=-1),
        num_objects=len(objects.dataset),
        objects_digest=objects.dataset.digest(),
    )


def _prepare_images_or_embeddings(config: DataConfig) -> PreparedData:
    """Prepare the embeddings of ``--index``, if passed, otherwise the images of ``--dataset``."""
    stored = None
    if isinstance(config, EmbeddingInputOptions) and config.index is not None:
        stored = EmbeddingDataset.from_store(config.index, views=config.row_views)
        if stored.views is not None and (changed := config.overridden_option()):
            problem = f"has no effect, since {config.index} contains embeddings of augmented views"
            raise ConfigError(to_flag(changed), problem, "Pass --row-views off, or remove this option.")
    return select_training_data(config, *list_with_holdout(config, stored), stored)


def select_training_data(
    config: DataConfig, listing: ImageDataset, held_out: tuple[str, ...] = (), stored: EmbeddingDataset | None = None
) -> PreparedData:
    """Choose the images and usable labels of a listed dataset, after the holdout options have been applied.

    Raises:
        DatasetError, ConfigError: the data or the options cannot be used.
    """
    dataset = choose_images(config, listing)
    if len(dataset.sample_ids) == 0:
        raise DatasetError(config.dataset, f"split {config.split} has no images", "Choose another --split.")
    if config.imbalance_factor is not None:
        with _raise_as_option_error(f"--imbalance-factor {config.imbalance_factor:g}"):
            classes = _classes_of(dataset, dataset.given)
            kept = make_long_tail_split(classes, imbalance_factor=config.imbalance_factor, seed=config.split_seed)
        dataset = dataset.select(kept)
    split = choose_labels(config, dataset)
    of_folders = config.label_split == "auto" and _labels_file(config) is None and _is_own_folder(config)
    if of_folders and split.labeled.any():
        names = len(np.unique(dataset.labels[split.labeled]))
        current_progress().message(f"{names} classes from folder names (to ignore them, pass --label-split none)")
    labels = split.to_training_labels(dataset.labels)
    replaces_splits = config.holdout_classes is not None or config.pool_splits
    return PreparedData(dataset, split, labels, listing, held_out, replaces_splits, embeddings=stored)


def choose_eval_images(config: RunConfig, prepared: PreparedData) -> ImageDataset | None:
    """Return the images of the evaluation split, limited by ``--max-per-class``; ``None`` if none are labeled.

    Raises:
        ConfigError: the split does not exist, is used for training, or has no labels.
    """
    listing, wanted = prepared.listing, config.evaluation_split
    if listing is None or wanted is None:
        return None
    trained = "train" if config.split == "auto" and "train" in listing.split_names else config.split
    trained, wanted = (resolve_split(split, listing.split_names) for split in (trained, wanted))
    if wanted == "auto":
        if {"query", "gallery"} <= set(listing.split_names) and trained not in ("auto", "all", "query", "gallery"):
            sides = [listing.split_names.index(name) for name in ("query", "gallery")]
            return listing.select(np.flatnonzero(np.isin(listing.splits, sides)))
        found = [name for name in HELD_OUT_SPLITS if name in listing.split_names]
        if trained in ("auto", "all") or not found or found[0] == trained:
            return None
        wanted = found[0]
    elif trained in ("auto", "all", wanted):
        problem = f"{wanted} is used for training"
        raise ConfigError("--eval-split", problem, "Choose another --eval-split, or pass --split or --holdout.")
    with _raise_as_option_error("--eval-split"):
        rows = listing.rows_in_split(wanted)
    images = _limit_per_class(config, listing.select(rows))
    if not (images.labels >= 0).any():
        if config.evaluation_split == "auto":
            return None
        problem = f"no image of {wanted} has a label"
        raise ConfigError("--eval-split", problem, "Choose another --eval-split, or pass --eval-split none.")
    return images


def choose_labels(config: DataConfig, dataset: ImageDataset) -> LabelSplit:
    """Select the labels for training according to ``--label-split``.

    Raises:
        ConfigError: options contradict each other, or request more labels than exist.
        DatasetError: there are no labels to choose from.
    """
    given = dataset.given
    if "train" in dataset.split_names:
        # labels of test images are reserved for testing, even if train and test are embedded together
        in_training = np.isin(dataset.splits, [dataset.split_names.index("train"), -1])
        outside = int((given & ~in_training).sum())
        if outside and _labels_file(config) is not None:
            current_progress().message(
                f"{outside:,} labels of images outside the train split are not used, but reserved for testing"
            )
        given = given & in_training
    kind, classes = _resolve_label_split(config, dataset), _classes_of(dataset, given)
    if kind == "none":
        return make_unlabeled_split(classes)
    if kind == "given":
        return make_dataset_label_split(classes)
    if classes.count == 0:
        raise DatasetError(
            config.dataset,
            "has no labels (it is a folder without class folders, or a CSV without labels)",
            "Pass a folder with one subfolder per class, or a CSV with labels.",
        )
    if kind == "gcd":
        return _choose_old_classes(config, dataset, classes)
    if config.num_labels is None:
        raise ConfigError(
            "--num-labels", "is required for --label-split few-labels", "Pass the total number of labels."
        )
    with _raise_as_option_error("--num-labels"):
        seed = config.split_seed if config.label_seed is None else config.label_seed
        return make_few_labels_split(classes, total=config.num_labels, seed=seed)


def _classes_of(dataset: ImageDataset, given: NDArray[np.bool_]) -> ClassLabels:
    return ClassLabels(dataset.labels, given, len(dataset.class_names), dataset.class_names)


def _resolve_label_split(config: DataConfig, dataset: ImageDataset) -> str:
    """Resolve ``auto``, and reject options of other label splits.

    ``auto``: the split whose options are passed, else all labels of own data, or a registered dataset's standard split.
    """
    kind: str = config.label_split
    if _labels_file(config) is not None:
        kind = "given"
    elif kind == "auto" and config.num_labels is not None:
        kind = "few-labels"
    elif kind == "auto" and not dataset.given.all():
        kind = "given"
    elif kind == "auto" and config.dataset in DATASETS:
        kind = config.full_label_split
    elif kind == "auto":
        fields = type(config).model_fields
        names = ("num_old_classes", "old_classes", "label_ratio")
        kind = "gcd" if any(getattr(config, name) != fields[name].default for name in names) else "given"
    owners = {"num_old_classes": "gcd", "old_classes": "gcd", "num_labels": "few-labels", "label_seed": "few-labels"}
    for name, owner in owners.items():
        if getattr(config, name) is not None and kind != owner:
            raise ConfigError(to_flag(name), f"has no effect with --label-split {kind}", f"Pass --label-split {owner}.")
    return kind


def _labels_file(config: DataConfig) -> Path | None:
    return config.labels if isinstance(config, LabelsOption) else None


def _is_own_folder(config: DataConfig) -> bool:
    return config.dataset not in DATASETS and Path(config.dataset).expanduser().is_dir()


def _choose_old_classes(config: DataConfig, dataset: ImageDataset, classes: ClassLabels) -> LabelSplit:
    """Label some images of the old classes, by default those of the published benchmark."""
    old_classes, new_classes = _old_and_new_classes(config, dataset)
    option = "--old-classes" if config.old_classes is not None else "--label-split gcd"
    with _raise_as_option_error(option if config.num_old_classes is None else "--num-old-classes"):
        split = make_gcd_split(
            classes,
            old_classes=old_classes,
            num_old_classes=config.num_old_classes,
            new_classes=new_classes,
            label_ratio=config.label_ratio,
            seed=config.split_seed,
            draw_order=dataset.draw_order,
        )
    if config.old_classes is None and old_classes is None and _is_own_folder(config):
        # the class order of folder names may be arbitrary, unlike that of a benchmark
        first, last = (dataset.class_names[split.old_classes[at]] for at in (0, -1))
        count = f"{len(split.old_classes)} of {classes.count}"
        note = f"the old classes are the first {count} classes in name order, {first} to {last}"
        return replace(split, warnings=(*split.warnings, f"{note} (choose others with --old-classes)"))
    return split


def _old_and_new_classes(
    config: DataConfig, dataset: ImageDataset
) -> tuple[Sequence[int] | None, Sequence[int] | None]:
    """Return the old and new classes in training order; ``None``: in the dataset's class order."""
    if config.old_classes is not None:
        return parse_old_classes(config.old_classes, dataset.class_names), None
    spec, num_classes, num_old = DATASETS.get(config.dataset), len(dataset.class_names), config.num_old_classes
    if spec is None:
        return None, None
    benchmark = read_benchmark_classes(spec.name)
    if num_old is None:
        benchmark.check_num_classes(spec.name, num_classes)
        return benchmark.old_classes, benchmark.new_classes
    if num_classes != benchmark.num_classes or num_old > num_classes:
        return None, None
    order = benchmark.old_classes + benchmark.new_classes
    return order[:num_old], order[num_old:]


def parse_old_classes(words: Sequence[str], class_names: Sequence[str]) -> tuple[int, ...]:
    """Return the sorted indices of the classes given by ``--old-classes``.

    Raises:
        ConfigError: a class is unknown.
    """
    with _raise_as_option_error("--old-classes"):
        return resolve_classes(words, class_names)


@contextmanager
def _raise_as_option_error(option: str) -> Iterator[None]:
    """Convert a ``DatasetError`` about a split to a ``ConfigError`` about the option that caused it."""
    try:
        yield
    except DatasetError as error:
        raise ConfigError(option, error.problem, error.remedy) from error
