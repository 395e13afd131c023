"""Named results of a store, such as clusters, discovered classes, neighbors and scores; the store never changes.

Results are stored in files next to the store, or packed into the same file.

The format is described in ``docs/inside/file_format.txt``.
"""

import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count as numbers_from
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Mismatch, NotAStore, StoreError, output_exists_error
from labelkit.files import parse_json
from labelkit.store import schema
from labelkit.store.commit import canonical_json, fsync_folder, to_plain_json, translate_os_errors
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.reader import CheckedFile, open_checked_file
from labelkit.store.schema import decode_name
from labelkit.store.writer import MADE_BY, FileContents, encode_strings, write_small_file

ResultArray = NDArray[Any] | Sequence[str] | str | Mapping[str, Any]

_FLAGS = ("labeled", "new_classes")


@dataclass(frozen=True)
class Result:
    """Named result of a store, as read from its file.

    Attributes:
        name: file name without ``.h5``, or name of the group in a packed store.
        kind: kind of content, one word.
        arrays: by name as in ``labelkit.store.schema``; row i is row i of the store. Strings are lists of
            ``str``, flags are bool, and ``metrics`` is JSON text.
        params: how it was computed, including the seed.
        stage: the command that created it.
        path: its file, or the file of the store if it is packed.
        where: its name in messages, such as ``cub.h5:/results/RESULT``.
        content_digest: digest that identifies its content.
    """

    name: str
    kind: str
    arrays: dict[str, Any]
    params: dict[str, Any]
    stage: str
    path: Path
    where: str
    content_digest: str

    @property
    def metrics(self) -> dict[str, Any]:
        """Metrics of the result as a dictionary; empty if there are none."""
        found = parse_json(self.arrays.get("metrics", "{}"))
        return found if isinstance(found, dict) else {}

    def group_ids(self, *, best_guess: bool) -> NDArray[np.int64] | None:
        """Return the group (n,) of each image, -1 = none, if it has groups; ``best_guess``: also of unsure images."""
        keys = (*["group_ids"] * best_guess, "pseudo_labels", "cluster_ids")
        key = next((key for key in keys if key in self.arrays), None)
        return None if key is None else np.asarray(self.arrays[key], dtype=np.int64)


def write_result(
    store: EmbeddingStore,
    name: str,
    *,
    kind: str,
    arrays: Mapping[str, ResultArray],
    params: Mapping[str, Any],
    stage: str,
    overwrite: bool = False,
) -> Path:
    """Write a result of a store atomically, always to a separate file.

    Args:
        store: the store to which its rows refer.
        name: matches ``[a-z0-9][a-z0-9._-]{0,63}``.
        kind: kind of content, one lowercase word such as ``clusters``.
        arrays: by name. Those in ``labelkit.store.schema`` must have the shapes stated there and are
            converted to the types stated there; others may be any numbers, flags or lists of strings.
            ``metrics`` is an object or its JSON text.
        params: how it was computed, including the seed; JSON values only.
        stage: the command that creates it, such as ``cluster ss-kmeans``.
        overwrite: replace a result of the same name; a result packed into the store is never replaced.

    Returns:
        The file. Writing the same result twice is not an error, regardless of ``overwrite``.

    Raises:
        StoreError: the name is invalid.
        OutputExistsError: a result of this name exists with other content or of another kind.
        ResourceError: the disk is full, permission is denied, ...
        ValueError: arrays do not match the store or each other.
        TypeError: arrays or parameters have a type that cannot be stored.
    """
    path = _result_path(store, name)
    if not schema.RESULT_NAME.fullmatch(kind):
        raise ValueError(f"kind must be a single lowercase word, got {kind!r}")
    contents = FileContents.create(schema.FORMAT_RESULT, created_by=MADE_BY, params=params)
    contents.set_attributes("", store_digest=store.content_digest, n=store.n, kind=kind, stage=stage)
    for array_name, value in arrays.items():
        if not schema.WORD.fullmatch(array_name) or array_name in ("digests", "params"):
            raise ValueError(f"invalid array name {array_name!r}")
        contents.datasets[array_name] = _stored(array_name, value)
    sealed = contents.sealed()
    try:
        with CheckedFile(io.BytesIO(sealed.to_bytes()), str(path), schema.FORMAT_RESULT) as file:
            file.check_axes(schema.RESULT_COLUMNS, {"n": store.n})
    except StoreError as error:
        raise ValueError(f"not a result of this store: {error.where}: {error.problem}") from error
    if name in store.packed_results:
        with open_result(store, name) as packed:
            if packed.content_digest != sealed.content_digest:
                state, note = "and has other content", "A packed file is never changed."
                raise output_exists_error(packed.location_of(""), "--result", state=state, note=note, replaceable=False)
        return store.path
    if not path.parent.is_dir():
        with translate_os_errors(path.parent):
            path.parent.mkdir(exist_ok=True)
        fsync_folder(path.parent.parent)
    if overwrite:
        _refuse_other_kind(path, kind)
    write_small_file(path, contents, "--result", overwrite=overwrite)
    return path


