"""Datasets from a table (CSV or JSON) of images, labels and splits, and the conversion of labels to class names.

All labels, also from tar, Parquet and imported files, are converted alike: surrounding spaces are ignored, accented
letters are equal in either Unicode form, and whole numbers lose ``.0``, so that ``3``, `` 3`` and ``3.0`` are one
class. Reading a file that a user names never blocks, as it would for a pipe.
"""

import codecs
import contextlib
import csv
import gzip
import io
import math
import os
import re
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from labelkit.data.datasets import (
    SPLIT_WORDS,
    FileSource,
    ImageDataset,
    build_dataset,
    list_splits_in_order,
    natural_sort_key,
    sort_by_bytes,
)
from labelkit.data.decode import IMAGE_SUFFIXES
from labelkit.data.folders import walk_images
from labelkit.data.path_rule import match_paths, similar_path_hint
from labelkit.errors import DatasetError
from labelkit.files import (
    decode_table,
    missing_path_remedy,
    normalize_column_name,
    open_csv_reader,
    open_regular_file,
    parse_json,
)
from labelkit.formatting import join_first_few
from labelkit.progress import current_progress

MAX_FAULTS_SHOWN: Final = 10
_MAX_SHOWN: Final = 200
_COLUMNS_SHOWN: Final = 12
_LABELS_SHOWN: Final = 5

PATH_COLUMNS: Final = tuple(
    "path image_path img_path file_path filepath filepaths filename file_name image_name file image img name image_id "
    "id sample_id uri url path_escaped".split()
)
"""Accepted headers of the path column, of which the first one present is used; case is ignored, and spaces count
as ``_``."""
LABEL_COLUMNS: Final = ("label", "labels", "class", "class_name", "category", "choice")
"""Accepted headers of the label column: ``label``, else one of the others if it is the only one present."""
FILE_COLUMN: Final = "sha256"
"""Header of the column with the image file's SHA-256 in tables written by ``start``."""
GUESSED_KINDS: Final = ("known", "new", "unsure")
"""Kinds of rows in ``labels.csv`` and in the output of ``predict`` whose labels are predictions."""
_SPLIT_COLUMNS: Final = ("split", "set", "subset", "partition")  # all but the first only if all its splits are standard
_MARKS: Final = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}
YES_OR_NO: Final = {**_MARKS, "no": False, "yes": True}
"""Lowercase values of the column ``labeled``."""
_LABELED_COLUMNS: Final = ("labeled", "labelled")
_SAVE_AS_CSV: Final = "Save it as a CSV with the columns path,label."
# first bytes of files that are not tables, and their type
_FOREIGN: Final = {
    b"PK\3\4": "an Excel file or an archive",
    b"\xd0\xcf\x11\xe0": "an Excel file",
    b"<": "an XML file",
    b"PAR1": "a Parquet file",
}
_ROW_REMEDY: Final = "Each row is path,label or path,label,split; an empty label means unlabeled."
_ROOT_REMEDY: Final = "If the paths are relative to another folder, pass it as --data-root FOLDER."
_HEADER_REMEDY: Final = "The first line must name the columns, such as path,label or path,label,split."


@dataclass(frozen=True, slots=True)
class _CsvRow:
    line: int
    path: str
    label: str | None
    split: str
    is_predicted: bool
    file: str
    may_train: bool


def _raise_faults(where: str, faults: Sequence[str], remedy: str = _ROW_REMEDY) -> None:
    """Raise one error with all faults of a file, so that they can be corrected together; do nothing without faults."""
    if not faults:
        return
    shown = join_first_few(faults, MAX_FAULTS_SHOWN, "\n  ")
    problem = f"contains {len(faults)} error{'s' if len(faults) > 1 else ''}\n  {shown}\n"
    raise DatasetError(where, problem, remedy)


