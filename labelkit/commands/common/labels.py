"""Choose the labels that a command may use, from the store and from ``--labels``.

This module makes the choice for ``cluster``, ``discover``, ``evaluate``, ``suggest`` and ``label``; it also warns if
the images contradict the labels.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.embeddings import load_finite_embeddings, normalize_embeddings
from labelkit.commands.common.label_files import LabelFileImages, find_labels_result, read_csv_labels
from labelkit.data.datasets import ImageDataset, natural_sort_key
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.tables import match_known_spelling
from labelkit.errors import ConfigError
from labelkit.files import sha256_file
from labelkit.formatting import join_first_few, percent
from labelkit.options.shared import AddedLabelsOption
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import Result

#: Number of typical images, nearest to the mean, that represent a group named in `label --serve`.
TYPICAL = 12


@dataclass(frozen=True)
class UsableLabels:
    """Labels that a command may use, and the true labels, which are only for evaluation.

    Attributes:
        labels: (m,) int64 class, -1 = no usable label.
        truth: (m,) int64 class, -1 = unknown.
        class_names: class names: those of the store, then further ones from the file or result.
        where: source of the labels, for messages.
        source: origin of the labels, for the parameters of a result; empty for the store's own labels.
    """

    labels: NDArray[np.int64]
    truth: NDArray[np.int64]
    class_names: tuple[str, ...]
    where: str
    source: dict[str, object]

    @property
    def labeled(self) -> NDArray[np.bool_]:
        """Mask (m,) of the rows that have a usable label."""
        return self.labels >= 0


def choose_usable_labels(
    option: Path | None,
    store: EmbeddingStore,
    rows: NDArray[np.int64],
    *,
    label_column: str | None = None,
    own_labels: bool = True,
    min_found: float = 1,
) -> UsableLabels:
    """Return the labels that a command may use for the given rows, taken from the store and from ``--labels``.

    Labels from a file are added to the usable labels of the store; if both label an image, the file takes precedence,
    and a warning reports the number of conflicts. A result of ``labelkit label`` is used alone, since it normally
    includes the labels of the store; of a group named in the browser, only the most typical images are labeled. If the
    store has no usable labels, and shares no class with the labels passed (its classes are years or places, say), the
    truth is unknown, and only the classes passed are used.

    Args:
        option: ``--labels``: a CSV file, the name of a result of ``labelkit label``, or None for the store's own.
        store: the store.
        rows: (m,) row numbers in the store.
        label_column: header of the label column of a CSV; None for the default.
        own_labels: False ignores the labels of the store.
        min_found: minimum fraction of the labeled images in a file that must be in the store; see ``read_csv_labels``.

    Raises:
        DatasetError: a file cannot be used, or contains too many images that are not in the store.
        StoreError: the result does not exist, or does not contain labels.
        ConfigError: both a file and a result have this name, or a column is specified without a CSV.
    """
    own = truth = np.full(len(rows), -1, dtype=np.int64)
    if store.labels is not None:
        truth = np.asarray(store.labels, dtype=np.int64)[rows]
    if own_labels and store.labeled is not None:
        own = np.where(np.asarray(store.labeled, dtype=bool)[rows], truth, -1)
    names = tuple(store.class_names)
    if option is None:
        if label_column is not None:
            raise ConfigError("--label-column", "requires --labels FILE", "Pass --labels FILE.")
        return UsableLabels(own, truth, names, str(store.path), {} if own_labels else {"own_labels": False})
    result = find_labels_result(option, store)
    if result is not None:
        if label_column is not None:
            raise ConfigError("--label-column", f"{option} is a result and has no columns", "Remove --label-column.")
        labels, class_names, truth = _drop_foreign_classes(*_read_result_labels(result, store), truth, store)
        source: dict[str, object] = {"result": result.name, "content_digest": result.content_digest}
        return UsableLabels(labels[rows], truth, class_names, str(result.path), source)
    where = str(option)
    texts = read_csv_labels(option, LabelFileImages.from_store(store), label_column, min_found=min_found)
    every, class_names, truth = _drop_foreign_classes(*encode_labels(texts, names, store.n), truth, store)
    labels = every[rows]
    outside = len(texts) - int((labels >= 0).sum())
    if outside:
        current_progress().message(f"{where}: ignoring {outside} labels of images that are not used here")
    source = {"file": option.name, "sha256": sha256_file(option)} | ({} if own_labels else {"own_labels": False})
    return UsableLabels(_merge_labels(labels, own, where, str(store.path)), truth, class_names, where, source)


def read_usable_labels(config: AddedLabelsOption, store: EmbeddingStore, rows: NDArray[np.int64]) -> UsableLabels:
    """Return the labels that a command may use according to its options; see ``choose_usable_labels``."""
    column, own = config.label_column, config.own_labels
    return choose_usable_labels(config.labels, store, rows, label_column=column, own_labels=own)


def _drop_foreign_classes(
    labels: NDArray[np.int64], class_names: tuple[str, ...], truth: NDArray[np.int64], store: EmbeddingStore
) -> tuple[NDArray[np.int64], tuple[str, ...], NDArray[np.int64]]:
    """Drop a store's classes and true labels if it has no usable labels and shares no class with the labels passed."""
    used = np.unique(labels[labels >= 0])
    usable = store.labeled is not None and bool(np.asarray(store.labeled).any())
    if usable or not {class_names[label] for label in used.tolist()}.isdisjoint(store.class_names):
        return labels, class_names, truth
    place = np.full(len(class_names) + 1, -1, dtype=np.int64)  # the last entry is for -1
    place[used] = np.arange(len(used))
    return place[labels], tuple(class_names[label] for label in used.tolist()), np.full_like(truth, -1)


