"""Embedding stores: one embedding per image, with names, labels and the identity of the model.

The format is described in ``docs/inside/file_format.txt``; ``labelkit.store.writing`` creates stores.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from operator import eq
from pathlib import Path
from typing import Any, Final, NoReturn, overload

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Mismatch, NotAStore, Refused
from labelkit.store import schema
from labelkit.store.commit import canonical_json, json_digest
from labelkit.store.reader import RESTORE, CheckedFile, LazyRows, open_checked_file
from labelkit.store.schema import VIEWS, are_valid_sample_ids, decode_name, encode_name, find_name_fault
from labelkit.store.writer import FileContents

_IDS_AT_ONCE: Final = 1 << 16
_MODEL_TEXTS = ("name", "weights_fingerprint", "weights_file_sha256", "source", "layer", "pooling")


@dataclass(frozen=True)
class ModelIdentity:
    """Identity of the model that produced the embeddings, with everything that affects them.

    Attributes:
        name: name of the backbone or of the run.
        weights_fingerprint: see ``labelkit.models.fingerprint``; equal weights have equal fingerprints.
        weights_file_sha256: digest of the weights file; empty if there was none.
        source: URL or file name, never a local folder.
        layer: output used, such as ``features`` or ``head``.
        pooling: how tokens or pixels were pooled into one vector, such as ``cls`` or ``mean``.
        preprocess: decoder settings, resize, crop, interpolation, mean, std; JSON values only.
        numerics: compute dtype, device type, batch size, threads, torch version; JSON values only.
        trained_labels: images whose labels the network was trained on, in the format of ``encode_image_set``.
    """

    name: str
    weights_fingerprint: str = ""
    weights_file_sha256: str = ""
    source: str = ""
    layer: str = ""
    pooling: str = ""
    preprocess: dict[str, Any] = field(default_factory=dict)
    numerics: dict[str, Any] = field(default_factory=dict)
    trained_labels: str = ""

    @property
    def preprocess_digest(self) -> str:
        """SHA-256 of the canonical JSON of ``preprocess``, as 64 hexadecimal digits."""
        return json_digest(self.preprocess)

    def differences(self, other: ModelIdentity) -> list[str]:
        """Return the keys that make the embeddings of two models incomparable; empty if they are comparable.

        Name, source and numerics do not matter; differences in preprocessing are listed by key, such as
        ``preprocess.mean``.
        """
        keys = [key for key in ("weights_fingerprint", "layer", "pooling") if getattr(self, key) != getattr(other, key)]
        if self.preprocess_digest != other.preprocess_digest:
            keys.extend(f"preprocess.{key}" for key in find_differing_keys(self.preprocess, other.preprocess))
        return keys

    def to_json(self) -> dict[str, Any]:
        """Convert to a JSON object that includes the preprocessing digest and any trained labels."""
        own = {**asdict(self), "preprocess_digest": self.preprocess_digest}
        return own if self.trained_labels else {key: value for key, value in own.items() if key != "trained_labels"}

    def add_to(self, contents: FileContents) -> None:
        """Add the model identity to the contents of a file, as the group ``model``."""
        contents.set_attributes("model", **{name: getattr(self, name) for name in (*_MODEL_TEXTS, "preprocess_digest")})
        contents.set_json("model", "preprocess", canonical_json(self.preprocess))
        contents.set_json("model", "numerics", canonical_json(self.numerics))
        if self.trained_labels:
            contents.set_json("model", "trained_labels", self.trained_labels)


def encode_image_set(sample_ids: Iterable[str], sha256: NDArray[np.uint8] | None, *others: str) -> str:
    """Encode a set of images as text: sorted keys of 16 hex digits, from the SHA-256 of their names and their files.

    ``sha256`` (n, 32) are the digests of the files, zeros or ``None`` if unknown; ``others`` are encoded sets to add.
    """
    keys = np.concatenate([_name_keys(sample_ids), _file_keys(sha256), *map(_keys_of, others)])
    return np.unique(keys[keys != 0]).astype(">u8").tobytes().hex()


def _name_keys(sample_ids: Iterable[str]) -> NDArray[np.uint64]:
    return np.frombuffer(b"".join(hashlib.sha256(encode_name(name)).digest()[:8] for name in sample_ids), dtype=">u8")


def _file_keys(sha256: NDArray[np.uint8] | None) -> NDArray[np.uint64]:
    return np.frombuffer(b"" if sha256 is None else sha256[:, :8].tobytes(), dtype=">u8")


def _keys_of(text: str) -> NDArray[np.uint64]:
    return np.frombuffer(bytes.fromhex(text), dtype=">u8")


def match_rows_by_file(
    stores: Sequence[EmbeddingStore], sample_ids: Sequence[str], digests: Sequence[bytes | None]
) -> NDArray[np.int64]:
    """Match images to rows of stores by the SHA-256 of their files, if known.

    Return (n, 2) int64 store indices and rows, -1 = no match. If several rows have the same file, the row with the same
    name is preferred, else the first row is used.
    """
    first: dict[bytes, tuple[int, int]] = {}
    named: dict[tuple[bytes, str], tuple[int, int]] = {}
    for number, store in enumerate(stores):
        for row, (name, digest) in enumerate(zip(store.sample_ids, store.sha256, strict=True)):
            first.setdefault(digest.tobytes(), (number, row))
            named.setdefault((digest.tobytes(), name), (number, row))
    found = np.full((len(sample_ids), 2), -1, dtype=np.int64)
    for position, (name, wanted) in enumerate(zip(sample_ids, digests, strict=True)):
        if wanted is not None and wanted in first:
            found[position] = named.get((wanted, name), first[wanted])
    return found


def find_differing_keys(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Find the keys whose values differ between two JSON objects, sorted; nested keys are joined by dots."""
    keys: list[str] = []
    for key in sorted(left.keys() | right.keys()):
        mine, other = left.get(key), right.get(key)
        if (key in left) == (key in right) and canonical_json(mine) == canonical_json(other):
            continue
        if isinstance(mine, dict) and isinstance(other, dict):
            keys.extend(f"{key}.{inner}" for inner in find_differing_keys(mine, other))
        else:
            keys.append(key)
    return keys


