"""Data for the pages of ``labelkit label --serve``: groups, confidences, map, suggestions, and image files."""

import io
import re
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.hierarchy import build_hierarchy
from labelkit.algorithms.row_blocks import squared_norms
from labelkit.commands.common.label_files import find_rows_listed_in_csv
from labelkit.commands.common.labels import UsableLabels
from labelkit.errors import output_exists_error
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import list_results, read_result
from labelkit.studio.label.actions import LabelingState, choose_training_labels
from labelkit.studio.label.options import LabelConfig
from labelkit.studio.label.rounds import add_labels, initial_labels
from labelkit.studio.label.session import LabelingSession, is_session, restore_session
from labelkit.studio.report.groups import Grouping, choose_result, describe_groups, read_all_results
from labelkit.studio.report.images import ShownImages, choose_images, compute_map_positions
from labelkit.studio.report.page import build_page_data, encode_array
from labelkit.studio.report.thumbnails import PageImages, open_page_images
from labelkit.studio.report.work import build_labeling_data, find_likely_groups, list_suggested_images

#: Longer side of thumbnails and of large images, in pixels.
THUMBNAIL, LARGE = 160, 1280
#: Number of similar images returned for an image.
LIKE = 200


@dataclass
class BrowsedStore:
    """Embedding store with the groups, images and map that a labeling page shows.

    Attributes:
        store: the store.
        images: all images of the store.
        grouping: groups of a result, with their confidences; ``None`` if there are none.
        pictures: the image files, by row.
        places: (n, 2) uint16 positions on the map.
        skipped: rows skipped in earlier labeling, which are suggested last.
    """

    store: EmbeddingStore
    images: ShownImages
    grouping: Grouping | None
    pictures: PageImages
    places: NDArray[np.uint16]
    skipped: Set[int] = frozenset()

    def to_page_data(self, session: LabelingSession) -> dict[str, Any]:
        """Return the data that the labeling page's script loads, in the format of report pages."""
        n = self.store.n
        work, log, last_round = session.snapshot()
        sizes = np.asarray(self.store.image_sizes, dtype=np.float64)
        scale = np.minimum(1.0, THUMBNAIL / np.maximum(sizes.max(axis=1, initial=1), 1))[:, None]
        choices = find_likely_groups(self.images.features, work.groups, len(work.group_names))
        begun = build_labeling_data(self.store, self.images, self.grouping, choices)
        nothing = np.full(n, -1)
        columns = {
            "group": work.groups,
            "runnerUp": nothing,
            "point": self.places,
            "tile": nothing if self.pictures.source is None else np.arange(n),
            "tileSize": np.maximum(1, np.rint(sizes * scale)),
            "choice": choices,
        }
        state = {
            "classes": work.classes,
            "groups": encode_array(work.groups, "<i4"),
            "hand": encode_array(work.hand, "<i4"),
            "rejected": encode_array(work.rejected, "|u1"),
            "groupNames": work.group_names,
            "groupLabels": work.named,
            "refused": sorted([row, label] for row, label in work.refused),
            "round": last_round,
            "log": [done.to_json() for done in log],
        }
        return build_page_data(
            self.images,
            self.grouping,
            self.store.metric,
            columns,
            groups=[{"name": name, "known": name in session.known_groups} for name in work.group_names],
            side=THUMBNAIL,
            tilesPerSheet=1,
            work={**begun, "mode": "server", "state": state},
        )

    def list_suggested(self, session: LabelingSession, skipped: Set[int] = frozenset()) -> list[list[Any]]:
        """List the images to label next as [row, reason], most useful first and skipped images last."""
        work, _, _ = session.snapshot()
        # an image labeled only by the name of its group may be suggested
        learned, truth = choose_training_labels(work, self.images.features), np.full(self.store.n, -1, dtype=np.int64)
        given = UsableLabels(learned, truth, tuple(work.classes), session.name, {})
        found = list_suggested_images(self.store, self.images, self.grouping, given, 0, skipped | self.skipped)
        return [[row, reason] for row, reason in found if work.hand[row] < 0 and not work.rejected[row]]

    def find_similar_images(self, row: int) -> list[dict[str, Any]]:
        """Find the images most similar to an image, with their scores, nearest first."""
        features, usable, is_l2 = self.images.features, self.images.directed.copy(), self.store.metric == "l2"
        if not usable[row]:
            return []
        usable[row] = False
        near = features @ features[row]  # knn would copy all features for each request
        if is_l2:
            near -= squared_norms(features) / 2
        near[~usable] = -np.inf
        rows = np.argsort(-near, kind="stable")[: min(LIKE, int(usable.sum()))]
        scores = np.linalg.norm(features[rows] - features[row], axis=1) if is_l2 else near[rows]
        return [{"image": one, "score": score} for one, score in zip(rows.tolist(), scores.tolist(), strict=True)]

    def split_group(self, session: LabelingSession, group: int) -> list[list[int]]:
        """Split a group in two by hierarchical clustering; return the rows of both parts, larger part first.

        A group that cannot be split is returned as one part; rejected images are excluded.
        """
        work, _, _ = session.snapshot()
        rows = np.flatnonzero((work.groups == group) & ~work.rejected)
        if len(rows) < 2:
            return [rows.tolist()]
        tree = build_hierarchy(self.images.features[rows], generator=np.random.default_rng(0))
        if tree.max_groups < 2:  # thousands of identical images
            return [rows.tolist()]
        ids, _ = tree.cut(2)
        found = [rows[ids == part].tolist() for part in np.unique(ids)]
        return sorted(found, key=lambda part: (-len(part), part))

    def encode_picture(self, row: int, max_side: int) -> bytes | str:
        """Encode an image as WebP, with sides of at most ``max_side`` pixels; if this fails, return the reason."""
        found = self.pictures.read(row, max_side)
        if isinstance(found, str):
            return found
        buffer = io.BytesIO()
        found.save(buffer, format="WEBP", quality=80, method=2)
        return buffer.getvalue()