def _merge_labels(
    labels: NDArray[np.int64], own: NDArray[np.int64], where: str, other_source: str
) -> NDArray[np.int64]:
    """Fill in missing labels from ``own``; in case of conflict, keep the one from ``labels`` and warn."""
    if differ := int(((labels >= 0) & (own >= 0) & (labels != own)).sum()):
        current_progress().warning(
            f"{where}: {differ} images have a different label in {other_source}; the file takes precedence"
        )
    return np.where(labels >= 0, labels, own)


def override_store_labels(
    store: EmbeddingStore, option: Path | None, label_column: str | None = None, *, min_found: float = 1
) -> EmbeddingStore:
    """Return the store with labels overridden by ``--labels``, for commands that show labels or evaluate with them.

    Other labels of the store are kept, unless the two share no class. For this, ``min_found`` and errors, see
    ``choose_usable_labels``.
    """
    if option is None and label_column is None:
        return store
    rows = np.arange(store.n, dtype=np.int64)
    given = choose_usable_labels(option, store, rows, label_column=label_column, own_labels=False, min_found=min_found)
    labels = _merge_labels(given.labels, given.truth, given.where, str(store.path))
    labeled = given.labeled if store.labeled is None else given.labeled | np.asarray(store.labeled, dtype=bool)
    return store.relabeled(labels, labeled, given.class_names)


def override_dataset_labels(
    dataset: ImageDataset, option: Path, label_column: str | None = None, *, own_labels: Literal["drop", "hide", "keep"]
) -> ImageDataset:
    """Return the dataset with labels overridden by ``--labels``; for errors, see ``read_csv_labels``.

    Args:
        dataset: the dataset.
        option: a CSV file.
        label_column: header of the label column of a CSV; None for the default.
        own_labels: drop the dataset's own labels, keep them for evaluation only (``hide``), or keep them. If none
            is usable and they share no class with the file, they are dropped.
    """
    texts = read_csv_labels(option, LabelFileImages(dataset.name, dataset.sample_ids, dataset.root), label_column)
    names = match_known_spelling(texts, dataset.class_names).values()
    if own_labels != "drop" and not dataset.given.any() and set(names).isdisjoint(dataset.class_names):
        own_labels = "drop"  # its classes are years or places, say; see choose_usable_labels
        if foreign := [dataset.class_names[label] for label in np.unique(dataset.labels[dataset.labels >= 0])]:
            current_progress().message(
                f"the classes stored in {dataset.name} ({join_first_few(foreign)}) are ignored, even for evaluation, "
                f"since none of them is in {option}"
            )
    labels, class_names = encode_labels(texts, () if own_labels == "drop" else dataset.class_names, len(dataset))
    given = labels >= 0
    if own_labels != "drop":
        labels = _merge_labels(labels, dataset.labels, str(option), dataset.name)
    if own_labels == "keep":
        given |= dataset.given
    return replace(dataset, labels=labels, given=given, class_names=class_names)


