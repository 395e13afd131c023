"""``labelkit import``: rows of other programs become stores; what is wrong with them is said with its row or line."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from labelkit.store.embeddings import open_store
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file

IDS = ["b/1.png", "a/0.png", "c/2.png", "a/10.png"]
SORTED = [1, 3, 0, 2]  # by bytes: a/0.png, a/10.png, b/1.png, c/2.png
LABELS = ["bee", "ant", "", "ant"]
SPLITS = ["test", "train", "train", ""]


@pytest.fixture
def rows() -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def csv_text(rows: NDArray[Any]) -> str:
    lines = ["path,label,split,e0,e1,e2"]
    for name, label, split, row in zip(IDS, LABELS, SPLITS, rows.tolist(), strict=True):
        lines.append(",".join([name, label, split, *(repr(value) for value in row)]))
    return "\n".join(lines) + "\n"


def write_npy(folder: Path, rows: NDArray[Any]) -> tuple[object, ...]:
    np.save(folder / "x.npy", rows)
    lines = [",".join(line) for line in zip(IDS, LABELS, SPLITS, strict=True)]
    (folder / "ids.csv").write_text("path,label,split\n" + "\n".join(lines) + "\n")
    return ("--source", folder / "x.npy", "--ids", folder / "ids.csv")


def write_npz(folder: Path, rows: NDArray[Any]) -> tuple[object, ...]:
    np.savez_compressed(folder / "x.npz", features=rows, paths=np.array(IDS), label=np.array(LABELS), splits=SPLITS)
    return ("--source", folder / "x.npz")


def write_csv(folder: Path, rows: NDArray[Any]) -> tuple[object, ...]:
    (folder / "x.csv").write_text("\ufeff" + csv_text(rows), encoding="utf-8")
    return ("--source", folder / "x.csv")


def write_hdf5(folder: Path, rows: NDArray[Any]) -> tuple[object, ...]:
    with h5py.File(folder / "x.hdf5", "w") as file:
        file.create_dataset("deep/feats", data=rows, chunks=(2, 3), compression="gzip", shuffle=True)
        file["names"] = IDS  # of variable length
        file["deep"].create_dataset("classes", data=np.array(LABELS, dtype="S3"))
        file["splits"] = SPLITS
        file.attrs["text"] = "of variable length too"
        file["elsewhere"] = h5py.ExternalLink("/etc/passwd", "/x")
    keys = ("--embeddings-key", "/deep/feats", "--ids-key", "names", "--labels-key", "deep/classes")
    return ("--source", folder / "x.hdf5", *keys)


FORMATS = [write_npy, write_npz, write_csv, write_hdf5]


@pytest.mark.parametrize("write", FORMATS)
def test_rows_of_every_format_are_sorted_by_name_and_unchanged(
    labelkit: Any, tmp_path: Path, rows: NDArray[np.float32], write: Callable[..., tuple[object, ...]]
) -> None:
    answer = labelkit("import", *write(tmp_path, rows), "--out", tmp_path / "s.h5", "--json")

    assert answer.code == 0, answer.err
    store = open_store(tmp_path / "s.h5")
    assert store.sample_ids == [IDS[row] for row in SORTED]
    assert store.embeddings.tobytes() == rows[SORTED].tobytes()
    assert store.class_names == ("ant", "bee")
    assert store.labels is not None
    assert store.splits is not None
    assert store.labels.tolist() == [0, 0, 1, -1]
    assert store.split_names == ("train", "test")
    assert store.splits.tolist() == [0, -1, 1, 0]
    assert store.labeled is not None
    assert store.labeled.tolist() == [True, True, True, False]
    assert not store.has_images
    assert (answer.json["rows"], answer.json["dim"], answer.json["has_images"]) == (4, 3, False)


def test_whole_numbers_are_classes_and_minus_one_is_none_and_rows_without_names_get_numbers(
    labelkit: Any, tmp_path: Path
) -> None:
    rows = np.arange(22, dtype=np.float16).reshape(11, 2)
    np.save(tmp_path / "x.npy", np.asfortranarray(rows))
    assert labelkit("import", "--source", tmp_path / "x.npy", "--out", tmp_path / "plain.h5").code == 0
    store = open_store(tmp_path / "plain.h5")
    assert store.sample_ids == [f"{row:02d}" for row in range(11)]
    assert (store.embeddings.dtype, store.embeddings.tolist()) == (np.float16, rows.tolist())
    np.savez(tmp_path / "x.npz", x=np.eye(3), y=np.array([10, -1, 2]), labeled=np.array([True, False, False]))

    assert labelkit("import", "--source", tmp_path / "x.npz", "--out", tmp_path / "s.h5").code == 0

    store = open_store(tmp_path / "s.h5")
    assert store.class_names == ("2", "10")
    assert store.labels is not None
    assert store.labels.tolist() == [1, -1, 0]
    assert store.labeled is not None
    assert store.labeled.tolist() == [True, False, False]
    assert store.old_classes is not None
    assert store.old_classes.tolist() == [False, True]


@pytest.mark.parametrize("marks", ["1,0,0", "True,False,False", "1.0,0.0,0.0", "yes,no,no"])
def test_usable_labels_are_marked_in_every_form_and_counted(labelkit: Any, tmp_path: Path, marks: str) -> None:
    np.save(tmp_path / "x.npy", np.eye(3))
    places = ("a,train", "b,trian", "c,")
    lines = [f"{place},cat,{mark}" for place, mark in zip(places, marks.split(","), strict=True)]
    words = ("--source", tmp_path / "x.npy", "--ids", tmp_path / "ids.csv")
    (tmp_path / "ids.csv").write_text("\n".join(["path,split,label,labelled", *lines]))

    answer = labelkit("import", *words, "--out", tmp_path / "s.h5")

    assert "1 train, 1 trian, 1 in no split; 1 of 3 labels usable" in answer.err
    assert "1 train, 1 trian, 1 in no split; 1 of 3" in labelkit("status", "--index", tmp_path / "s.h5").out
    (tmp_path / "ids.csv").write_text("\n".join(["path,split,label,labelled", *lines[:2]]))
    message = labelkit("import", *words, "--out", tmp_path / "other.h5").err
    assert "ids.csv: contains 2 ids, but" in message


def test_images_are_read_for_their_digests_and_sizes(labelkit: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(2))
    (tmp_path / "ids.txt").write_text("b.png\na.png\n")
    for name, size in (("a.png", (5, 4)), ("b.png", (7, 6))):
        Image.new("L", size).save(tmp_path / name)
    words = ("--source", tmp_path / "x.npy", "--ids", tmp_path / "ids.txt", "--images", tmp_path)

    assert labelkit("import", *words, "--out", tmp_path / "s.h5").code == 0

    store = open_store(tmp_path / "s.h5")
    files = [(tmp_path / name).read_bytes() for name in ("a.png", "b.png")]
    assert [row.tobytes() for row in store.sha256] == [hashlib.sha256(content).digest() for content in files]
    assert store.file_sizes.tolist() == [len(content) for content in files]
    assert store.image_sizes.tolist() == [[4, 5], [6, 7]]

    (tmp_path / "a.png").unlink()
    answer = labelkit("import", *words, "--out", tmp_path / "t.h5")
    assert answer.code == 3
    assert "1 of 2 images cannot be used: a.png: the file no longer exists" in answer.err
    assert not (tmp_path / "t.h5").exists()


@pytest.mark.parametrize(
    ("header", "line", "embedding", "left_out"),
    [
        (",path,{e},label", "7,{id},{x},{l}", ("0", "1", "2"), ["(no name)"]),
        ("path,width,{e},height,label", "{id},640,{x},480,{l}", ("f2", "f0", "f1"), ["width", "height"]),
    ],
)
def test_only_the_run_of_numbered_columns_is_the_embedding(
    labelkit: Any, tmp_path: Path, header: str, line: str, embedding: tuple[str, ...], left_out: list[str]
) -> None:
    rows = np.arange(6).reshape(2, 3)
    lines = [header.format(e=",".join(embedding))]
    lines += [line.format(id=f"{i}.png", x=",".join(map(str, row)), l="ant") for i, row in enumerate(rows.tolist())]
    (tmp_path / "x.csv").write_text("\n".join(lines) + "\n")

    answer = labelkit("import", "--source", tmp_path / "x.csv", "--out", tmp_path / "s.h5", "--json")

    assert answer.code == 0, answer.err
    order = np.argsort(embedding)
    assert open_store(tmp_path / "s.h5").embeddings.tolist() == rows[:, order].tolist()
    assert answer.json["left_out"] == left_out
    assert f"x.csv: ignoring {', '.join(left_out)}" in answer.err


@pytest.mark.parametrize(
    ("header", "number"), [("path,width,height,score", 0), ("path,e0,e1,pca0,pca1", 2), ("path,2019,2020,2021", 0)]
)
def test_without_one_run_of_numbered_columns_the_option_is_said(
    labelkit: Any, tmp_path: Path, header: str, number: int
) -> None:
    width = header.count(",")
    (tmp_path / "x.csv").write_text(f"{header}\na.png{',1' * width}\n")
    words = ("--source", tmp_path / "x.csv")
    err = refusal(labelkit, tmp_path, *words)
    assert f"has {number} series of numbered columns, such as embedding_0, embedding_1" in err
    assert "--embeddings-key a,b,c" in err
    names = header.split(",")[1:]
    assert labelkit("import", *words, "--embeddings-key", ",".join(names), "--out", tmp_path / "s.h5").code == 0
    assert open_store(tmp_path / "s.h5").dim == width


@pytest.mark.parametrize(
    ("file", "content", "labels"),
    [
        ("n.txt", "d/b.png\nd/a.png\n".encode("utf-8-sig"), None),
        ("n.txt", "d/b.png\r\nd/a.png\r\n".encode("utf-16"), None),
        ("n.txt", b"d\\b.png\r\nd\\a.png\r\n", None),
        ("n.txt", b"d/b.png 7\nd/a.png -1\n", ["7", None]),
        ("n.txt", b"d/b.png\tred ant\nd/a.png\tbee\n", ["red ant", "bee"]),
        ("n.txt", b"d/b.png, red ant\nd/a.png,bee\n", ["red ant", "bee"]),
        ("n.txt", b"path\tlabel\nd/b.png\tbee\nd/a.png\tant\n", ["bee", "ant"]),
        ("n.csv", "image;class\nd\\b.png;bee\nd\\a.png;ant\n".encode("utf-16"), ["bee", "ant"]),
        ("n.tsv", b"label\tfilepath\nbee\td/b.png\nant\td/a.png\n", ["bee", "ant"]),
    ],
)
def test_names_are_read_in_every_form_that_labels_are(
    labelkit: Any, tmp_path: Path, file: str, content: bytes, labels: list[str | None] | None
) -> None:
    np.save(tmp_path / "x.npy", np.array([[1.0, 2.0], [3.0, 4.0]]))
    (tmp_path / file).write_bytes(content)

    answer = labelkit("import", "--source", tmp_path / "x.npy", "--ids", tmp_path / file, "--out", tmp_path / "s.h5")

    assert answer.code == 0, answer.err
    store = open_store(tmp_path / "s.h5")
    assert store.sample_ids == ["d/a.png", "d/b.png"]
    assert store.embeddings.tolist() == [[3.0, 4.0], [1.0, 2.0]]
    found = None if store.labels is None else [[*store.class_names, None][number] for number in store.labels]
    assert found == (labels and labels[::-1])


def test_columns_of_names_that_are_not_used_are_listed(labelkit: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(2))
    (tmp_path / "n.csv").write_text("path,species,fold\na.png,bee,test\nb.png,ant,train\n")
    words = ("--source", tmp_path / "x.npy", "--ids", tmp_path / "n.csv", "--out", tmp_path / "s.h5", "--overwrite")

    hint = "to read one as labels or splits, pass --labels-key or --splits-key"
    assert f"n.csv: ignoring species, fold; {hint}" in labelkit("import", *words).err
    answer = labelkit("import", *words, "--labels-key", "species", "--splits-key", "fold")
    assert "ignoring" not in answer.err
    assert "1 train, 1 test; 2 labels, used only for evaluation" in answer.err
    store = open_store(tmp_path / "s.h5")
    assert store.class_names == ("ant", "bee")
    assert store.sample_ids[store.rows("test")[0]] == "a.png"


def test_arrays_of_splits_can_have_any_name(labelkit: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", feats=np.eye(3), partition=np.array(["train", "test", "train"]))
    words = ("--source", tmp_path / "x.npz", "--out", tmp_path / "s.h5")
    assert labelkit("import", *words, "--splits-key", "partition").code == 0
    assert open_store(tmp_path / "s.h5").rows("test").tolist() == [1]
    answer = labelkit("import", *words, "--overwrite", "--splits-key", "fold")
    assert answer.code == 2
    assert "--splits-key" in answer.err


@pytest.mark.parametrize("front", ["/data/photos/", "../photos/", "s3://bucket/photos/", "C:/photos/", "./"])
def test_the_folder_that_all_names_share_is_cut(labelkit: Any, tmp_path: Path, front: str) -> None:
    names = ["cat/a.png", "dog/b.png"]
    np.savez(tmp_path / "x.npz", x=np.eye(2), paths=[front + name for name in names])
    words = ("import", "--source", tmp_path / "x.npz", "--out", tmp_path / "s.h5")
    answer = labelkit(*words)
    assert answer.code == 0, answer.err
    assert (f"the common folder {front} is removed" in answer.err) == (front != "./")
    assert open_store(tmp_path / "s.h5").sample_ids == names

    np.savez(tmp_path / "x.npz", x=np.eye(2), paths=["/data/a.png", "b.png"])
    answer = labelkit(*words, "--overwrite")
    assert answer.code == 3
    assert "prefix all paths with the same folder" in answer.err


def test_the_folder_that_is_cut_leaves_paths_below_the_images(labelkit: Any, tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    for name in ("a.png", "b.png"):
        Image.new("RGB", (4, 4)).save(tmp_path / "cat" / name)
    np.savez(tmp_path / "x.npz", x=np.eye(2), paths=["/elsewhere/cat/a.png", "/elsewhere/cat/b.png"])
    words = ("--source", tmp_path / "x.npz", "--images", tmp_path, "--out", tmp_path / "s.h5")
    assert labelkit("import", *words).code == 0
    assert open_store(tmp_path / "s.h5").sample_ids == ["cat/a.png", "cat/b.png"]


@pytest.mark.parametrize("file", ["x.npz", "x.h5"])
def test_rows_of_ids_are_matched_by_the_names_that_the_source_has(labelkit: Any, tmp_path: Path, file: str) -> None:
    if file == "x.npz":
        np.savez(tmp_path / file, features=np.eye(3), paths=["a", "b", "c"], labels=["A", "B", "C"])
    else:
        with h5py.File(tmp_path / file, "w") as made:
            made["features"], made["paths"] = np.eye(3), ["a", "b", "c"]
    (tmp_path / "ids.csv").write_text("path,label\nc,C\nb,B\nmore,D\na,A\n")
    words = ("import", "--source", tmp_path / file, "--ids", tmp_path / "ids.csv", "--out", tmp_path / "s.h5")

    answer = labelkit(*words)

    assert answer.code == 0, answer.err
    assert "ids.csv: rows are matched to" in answer.err
    assert "ids.csv: label" in answer.out
    assert "paths" not in answer.out
    store = open_store(tmp_path / "s.h5")
    assert store.sample_ids == ["a", "b", "c"]
    assert store.embeddings.tolist() == np.eye(3).tolist()
    assert store.labels is not None
    assert [store.class_names[label] for label in store.labels] == ["A", "B", "C"]

    (tmp_path / "ids.csv").write_text("path,label\nc,C\nb,B\nd,A\n")
    answer = labelkit(*words, "--overwrite")
    assert answer.code == 3
    assert "the name 'a' is missing; first difference: 'c', not 'a'" in answer.err.replace("\n", " ")


@pytest.mark.parametrize(
    ("file", "dtype"), [("x.pt", torch.float16), ("x.pt", torch.bfloat16), ("x.safetensors", torch.bfloat16)]
)
def test_tensors_are_read_like_arrays(labelkit: Any, tmp_path: Path, file: str, dtype: torch.dtype) -> None:
    tensors: dict[str, Any] = {"feats": torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=dtype), "y": torch.tensor([5, -1])}
    if file == "x.pt":
        torch.save({**tensors, "paths": ["b.png", "a.png"], "epoch": 3}, tmp_path / file)
    else:
        save_file(tensors, tmp_path / file)

    answer = labelkit("import", "--source", tmp_path / file, "--out", tmp_path / "s.h5")

    assert answer.code == 0, answer.err
    store = open_store(tmp_path / "s.h5")
    flip = -1 if file == "x.pt" else 1  # sorted by name
    assert store.embeddings.tolist() == [[1.0, 2.0], [3.0, 4.0]][::flip]
    assert store.embeddings.dtype == (np.float16 if dtype == torch.float16 else np.float32)
    assert store.labels is not None
    assert store.labels.tolist() == [0, -1][::flip]
    assert (store.sample_ids == ["a.png", "b.png"]) == (file == "x.pt")


@pytest.mark.parametrize("kind", ["csv", "npz", "hdf5"])
def test_labels_that_mean_none_are_none_and_spellings_of_one_class_one(
    labelkit: Any, tmp_path: Path, kind: str
) -> None:
    labels = ["-1", "3", " 3", "3 ", "3.0", "caf\u00e9", "cafe\u0301", "nan"]
    ids, path = [f"{i}.png" for i in range(8)], tmp_path / f"x.{kind}"
    if kind == "csv":
        lines = [f"{name},{label},{i},1" for i, (name, label) in enumerate(zip(ids, labels, strict=True))]
        path.write_text("path,label,e0,e1\n" + "\n".join(lines) + "\n", encoding="utf-8")
    elif kind == "npz":
        np.savez(path, embeddings=np.eye(8), ids=ids, labels=labels)
    else:
        with h5py.File(path, "w") as file:
            file["embeddings"], file["ids"], file["labels"] = np.eye(8), ids, labels

    answer = labelkit("import", "--source", path, "--out", tmp_path / "s.h5")

    assert answer.code == 0, answer.err
    store = open_store(tmp_path / "s.h5")
    assert store.class_names == ("3", "caf\u00e9")
    assert store.labels is not None
    assert store.labels.tolist() == [-1, 0, 0, 0, 0, 1, 1, -1]
    assert "labels read as unlabeled: '-1' (1 of 8), 'nan' (1 of 8)" in answer.err
    assert "'3', ' 3', '3 ' and 1 more are '3'; 'caf\u00e9', 'cafe\u0301' are 'caf\u00e9'" in answer.err


def write_anndata(path: Path, index: str, label: str) -> None:
    """Write the layout of anndata 0.8 and later."""
    with h5py.File(path, "w") as file:
        file["X"] = np.eye(3, dtype=np.float32)
        file[f"obs/{index}"] = ["b.png", "a.png", "c.png"]
        file[f"obs/{label}/codes"] = np.array([1, 0, -1], dtype=np.int8)
        file[f"obs/{label}/categories"] = ["cat ", "dog"]
        file["obsm/umap"] = np.ones((3, 2))


@pytest.mark.parametrize(("index", "label", "suffix"), [("_index", "label", ".h5ad"), ("cell_id", "cell_type", ".h5")])
def test_names_and_labels_of_anndata_are_read_or_asked_for(
    labelkit: Any, tmp_path: Path, index: str, label: str, suffix: str
) -> None:
    words: tuple[object, ...] = ("--source", tmp_path / f"x{suffix}")
    write_anndata(tmp_path / f"x{suffix}", index, label)
    if index != "_index":
        err = refusal(labelkit, tmp_path, *words)
        assert "no image names were found; the file also contains obs/cell_id, obs/cell_type. Pass --ids-key" in err
        words += ("--ids-key", "obs/cell_id", "--labels-key", "obs/cell_type")

    answer = labelkit("import", *words, "--out", tmp_path / "s.h5", "--json")

    assert answer.code == 0, answer.err
    store = open_store(tmp_path / "s.h5")
    assert store.sample_ids == ["a.png", "b.png", "c.png"]
    assert store.class_names == ("cat", "dog")
    assert store.labels is not None
    assert store.labels.tolist() == [0, 1, -1]
    assert answer.json["left_out"] == ["obsm"]


def test_imported_rows_are_clustered_scored_and_searched(labelkit: Any, tmp_path: Path) -> None:
    # around three directions
    rows = np.repeat(np.eye(3), 4, axis=0) + np.random.default_rng(1).normal(scale=0.01, size=(12, 3))
    np.savez(tmp_path / "x.npz", embeddings=rows, labels=np.repeat([0, 1, 2], 4))
    words, imported = ("--source", tmp_path / "x.npz", "--model", "mine"), tmp_path / "s.h5"
    assert labelkit("import", *words, "--out", imported).code == 0
    assert labelkit("cluster", "k-means", "--index", imported, "--num-clusters", 3).code == 0
    scored = labelkit("evaluate", "clustering", "--index", imported, "--json")
    assert scored.json["scores"][0]["all_accuracy"] == 1.0
    searched = labelkit("evaluate", "retrieval", "--index", imported, "--k", "1", "--json")
    assert searched.json["recall"]["1"] == 1.0
    found = labelkit("retrieve", "--index", imported, "--query-rows", "0", "-k", "4", "--skip-duplicates", "--json")
    assert found.code == 0, found.err


def refusal(labelkit: Any, tmp_path: Path, *words: object, code: int = 3) -> str:
    answer = labelkit("import", *words, "--out", tmp_path / "s.h5")
    assert answer.code == code, answer.err
    assert not (tmp_path / "s.h5").exists()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".tmp")) == []
    return str(answer.err)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "", "x.csv: is empty"),
        (lambda text: text.splitlines()[0], "x.csv: contains only a header"),
        (lambda text: text.replace("c/2.png", "a/0.png"), "x.csv line 4: the name 'a/0.png' is also used in"),
        (lambda text: text.replace("c/2.png", "/c/2.png"), "x.csv line 4: the name '/c/2.png' is not a path below"),
        (lambda text: text.replace("c/2.png", ""), "x.csv line 4: the name '' is empty"),
        (lambda text: text.replace("c/2.png,", "c/2.png,,"), "x.csv line 4: has 7 fields, but the header has 6"),
        (lambda text: text.replace("path,", "file name,"), "x.csv line 1: has no column of paths"),
        (lambda text: text.rpartition(",")[0] + ",nan", "x.csv line 5: value 2 is nan"),
        (lambda text: text.rpartition(",")[0] + ",1e39", "x.csv line 5: value 2 is 1e+39, which is too large for"),
        (lambda text: text.rpartition(",")[0] + ",x", "x.csv line 5: could not convert string to float: 'x'"),
        (lambda text: text.replace("b/1.png", '"b/1.png'), "x.csv line 5: unexpected end of data"),
    ],
)
def test_a_csv_that_cannot_be_used_is_refused_with_its_line(
    labelkit: Any, tmp_path: Path, rows: NDArray[np.float32], change: Callable[[str], str], message: str
) -> None:
    (tmp_path / "x.csv").write_text(change(csv_text(rows)))
    assert message in refusal(labelkit, tmp_path, "--source", tmp_path / "x.csv")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[1.0, np.nan]]), "x.npy row 0: value 1 is nan"),
        (np.array([["a"]]), "are not supported"),
        (np.ones(3), "shape (3,), expected (n, d)"),
        (np.ones((0, 3)), "shape (0, 3), expected (n, d)"),
        (np.array([[None]]), "NumPy cannot read it (Array can"),
    ],
)
def test_arrays_that_are_no_rows_are_refused(labelkit: Any, tmp_path: Path, array: NDArray[Any], message: str) -> None:
    np.save(tmp_path / "x.npy", array)
    assert message in refusal(labelkit, tmp_path, "--source", tmp_path / "x.npy")


def test_a_file_that_is_empty_cut_off_or_another_is_refused(labelkit: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((9, 9)))
    data = (tmp_path / "x.npy").read_bytes()
    for content, message in ((b"", "is empty"), (data[:-1], "NumPy cannot read it"), (data[:30], "cannot read it")):
        (tmp_path / "x.npy").write_bytes(content)
        assert message in refusal(labelkit, tmp_path, "--source", tmp_path / "x.npy")
    for suffix, message in ((".npy", "NumPy"), (".npz", "NumPy"), (".hdf5", "not an HDF5 file")):
        path = tmp_path / f"x{suffix}"
        path.write_bytes(b"something else, longer than a header")
        assert message in refusal(labelkit, tmp_path, "--source", path)
    assert "does not exist" in refusal(labelkit, tmp_path, "--source", tmp_path / "none.npz")


def test_files_of_other_kinds_are_refused_with_a_remedy(labelkit: Any, tmp_path: Path) -> None:
    torch.save({"x": np.eye(2)}, tmp_path / "x.pt")
    assert "convert it: numpy.savez('x.npz', **torch.load" in refusal(labelkit, tmp_path, "--source", tmp_path / "x.pt")
    for suffix, code in ((".index", "reconstruct_n"), (".parquet", "numpy.stack"), (".pkl", "numpy.savez")):
        assert code in refusal(labelkit, tmp_path, "--source", tmp_path / f"x{suffix}", code=2)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["train/x"], file["test/x"] = np.eye(3), np.eye(2)
    assert "arrays: test/x (2, 2), train/x (3, 3)." in refusal(labelkit, tmp_path, "--source", tmp_path / "x.h5")


def soft_link(file: h5py.File) -> None:
    file["real"] = np.ones(4)
    file["feats"] = h5py.SoftLink("/real")


def outside_storage(file: h5py.File) -> None:
    file.create_dataset("feats", (8, 1), "u1", external=[("/etc/passwd", 0, 8)])


def bomb(file: h5py.File) -> None:
    file.create_dataset("feats", (1 << 30, 1 << 10), "u1", chunks=(1 << 10, 1 << 10), compression="gzip")


def texts(file: h5py.File) -> None:
    file["feats"] = [["a", "b"]]


@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (soft_link, 2, "has no 'feats', only real (4,)"),
        (outside_storage, 2, "has no 'feats', only nothing"),
        (bomb, 3, "HDF5 cannot read it (Unable to allocate 1.00 TiB"),
        (texts, 3, "are not supported"),
    ],
)
def test_hdf5_that_reaches_out_or_blows_up_is_refused(
    labelkit: Any, tmp_path: Path, make: Callable[[h5py.File], None], code: int, message: str
) -> None:
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        make(file)
    words = ("--source", tmp_path / "x.hdf5", "--embeddings-key", "feats")
    assert message in refusal(labelkit, tmp_path, *words, code=code)
