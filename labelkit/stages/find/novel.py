"""Find images of a store that are likely of no class with labels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.neighbors import ExactSearch
from labelkit.algorithms.novelty import novelty
from labelkit.algorithms.row_blocks import StoredRows, blocks
from labelkit.config.find import FindNovelConfig
from labelkit.data.path_rule import written_name
from labelkit.errors import StoreError
from labelkit.stages.discover.many_rows import rest_shares
from labelkit.stages.discover.rule import AnswerRule
from labelkit.stages.discover.stored_answers import StoredAnswers, group_names, new_groups, stored_answers
from labelkit.stages.find.outputs import write_table
from labelkit.stages.find.stored_images import StoredImages
from labelkit.stages.memory import Memory
from labelkit.stages.progress import current_progress
from labelkit.stages.read.rows import check_features, check_finite, split_rows, unit_rows
from labelkit.stages.result import Cell, SimpleResult, Table
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import Result, newest_name, read_result

COLUMNS = ("path", "score", "guess", "nearest", "label")
_SHOWN = 20
_BESIDE_BYTES = 100


@dataclass(frozen=True)
class _Nearest:
    """Of m images, the image with a label that is most like each.

    Attributes:
        cosines: (m,) float64; -1 where an image has no direction.
        rows: (m,) int64 of the store; -1 there.
    """

    cosines: NDArray[np.float64]
    rows: NDArray[np.int64]


def find_novel(config: FindNovelConfig) -> SimpleResult:
    """List the images without a label that are least like the classes with labels, as a CSV.

    Raises:
        StoreError: the store or the answers cannot be used; or a sheet is asked for, and the images are not known.
        DatasetError: images that are not where they were.
        ConfigError: files that would be overwritten, or too little memory.
    """
    store = open_store(config.index)
    result = read_result(store, config.answer or newest_name(store, "answer"))
    found, is_new = stored_answers(result), new_groups(result)
    kinds = np.array(found.kinds)
    rows = split_rows(store, config.split)
    rows, given = rows[~np.isin(kinds[rows], ("given", "left out"))], np.flatnonzero(kinds == "given")
    for chosen, what in ((given, "no image with a label"), (rows, "no image without a label in this split")):
        if not len(chosen):
            raise StoreError(str(result.path), f"has {what}", "Make answers with both: `labelkit discover answer`.")
    images = None if config.sheet is None else StoredImages.of(store, np.arange(store.n), config)
    Memory.of(config).require(
        len(given) * store.dim * 8 + store.n * (_BESIDE_BYTES + 4 * len(is_new)),
        f"comparing {len(rows):,} images with {len(given):,} labeled ones",
        "choose a smaller --split",
    )
    nearest = _nearest(store, rows, given)
    scores = novelty(_new_shares(store, result, rows, is_new), nearest.cosines)
    order = np.lexsort((rows, -scores))[: config.num_images]
    lines = [_line(store, int(rows[place]), scores[place], int(nearest.rows[place]), found) for place in order]
    write_table(config, COLUMNS, lines)
    if images is not None:
        pairs = [
            _pictures(int(rows[place]), int(nearest.rows[place]), found) for place in order if nearest.rows[place] >= 0
        ]
        beside = max(1, config.columns // 2)
        lines_of = [pairs[start : start + beside] for start in range(0, len(pairs), beside)]
        wide = config.model_copy(update={"columns": max(2, config.columns)})
        images.draw(wide, [[one for pair in line for one in pair] for line in lines_of])
    new_names = {name for name, new in zip(group_names(result), is_new, strict=True) if new}
    guesses = Counter(label for row in rows.tolist() if (label := found.labels[row]) in new_names)
    return _summary(config, result.name, lines, guesses, len(rows), len(given))


def _nearest(store: EmbeddingStore, rows: NDArray[np.int64], given: NDArray[np.int64]) -> _Nearest:
    """Look up the nearest image with a label, by cosine.

    Raises:
        StoreError: rows that are not finite.
    """
    labeled = check_features(store, given)
    directed = labeled.any(axis=1)
    cosines, places = np.full(len(rows), -1.0), np.full(len(rows), -1, dtype=np.int64)
    if not directed.any():
        return _Nearest(cosines, places)
    search, given = ExactSearch(labeled[directed], metric="cosine"), given[directed]
    source = StoredRows(store.embeddings, rows, in_blocks=True)
    with current_progress().task("nearest labeled images", total=len(rows)) as task:
        for block in blocks(len(rows), store.dim):
            features = source[block]
            check_finite(store, rows[block], features)
            asked = np.flatnonzero(features.any(axis=1))
            if len(asked):
                near, found = search.search(features[asked], 1)
                cosines[block][asked], places[block][asked] = near[:, 0], given[found[:, 0]]
            task.advance(len(features))
    return _Nearest(cosines, places)


def _new_shares(
    store: EmbeddingStore, result: Result, rows: NDArray[np.int64], is_new: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Say what new groups take of each row together, (n,); of rows not answered together as the rule says.

    Raises:
        StoreError: the answers are of a version that kept no rule.
    """
    rule = AnswerRule.of_arrays(result.arrays, result.params)
    if rule is None:
        raise StoreError(
            str(result.path), "was made by an earlier version, which kept no shares", "Make it again with --overwrite."
        )
    together = np.arange(store.n) if rule.rows is None else np.asarray(rule.rows, dtype=np.int64)
    shares, known = np.zeros(store.n), np.zeros(store.n, dtype=bool)
    shares[together], known[together] = rule.shares[:, is_new].sum(axis=1, dtype=np.float64), True
    rest = rows[~known[rows]]
    if len(rest):
        features = check_features(store, together)
        parts = rest_shares(store, rest, unit_rows(features) if rule.unit_rows else features, rule)
        shares[rest] = np.concatenate([part[:, is_new].sum(axis=1) for part in parts])
    return shares[rows]


def _line(store: EmbeddingStore, row: int, score: float, near: int, found: StoredAnswers) -> list[object]:
    nearest = ("", "") if near < 0 else (written_name(store.sample_ids[near]), found.labels[near])
    return [written_name(store.sample_ids[row]), f"{score:.4f}", found.labels[row], *nearest]


def _pictures(row: int, near: int, found: StoredAnswers) -> list[tuple[int, tuple[str, ...]]]:
    """The image, and the labeled one that is most like it."""
    return [(row, (found.labels[row], "is it new,")), (near, (found.labels[near], "or as here?"))]


def _summary(
    config: FindNovelConfig,
    answer: str,
    lines: list[list[object]],
    guesses: Counter[str],
    count: int,
    num_labels: int,
) -> SimpleResult:
    values: dict[str, object] = {
        "index": config.index,
        "answer": answer,
        "csv": config.out,
        "sheet": config.sheet,
        "images": count,
        "labels": num_labels,
        "in_new_groups": guesses.total(),
        "new_groups": [{"group": name, "images": number} for name, number in guesses.most_common()],
        "novel": [dict(zip(COLUMNS, line, strict=True)) | {"score": float(str(line[1]))} for line in lines],
    }
    shown: list[list[Cell]] = [[str(one) for one in line] for line in lines[:_SHOWN]]
    title = f"of {count} images without a label, the {len(shown)} least like {num_labels} with one"
    made = (config.out,) if config.sheet is None else (config.out, config.sheet)
    return SimpleResult(values, made, (Table(title, list(COLUMNS), shown),))