def read_result(store: EmbeddingStore, name: str) -> Result:
    """Read a result of a store and verify all its digests.

    Raises:
        NotAStore: the result does not exist.
        Mismatch: it was created from a different version of the store.
        StoreError: see ``labelkit.store.reader.open_checked_file``.
    """
    with open_result(store, name) as file:
        check_result_owner(file, store)
        path = store.path if name in store.packed_results else _result_path(store, name)
        return parse_result(file, path, name)


def check_result_owner(file: CheckedFile, store: EmbeddingStore) -> None:
    """Check that a result was created from the store's current content; ``Mismatch`` if not."""
    root = file.attributes[""]
    if root.get("store_digest") != store.content_digest:
        then = "" if root.get("n") == store.n else f", with {root.get('n')} images instead of {store.n}"
        problem, again = f"was created from another version of {store.path}{then}", f"`labelkit {root.get('stage')}`"
        raise Mismatch(file.location_of(""), problem, f"Recreate the result with --overwrite ({again}), or delete it.")


def parse_result(file: CheckedFile, path: Path, name: str) -> Result:
    """Read a result from an open file, or from its group in a packed store, and verify all its digests."""
    root = file.attributes[""]
    file.check_axes(schema.RESULT_COLUMNS, {"n": root.get("n", 0)})
    arrays: dict[str, Any] = {}
    for column, info in file.datasets.items():
        if "/" in column or column == "params":
            continue
        if info.dtype.kind == "S":
            text = info.shape == ()
            arrays[column] = decode_name(file.read(column).item()) if text else file.read_strings(column)
        else:
            arrays[column] = file.read(column).astype(np.bool_ if column in _FLAGS else info.dtype, copy=False)
    return Result(
        name=name,
        kind=str(root.get("kind", "")),
        arrays=arrays,
        params=file.read_json("", "params"),
        stage=str(root.get("stage", "")),
        path=path,
        where=file.location_of(""),
        content_digest=file.content_digest,
    )


def list_results(store: EmbeddingStore) -> list[str]:
    """Return the sorted names of all results of a store, in separate files or packed into it."""
    return sorted({*store.packed_results, *list_result_files(store.path)})


def list_result_files(path: Path) -> list[str]:
    """Return the sorted names of the results in files next to a store."""
    folder = results_folder(path)
    if not folder.is_dir():
        return []
    names = (entry.name.removesuffix(".h5") for entry in folder.iterdir() if entry.name.endswith(".h5"))
    return sorted(name for name in names if schema.RESULT_NAME.fullmatch(name))


def find_free_name(store: EmbeddingStore, name: str) -> str:
    """Return the first of ``name``, ``name-2``, ``name-3``, ... that is not yet the name of a result."""
    taken = set(list_results(store))
    if name not in taken:
        return name
    return next(text for number in numbers_from(2) if (text := f"{name}-{number}") not in taken)


def find_newest_name(names: Iterable[str], name: str) -> str:
    """Find the name with the highest number among ``name``, ``name-2``, ...; ``name`` if none of them exists.

    Numbers may be missing: a store with later photos may begin with ``answer-4``.
    """
    numbers = [1]
    for one in names:
        start, _, number = one.rpartition("-")
        if start == name and number.isdecimal() and not number.startswith("0"):
            numbers.append(int(number))
    return name if max(numbers) == 1 else f"{name}-{max(numbers)}"


