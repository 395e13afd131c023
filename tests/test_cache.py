"""Results in the cache folder: taken for equal arguments alone, removed after a week, and never in the way."""

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit import cache
from numpy.typing import NDArray

Array = NDArray[np.float64]
calls: list[Any] = []


def split(rows: Array, place: int) -> tuple[Array, Array]:
    calls.append(place)
    return rows[:place], rows[place:]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path))
    monkeypatch.setattr(cache, "_MIN_VALUES", 4)
    calls.clear()
    return tmp_path / "computed"


def test_equal_arguments_are_computed_once(folder: Path) -> None:
    rows = np.arange(6.0).reshape(3, 2)

    first, again = cache.call_cached(split, rows, 1), cache.call_cached(split, rows.copy(), 1)
    cache.call_cached(split, rows, 2)
    cache.call_cached(split, rows + 1, 1)
    cache.call_cached(split, rows.astype(np.float32), 1)
    cache.call_cached(split, rows[:1], 1)  # too few to keep
    cache.call_cached(split, rows[:1], 1)

    assert calls == [1, 2, 1, 1, 1, 1]
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype
    assert len(list(folder.iterdir())) == 4


@pytest.mark.parametrize("fault", ["cut", "empty", "text"])
def test_a_damaged_file_is_computed_again(folder: Path, fault: str) -> None:
    rows = np.arange(6.0).reshape(3, 2)
    cache.call_cached(split, rows, 1)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    file.write_bytes({"cut": whole[:-30], "empty": b"", "text": b"no archive"}[fault])

    first, _ = cache.call_cached(split, rows, 1)

    np.testing.assert_array_equal(first, rows[:1])
    assert calls == [1, 1]
    assert file.read_bytes() == whole


def test_what_was_not_used_for_a_week_goes(folder: Path) -> None:
    rows = np.arange(6.0).reshape(3, 2)
    cache.call_cached(split, rows, 1)
    (old,) = folder.iterdir()
    cache.call_cached(split, rows, 2)
    (used,) = set(folder.iterdir()) - {old}
    before = time.time() - 8 * 86400
    for file in (old, used):
        os.utime(file, (before, before))

    killed = folder / "killed.1.tmp"
    killed.touch()
    os.utime(killed, (before, before))

    cache.read_arrays(used)
    cache.call_cached(split, rows, 0)

    assert used.exists()
    assert not old.exists()
    assert not killed.exists()


def test_results_of_another_version_are_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(6.0).reshape(3, 2)
    cache.call_cached(split, rows, 1)
    monkeypatch.setattr("labelkit.__version__", "0.0.1")

    cache.call_cached(split, rows, 1)

    assert calls == [1, 1]


def test_many_files_of_one_call_have_names_of_their_own() -> None:
    rows = np.arange(6.0).reshape(3, 2)

    files = cache.cache_files("parts", split, (rows, 1), 3)

    assert len(set(files)) == 3
    assert files == cache.cache_files("parts", split, (rows.copy(), 1), 3)
    assert not set(files) & set(cache.cache_files("parts", split, (rows, 2), 3))


def test_a_folder_that_cannot_be_written_is_in_nobodys_way(folder: Path) -> None:
    folder.touch()  # a file in its place

    first, _ = cache.call_cached(split, np.arange(6.0).reshape(3, 2), 1)

    np.testing.assert_array_equal(first, [[0, 1]])
