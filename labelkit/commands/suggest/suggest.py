"""Suggest the images most worth labeling next: write a table to fill in, and a contact sheet."""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.active_learning import (
    CandidatePool,
    NearestClasses,
    choose_best,
    choose_farthest,
    choose_for_coverage,
    choose_typical,
    find_nearest,
    find_nearest_classes,
)
from labelkit.algorithms.row_blocks import StoredRows, row_slices
from labelkit.commands.common.embeddings import check_finite, find_split_rows, load_rows
from labelkit.commands.common.images.contact_sheet import IMAGES_PER_LINE, SheetCell, write_contact_sheet
from labelkit.commands.common.images.read import make_pixel_reader, open_source_dataset
from labelkit.commands.common.label_files import find_rows_listed_in_csv
from labelkit.commands.common.labels import UsableLabels, read_usable_labels
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.common.stable_ids import read_stored_groups
from labelkit.commands.common.stored_predictions import read_correctness_probabilities
from labelkit.commands.suggest.options import SuggestConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.path_rule import escape_path
from labelkit.errors import ConfigError, DatasetError, StoreError
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes
from labelkit.store.csv_table import csv_bytes
from labelkit.store.embeddings import EmbeddingStore, open_store

_Choice = tuple[NDArray[np.int64], NDArray[np.float64], list[str]]  # positions, scores, reasons
COLUMNS = ("path", "label", "usefulness", "reason", "guess")
_SHOWN = 20


@dataclass(frozen=True)
class _ClassUncertainty:
    """Guessed class of each row, and its uncertainty.

    Attributes:
        uncertainty: (n,) in [0, 1]; None if unknown.
        guess: function that maps a row to the name of its likely class or group; empty if unknown.
        doubt: function that maps a row to the reason for its uncertainty, in words; empty if unknown.
        source: origin of the guesses: ``labels``, a result, or ``none``.
        wrong: (n,) probability in [0, 1] that the guess is wrong; None without confidences from a result.
        to_label: (n,) squared distance to the nearest labeled image; None if not yet computed.
    """

    uncertainty: NDArray[np.float64] | None
    guess: Callable[[int], str]
    doubt: Callable[[int], str]
    source: str
    wrong: NDArray[np.float64] | None = None
    to_label: NDArray[np.float64] | None = None


@dataclass(frozen=True)
class SuggestedImages:
    """Images suggested for labeling, with scores, reasons and guessed labels, the most useful first.

    Attributes:
        places: (k,) int64 positions among the candidate rows.
        scores: (k,) scores of the strategy; NaN for random choices.
        reasons: k reasons, in words.
        guesses: k names of the likely class or group; empty if unknown.
        uncertainty_from: source of the uncertainty, ``labels`` or a result; None if uncertainty is not used.
        like_them: number of other unlabeled images that are nearer to a suggested image than to any labeled one.
        like_them_wrong: expected number of wrong guesses for these images; None without confidences from a result.
    """

    places: NDArray[np.int64]
    scores: NDArray[np.float64]
    reasons: list[str]
    guesses: list[str]
    uncertainty_from: str | None
    like_them: int
    like_them_wrong: float | None


