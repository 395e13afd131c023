"""Files of past formats stay readable, for ever; they are never made again."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result
from store_samples import MODEL, SAMPLE_IDS, make_plan, make_store

FORMATS = Path(__file__).parents[1] / "data" / "formats"
FILES = {
    "store-1.0.h5": (
        "da4549def1a4e680f64c0749c51f0a1fea9cd8a9527baff260a2d61afb2d8f13",
        "c005208587f844dc732bbc82bbda3626cc4ad4d86fe8983c7f3b6f799bc099a5",
    ),
    "result-1.0.h5": (
        "3cdb0d5ad0c75c7afb240c146c1b2a6e95c6fa6a2a78ab450950f13cf987be32",
        "3440c408a3dbf1707c8b9079dcdb7507719b2881f3341348cc58cf5bb39730a2",
    ),
}


def content_digest(path):
    """The content digest by the words of labelkit.store.schema, for files without block digests."""
    lines = []

    def line(kind, name, value, dtype):
        shape = "x".join(map(str, value.shape)) or "scalar"
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        lines.append(f"{kind} {name} {dtype.str} {shape} {digest}\n".encode())

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            line("D", name, np.asarray(item[()]).astype(item.dtype.str), item.dtype)
        else:
            lines.append(f"G {name}\n".encode())
        for key in item.attrs:
            if (name, key) != ("/", "content_digest"):
                dtype = item.attrs.get_id(key).dtype
                line("A", f"{name}@{key}", np.asarray(item.attrs[key]).astype(dtype.str), dtype)

    with h5py.File(path) as file:
        visit("/", file)
        file.visititems(lambda name, item: visit(f"/{name}", item))
        stored = file.attrs["content_digest"].decode()
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest(), stored


@pytest.mark.parametrize("name", FILES)
def test_files_of_past_formats_are_as_they_were(name):
    assert hashlib.sha256((FORMATS / name).read_bytes()).hexdigest() == FILES[name][0]


@pytest.mark.parametrize("name", FILES)
def test_the_content_digest_follows_its_description(name):
    assert content_digest(FORMATS / name) == (FILES[name][1], FILES[name][1])


def test_a_store_of_format_1_0_is_read():
    store = open_store(FORMATS / "store-1.0.h5")
    assert (store.n, store.dim) == (7, 3)
    assert store.sample_ids == [SAMPLE_IDS[row] for row in (0, 2, 3, 4, 5, 6, 7)]
    assert store.sha256[0].tobytes() == hashlib.sha256(b"a/0.png").digest()
    assert store.embeddings[0].tolist() == [5.0, np.float32(148 / 7), np.float32(165 / 7)]
    assert store.extras["logits"].tolist() == [[0.5, 0.5]] * 7
    assert store.file_sizes.tolist() == [100, 102, 103, 104, 105, 106, 107]
    assert store.image_sizes.tolist() == [[8, 9 + row] for row in (0, 2, 3, 4, 5, 6, 7)]
    assert store.labels.tolist() == [0, 1, 1, 2, 2, -1, 2]
    assert store.labeled.tolist() == [True, True, False, False, False, False, False]
    assert store.class_names == ("cat", "dog", "eel")
    assert store.old_classes.tolist() == [True, True, False]
    assert store.splits.tolist() == [0, 0, 1, 0, 1, -1, 0]
    assert store.split_names == ("train", "test")
    assert store.skipped == [("a/1.png", "truncated")]
    assert store.model == MODEL
    assert (store.normalized, store.metric, store.created_by) == (False, "cosine", "labelkit 0.1.0")
    assert store.content_digest == FILES["store-1.0.h5"][1]


def test_a_result_of_format_1_0_is_read(tmp_path):
    shutil.copy(FORMATS / "store-1.0.h5", tmp_path / "s.h5")
    (tmp_path / "s.h5.results").mkdir()
    shutil.copy(FORMATS / "result-1.0.h5", tmp_path / "s.h5.results" / "clusters.h5")
    result = read_result(open_store(tmp_path / "s.h5"), "clusters")
    assert (result.kind, result.stage, result.params, result.stale) == (
        "clusters",
        "cluster k-means",
        {"seed": 0},
        False,
    )
    assert result.arrays["cluster_ids"].tolist() == [0, 1, 0, 1, -1, 0, 1]
    assert result.arrays["confidence"].tolist() == [np.float32(row / 6) for row in range(7)]
    assert result.arrays["centroids"].tolist() == [[1, 0, 0], [0, 1, 0]]
    assert result.arrays["names"] == ["chat", "größe"]
    assert result.metrics == {"nmi": 0.25}


def test_todays_writer_still_writes_format_1_0(tmp_path):
    store = make_store(tmp_path / "s.h5", make_plan(), bad={1: "truncated"})
    assert store.content_digest == FILES["store-1.0.h5"][1]
