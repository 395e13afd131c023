"""Embedding stores for notebooks, with results by name and a pandas table."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import Mismatch, ResourceError
from labelkit.store import schema
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.reader import open_checked_file
from labelkit.store.results import Result, list_results, read_result

if TYPE_CHECKING:
    from pandas import DataFrame


class Store(EmbeddingStore):
    """Embedding store for notebooks, open for reading; it can be used in a ``with`` block, but need not be closed.

    In addition to the attributes of :class:`labelkit.store.embeddings.EmbeddingStore`:

    Attributes:
        ids: n paths relative to the data root; the same as ``sample_ids``.
        results: names of the store's results, such as ``k-means``.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing: the store holds no open file."""

    @property
    def ids(self) -> Sequence[str]:
        """The n sample ids, which are paths relative to the data root."""
        return self.sample_ids

    @property
    def results(self) -> list[str]:
        """Names of the store's results."""
        return list_results(self)

    def result(self, name: str) -> Result:
        """Read a result of the store: its arrays, whose rows match the store's rows, and how it was computed.

        Raises:
            StoreError: the result does not exist, or belongs to an earlier version of the store.
        """
        return read_result(self, name)

    def frame(self, *results: str) -> DataFrame:
        """Return the sample ids, labels and results as a pandas table with one row per image.

        Columns: ``path``; ``label`` (class name, missing if unlabeled), ``labeled`` and ``split`` if the store has
        them; and for each named result, every array with one value per image, as ``RESULT.ARRAY``. The embeddings
        are not included; see ``store.embeddings``, in the same order.

        Args:
            results: names of results of the store.

        Raises:
            ResourceError: pandas is not installed.
            StoreError: a result cannot be read.
        """
        try:
            from pandas import DataFrame
        except ImportError as error:
            raise ResourceError("pandas", "is not installed", "Run `pip install pandas`.") from error
        columns: dict[str, object] = {"path": list(self.sample_ids)}
        if self.labels is not None:
            columns["label"] = _named(self.labels, self.class_names)
        if self.labeled is not None:
            columns["labeled"] = self.labeled
        if self.splits is not None:
            columns["split"] = _named(self.splits, self.split_names)
        for name in results:
            found = {
                f"{name}.{key}": value
                for key, value in self.result(name).arrays.items()
                if isinstance(value, np.ndarray) and value.shape == (self.n,)
            }
            if not found:
                raise Mismatch(str(self.path), f"{name} has no array with one value per image", "Leave it out.")
            columns |= found
        return DataFrame(columns)


def open_store(path: str | os.PathLike[str]) -> Store:
    """Open a finished store, as ``labelkit.store.embeddings.open_store`` does, but for use in a notebook.

    Args:
        path: the file, ``NAME.h5``.

    Raises:
        StoreError: the file is not a store, was written by a newer labelkit, or is damaged.
        ResourceError: the file cannot be read, for example for lack of permission.
    """
    path = Path(path)
    with open_checked_file(path, schema.FORMAT_STORE) as file:
        return Store(file, path)


def _named(numbers: NDArray[np.integer], names: Sequence[str]) -> list[str | int | None]:
    """Return the names for indices, the indices themselves if there are no names, and ``None`` for -1."""
    return [None if number < 0 else names[number] if names else number for number in numbers.tolist()]
