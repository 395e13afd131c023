"""Find images of a store that probably belong to none of the labeled classes."""

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.answer_rule import PredictionRule
from labelkit.algorithms.novelty import score_arrival_novelty, score_class_novelty
from labelkit.algorithms.row_blocks import StoredRows, row_slices
from labelkit.commands.common.embeddings import find_split_rows, load_finite_embeddings
from labelkit.commands.common.label_files import find_rows_listed_in_csv
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.common.stable_ids import find_images_in_other_store
from labelkit.commands.common.stored_predictions import group_names, is_new_group, read_answer, read_stored_predictions
from labelkit.commands.find.nearest import find_nearest_other_embeddings
from labelkit.commands.find.options import FindNovelConfig
from labelkit.commands.find.stored_images import StoredImages, write_findings
from labelkit.data.path_rule import escape_path
from labelkit.errors import StoreError
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import Result

COLUMNS = ("path", "label", "unlikeness", "guess", "nearest", "nearest_label")
"""CSV columns; ``label`` is empty, to be filled in; ``unlikeness`` ranks the images, but is not a probability."""
_SHOWN = 20
_EACH_TURN = 5
# number of neighbors of a new image, among earlier images and among the other new images
_NEIGHBORS = 5


def find_novel(config: FindNovelConfig) -> CommandResult:
    """Find the unlabeled images that are least similar to the labeled classes, and write them to a CSV.

    Raises:
        StoreError: a store or the predictions cannot be used.
        DatasetError: a sheet is requested and the images are missing, or the list of images to skip cannot be read.
        ConfigError: files would be overwritten.
    """
    store = open_store(config.index)
    result = read_answer(store, config.answer)
    found, is_new = read_stored_predictions(result), is_new_group(result)
    kinds = np.array(found.kinds)
    rows = find_split_rows(store, config.split)
    rows, given = rows[~np.isin(kinds[rows], ("given", "left out"))], np.flatnonzero(kinds == "given")
    for chosen, what in ((given, "no labeled images"), (rows, "no unlabeled images in this split")):
        if not len(chosen):
            remedy = "Run `labelkit discover answer` on a store with labeled and unlabeled images."
            raise StoreError(str(result.path), f"has {what}", remedy)
    earlier: NDArray[np.bool_] | None = None
    if config.previous is not None:
        before = open_store(config.previous)
        earlier = find_images_in_other_store(before, store)
        if not earlier.any():
            problem = f"contains none of the images of {store.path}"
            raise StoreError(str(before.path), problem, "As --previous, pass a store with some of the same images.")
        rows = rows[~earlier[rows]]
        if len(rows) < 2:
            problem = f"contains all but {len(rows)} of the unlabeled images, but at least 2 new images are required"
            raise StoreError(str(config.previous), problem, "Pass an earlier store, or remove --previous.")
    images = None if config.sheet is None else StoredImages(store, np.arange(store.n), config)
    cosines, near_rows = _find_nearest(store, rows, given, 1)
    if earlier is None:
        scores = score_class_novelty(_compute_new_shares(config, store, result, rows, is_new), cosines[:, 0])
    else:
        known_rows = np.flatnonzero(earlier | (kinds == "given"))
        sides = [_find_nearest(store, rows, among, _NEIGHBORS)[0] for among in (known_rows, rows)]
        scores = score_arrival_novelty(*sides)
    new_names = {name for name, new in zip(group_names(result), is_new, strict=True) if new}
    guesses = [label if (label := found.labels[row]) in new_names else "" for row in rows.tolist()]
    order = np.lexsort((rows, -scores))
    if earlier is None:
        order = _interleave_groups(order, guesses)
    is_seen = np.isin(rows[order], list(find_rows_listed_in_csv(config.skip, store)))
    order = order[np.argsort(is_seen, kind="stable")][: config.num_images]
    lines: list[list[object]] = []
    pairs = []
    for place in order:
        row, near = int(rows[place]), int(near_rows[place, 0])
        path, nearest = escape_path(store.sample_ids[row]), ("", "")
        if near >= 0:
            nearest = escape_path(store.sample_ids[near]), found.labels[near]
            pairs.append([(row, (path, "a new class,")), (near, (nearest[0], f"or {nearest[1]}?"))])
        lines.append([path, "", f"{scores[place]:.4f}", found.labels[row], *nearest])
    write_findings(config, COLUMNS, lines)
    if images is not None:
        images.write_grouped_sheet(config, pairs)
    # count only guesses that are probably right; predictions of versions before 0.2 have no probabilities
    guessed = [row for row, guess in zip(rows.tolist(), guesses, strict=True) if guess]
    likely = [row for row in guessed if not found.new_chance[row] <= 0.5]
    in_groups = Counter(found.labels[row] for row in likely)
    values: dict[str, object] = {
        "index": config.index,
        "answer": result.name,
        "previous": config.previous,
        "csv": config.out,
        "sheet": config.sheet,
        "images": len(rows),
        "labels": len(given),
        "earlier": None if earlier is None else int(earlier.sum()),
        "nearer_to_each_other": None if earlier is None else int((scores > 0.5).sum()),
        "in_new_groups": in_groups.total(),
        "unsure_in_new_groups": int((kinds[likely] == "unsure").sum()),
        "new_groups": [{"group": name, "images": number} for name, number in in_groups.most_common()],
        "novel": [dict(zip(COLUMNS, line, strict=True)) | {"unlikeness": float(str(line[2]))} for line in lines],
    }
    shown: list[list[Cell]] = [[str(one) for one in (line[0], *line[2:])] for line in lines[:_SHOWN]]
    kind, known = ("unlabeled", f"{len(given)} labeled") if earlier is None else ("new", f"{earlier.sum()} earlier")
    title = f"the {len(shown)} of {len(rows)} {kind} images that are least similar to the {known} images"
    made = (config.out,) if config.sheet is None else (config.out, config.sheet)
    advice = (
        f"If some of these images belong to new classes, fill in the column label of {config.out} for two or three "
        "images of each, and pass the file to `labelkit label --from` or `labelkit start --labels`."
    )
    tables = (Table(title, [COLUMNS[0], *COLUMNS[2:]], shown), Table("", ["what next"], [[advice]]))
    return CommandResult(values, made, tables)