def build_labeled_mask(
    store: EmbeddingStore, rows: NDArray[np.int64], usable_labels: UsableLabels
) -> dict[str, NDArray[np.generic] | list[str]]:
    """Build the array ``labeled`` (n,) uint8 of a result; an empty mapping if only the store's own labels are used."""
    if not usable_labels.source:
        return {}
    labeled = np.zeros(store.n, dtype=np.uint8)
    labeled[rows] = usable_labels.labeled
    return {"labeled": labeled}


def collect_class_names(store: EmbeddingStore, result: Result) -> tuple[str, ...]:
    """Return the class names of a store, followed by those that only the result has (from other labels)."""
    names = tuple(store.class_names)
    if "labeled" not in result.arrays or "names" not in result.arrays or "new_classes" not in result.arrays:
        return names
    result_classes = zip(result.arrays["names"], np.asarray(result.arrays["new_classes"], dtype=bool), strict=True)
    return (*names, *(name for name, is_new in result_classes if not is_new and name not in names))


def was_trained_on_labels(
    store: EmbeddingStore, rows: NDArray[np.int64], labels: NDArray[np.int64]
) -> Literal["yes", "no", "unknown"]:
    """Return whether a store's network was trained on any of the labels (m,) of the given rows (m,); -1 = no label."""
    if store.trained_rows()[rows][labels >= 0].any():
        return "yes"
    source = store.model.source
    return "no" if source == "pixels" or source.startswith("random:") else "unknown"


def find_misspelled_class(name: str, known: Iterable[str]) -> str | None:
    """Find the known class name that was probably meant by a misspelled name; ``None`` if there is none.

    Two names match if their letters and digits are the same apart from case, spaces and punctuation, or, if both have
    at least four letters, if they differ by a typo: two adjacent letters are swapped, or the difflib similarity of the
    names and of the words that differ is at least 0.85. Names with different digits never match.
    """

    def only(kind: Callable[[str], bool], text: str) -> str:
        return "".join(filter(kind, text))

    letters, digits = only(str.isalnum, name.casefold()), only(str.isdigit, name)
    others: dict[str, str] = {}
    for other in known:
        if other != name and only(str.isdigit, other) == digits:
            others.setdefault(only(str.isalnum, other.casefold()), other)
    if letters and letters in others:
        return others[letters]
    if len(only(str.isalpha, letters)) < 4:
        return None
    swapped = {letters[:at] + letters[at + 1] + letters[at] + letters[at + 2 :] for at in range(len(letters) - 1)}
    close = [text for text in others if text in swapped]
    long = [text for text in others if len(only(str.isalpha, text)) >= 4]  # cat and coat are both words
    for text in [] if close else difflib.get_close_matches(letters, long, cutoff=0.85):
        ours, theirs = (re.findall(r"\w+", one.casefold()) for one in (name, others[text]))
        rest, other_rest = ("".join(word for word in a if word not in b) for a, b in ((ours, theirs), (theirs, ours)))
        if difflib.SequenceMatcher(None, other_rest, rest).ratio() >= 0.85:
            close.append(text)
    return others[close[0]] if close else None