def load_csv(path: Path, *, data_root: Path | None = None, label_column: str | None = None) -> ImageDataset:
    """Load the images listed in a CSV file with a path column and optional label and ``split`` columns.

    Paths are absolute, or relative to the folder of the CSV or else to ``data_root``; if no such file exists,
    `labelkit.data.path_rule` matches them to the images in these folders. The root of the sample ids is the folder of
    the CSV if all images are in it, else ``data_root`` if they are all there, else the deepest folder that contains
    all images. An empty label means unlabeled, an empty split no split. If a column ``labeled`` is 0, the label is
    hidden from training and used only for scoring. The dataset's notes list the unused columns.
    Class names are in natural order (2 before 10), as are the splits after train, val and test.

    Raises:
        DatasetError: lists every unreadable row, missing file or image with two labels, with its line number.
    """
    table = _read_csv_rows(path, label_column, needs_labels=label_column is not None)
    rows, notes = table.rows, table.notes
    if table.unused and not table.label_fault:
        notes.append(f"unused columns: {join_first_few(table.unused, _COLUMNS_SHOWN)}")
    folders = [path.absolute().parent, *([data_root.absolute()] if data_root is not None else [])]
    files = [_resolve_path(row.path, folders) for row in rows]
    missing = {row.path for row, file in zip(rows, files, strict=True) if not path_exists(file)}
    known: list[str] = []
    if missing:
        others, known = _find_by_path_rule(missing, folders, path, whole=all(row.path in missing for row in rows))
        files = [others.get(row.path, file) for row, file in zip(rows, files, strict=True)]
        if others:
            written, file = next(iter(others.items()))
            notes.append(f"paths spelled differently from their files: {len(others)}, such as {written} for {file}")
    homes = [folder for folder in folders if all(file.is_relative_to(folder) for file in files)]
    root = homes[0] if homes else Path(os.path.commonpath([os.path.dirname(file) for file in files]))  # noqa: PTH120
    faults: list[str] = []
    by_id: dict[str, _CsvRow] = {}
    for row, file in zip(rows, files, strict=True):
        first = by_id.setdefault(file.relative_to(root).as_posix(), row)
        if (first.label, first.split, first.may_train) != (row.label, row.split, row.may_train):
            other = "label or split" if first.may_train == row.may_train else "value of labeled"
            faults.append(f"line {row.line}: {row.path!r} is also in line {first.line}, with another {other}")
        elif not path_exists(file):
            near = "" if len(faults) >= MAX_FAULTS_SHOWN else similar_path_hint(row.path, known)
            faults.append(f"line {row.line}: no file {row.path!r} (looked for {file}){near}")
        elif is_folder(file):
            faults.append(f"line {row.line}: {row.path!r} is a folder")
    _raise_faults(str(path), faults, _ROW_REMEDY if all(map(path_exists, files)) else _ROOT_REMEDY)
    ids = tuple(sort_by_bytes(by_id))
    first_splits = list_splits_in_order(row.split for row in rows)
    other_splits = sorted({row.split for row in rows if row.split} - set(first_splits), key=natural_sort_key)
    hidden = sum(bool(row.label) and not row.may_train for row in by_id.values())
    if hidden:
        notes.append(f"labels hidden from training, since the column labeled is 0: {hidden}")
    dataset = build_dataset(
        path.stem,
        root,
        ids,
        [by_id[sample_id].label or None for sample_id in ids],
        [by_id[sample_id].split or None for sample_id in ids],
        FileSource(root, ids),
        split_names=(*first_splits, *other_splits),
        notes=[*notes, missing_labels_note(table.label_fault)] if table.label_fault else notes,
    )
    return replace(dataset, given=dataset.given & [by_id[sample_id].may_train for sample_id in dataset.sample_ids])


def _resolve_path(written: str, folders: Sequence[Path]) -> Path:
    """Return the file that a path refers to: in the first folder in which it exists, otherwise in the first folder."""
    files = [Path(os.path.normpath(folder / written)) for folder in folders]
    return next((file for file in files if path_exists(file)), files[0])