def check_new_result(
    store: EmbeddingStore,
    name: str,
    *,
    overwrite: bool,
    kind: str,
    stage: str = "",
    params: Mapping[str, Any] | None = None,
) -> None:
    """Check in advance that a result can be written under a name; ``OutputExistsError`` if not.

    An existing result that the same command ``stage`` created with the same ``params``, as far as known in advance, is
    accepted, since the command will produce the same result. With ``overwrite``, any result of the same kind is.
    """
    path = _result_path(store, name)
    if name not in list_results(store):
        return
    if overwrite:
        _refuse_other_kind(path, kind)
        return
    try:
        found = read_result(store, name) if params is not None else None
    except StoreError:
        found = None
    wanted = to_plain_json(params or {})
    if found is None or found.stage != stage or any(found.params.get(key, ...) != wanted[key] for key in wanted):
        raise output_exists_error(path, "--result", replaceable=name not in store.packed_results)


@contextmanager
def open_result(store: EmbeddingStore, name: str) -> Iterator[CheckedFile]:
    """Open the file of a result, or its group in a packed store.

    Raises ``StoreError`` if a packed result differs from one of the same name next to the store.
    """
    path = _result_path(store, name)
    if name not in store.packed_results:
        if not path.exists():
            known = ", ".join(list_results(store))
            problem = f"there is no result {name!r}; results of this store: {known or 'none'}"
            remedy = "Choose one of these results." if known else "Run `labelkit cluster` or `labelkit discover`."
            raise NotAStore(str(path), problem, remedy)
        with open_checked_file(path, schema.FORMAT_RESULT) as file:
            yield file
        return
    with open_checked_file(store.path, schema.FORMAT_STORE) as outer:
        if outer.content_digest != store.content_digest or f"results/{name}" not in outer.groups:
            raise Mismatch(str(store.path), "was replaced while it was open", "Run the same command again.")
        packed = outer.open_group(f"results/{name}", schema.FORMAT_RESULT)
        if path.exists():
            with open_checked_file(path, schema.FORMAT_RESULT) as beside:
                if beside.content_digest != packed.content_digest:
                    problem = f"differs from the result of the same name inside the store, {packed.location_of('')}"
                    raise StoreError(str(path), problem, "Rename or delete the file next to the store.")
        yield packed


def results_folder(path: Path) -> Path:
    """Return the folder next to a store that contains its results."""
    return path.with_name(path.name + ".results")


def _result_path(store: EmbeddingStore, name: str) -> Path:
    if not schema.RESULT_NAME.fullmatch(name):
        problem = f"{name!r} is not a valid name for a result"
        remedy = "Use up to 64 lowercase letters, digits, dots, dashes and underscores; begin with a letter or digit."
        raise StoreError(str(results_folder(store.path)), problem, remedy)
    return results_folder(store.path) / f"{name}.h5"


def _refuse_other_kind(path: Path, kind: str) -> None:
    """Refuse to replace a result by one of another kind; damaged results may be replaced."""
    if not path.exists():
        return
    try:
        with open_checked_file(path, schema.FORMAT_RESULT) as file:
            found, stage = (str(file.attributes[""].get(name, "")) for name in ("kind", "stage"))
    except StoreError:
        return
    if found != kind:
        state = f"and contains {found.replace('_', ' ')} created by `{stage}`, which this command would overwrite"
        note = "To choose the result to read, use another option (see --help)."
        raise output_exists_error(path, "--result", state=state, note=note, replaceable=False)


def _stored(name: str, value: ResultArray) -> NDArray[Any]:
    if name == "metrics":
        text = value if isinstance(value, str) else canonical_json(value)
        json.loads(text)
        return np.array(schema.encode_name(text))
    if isinstance(value, str) or (not isinstance(value, np.ndarray) and all(isinstance(text, str) for text in value)):
        return encode_strings([value] if isinstance(value, str) else value)
    array = np.asarray(value)
    column = schema.RESULT_COLUMNS.get(name)
    if column is not None:
        casting: Any = "unsafe" if array.dtype.kind == "b" else "same_kind"
        return array.astype(f"<{column.types[0]}", casting=casting, copy=False)
    if array.dtype.kind == "b":
        return array.astype(np.uint8)
    if array.dtype.kind == "U":
        return encode_strings(array.tolist())
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
