"""``labelkit export``: what other programs get, and that an import of it gives the same rows back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from labelkit.commands.exchange.exporting import export_store
from labelkit.commands.exchange.importing import import_store
from labelkit.commands.exchange.options import ExportConfig, ImportConfig
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.schema import encode_name, find_name_fault
from numpy.typing import NDArray

FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)
# Any bytes that a file system takes, as Python shows them.
NAMES = st.binary(min_size=1, max_size=12).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
TABLES = st.integers(1, 5).flatmap(lambda dim: arrays(np.float32, (3, dim), elements=FINITE))
IDS = st.lists(NAMES.filter(lambda name: find_name_fault(name) is None), min_size=3, max_size=3, unique=True)


def sent_through(folder: Path, store: EmbeddingStore, suffix: str) -> EmbeddingStore:
    """The store of an export of a store."""
    out = folder / f"sent{suffix}"
    export_store(ExportConfig(index=store.path, out=out, overwrite=True))
    dtype = str(store.embeddings.dtype)
    import_store(ImportConfig(source=out, out=folder / "back.h5", overwrite=True, dtype=dtype))
    return open_store(folder / "back.h5")


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
@settings(
    max_examples=4,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@example(rows=np.ones((2, 1), dtype=np.float32), ids=["a\nb", 'c,"d"'])
@given(rows=TABLES, ids=IDS)
def test_an_import_of_an_export_gives_the_same_rows_bit_for_bit(
    tmp_path: Path, suffix: str, rows: NDArray[np.float32], ids: list[str]
) -> None:
    contents = Path(tmp_path, "x.npz")
    np.savez(contents, embeddings=rows, sample_ids=np.array([encode_name(name) for name in ids]))
    import_store(ImportConfig(source=contents, out=tmp_path / "s.h5", overwrite=True))
    store = open_store(tmp_path / "s.h5")

    back = sent_through(tmp_path, store, suffix)

    assert back.sample_ids == sorted(ids, key=encode_name)
    assert back.embeddings.tobytes() == store.embeddings.tobytes()


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_labels_and_splits_come_back(tmp_path: Path, make_store: Any, suffix: str) -> None:
    store = make_store(
        np.eye(4),
        labels=[1, 0, -1, 1],
        labeled=[1, 0, 0, 0],
        old_classes=[0, 1],
        splits=[0, 1, -1, 0],
        split_names=("train", "odd"),
    )

    back = sent_through(tmp_path, store, suffix)

    assert back.class_names == store.class_names
    assert back.split_names == store.split_names
    for name in ("labels", "labeled", "old_classes", "splits"):
        np.testing.assert_array_equal(getattr(back, name), getattr(store, name))


def test_a_csv_is_read_by_anything_and_says_when_names_are_escaped(labelkit: Any, tmp_path: Path) -> None:
    ids = [b"a\\b.png", b"c\xff.png"]
    np.savez(tmp_path / "x.npz", embeddings=np.array([[0.1, -0.0], [1e-45, 3.4e38]], np.float32), ids=np.array(ids))
    import_store(ImportConfig(source=tmp_path / "x.npz", out=tmp_path / "s.h5"))

    answer = labelkit("export", "--index", tmp_path / "s.h5", "--out", tmp_path / "x.csv", "--json")

    assert answer.code == 0, answer.err
    assert answer.json["names_escaped"]
    assert (tmp_path / "x.csv").read_text("utf-8").splitlines() == [
        "path_escaped,e0,e1",
        "a\\\\b.png,0.100000001,-0",
        "c\\udcff.png,1.40129846e-45,3.39999995e+38",
    ]


def test_an_archive_needs_no_pickle_and_is_the_same_each_time(tmp_path: Path, make_store: Any) -> None:
    store = make_store(np.eye(3), labels=[0, 1, 1], logits=np.ones((3, 2)))

    for name in ("one.npz", "two.npz"):
        export_store(ExportConfig(index=store.path, out=tmp_path / name))

    assert (tmp_path / "one.npz").read_bytes() == (tmp_path / "two.npz").read_bytes()
    with np.load(tmp_path / "one.npz", allow_pickle=False) as archive:
        assert archive["sample_ids"].tolist() == [b"0000.png", b"0001.png", b"0002.png"]
        np.testing.assert_array_equal(archive["embeddings"], np.eye(3))
        np.testing.assert_array_equal(archive["sha256"], store.sha256)
        np.testing.assert_array_equal(archive["logits"], np.ones((3, 2)))


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--out", "there.csv"), 2, "there.csv: already exists"),
        (("--out", "x.txt"), 2, "must end in"),
        (("--out", "x.csv", "--what", "labels"), 3, "has no labels to export"),
        (("--out", "x.csv", "--what", "result"), 2, "must be passed together"),
        (("--out", "x.csv", "--what", "result", "--result", "other"), 3, "there is no result 'other'"),
        (("--out", "missing/x.csv"), 2, "the folder of missing/x.csv does not exist"),
    ],
)
def test_what_cannot_be_written_is_said(
    labelkit: Any,
    tmp_path: Path,
    make_store: Any,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    store = make_store(np.eye(2))
    (tmp_path / "there.csv").write_text("mine")
    monkeypatch.chdir(tmp_path)

    answer = labelkit("export", "--index", store.path, *words)

    assert answer.code == code, answer.err
    assert message in answer.err
    assert (tmp_path / "there.csv").read_text() == "mine"