def _find_by_path_rule(
    missing: set[str], folders: Sequence[Path], table: Path, *, whole: bool
) -> tuple[dict[str, Path], list[str]]:
    """Return the images matched to missing paths by `labelkit.data.path_rule`, and the names of all images."""
    others: dict[str, Path] = {}
    known: list[str] = []
    for folder in folders:
        images: list[str] = []
        with contextlib.suppress(DatasetError):  # a folder that cannot be listed counts as empty
            images = sorted(walk_images(folder))
        whole = whole and not others
        places, _ = match_paths(sorted(missing - others.keys()), images, table=table, root=folder, complete=whole)
        others |= {written: folder / images[place] for written, place in places.items()}
        known += images
    return others, known


def read_label_csv(
    path: Path,
    label_column: str | None = None,
    *,
    empty_ok: bool = False,
) -> dict[str, str]:
    """Read the class of each path from a CSV file; see ``PATH_COLUMNS`` and ``LABEL_COLUMNS`` for column names.

    The images need not exist. Rows with an empty label are skipped; with ``empty_ok``, all may be empty.
    Messages say which labels were read as unlabeled or merged.

    Raises:
        DatasetError: the file is unreadable, no row has a label, or a path has two labels.
    """
    found: dict[str, str] = {}
    faults: list[str] = []
    table = _read_csv_rows(path, label_column, empty_ok=empty_ok)
    rows = table.rows
    if guesses := sum(row.is_predicted and bool(row.label) for row in rows):
        problem = f"{guesses} of {len(rows)} labels were predicted by labelkit (their kind is known, new or unsure), "
        remedy = "Pass a file with only labels that you know, such as given.csv, or only the lines that you corrected. "
        remedy += "To export predictions, use `labelkit label --predictions newest --export FORMAT`."
        raise DatasetError(str(path), f"{problem}so they cannot serve as ground truth", remedy)
    for row in rows:
        if not row.label:
            continue
        if (first := found.setdefault(row.path, row.label)) != row.label:
            faults.append(f"line {row.line}: {row.path!r} is {first!r} in an earlier line and {row.label!r} here")
    _raise_faults(str(path), faults)
    if not found and not empty_ok:
        raise DatasetError(str(path), "no rows are labeled", "Fill in the label column for at least some rows.")
    show = current_progress().message
    if any(row.label and not row.may_train for row in rows):
        show(f"{path}: all labels are used; the column labeled hides labels only in a file passed as --dataset")
    if any(row.split for row in rows):
        show(
            f"{path}: the split column is not used; to use it, pass the file as --dataset, with --data-root FOLDER if "
            "its paths are relative to another folder"
        )
    for note in table.notes:
        show(f"{path}: {note}")
    return found


def read_labeled_rows(path: Path, label_column: str | None = None) -> list[tuple[str, str, str]]:
    """Read the path, label and file digest (SHA-256) of each labeled row in a CSV file.

    The SHA-256 is empty if unknown. Unlike in :func:`read_label_csv`, a path may have several labels, if its file was
    replaced.

    Raises:
        DatasetError: the file is unreadable.
    """
    rows = _read_csv_rows(path, label_column, empty_ok=True).rows
    return [(row.path, row.label, row.file) for row in rows if row.label]


def read_paths_and_labels(path: Path) -> dict[str, str]:
    """Read the paths in a CSV file with their labels, which are empty if missing.

    Raises:
        DatasetError: the file is unreadable.
    """
    rows = _read_csv_rows(path, needs_labels=False, empty_ok=True).rows
    return {row.path: row.label or "" for row in rows}


@dataclass(frozen=True, slots=True)
class _CsvTable:
    """Rows of a CSV file; if there is no column of labels, ``label_fault`` says why."""

    rows: list[_CsvRow]
    label_fault: str
    notes: list[str]
    unused: Sequence[str] = ()