class EmbeddingStore:
    """Finished embedding store, open for reading.

    It holds no open file; the large arrays are memory maps. It cannot be pickled: open it once per process.
    Large arrays in shards are read into memory on first use, except through ``lazy_embeddings``.

    Attributes:
        path: path of the file.
        n: number of embeddings.
        dim: dimension of the embeddings, d.
        sample_ids: n paths relative to the data root; bytes that are not UTF-8 are surrogate escapes.
        has_images: whether the digests and sizes of the image files are known.
        labels: (n,) int64, class index, -1 = unlabeled; or ``None``. True labels, including any hidden from training.
        labeled: (n,) bool, whether training may use the label; or ``None``.
        class_names: k names; may be empty.
        old_classes: (k,) bool, whether the class has labeled samples; or ``None``.
        splits: (n,) int16, index into ``split_names``, -1 = in no split; or ``None``.
        split_names: names of the splits; may be empty.
        view_recipe: how the ``count`` views per image in ``view_embeddings`` were drawn; empty if there are none.
        skipped: (sample id, reason) of listed images that could not be embedded.
        model: the model that computed the embeddings.
        metric: metric intended for comparing embeddings: ``cosine``, ``l2`` or ``dot``.
        content_digest: digest that identifies the content, 64 hexadecimal digits; results refer to it.
        plan_digest: digest of the plan that created the store.
        created_by: program and version.
        packed_results: names of the results in the same file; see ``labelkit.store.results``.
        shards: files that contain the large arrays; ``None`` if they are in the file itself.
    """

    def __init__(self, file: CheckedFile, path: Path) -> None:
        self.path = path
        self.shards = file.shards
        if file.shards is not None:
            file.shards.check()
        self.content_digest = file.content_digest
        root = file.attributes[""]
        if root.get("kind") != "embeddings":
            problem = f"contains {root.get('kind')}, not embeddings"
            raise NotAStore(file.where, problem, "Pass the store that this file belongs to.")
        if "metric" not in root:
            raise Refused(file.location_of("@metric"), "is missing", RESTORE)
        self.has_images = schema.FEATURE_IMAGELESS not in file.features
        required = (*schema.REQUIRED_COLUMNS, *(schema.IMAGE_COLUMNS if self.has_images else ()))
        lengths = file.check_axes(schema.STORE_COLUMNS, required=required)
        self.n, self.dim = lengths["n"], lengths["d"]
        self.metric = str(root["metric"])
        self.plan_digest = str(root.get("plan_digest", ""))
        self.created_by = str(root.get("created_by", ""))
        self.model = read_model(file)
        self.view_recipe = file.read_json("", "views", "{}")
        self.sample_ids = _read_ids(file)

        def column(name: str) -> NDArray[Any] | None:
            return file.read(name) if name in file.datasets else None

        def texts(name: str) -> tuple[str, ...]:
            return tuple(file.read_strings(name)) if name in file.datasets else ()

        self._of_images = {name: LazyRows(file, name) for name in schema.IMAGE_COLUMNS if name in file.datasets}
        self.class_names, self.split_names = texts("class_names"), texts("split_names")
        self.labels: NDArray[np.int64] | None = column("labels")
        self.splits: NDArray[np.int16] | None = column("splits")
        indices: tuple[tuple[str, NDArray[Any] | None, tuple[str, ...]], ...] = (
            ("labels", self.labels, self.class_names),
            ("splits", self.splits, self.split_names),
        )
        for name, values, names in indices:
            if values is not None and names and len(bad := np.flatnonzero((values < -1) | (values >= len(names)))):
                problem = f"is {values[bad[0]]}, expected -1 to {len(names) - 1}"
                raise Refused(f"{file.location_of(name)} row {bad[0]}", problem, RESTORE)
        flags = (column(name) for name in ("labeled", "old_classes"))
        self.labeled, self.old_classes = (None if one is None else one.astype(np.bool_) for one in flags)
        self.skipped = list(zip(texts("skipped/sample_ids"), texts("skipped/reasons"), strict=True))
        self.packed_results = tuple(sorted({one.split("/")[1] for one in file.groups if one.startswith("results/")}))
        self._embeddings = LazyRows(file, "embeddings")
        every = file.datasets.items()
        extras = (name for name, info in every if schema.is_extra_output(name, info.dtype.str, info.shape, self.n))
        self._extras = {name: LazyRows(file, name) for name in extras}
        self._views = LazyRows(file, VIEWS) if self.view_recipe else None

    @property
    def num_shards(self) -> int:
        """Number of files that contain the large arrays; 0 if they are in the store's own file."""
        return 0 if self.shards is None else len(self.shards.files)

    @property
    def embeddings(self) -> NDArray[Any]:
        """Read-only embeddings (n, d), float32 or float16, verified against their digests on first use.

        Raises:
            Damaged: a block of rows has changed since it was written.
        """
        return self._embeddings.array

    @property
    def lazy_embeddings(self) -> LazyRows:
        """Same as ``embeddings``, but not cached for shards: each access reads rows and verifies new shards."""
        return self._embeddings

    @property
    def extras(self) -> dict[str, NDArray[np.float32]]:
        """Additional outputs of the model by name, such as ``logits``, as read-only arrays (n, w) float32.

        Raises:
            Damaged: a block of rows has changed since it was written.
        """
        return {name: lazy.array for name, lazy in self._extras.items()}

    @property
    def has_logits(self) -> bool:
        """Whether ``extras`` contains the logits of a classifier; they are not read."""
        return "logits" in self._extras

    @property
    def view_embeddings(self) -> NDArray[Any] | None:
        """Read-only embeddings (n, v, d) of v augmented views, or ``None``; raises the same errors as ``extras``."""
        return None if self._views is None else self._views.array.reshape(self.n, -1, self.dim)

    @property
    def sha256(self) -> NDArray[np.uint8]:
        """SHA-256 digests (n, 32) uint8 of the image files.

        Raises:
            Mismatch: the embeddings were imported without images.
            Damaged: a block of rows has changed since it was written.
        """
        return self._known("sha256")

    @property
    def file_sizes(self) -> NDArray[np.uint64]:
        """Sizes (n,) uint64 of the image files in bytes; raises the same errors as ``sha256``."""
        return self._known("file_sizes")

    @property
    def image_sizes(self) -> NDArray[np.uint32]:
        """Height and width (n, 2) uint32 of each image after orientation; raises the same errors as ``sha256``."""
        return self._known("image_sizes")

    def _known(self, name: str) -> NDArray[Any]:
        if name not in self._of_images:
            problem = "is unknown, because the embeddings were imported without images"
            raise Mismatch(f"{self.path}:/{name}", problem, "Import the embeddings again with --images FOLDER.")
        return np.asarray(self._of_images[name].array)

    def rows(self, split: str | None) -> NDArray[np.int64]:
        """Return the row indices of a split in increasing order, or all row indices if ``split`` is ``None``.

        Raises:
            Mismatch: the split does not exist in the store.
        """
        if split is None:
            return np.arange(self.n)
        if self.splits is None or split not in self.split_names:
            known = ", ".join(self.split_names) or "none"
            problem = f"has no split {split!r} (its splits: {known})"
            raise Mismatch(str(self.path), problem, "Choose one of these splits.")
        return np.flatnonzero(self.splits == self.split_names.index(split))

    def differences(self, other: EmbeddingStore) -> list[str]:
        """Return the keys that make the embeddings of two stores incomparable; empty if they are comparable."""
        dims = [] if self.dim == other.dim else [f"dim ({self.dim} and {other.dim})"]
        return [*dims, *self.model.differences(other.model)]

    def trained_rows(self) -> NDArray[np.bool_]:
        """Return a mask (n,) bool of the images on whose labels the network was trained, matched by name or file."""
        if self.model.trained_labels:
            trained = _keys_of(self.model.trained_labels)
            by_name = np.isin(_name_keys(self.sample_ids), trained)
            return by_name | np.isin(_file_keys(self.sha256), trained) if self.has_images else by_name
        if self.has_logits and self.labeled is not None:  # a store of an earlier version
            return np.asarray(self.labeled, dtype=bool)
        return np.zeros(self.n, dtype=bool)

    def relabeled(
        self, labels: NDArray[np.int64], labeled: NDArray[np.bool_], class_names: Sequence[str]
    ) -> EmbeddingStore:
        """Return an in-memory copy of this store with different labels; the store's results remain valid for the copy.

        Args:
            labels: (n,) int64, class, -1 = unlabeled.
            labeled: (n,) bool, whether training may use the label.
            class_names: class names of the store, followed by additional ones.
        """
        other = object.__new__(type(self))
        old = np.isin(np.arange(len(class_names)), labels[labeled])
        changed = {"labels": labels, "labeled": labeled, "class_names": tuple(class_names), "old_classes": old}
        vars(other).update(vars(self) | changed)
        return other

    def __reduce__(self) -> NoReturn:
        raise TypeError("an EmbeddingStore cannot be pickled: call open_store in each process")