def encode_labels(
    texts: dict[int, str], class_names: tuple[str, ...], length: int
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Convert class names to class indices (n,), and append classes not in ``class_names`` in natural order."""
    texts = match_known_spelling(texts, class_names)
    names = (*class_names, *sorted(set(texts.values()) - set(class_names), key=natural_sort_key))
    number = {name: label for label, name in enumerate(names)}
    labels = np.full(length, -1, dtype=np.int64)
    labels[list(texts)] = [number[text] for text in texts.values()]
    return labels, names


def _read_result_labels(result: Result, store: EmbeddingStore) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the usable labels in a result, with the store's class indices, and all class names."""
    result_names: list[str] = list(result.arrays["class_names"])
    names = (*store.class_names, *(name for name in result_names if name not in set(store.class_names)))
    number = {name: label for label, name in enumerate(names)}
    to_store = np.array([number[name] for name in result_names] or [-1], dtype=np.int64)
    labels = np.asarray(result.arrays["labels"], dtype=np.int64)
    usable = np.asarray(result.arrays["labeled"], dtype=bool) & (labels >= 0)
    labels = np.where(usable, to_store[np.maximum(labels, 0)], -1)
    by_group = np.asarray(result.arrays.get("by_group", np.zeros(len(labels))), dtype=bool)
    if by_group.any():
        features = load_finite_embeddings(store, np.arange(store.n))
        features = normalize_embeddings(features) if store.metric == "cosine" else features
        labels = keep_typical_labels(labels, by_group, np.asarray(result.arrays["work_groups"]), features)
        if dropped := int((usable & (labels < 0)).sum()):
            current_progress().message(
                f"{result.name}: only the {TYPICAL} most typical images of each named group are used as labels, not "
                f"the other {dropped} (`labelkit label --predictions newest` exports predictions for these)"
            )
    return labels, names


def keep_typical_labels(
    labels: NDArray[np.int64], by_group: NDArray[np.bool_], groups: NDArray[np.int64], features: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Return the labels (n,) without those of the less typical images of groups that were named as a whole.

    Using all images of a named group would also learn the errors of the grouping, or evaluate it by itself.

    Args:
        labels: (n,) int64, -1 = none.
        by_group: (n,) bool, whether the label is the name of the image's group.
        groups: (n,) int64, group of each image.
        features: (n, d) float32 that the metric of the store compares.
    """
    kept = np.where(by_group, -1, labels)
    for group in np.unique(groups[by_group]):
        members = np.flatnonzero(by_group & (groups == group))
        rows = features[members].astype(np.float64)
        far = ((rows - rows.mean(axis=0)) ** 2).sum(axis=1)
        typical = members[np.argsort(far, kind="stable")[:TYPICAL]]
        kept[typical] = labels[typical]
    return kept


_MAX_LABELS = 3000
#: With fewer labels, agreement cannot be distinguished from chance.
_MIN_LABELS = 10


def check_label_agreement(
    read_rows: Callable[[NDArray[np.int64]], NDArray[np.float32]], labels: NDArray[np.int64], seed: int
) -> str | None:
    """Check that nearest neighbors share a label more often than by chance; return a warning or ``None``.

    Args:
        read_rows: function that returns the embeddings at the given positions.
        labels: (n,), -1 = none; if there are more than 3,000, 3,000 are sampled.
        seed: random seed for sampling.
    """
    places = np.flatnonzero(labels >= 0)
    if len(places) > _MAX_LABELS:
        places = np.sort(keyed_generator(seed, "label agreement").permutation(places)[:_MAX_LABELS])
    known = labels[places]
    _, own, counts = np.unique(known, return_inverse=True, return_counts=True)
    others = counts[own] - 1  # other rows with the same label
    asked = others > 0
    count = int(asked.sum())
    if count < _MIN_LABELS or len(counts) < 2:
        return None
    rows = read_rows(places)
    unit = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    share = float((known == known[cosines.argmax(axis=1)])[asked].mean())
    by_chance = float(others[asked].mean() / (len(places) - 1))
    if share >= by_chance + 2 * np.sqrt(by_chance * (1 - by_chance) / count):
        return None
    return (
        f"labels contradict the images: the nearest labeled image has the same label in {percent(share)}% of cases, "
        f"compared with {percent(by_chance)}% for random labels"
    )