def _read_csv_rows(
    path: Path, label_column: str | None = None, *, needs_labels: bool = True, empty_ok: bool = False
) -> _CsvTable:
    where, text = str(path), _read_text(path)
    if empty_ok and not text.strip():
        return _CsvTable([], "", [])
    if text.lstrip().startswith(("{", "[")):
        text = convert_json_to_csv(text, where, (*LABEL_COLUMNS, (label_column or "").strip().lower()))
    reader, names, at_path = _open_csv(text, where)
    header = [name.lower() for name in names]
    found, label_fault = find_label_column(header, label_column)
    split_column = next((name for name in _SPLIT_COLUMNS if name in header and name != found), "split")
    used = (header[at_path], found, split_column)
    if repeated := [name for name in used if name and header.count(name) > 1]:
        raise DatasetError(where, f"line 1: column {repeated[0]!r} occurs twice", _HEADER_REMEDY)
    at_label = header.index(found) if found else None
    at_split = header.index(split_column) if split_column in header and found != split_column else None
    # tables that `start` and `predict` write; any table may have a column named kind, but not both columns
    is_ours = {"kind", "confidence"} <= set(header) and found in ("label", "label_or_group")
    at_kind = header.index("kind") if is_ours else None
    at_file = header.index(FILE_COLUMN) if FILE_COLUMN in header else None
    at_given = next((header.index(name) for name in _LABELED_COLUMNS if name in header and name != found), None)
    # columns of 0 and 1, one for each class
    flags = {at for at, name in enumerate(header) if name.removeprefix("is_") in SPLIT_WORDS}
    marks = set() if found or label_column else set(range(len(header))) - {at_path, at_split, at_file, at_given, *flags}
    faults: list[str] = []
    ended = 1  # line on which the last row read ends
    lines: list[tuple[int, list[str]]] = []
    try:
        for fields in reader:
            ended = reader.line_num
            if not any(map(str.strip, fields)):
                continue
            if len(fields) != len(header):
                faults.append(f"line {reader.line_num}: {len(fields)} fields, but the header has {len(header)}")
            elif any("\0" in fields[at] for at in (at_path, at_label, at_split) if at is not None):
                faults.append(f"line {reader.line_num}: contains a NUL character, so the file may be damaged")
            elif not fields[at_path].strip():
                faults.append(f"line {reader.line_num}: the path is empty")
            else:
                marks = {at for at in marks if fields[at].strip().lower() in _MARKS}
                kept = {at_path, at_label, at_split, at_kind, at_file, at_given, *marks}  # a table may have many more
                lines.append((reader.line_num, [text if at in kept else "" for at, text in enumerate(fields)]))
    except csv.Error as error:
        is_open = "end of data" in str(error)
        problem = f"line {reader.line_num}: unreadable: {error}"
        faults.append(f"line {ended + 1}: a quotation mark is not closed" if is_open else problem)
    _raise_faults(where, faults)

    def column(at: int | None, default: str = "") -> list[str]:
        return [default if at is None else fields[at].strip() for _, fields in lines]

    labels: list[str | None] = [None if at_label is None else fields[at_label] for _, fields in lines]
    if not lines and not empty_ok:
        raise DatasetError(where, "contains a header, but no images", "Add a line for each image below the header.")
    label_notes: list[str] = []
    path_notes = []
    if normalize_column_name(names[at_path]) not in PATH_COLUMNS:
        path_notes = [f"paths read from the column {names[at_path]!r}, the only one with image file names"]
    classes_of = [[names[at] for at in marks if _MARKS[fields[at].strip().lower()]] for _, fields in lines]
    if len(marks) > 1 and any(classes_of):
        columns = join_first_few((names[at] for at in sorted(marks)), _COLUMNS_SHOWN)
        several = next((line for (line, _), one in zip(lines, classes_of, strict=True) if len(one) > 1), None)
        if several is not None:
            label_fault = f"line {several} has more than one 1 in the columns {columns}; only one label is allowed"
        else:
            label_fault, labels = "", [one[0] if one else None for one in classes_of]
            label_notes = [f"labels read from the one-hot columns {columns}"]
    if label_fault and needs_labels:
        remedy = "Pass the name of the label column as --label-column."
        raise DatasetError(where, label_fault, "Choose one of these columns." if label_column else remedy)
    splits = [SPLIT_WORDS.get(split.lower(), split) for split in column(at_split)]
    if split_column != "split" and set(splits) - {*SPLIT_WORDS.values(), ""}:
        at_split, splits = None, column(None)
    given = [text.lower() for text in column(at_given, "1")]
    if not YES_OR_NO.keys() >= set(given):
        at_given, given = None, column(None, "1")
    read = {at_path, at_label, at_split, at_kind, at_file, at_given, *(marks if label_notes else ())}
    unused = [name for at, name in enumerate(names) if name and at not in read]
    classes, notes = to_class_names(labels)
    values = zip(lines, classes, splits, column(at_kind), column(at_file), given, strict=True)
    rows = [
        _CsvRow(line, fields[at_path], label, split, kind in GUESSED_KINDS, file, YES_OR_NO[used])
        for (line, fields), label, split, kind, file, used in values
    ]
    return _CsvTable(rows, label_fault, path_notes + label_notes + notes, unused)