def choose_rows_to_label(
    config: SuggestConfig,
    store: EmbeddingStore,
    rows: NDArray[np.int64],
    usable_labels: UsableLabels,
    skipped: Set[int] = frozenset(),
) -> SuggestedImages:
    """Choose the unlabeled rows of a store that are most worth labeling next.

    Args:
        config: strategy, result, number and seed; files in the options are not read.
        store: the store.
        rows: (m,) candidate rows.
        usable_labels: labels of these rows.
        skipped: rows of the store that, like their near-duplicates, are chosen only if there are no other candidates.

    Raises:
        DatasetError: every image is labeled, or is a near-duplicate of a labeled image.
        ConfigError: the strategy requires labels or a result, but there are none.
        StoreError: the result cannot be used.
    """
    if usable_labels.labeled.all():
        raise DatasetError(
            usable_labels.where, "every image is labeled, so there is nothing to suggest", "Embed more images."
        )
    source = StoredRows(store.lazy_embeddings, rows, in_blocks=True)
    for block in row_slices(*source.shape):
        check_finite(store, rows[block], source[block])
    features = load_rows(store, rows, normalize=True).to_array()
    if config.result is not None:
        doubt = _result_uncertainty(config.result, store, rows, features)
    else:
        doubt = _label_uncertainty(config, features, usable_labels)
    if doubt.uncertainty is None and config.strategy == "uncertainty":
        problem = "uncertainty requires labels of at least two classes, or --result with groups"
        raise ConfigError("--strategy", problem, "Use --strategy coverage for the first labels.")
    with current_progress().task("choosing images", total=None):
        to_label = (
            find_nearest(features, features[usable_labels.labeled])[1] if doubt.to_label is None else doubt.to_label
        )
        out = np.flatnonzero(np.isin(rows, list(skipped)))
        places, scores, reasons = _choose_rows(config, features, usable_labels, doubt, to_label, out)
    if not len(places):
        problem = "every image is labeled, or is a near-duplicate of a labeled image"
        raise DatasetError(usable_labels.where, problem, "Lower --duplicate-share, or embed more images.")
    weighted = config.strategy == "both" and doubt.uncertainty is not None
    uncertainty_from = doubt.source if weighted or config.strategy == "uncertainty" else None
    guesses = [doubt.guess(place) for place in places.tolist()]
    # for each image, the nearest suggested image, and whether it is nearer than any labeled image
    nearest, apart = find_nearest(features, features[places])
    like_them = apart < to_label
    if config.strategy in ("coverage", "both"):
        served = np.bincount(nearest[like_them], minlength=len(places))
        numbers = [f"nearest to {number} image{'' if number == 1 else 's'}" for number in served.tolist()]
        reasons = ["; ".join(filter(None, pair)) for pair in zip(numbers, reasons, strict=True)]
    like_them[usable_labels.labeled] = like_them[places] = False
    wrong = None if doubt.wrong is None else float(doubt.wrong[like_them].sum())
    return SuggestedImages(places, scores, reasons, guesses, uncertainty_from, int(like_them.sum()), wrong)


def suggest_images(config: SuggestConfig) -> CommandResult:
    """Choose the unlabeled images most worth labeling next, and write them as a CSV with an empty ``label`` column.

    Embeddings are normalized. ``usefulness`` is the score of the strategy: for ``coverage`` and ``both``, the reduction
    in the mean (weighted) squared distance from images to their nearest labeled image; for ``k-center``, the distance
    to the nearest labeled image; otherwise the typicality or uncertainty, or none for ``random``. ``like_them`` counts
    the other unlabeled images that are nearer to a suggested image than to any labeled one; ``like_them_wrong`` is the
    expected number of wrong guesses for these. Labels that are hidden from training are not used.

    Raises:
        StoreError: the store or the result cannot be used.
        DatasetError: the labels cannot be used, or every image is labeled.
        ConfigError: files would be overwritten, or the strategy requires labels or a result, but there are none.
    """
    store = open_store(config.index)
    rows = find_split_rows(store, config.split)
    given = read_usable_labels(config, store, rows)
    images = None if config.sheet is None else open_source_dataset(store, config.dataset, config.data_root)
    chosen = choose_rows_to_label(config, store, rows, given, find_rows_listed_in_csv(config.skip, store))
    if len(chosen.places) < config.num_images:
        current_progress().warning(
            f"only {len(chosen.places)} of {config.num_images} images are suggested, since all others are labeled, or "
            "are near-duplicates of suggested or labeled images (see --duplicate-share)"
        )
    names = [store.sample_ids[int(row)] for row in rows[chosen.places]]
    lines = list(zip(names, chosen.scores.tolist(), chosen.reasons, chosen.guesses, strict=True))
    table = (
        [escape_path(name), "", "" if np.isnan(score) else f"{score:.6g}", reason, guess]
        for name, score, reason, guess in lines
    )
    commit_bytes(config.out, csv_bytes(COLUMNS, table))
    made = [config.out]
    if config.sheet is not None and images is not None:
        pixels_of = make_pixel_reader(images)
        pictures = [SheetCell(pixels_of(name), (name, guess and f"{guess}?")) for name, _, _, guess in lines]
        if all(picture.pixels is None for picture in pictures):
            current_progress().warning(f"none of the images in {images.root} could be read; check --dataset")
        starts = range(0, len(pictures), IMAGES_PER_LINE)
        write_contact_sheet(config.sheet, [pictures[start : start + IMAGES_PER_LINE] for start in starts])
        made.append(config.sheet)
    values: dict[str, object] = {
        "index": config.index,
        "csv": config.out,
        "sheet": config.sheet,
        "strategy": config.strategy,
        "uncertainty_from": chosen.uncertainty_from,
        "rows": len(rows),
        "labels": int(given.labeled.sum()),
        "asked": config.num_images,
        "like_them": chosen.like_them,
        "like_them_wrong": chosen.like_them_wrong,
        "images": [
            {"path": name, "usefulness": score, "reason": reason, "guess": guess or None}
            for name, score, reason, guess in lines
        ],
    }
    cells: list[list[Cell]] = [[*scored, guess or None] for *scored, guess in lines[:_SHOWN]]
    title = f"{len(names)} images to label" + (f", the first {_SHOWN}" if len(names) > _SHOWN else "")
    return CommandResult(values, tuple(made), (Table(title, ["path", "usefulness", "reason", "guess"], cells),))


