"""``labelkit label --export``: write images and labels in the formats of other programs.

    imagefolder  OUT/CLASS/FILE                        torchvision, timm, and `labelkit embed --dataset OUT`
    huggingface  OUT/metadata.csv, README.md, images   datasets.load_dataset(OUT), and `labelkit label --from`
    fiftyone     OUT/data/FILE, OUT/labels.json        FiftyOneImageClassificationDataset
    coco         OUT.json: images, categories, and for each label a box around the whole image

Exported files are identical to the embedded ones: an image changed since then is rejected, as its label may be wrong.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.embeddings import find_split_rows
from labelkit.commands.common.images.read import open_source_dataset
from labelkit.commands.common.outputs import check_output
from labelkit.data.decode import BadImageError, read_image_file
from labelkit.errors import ConfigError, DatasetError, StoreError, output_exists_error
from labelkit.formatting import join_first_few
from labelkit.progress import current_progress
from labelkit.store.commit import commit_bytes, commit_folder, temporary_name, translate_os_errors
from labelkit.store.csv_table import csv_text
from labelkit.store.embeddings import EmbeddingStore
from labelkit.studio.label.options import LabelConfig
from labelkit.studio.label.rounds import StoreLabels

_SHOWN = 5
_MAX_BYTES = 255
#: Texts that pandas reads as missing values in a CSV, even if they are quoted.
_NO_VALUES = frozenset(
    "#N/A|#N/A N/A|#NA|-1.#IND|-1.#QNAN|-NaN|-nan|1.#IND|1.#QNAN|<NA>|N/A|NA|NULL|NaN|None|n/a|nan|null".split("|")
)
#: Without this file, the datasets library interprets folders and files named train or test as splits.
_README = "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: '**'\n---\n"


@dataclass(frozen=True)
class _Set:
    """Images to export, with their labels."""

    rows: NDArray[np.int64]
    ids: list[str]  # all are valid text
    labels: NDArray[np.int64]  # -1: none
    class_names: tuple[str, ...]
    scores: list[float | None]  # confidence of each label that is a prediction

    @property
    def names(self) -> list[str | None]:
        """Class name of each image; ``None`` if it has no label."""
        return [None if label < 0 else self.class_names[label] for label in self.labels.tolist()]


def check_label_set(config: LabelConfig) -> None:
    """Check in advance that a label set can be written to ``out``.

    Raises:
        ConfigError, OutputExistsError: ``out`` already exists or is invalid.
    """
    out = config.out
    if config.export is None or out is None:
        return
    if config.export == "coco":
        check_output(config, out, "json")
    elif out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise output_exists_error(
            out, replaceable=False, note="A folder is never replaced: it may contain other files."
        )
    elif not out.absolute().parent.is_dir():
        raise ConfigError("--out", f"the parent folder of {out} does not exist", "Create this folder first.")


def write_label_set(config: LabelConfig, store: EmbeddingStore, labels: StoreLabels) -> int:
    """Write images and labels atomically in another program's format, and return the number of images.

    Raises:
        DatasetError: images are not files, or are missing or changed.
        ConfigError: the split does not exist, or a class name is no valid folder name or would be read as no label.
        StoreError: the sizes of the images are unknown.
        ResourceError: the files cannot be written (disk full, ...).
    """
    assert config.export is not None
    assert config.out is not None
    found = _set(config, store, labels)
    if config.export == "coco":
        commit_bytes(config.out, _coco(store, found), replace=config.overwrite)
    else:
        _write_folder(config, config.out, store, found)
    return len(found.rows)


def _set(config: LabelConfig, store: EmbeddingStore, final: StoreLabels) -> _Set:
    chosen = find_split_rows(store, config.split)
    ids, splits = store.sample_ids, np.full(store.n, -1) if store.splits is None else np.asarray(store.splits)
    written = [row for row in chosen.tolist() if not any("\ud800" <= one <= "\udfff" for one in ids[row])]
    left_out = len(chosen) - len(written)
    if left_out:
        current_progress().warning(f"{config.out}: omitted {left_out} images whose names are not valid text")
    if config.export == "imagefolder":
        written = [row for row in written if final.labels[row] >= 0]
        if not written:
            problem = "no image is labeled, so there are no class folders"
            raise DatasetError(str(store.path), problem, "Label some images first.")
    rows = np.array(written, dtype=np.int64)
    names = [store.split_names[number] for number in np.unique(splits[rows[final.labels[rows] >= 0]]) if number >= 0]
    if len(names) > 1:
        told = f"{config.out}: labels of {' and '.join(names)} are exported together; to choose a split, pass --split"
        current_progress().warning(told)
    sure = np.full(len(rows), np.nan) if final.confidence is None else final.confidence[rows].round(4)
    sure[final.labels[rows] < 0] = np.nan
    scores = [None if np.isnan(score) else score for score in sure.tolist()]
    return _Set(rows, [store.sample_ids[row] for row in written], final.labels[rows], final.class_names, scores)


def _coco(store: EmbeddingStore, found: _Set) -> bytes:
    """Return COCO JSON in which the label of an image is an annotation with a box around the whole image.

    Labels that are predictions have a ``score``, their confidence.
    """
    if not store.has_images:
        problem = "does not record the image sizes"
        raise StoreError(str(store.path), problem, "Create a store of the images with `labelkit embed`.")
    sizes = np.asarray(store.image_sizes)[found.rows].tolist()
    images = [
        {"id": place + 1, "file_name": name, "width": width, "height": height}
        for place, (name, (height, width)) in enumerate(zip(found.ids, sizes, strict=True))
    ]
    labeled = np.flatnonzero(found.labels >= 0).tolist()
    annotations = [
        {
            "id": number + 1,
            "image_id": place + 1,
            "category_id": int(found.labels[place]) + 1,
            "bbox": [0, 0, sizes[place][1], sizes[place][0]],
            "area": sizes[place][0] * sizes[place][1],
            "segmentation": [],
            "iscrowd": 0,
            **({} if found.scores[place] is None else {"score": found.scores[place]}),
        }
        for number, place in enumerate(labeled)
    ]
    categories = [{"id": number + 1, "name": name} for number, name in enumerate(found.class_names)]
    whole = {"images": images, "annotations": annotations, "categories": categories}
    return (json.dumps(whole, ensure_ascii=False) + "\n").encode()


def _write_folder(config: LabelConfig, out: Path, store: EmbeddingStore, found: _Set) -> None:
    images = open_source_dataset(store, config.dataset, config.data_root)
    if images.root is None:
        remedy = "Use --export coco, or --csv."
        raise DatasetError(images.name, "its images are not files that can be copied", remedy)
    root = images.root.resolve()
    if out.resolve().is_relative_to(root):
        problem = f"{out} is inside the image folder {root}"
        raise ConfigError("--out", problem, "Choose a folder outside it.")
    layouts = {"imagefolder": _imagefolder, "huggingface": _huggingface, "fiftyone": _fiftyone}
    places, tables = layouts[str(config.export)](found)
    temporary = out.absolute().parent / temporary_name()
    try:
        with translate_os_errors(out):
            temporary.mkdir()
            _fill(config, store, found, root, [temporary / place for place in places])
            for name, text in tables.items():
                (temporary / name).write_bytes(text.encode())
        commit_folder(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _fill(config: LabelConfig, store: EmbeddingStore, found: _Set, root: Path, places: Sequence[Path]) -> None:
    bad: list[str] = []
    digests = np.asarray(store.sha256) if store.has_images else None
    with current_progress().task("images", total=len(places)) as task:
        for row, name, place in zip(found.rows.tolist(), found.ids, places, strict=True):
            task.advance(1)
            try:
                content = read_image_file(root / name)
            except BadImageError as error:
                bad.append(f"{name}: {error.reason}")
                continue
            if digests is not None and hashlib.sha256(content).digest() != digests[row].tobytes():
                bad.append(f"{name}: changed since it was embedded")
                continue
            if bad:
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            if config.link:
                place.symlink_to(root / name)
            else:
                place.write_bytes(content)
    if bad:
        problem = f"{len(bad)} of {len(places)} images cannot be exported: {join_first_few(bad, _SHOWN, '; ')}"
        raise DatasetError(str(root), problem, "Embed these images again, or pass --dataset (and --data-root).")


def _imagefolder(found: _Set) -> tuple[list[str], dict[str, str]]:
    used = sorted(set(map(str, found.names)))
    bad = [name for name in used if not _is_folder_name(name)]
    bad += [one for one, count in Counter(name.casefold() for name in used).items() if count > 1]
    if bad:
        problem = f"{len(bad)} of {len(used)} class names cannot be folder names: {', '.join(map(repr, bad[:_SHOWN]))}"
        raise ConfigError("--export imagefolder", problem, "Rename these classes, or use another format.")
    files = _flat_names(found.ids, stems=False)
    return [f"{name}/{file}" for name, file in zip(found.names, files, strict=True)], {}


def _is_folder_name(name: str) -> bool:
    # other programs skip folders whose names begin with a dot
    fits = len(os.fsencode(name)) <= _MAX_BYTES
    return fits and not name.startswith(".") and not any(letter in '/\\:*?"<>|\0' for letter in name)


def _huggingface(found: _Set) -> tuple[list[str], dict[str, str]]:
    lost = sorted(_NO_VALUES.intersection(filter(None, found.names)))
    if lost:
        problem = f"the datasets library would read {', '.join(map(repr, lost))} in metadata.csv as missing labels"
        raise ConfigError("--export huggingface", problem, "Rename these classes, or use another format.")
    taken = {"metadata.csv", "README.md"} & {name.split("/", 1)[0] for name in found.ids}
    if taken:
        raise DatasetError(sorted(taken)[0], "is the name of both an image and an exported table", "Rename the image.")
    columns = ["file_name", "label"] + ([] if found.scores == [None] * len(found.ids) else ["confidence"])
    rows = zip(found.ids, found.names, found.scores, strict=True)
    table = csv_text(columns, (row[: len(columns)] for row in rows))  # None is an empty cell
    return found.ids, {"metadata.csv": table, "README.md": _README}


def _fiftyone(found: _Set) -> tuple[list[str], dict[str, str]]:
    files = _flat_names(found.ids, stems=True)
    targets = [
        None if label < 0 else label if score is None else {"label": label, "confidence": score}
        for label, score in zip(found.labels.tolist(), found.scores, strict=True)
    ]
    labels = {PurePosixPath(file).stem: target for file, target in zip(files, targets, strict=True)}
    whole = {"classes": list(found.class_names), "labels": labels}
    return [f"data/{file}" for file in files], {"labels.json": json.dumps(whole, ensure_ascii=False) + "\n"}


def _flat_names(ids: Sequence[str], *, stems: bool) -> list[str]:
    """Return a unique file name for each image: its own if unique (for ``stems``, without suffix), else its path."""

    def key(name: str) -> str:
        return (PurePosixPath(name).stem if stems else name).casefold()

    count = Counter(key(PurePosixPath(name).name) for name in ids)
    made: list[str] = []
    taken: set[str] = set()
    for name in ids:
        own = PurePosixPath(name).name
        whole = name.replace("/", "__")
        file = whole if count[key(own)] > 1 and len(os.fsencode(whole)) <= _MAX_BYTES else own
        first, number = PurePosixPath(file), 1
        while key(file) in taken:
            number += 1
            file = f"{first.stem}-{number}{first.suffix}"
        taken.add(key(file))
        made.append(file)
    return made