def _read_text(path: Path) -> str:
    """Return the text of a table; ``DatasetError``: it is another type of file, or not UTF-8."""
    where, raw = str(path), read_table_bytes(path)
    for start, kind in _FOREIGN.items():
        if raw.removeprefix(codecs.BOM_UTF8).startswith(start):
            raise DatasetError(where, f"is {kind}, not a table", _SAVE_AS_CSV)
    try:
        return decode_table(raw)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise DatasetError(
            where, f"line {line} is not UTF-8", "Save the file as UTF-8 (in Excel, choose CSV UTF-8)."
        ) from error


def _are_images(texts: Sequence[str | None]) -> bool:
    """Return whether most of the nonempty texts look like image file names; ``False`` if all are empty."""
    found = [Path(text.strip()).suffix.lower() in IMAGE_SUFFIXES for text in texts if text]
    return 2 * sum(found) > len(found)


def _open_csv(text: str, where: str) -> tuple[Any, list[str], int]:
    """Return a reader positioned after the header, the column names, and the position of the path column.

    If no header is one of ``PATH_COLUMNS``, it is the only column that contains image file names.

    Raises:
        DatasetError: there is no path column.
    """
    if not text.strip():
        raise DatasetError(where, "the file is empty", _HEADER_REMEDY)
    try:
        reader, header = open_csv_reader(io.StringIO(text, newline=""), PATH_COLUMNS)
    except csv.Error as error:
        raise DatasetError(where, f"line 1: {error}", _HEADER_REMEDY) from error
    keys = [normalize_column_name(name) for name in header]
    if known := [name for name in PATH_COLUMNS if name in keys]:
        return reader, header, keys.index(known[0])
    with contextlib.suppress(csv.Error):
        columns = list(zip(*(fields for fields in reader if len(fields) == len(header)), strict=True))
        images = [at for at, texts in enumerate(columns) if _are_images(texts) and not _are_images([header[at]])]
        if len(images) == 1:
            return *open_csv_reader(io.StringIO(text, newline=""), PATH_COLUMNS), images[0]
    listed = ", ".join(header)
    shown = listed if len(listed) <= _MAX_SHOWN else f"{listed[:_MAX_SHOWN]}... ({len(listed):,} characters)"
    problem = f"line 1: there is no path column ({', '.join(PATH_COLUMNS[:-1])}), found {shown}"
    raise DatasetError(where, problem, _HEADER_REMEDY)