def _label_uncertainty(config: SuggestConfig, features: NDArray[np.float32], given: UsableLabels) -> _ClassUncertainty:
    """Return the uncertainty from the labels: how close the two nearest classes are."""
    labels = given.labels[given.labeled]
    if len(np.unique(labels)) < 2:
        if config.strategy == "both":
            current_progress().message("fewer than two classes have labels, so images are selected only by coverage")
        return _ClassUncertainty(None, lambda _: "", lambda _: "", "none")
    claims = find_nearest_classes(features, features[given.labeled], labels)
    names = given.class_names
    guess, doubts = (lambda row: names[claims.first[row]]), _name_two_candidates(claims, names)
    return _ClassUncertainty(claims.uncertainty, guess, doubts, "labels", to_label=claims.near)


def _name_two_candidates(claims: NearestClasses, names: Sequence[str]) -> Callable[[int], str]:
    return lambda row: f"{names[claims.first[row]]} or {names[claims.second[row]]}?"


def _result_uncertainty(
    name: str, store: EmbeddingStore, rows: NDArray[np.int64], features: NDArray[np.float32]
) -> _ClassUncertainty:
    """Return the uncertainty from a result: its confidence, if any, else how close the two nearest group means are."""
    grouped = read_stored_groups(store, name)
    result, groups = grouped.result, grouped.ids[rows]
    group_ids = np.unique(groups[groups >= 0])
    if len(group_ids) < 2:
        problem = f"has only {len(group_ids)} groups for these images, but at least two are required"
        raise StoreError(str(result.path), problem, "Choose a result with at least two groups.")
    names = grouped.names or [f"group {group}" for group in range(grouped.num_ids)]
    means = np.stack([features[groups == group].mean(axis=0, dtype=np.float64) for group in group_ids])
    claims = find_nearest_classes(features, means, group_ids)

    def guess(row: int) -> str:
        return names[int(groups[row] if groups[row] >= 0 else claims.first[row])]

    confidence = result.arrays.get("confidence")
    if confidence is None:
        return _ClassUncertainty(claims.uncertainty, guess, _name_two_candidates(claims, names), name)
    sure = np.clip(np.asarray(confidence, dtype=np.float64)[rows], 0, 1)
    chances = read_correctness_probabilities(result)
    right = sure if chances is None else chances[rows]
    return _ClassUncertainty(1 - sure, guess, lambda row: f"confidence {sure[row]:.2f}", name, 1 - right)


def _choose_rows(
    config: SuggestConfig,
    features: NDArray[np.float32],
    given: UsableLabels,
    doubt: _ClassUncertainty,
    to_label: NDArray[np.float64],
    skipped: NDArray[np.int64],
) -> _Choice:
    generator = keyed_generator(config.seed, "suggest")
    candidates = CandidatePool(features, config.duplicate_share)
    candidates.exclude_near_duplicates(to_label)
    if not candidates.eligible.any():  # only near-duplicates of labeled images remain
        candidates.eligible = ~given.labeled
    if len(skipped):
        everything = candidates.eligible.copy()
        candidates.exclude(skipped)
        if not candidates.eligible.any():
            candidates.eligible = everything
    labeled, count = np.flatnonzero(given.labeled), config.num_images
    if config.strategy == "typical":
        places, scores, sizes = choose_typical(features, count, labeled, candidates, generator=generator)
        return places, scores, [f"typical of a cluster of {size}" for size in sizes.tolist()]
    if config.strategy == "k-center":
        places, scores = choose_farthest(features, count, labeled, candidates)
        return (places, scores, ["far from all labels"] * len(places))
    if config.strategy == "random":
        places = choose_best(generator.random(len(features)), count, candidates)
        return (places, np.full(len(places), np.nan), ["drawn at random"] * len(places))
    if config.strategy == "uncertainty":
        assert doubt.uncertainty is not None
        places = choose_best(doubt.uncertainty, count, candidates)
        return (places, doubt.uncertainty[places], [doubt.doubt(place) for place in places.tolist()])
    weights = doubt.uncertainty if config.strategy == "both" else None
    places, scores = choose_for_coverage(features, count, labeled, candidates, generator=generator, weights=weights)
    reasons = [""] * len(places) if weights is None else [doubt.doubt(place) for place in places.tolist()]
    return (places, scores, reasons)
