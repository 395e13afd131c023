"""Initial data for labeling on a page: the likely groups of each image, and the images to label first."""

from collections.abc import Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.calibration import group_means
from labelkit.commands.common.labels import UsableLabels
from labelkit.commands.suggest.options import SuggestConfig
from labelkit.commands.suggest.suggest import choose_rows_to_label
from labelkit.data.path_rule import escape_path
from labelkit.data.tables import GUESSED_KINDS, LABEL_COLUMNS, NO_LABEL, NO_LABEL_WORDS, PATH_COLUMNS
from labelkit.errors import DatasetError
from labelkit.store.embeddings import EmbeddingStore
from labelkit.studio.label.actions import MAX_LETTERS
from labelkit.studio.report.groups import Grouping
from labelkit.studio.report.images import ShownImages, escape_for_page

SUGGESTED, CHOICES = 30, 5
# Margin below which an image is doubtful if its group has no calibrated confidence.
_DOUBTFUL_MARGIN = 0.1


def build_labeling_data(
    store: EmbeddingStore,
    images: ShownImages,
    grouping: Grouping | None,
    choices: NDArray[np.int16],
    suggested: tuple[tuple[int, str], ...] = (),
) -> dict[str, Any]:
    """Return the initial labeling data of a page, as JSON for the page's script.

    ``choices`` is the result of ``find_likely_groups``, and ``suggested`` that of ``list_suggested_images``, empty if
    the page requests suggestions from a server.
    """
    paths = {place: escape_path(store.sample_ids[int(row)]) for place, row in enumerate(images.rows)}
    return {
        "mode": "file",
        # key under which the browser stores the labels, so that other images or groups start from scratch
        "key": store.content_digest[:16] + ("" if grouping is None else grouping.result.content_digest[:16]),
        # paths as written in label tables, if the page displays them differently
        "paths": {str(place): path for place, path in paths.items() if path != images.names[place]},
        "perImage": choices.shape[1],
        "suggested": [list(one) for one in suggested],
        "doubtful": _DOUBTFUL_MARGIN if grouping is None or grouping.decided is None else grouping.decided["limit"],
        "mostLetters": MAX_LETTERS,
        "pathColumns": PATH_COLUMNS,
        "labelColumns": LABEL_COLUMNS,
        "guessedKinds": GUESSED_KINDS,
        "noLabel": sorted(NO_LABEL),
        "noLabelWords": sorted(NO_LABEL_WORDS),
    }


def find_likely_groups(features: NDArray[np.float32], ids: NDArray[np.int64], count: int) -> NDArray[np.int16]:
    """Return likely groups of the images, (m, c) int16 padded with -1: first its own, then those with nearest means.

    Args:
        features: (m, d) features of the images.
        ids: (m,) group of each, -1 = none.
        count: number of groups; some may be empty.
    """
    there = np.unique(ids[ids >= 0])
    found = np.full((len(features), max(1, min(CHOICES, len(there)))), -1, dtype=np.int16)
    if not len(there):
        return found
    grouped = ids >= 0
    centers = group_means(features[grouped], ids[grouped], count)[there].astype(np.float32)
    column = np.full(count, -1, dtype=np.int64)
    column[there] = np.arange(len(there))
    for start in range(0, len(features), 4096):
        rows = slice(start, start + 4096)
        distances = (centers**2).sum(axis=1) - 2 * features[rows] @ centers.T
        own = np.flatnonzero(grouped[rows])
        distances[own, column[ids[rows][own]]] = -np.inf
        found[rows] = there[np.argsort(distances, axis=1, kind="stable")[:, : found.shape[1]]]
    return found


def list_suggested_images(
    store: EmbeddingStore,
    images: ShownImages,
    grouping: Grouping | None,
    usable_labels: UsableLabels,
    seed: int,
    skipped: Set[int] = frozenset(),
) -> tuple[tuple[int, str], ...]:
    """List the images to label next as (image, reason), most useful first; empty if every image has a label.

    ``usable_labels`` are the labels of the images of the page; rows in ``skipped`` are suggested only if no others
    remain.
    """
    result = None if grouping is None or len(grouping.groups) < 2 else grouping.result.name
    config = SuggestConfig(index=store.path, result=result, out=Path("next.csv"), num_images=SUGGESTED, seed=seed)
    try:
        chosen = choose_rows_to_label(config, store, images.rows, usable_labels, skipped)
    except DatasetError:  # every image has a label
        return ()
    found = zip(chosen.places, chosen.reasons, strict=True)
    return tuple((int(place), escape_for_page(reason)) for place, reason in found)