def find_label_column(header: Sequence[str], requested: str | None, others: Sequence[str] = ()) -> tuple[str, str]:
    """Find the label column in a header, or return an empty name and the reason.

    ``requested`` is the column that the user named, if any. If no column has a common name, the column of ``others``,
    which are known to contain classes, is used if there is only one.
    """
    shown = join_first_few(header, _COLUMNS_SHOWN)
    by_lower = {key(name): name for key in (normalize_column_name, str.lower) for name in reversed(header)}
    if requested is not None:
        name = by_lower.get(requested.strip().lower(), "")
        return name, "" if name else f"no column {requested!r}, found {shown}"
    usual = [by_lower[name] for name in LABEL_COLUMNS if name in by_lower] or list(others)
    if usual and (usual[0].lower() == LABEL_COLUMNS[0] or len(usual) == 1):
        return usual[0], ""
    if usual:
        return "", f"{len(usual)} columns may contain the labels: {', '.join(usual)}"
    return "", f"no column 'label' (or {', '.join(LABEL_COLUMNS[1:])}), found {shown}"


def convert_json_to_csv(text: str, where: str, label_columns: Collection[str]) -> str:
    """Convert JSON (COCO, FiftyOne, Label Studio, ``{path: label}``, or a list or lines of objects) to CSV text.

    Raises:
        DatasetError: it is none of these, or an image has several labels.
    """
    table = io.StringIO()
    try:
        rows = [
            {key: _single_label(row, one, where) if key.lower() in label_columns else one for key, one in row.items()}
            for row in _json_rows(text)
        ]
        writer = csv.DictWriter(table, list(dict.fromkeys(key for row in rows for key in row)), restval="")
        writer.writeheader()
        writer.writerows(rows)
        table.getvalue().encode()  # JSON may contain lone surrogates, which no file name or class has
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        remedy = "Pass COCO, FiftyOne or Label Studio JSON, {path: label}, objects with keys path and label, or a CSV."
        raise DatasetError(where, "is not JSON with image labels in a known format", remedy) from error
    return table.getvalue()


def _json_rows(text: str) -> list[dict[str, Any]]:
    try:
        value = parse_json(text)
    except ValueError:  # one object in each line
        value = [parse_json(line) for line in text.split("\n") if line.strip()]
    if isinstance(value, list):
        return [_read_task(one) if isinstance(one.get("data"), dict) else one for one in value]
    if {"images", "annotations", "categories"} <= value.keys():
        names = {one["id"]: one["name"] for one in value["categories"]}
        found = defaultdict(list)
        for one in value["annotations"]:
            found[one["image_id"]].append(names[one["category_id"]])
        return [{"path": one["file_name"], "label": found[one["id"]]} for one in value["images"]]
    if {"classes", "labels"} == value.keys():
        classes = dict(enumerate(value["classes"])) | {None: None}
        value = {path: classes[at] for path, at in value["labels"].items()}
    if any(isinstance(label, list) for label in value.values()):
        raise ValueError("nested lists are not supported")
    return [{"path": path, "label": label} for path, label in value.items()]


def _read_task(task: dict[str, Any]) -> dict[str, Any]:
    """Return the image and the choices of a Label Studio task."""
    results = [one for answer in task["annotations"] if not answer.get("was_cancelled") for one in answer["result"]]
    choices = [choice for one in results if one["type"] == "choices" for choice in one["value"]["choices"]]
    return {"path": _json_path(task["data"]), "label": choices}


def _json_path(row: dict[str, Any]) -> object:
    return row.get("image") or next((one for one in row.values() if isinstance(one, str)), "?")


def _single_label(row: dict[str, Any], label: Any, where: str) -> object:
    """Return the only label of an image, or an empty string."""
    several = label["choices"] if isinstance(label, dict) else label
    found = list(dict.fromkeys(several if isinstance(several, list) else [several]))
    if len(found) > 1:
        problem = f"the image {_json_path(row)!r} has {len(found)} labels: {', '.join(map(str, found[:_LABELS_SHOWN]))}"
        raise DatasetError(where, problem, "Keep only one label per image.")
    return found[0] if found else ""


def missing_labels_note(fault: str) -> str:
    """Return a note that no labels were found, and why."""
    return f"no labels: {fault}; choose the column with --label-column"


MAX_TABLE_BYTES: Final = 1 << 30