def _interleave_groups(order: NDArray[np.int64], groups: list[str]) -> NDArray[np.int64]:
    """Interleave new groups, a few images at a time, so that the first images are not all of one class."""
    seen: Counter[str] = Counter()
    places = [place for place, one in enumerate(order.tolist()) if groups[one]]
    turns = []
    for one in order[places].tolist():
        turns.append(seen[groups[one]] // _EACH_TURN)
        seen[groups[one]] += 1
    found = order.copy()
    found[places] = order[places][np.argsort(turns, kind="stable")]
    return found


def _find_nearest(
    store: EmbeddingStore, rows: NDArray[np.int64], among: NDArray[np.int64], k: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the cosines and rows, (m, k) each, of the k nearest other images in ``among``; -1 if there are fewer."""
    mask = np.zeros(store.n, dtype=np.bool_)
    mask[among] = True
    features = StoredRows(store.lazy_embeddings, in_blocks=False)
    what = f"comparing {len(rows):,} images with {len(among):,} others"
    cosines, places = find_nearest_other_embeddings(features, k, what, mask, rows)
    columns = max(1, int((places >= 0).any(axis=0).sum()))
    return np.nan_to_num(cosines[:, :columns].astype(np.float64), nan=-1.0), places[:, :columns]


def _compute_new_shares(
    config: FindNovelConfig, store: EmbeddingStore, result: Result, rows: NDArray[np.int64], is_new: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return each row's total probability (m,) of new groups, from the rule if the row was not predicted jointly."""
    rule = PredictionRule.from_arrays(result.arrays, result.params)
    if rule is None:
        problem = "was created by an earlier version of labelkit and lacks data that this command requires"
        raise StoreError(str(result.path), problem, "Recreate the result with --overwrite.")
    together = np.arange(store.n) if rule.rows is None else np.asarray(rule.rows, dtype=np.int64)
    shares, known = np.zeros(store.n), np.zeros(store.n, dtype=bool)
    shares[together], known[together] = rule.probabilities[:, is_new].sum(axis=1, dtype=np.float64), True
    rest = rows[~known[rows]]
    if len(rest):
        near = replace(rule, rows=None)
        features = load_finite_embeddings(store, together)
        for block in row_slices(len(rest), store.dim + 8 * len(is_new)):
            part = load_finite_embeddings(store, rest[block])
            shares[rest[block]] = near.predict_probabilities(part, features)[:, is_new].sum(axis=1)
    return shares[rows]