def load_store_for_labeling(config: LabelConfig, store: EmbeddingStore) -> BrowsedStore:
    """Load everything that the labeling page shows about a store.

    Raises:
        StoreError: the store or the requested result cannot be used.
        DatasetError: the images in ``dataset`` cannot be listed.
    """
    images = choose_images(store, store.n, 0)
    found = choose_result(store, config.grouping, read_all_results(store))
    grouping = None if found is None else describe_groups(store, images, *found, 1)
    pictures, note = open_page_images(config, store, images.rows)
    if not store.has_images:
        current_progress().warning(f"{store.path}: {note}; the page shows no images")
    with current_progress().task(f"a map of {store.n:,} images", total=None):
        places, _ = compute_map_positions(images.features, "pca", 0)
    return BrowsedStore(store, images, grouping, pictures, places, find_rows_listed_in_csv(config.skip, store))


def open_session(config: LabelConfig, store: EmbeddingStore, grouping: Grouping | None) -> LabelingSession:
    """Resume the labeling session stored in a result, or start a new one.

    Without a name, the newest session is resumed, unless initial labels are specified.

    Raises:
        StoreError: the result is not a session, or cannot be used.
        OutputExistsError: the session already exists, but initial labels are specified.
        DatasetError: the initial labels cannot be used.
    """
    there = list_results(store)
    begins = config.labels is not None or config.from_ is not None
    name = config.result or (None if begins else find_newest_session(store))
    if name is not None and name in there and not config.overwrite:
        if begins:
            raise output_exists_error(name, "--result", instead="neither --labels nor --from to continue it")
        session = restore_session(store, read_result(store, name))
        current_progress().message(f"resuming {name}: {len(session.log)} actions so far")
        return session
    begun = initial_labels(config, store)
    if config.from_ is not None:
        begun, _ = add_labels(config, config.from_, store, begun)
    number = begun.round + 1
    while name is None or (config.result is None and name in there):
        name, number = f"labels-{number}", number + 1
    groups = np.full(store.n, -1, dtype=np.int64)
    names: list[str] = []
    known: list[str] = []
    if grouping is not None:
        groups, names = grouping.ids.copy(), [group.name for group in grouping.groups]
        known = [group.name for group in grouping.groups if group.new is False]
    params = {
        "by": config.by,
        "base": begun.source or ("store" if config.own_labels else "none"),
        "grouping": None if grouping is None else grouping.result.name,
        "labels_before": int((begun.labels >= 0).sum()),
        "known": known,
    }
    work = LabelingState(
        classes=list(begun.class_names),
        hand=begun.labels.copy(),
        rejected=np.zeros(store.n, dtype=np.bool_),
        groups=groups,
        group_names=names,
        named=[-1] * len(names),
    )
    return LabelingSession(store, name, work, begun.rounds, params, first_round=begun.round)


def find_newest_session(store: EmbeddingStore) -> str | None:
    """Return the name of the newest labeling session of a store; ``None`` if there is none."""
    numbered = [name for name in list_results(store) if re.fullmatch(r"labels-\d+", name)]
    newest_first = sorted(numbered, key=lambda name: int(name.removeprefix("labels-")), reverse=True)
    return next((name for name in newest_first if is_session(read_result(store, name))), None)
