"""Find likely label errors in a store."""

import numpy as np

from labelkit.algorithms.label_errors import score_label_errors
from labelkit.commands.common.embeddings import find_split_rows, load_finite_embeddings
from labelkit.commands.common.labels import read_usable_labels
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.find.options import FindMislabeledConfig
from labelkit.commands.find.stored_images import StoredImages, write_findings
from labelkit.data.path_rule import escape_path
from labelkit.errors import DatasetError
from labelkit.progress import current_progress
from labelkit.store.embeddings import open_store

COLUMNS = ("path", "label", "suggested", "doubt", "nearest_of_label", "nearest_of_suggested")
_SHOWN = 20


def find_mislabeled(config: FindMislabeledConfig) -> CommandResult:
    """Find labels in a store that are probably wrong, and write them to a CSV for correction, most doubtful first.

    A label is doubtful if the nearest labeled image, the nearest class mean, and a linear classifier, all computed
    without this label, prefer another class. At most a fifth of the labels, or ten, are listed. A label that no other
    image has cannot be checked.

    Raises:
        StoreError: the store or the labels cannot be used.
        DatasetError: there are labels of fewer than two classes, or a sheet is requested and the images are missing.
        ConfigError: files would be overwritten.
    """
    store = open_store(config.index)
    rows = find_split_rows(store, config.split)
    given = read_usable_labels(config, store, rows)
    labeled = np.flatnonzero(given.labeled)
    classes, labels = np.unique(given.labels[labeled], return_inverse=True)
    if len(classes) < 2:
        problem = f"has labels of only {len(classes)} classes for these images, but at least two are required"
        raise DatasetError(given.where, problem, "Pass labels of more classes with --labels.")
    of_store = rows[labeled]
    images = None if config.sheet is None else StoredImages(store, of_store, config)
    doubts = score_label_errors(load_finite_embeddings(store, of_store), labels.astype(np.int64))
    names = [given.class_names[int(one)] for one in classes]
    num_checked = int(np.isfinite(doubts.score).sum())
    if num_checked < len(labeled):
        alone = len(labeled) - num_checked
        labels_alone = f"{alone} label{'' if alone == 1 else 's'} cannot be checked"
        current_progress().message(f"{labels_alone}, because no other image has the same label")
    found, num_doubtful = doubts.most_doubtful(), int(doubts.doubtful.sum())
    if len(found) < num_doubtful:
        current_progress().message(
            f"{num_doubtful} of {num_checked} labels look doubtful, probably because there are few labels per class or "
            f"the embeddings do not separate the classes; the {len(found)} most doubtful are listed"
        )
    paths = [escape_path(store.sample_ids[int(row)]) for row in of_store]
    lines: list[list[object]] = []
    groups = []
    for place in found.tolist():
        own, other = names[int(labels[place])], names[int(doubts.suggested[place])]
        near, near_other = int(doubts.same[place]), int(doubts.other[place])
        score = f"{doubts.score[place]:.4f}"
        lines.append([paths[place], own, other, score, paths[near], paths[near_other]])
        groups.append([(place, (own, "is it this,")), (near, (own, "as here,")), (near_other, (other, "or as here?"))])
    write_findings(config, COLUMNS, lines)
    if images is not None:
        images.write_grouped_sheet(config, groups)
    sheet = config.sheet if lines else None
    values: dict[str, object] = {
        "index": config.index,
        "csv": config.out,
        "sheet": sheet,
        "labels": len(labeled),
        "judged": num_checked,
        "doubtful_labels": len(lines),
        "doubtful": [dict(zip(COLUMNS, line, strict=True)) | {"doubt": float(str(line[3]))} for line in lines],
    }
    shown: list[list[Cell]] = [[str(one) for one in line[:4]] for line in lines[:_SHOWN]]
    more = f", the first {_SHOWN}" if len(lines) > _SHOWN else ""
    title = f"labels to check: {len(lines)} of {num_checked}{more}"
    advice = (
        f"Check the first lines of {config.out}, correct the column label, and pass the file to `labelkit label --from "
        "FILE --conflicts new` or `labelkit start --labels`."
    )
    tables = (Table(title, list(COLUMNS[:4]), shown), *([Table("", ["what next"], [[advice]])] if lines else []))
    made = (config.out,) if sheet is None else (config.out, sheet)
    return CommandResult(values, made, tables)