class SampleIds(Sequence[str]):
    """Names of the n images of a store, decoded when used so that they take up no memory."""

    def __init__(self, raw: NDArray[np.bytes_]) -> None:
        self._raw = raw

    def __len__(self) -> int:
        return len(self._raw)

    @overload
    def __getitem__(self, where: int) -> str: ...
    @overload
    def __getitem__(self, where: slice) -> list[str]: ...
    def __getitem__(self, where: int | slice) -> str | list[str]:
        found = self._raw[where].tolist()
        return [decode_name(one) for one in found] if isinstance(where, slice) else decode_name(found)

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), _IDS_AT_ONCE):
            yield from self[start : start + _IDS_AT_ONCE]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]


def _read_ids(file: CheckedFile) -> SampleIds:
    raw = LazyRows(file, "sample_ids").array
    raw_in_order = np.sort(raw) if schema.FEATURE_UNSORTED in file.features else raw
    disordered = ~(raw_in_order[1:] > raw_in_order[:-1])
    if disordered.any():
        row = int(np.argmax(disordered)) + 1
        problem = f"{decode_name(raw_in_order[row])!r} occurs twice or out of order"
        raise Refused(f"{file.location_of('sample_ids')} row {row}", problem, RESTORE)
    names = SampleIds(raw)
    for start in range(0, len(raw), _IDS_AT_ONCE):
        if are_valid_sample_ids(raw[start : start + _IDS_AT_ONCE].tolist()):
            continue
        for row, name in enumerate(names[start : start + _IDS_AT_ONCE], start):
            if fault := find_name_fault(name):
                raise Refused(f"{file.location_of('sample_ids')} row {row}", f"{name!r} {fault}", RESTORE)
    return names


def read_model(file: CheckedFile) -> ModelIdentity:
    """Read the model identity from an open file."""
    return ModelIdentity(
        **{name: file.read_text("model", name) for name in (*_MODEL_TEXTS, "trained_labels")},
        preprocess=file.read_json("model", "preprocess"),
        numerics=file.read_json("model", "numerics"),
    )


def open_store(path: str | os.PathLike[str]) -> EmbeddingStore:
    """Open a finished embedding store and verify its structure.

    Structure, sizes, types and the content digest are checked immediately, and each block of the large arrays on first
    use, which takes about one second per gigabyte.

    Args:
        path: the file, ``NAME.h5``.

    Raises:
        NotAStore: the file is missing, is not HDF5, or has another format.
        VersionError: the file was written by a newer labelkit.
        Refused: the file contains something that is not allowed in a store.
        Damaged: the file is truncated or was changed.
        Mismatch: the lengths of datasets do not match.
        ResourceError: the file cannot be read, for example for lack of permission.
    """
    path = Path(path)
    with open_checked_file(path, schema.FORMAT_STORE) as file:
        return EmbeddingStore(file, path)