def path_exists(path: Path) -> bool:
    """Return whether a path exists, treating an invalid name, such as one that is too long, as missing."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises if a name is too long


def is_folder(path: Path) -> bool:
    """Return whether a path is an existing folder, treating an invalid name as missing."""
    return os.path.isdir(path)  # noqa: PTH112 - as above


def is_file(path: Path) -> bool:
    """Return whether a path is an existing regular file, treating an invalid name as missing."""
    return os.path.isfile(path)  # noqa: PTH113 - as above


def read_table_bytes(path: Path) -> bytes:
    """Read the content of a table file of at most 1 GiB, which may be compressed with gzip.

    Raises:
        DatasetError: the file is missing, not regular (reading a pipe would wait), too large, or unreadable.
    """
    where = str(path)
    try:
        with open_regular_file(path) as file:
            is_packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream: Any = gzip.GzipFile(fileobj=file) if is_packed else file
            raw: bytes = stream.read(MAX_TABLE_BYTES + 1)
        if len(raw) > MAX_TABLE_BYTES:
            problem = f"is larger than {MAX_TABLE_BYTES:,} bytes"
            raise DatasetError(where, problem, "Split the file into smaller files.")
        return raw
    except FileNotFoundError as error:
        raise DatasetError(where, "does not exist", missing_path_remedy(Path(path))) from error
    except IsADirectoryError as error:
        raise DatasetError(where, "is a folder", "Pass the CSV or JSON file that has the labels.") from error
    except (OSError, ValueError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DatasetError(
            where, f"cannot be read: {reason}", "Check its name and permissions, or save the table to a file first."
        ) from error


NO_LABEL: Final = frozenset(
    "-1 ? - #N/A N/A NA NULL NaN n/a nan null <NA> #NA -NaN -nan NAN 1.#IND -1.#IND 1.#QNAN -1.#QNAN".split()
)
"""Labels treated as empty: -1, the words that pandas reads as missing, and punctuation marks."""
NO_LABEL_WORDS: Final = frozenset(("none", "unlabeled", "unlabelled", "no_label", "no label"))  # in any case
_WHOLE: Final = re.compile(r"([+-]?\d+)\.0*")


def to_class_name(label: object) -> str | None:
    """Convert a label to a normalized class name, or to ``None`` if it means unlabeled."""
    if label is None or (isinstance(label, float) and math.isnan(label)):
        return None
    name = re.sub(" +", " ", unicodedata.normalize("NFC", str(label)).strip())
    whole = _WHOLE.fullmatch(name)
    name = whole[1] if whole else name
    return None if not name or name in NO_LABEL or name.lower() in NO_LABEL_WORDS else name


def to_class_names(labels: Sequence[object]) -> tuple[list[str | None], list[str]]:
    """Convert labels to class names; also return notes about labels read as unlabeled and about merged spellings."""
    counts = Counter(str(label) for label in labels if label is not None)
    name_of = {text: to_class_name(text) for text in counts}
    spellings: dict[str, list[str]] = defaultdict(list)
    for text, name in name_of.items():
        if name is not None:
            spellings[name].append(text)
    none = {text: count for text, count in counts.items() if name_of[text] is None and text.strip()}
    notes: list[str] = []
    if none:
        listed = join_first_few((f"{text.strip()!r} ({count} of {len(labels)})" for text, count in none.items()))
        notes.append(f"labels read as unlabeled: {listed}; rename them if they are classes")
    joined = [f"{join_first_few(map(repr, texts))} are {name!r}" for name, texts in spellings.items() if len(texts) > 1]
    if joined:
        notes.append(
            f"merged labels that differ only in spaces, accents or .0: {join_first_few(joined, separator='; ')}"
        )
    return [None if label is None else name_of[str(label)] for label in labels], notes


def match_known_spelling(labels: Mapping[int, str], known: Iterable[str]) -> dict[int, str]:
    """Replace each class name with the known spelling of the same class."""
    names = list(known)
    written = {to_class_name(name): name for name in names} | {name: name for name in names}
    return {place: written.get(name, name) for place, name in labels.items()}
