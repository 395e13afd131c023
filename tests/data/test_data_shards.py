"""Images in tar archives and Parquet files: the same rows as in a folder, and what is wrong with files, by name."""

import io
import json
import pickle
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.data.archives import find_archives
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImageError
from labelkit.data.registry import load_dataset
from labelkit.errors import DatasetError
from PIL import Image


def picture(number: int, kind: str = "PNG") -> bytes:
    values = np.full((8, 8, 3), number % 256, dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, kind)
    return buffer.getvalue()


def pack(path: Path, members: Mapping[str, bytes], **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, options.pop("mode", "w"), **options) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def listed(text: object) -> ImageDataset:
    return load_dataset(str(text), data_root=Path("nowhere"))


def classes(found: ImageDataset) -> list[str | None]:
    return [found.class_names[label] if label >= 0 else None for label in found.labels]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a-{000..002}.tar", ["a-000.tar", "a-001.tar", "a-002.tar"]),
        ("{a,b}-{8..10}.tar", [f"{letter}-{n}.tar" for letter in "ab" for n in (10, 8, 9)]),
        ("*-1.tar", ["a-1.tar", "b-1.tar"]),
        ("plain.tar", ["plain.tar"]),
        ("odd[1].tar", ["odd[1].tar"]),
    ],
)
def test_patterns_stand_for_files_as_in_a_shell(tmp_path: Path, pattern: str, names: list[str]) -> None:
    made = {*names, "a-1.tar", "b-1.tar", "other.txt"}
    for name in made:
        (tmp_path / name).touch()
    assert [path.name for path in find_archives(str(tmp_path / pattern))] == names


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("a-{0..9}.tar", "9 of 10 files are missing: .*a-1.tar, .*a-2.tar, .*a-3.tar and 6 more"),
        ("none-*.tar", "1 of 1 files are missing"),
        ("a-0.tar.gz", "is a compressed archive"),
        ("b-0.parquet", "1 of 1 files are missing"),
    ],
)
def test_files_that_are_missing_are_named(tmp_path: Path, pattern: str, problem: str) -> None:
    pack(tmp_path / "a-0.tar", {"x.png": picture(0)})
    with pytest.raises(DatasetError, match=problem):
        listed(tmp_path / pattern)


def test_samples_of_webdataset_have_their_labels_whatever_archive_they_are_in(tmp_path: Path) -> None:
    pack(
        tmp_path / "train-000.tar",
        {
            "7.jpg": picture(7, "JPEG"), "7.cls": b"2",
            "8.png": picture(8), "8.cls": b"ten",
        },
    )  # fmt: skip
    pack(
        tmp_path / "train-001.tar", {"1.png": picture(1), "1.cls": b"10\n", "1.txt": b"a caption", "5.png": picture(5)}
    )
    pack(tmp_path / "val-000.tar", {"3.png": picture(3), "3.cls": b"2"})
    found = listed(tmp_path / "*-{000,001}.tar")
    assert found.sample_ids == ("1.png", "3.png", "5.png", "7.jpg", "8.png")
    assert found.class_names == ("2", "10", "ten")
    assert classes(found) == ["10", "2", None, "2", "ten"]
    assert [found.split_names[split] for split in found.splits] == ["train", "val", "train", "train", "train"]
    assert [int(found.source.read(row).decode(3)[0, 0, 0]) for row in (0, 1, 2, 4)] == [1, 3, 5, 8]
    # a worker process gets the source
    source = pickle.loads(pickle.dumps(found.select([0, 4]).source))
    assert int(source.read(1).decode(3)[0, 0, 0]) == 8


def test_a_packed_folder_is_the_folder(tmp_path: Path) -> None:
    members = {
        f"{split}/{name}/{i}.a.png": picture(i)
        for split in ("train", "test")
        for name in ("ant", "bee")
        for i in range(2)
    }
    for name, content in members.items():
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with tarfile.open(tmp_path / "photos.tar", "w") as archive:
        archive.add(tmp_path / "photos", "photos")
    one, other = listed(tmp_path / "photos"), listed(tmp_path / "photos.tar")
    assert one.digest() == other.digest()
    assert one.split_names == other.split_names == ("train", "test")
    assert (one.splits == other.splits).all()
    for row in range(len(one)):
        assert one.source.read(row).sha256 == other.source.read(row).sha256
    # the same in two archives, in another order
    names = list(members)
    pack(tmp_path / "s" / "b.tar", {name: members[name] for name in names[:3]})
    pack(tmp_path / "s" / "a.tar", {name: members[name] for name in reversed(names[3:])})
    assert listed(tmp_path / "s" / "*.tar").digest() == one.digest()


def test_members_that_are_no_files_are_counted_and_names_lead_nowhere(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("x/../../../etc/1.png", "/abs/2.png", "./._3.png", "./4.png"):
            info = tarfile.TarInfo(name)
            info.size = len(picture(1))
            archive.addfile(info, io.BytesIO(picture(1)))
        link = tarfile.TarInfo("5.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        device = tarfile.TarInfo("6.png")
        device.type = tarfile.CHRTYPE
        archive.addfile(device)
    found = listed(tmp_path / "a.tar")
    assert found.sample_ids == ("4.png", "abs/2.png", "x/etc/1.png")
    assert found.notes == ("ignored: 1 hidden, 2 links and devices",)


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["Training_01.tar", "Testing_01.tar"], ("train", "test")),
        (["train.tar", "validation.tar", "unlabeled.tar"], ("train", "val", "unlabeled")),
        (["train.tar", "test.tar", "more.tar"], ("train", "test")),
        (["train.tar", "more.tar"], ()),
    ],
)
def test_names_of_archives_say_splits_by_the_words_of_folders(
    tmp_path: Path, names: list[str], splits: tuple[str, ...]
) -> None:
    for number, name in enumerate(names):
        pack(tmp_path / name, {f"{number}.png": picture(number)})
    found = listed(tmp_path / "*.tar")
    assert (len(found), found.split_names) == (len(names), splits)


def test_an_archive_that_was_cut_off_is_named(tmp_path: Path) -> None:
    whole = pack(tmp_path / "a.tar", {f"{i}.png": picture(i) for i in range(6)}).read_bytes()
    with tarfile.open(tmp_path / "a.tar") as archive:
        places = [member.offset_data for member in archive]
    cut = tmp_path / "cut.tar"
    for length in (places[3] + 5, places[3] - 100, places[2] + 3):
        cut.write_bytes(whole[:length])
        with pytest.raises(
            DatasetError,
            match=r"cut.tar: .*(unexpected end of data|truncated at byte .*). Download the file again",
        ):
            listed(cut)
    cut.write_bytes(whole[: places[3] - 512] + b"x" * 512 + whole[places[3] :])
    with pytest.raises(DatasetError, match=r"cut.tar: is damaged or truncated at byte"):
        listed(cut)
    cut.write_bytes(b"")
    with pytest.raises(DatasetError, match=r"cut.tar: cannot be listed"):
        listed(cut)


@pytest.mark.parametrize(
    ("members", "problem"),
    [
        ({"1.txt": b"no image"}, "no images"),
        ({"1.png": picture(1), "1.cls": b" \n"}, "'1.cls' contains no usable labels"),
        ({"1.png": picture(1), "1.cls": b"x" * (2 << 20)}, "contains no usable labels"),
        ({"1.png": picture(1), "1.cls": b"\xff\xfe"}, "cannot be listed"),
    ],
)
def test_what_is_wrong_inside_is_told_with_the_archive(tmp_path: Path, members: dict[str, bytes], problem: str) -> None:
    with pytest.raises(DatasetError, match=problem):
        listed(pack(tmp_path / "a.tar", members))


def test_rows_of_hugging_face_have_names_of_their_classes(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    about = {"info": {"features": {"label": {"names": ["bee", "ant"], "_type": "ClassLabel"}}}}
    for file, start in (("train-00000-of-00002", 0), ("train-00001-of-00002", 5)):
        images = [{"bytes": picture(start + i), "path": f"{i}.png"} for i in range(5)]
        table = pa.table({"image": images, "label": [0, 1, None, -1, 1]})
        table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
        pq.write_table(table, tmp_path / f"{file}.parquet", row_group_size=2)
    found = listed(tmp_path / "train-*.parquet")
    assert found.class_names == ("bee", "ant")
    assert classes(found) == ["bee", "ant", None, None, "ant"] * 2
    assert found.sample_ids[4] == "train-00000-of-00002/000000004"
    assert found.split_names == ("train",)
    assert [int(found.source.read(row).decode(3)[0, 0, 0]) for row in (9, 0, 4, 5)] == [9, 0, 4, 5]
    source = pickle.loads(pickle.dumps(found.select([3, 7]).source))
    assert [int(source.read(row).decode(3)[0, 0, 0]) for row in (0, 1)] == [3, 7]


def test_numbers_with_gaps_of_one_file_are_the_classes_of_another(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, labels in (("a", [0, 1, 1]), ("b", [0.0, None, float("nan")])):
        pq.write_table(
            pa.table({"image": [picture(i) for i in range(3)], "label": labels}), tmp_path / f"{name}.parquet"
        )
    found = listed(tmp_path / "*.parquet")
    assert classes(found) == ["0", "1", "1", "0", None, None]
    assert "'nan' (1 of 6)" in found.notes[0]


@pytest.mark.parametrize(("limit", "groups_read"), [(1 << 20, 5), (1, 20)])
def test_groups_of_rows_are_read_once_while_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, groups_read: int
) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"image": [picture(i) for i in range(10)]}), tmp_path / "a.parquet", row_group_size=2)
    source = listed(tmp_path / "a.parquet").source
    opened: list[int] = []
    read = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile, "read_row_group", lambda *these, **more: opened.append(these[1]) or read(*these, **more)
    )
    monkeypatch.setattr("labelkit.data.archives._HELD_BYTES", limit)

    order = [0, 3, 5, 7, 9, 1, 2, 4, 6, 8] * 2

    assert [int(source.read(row).decode(3)[0, 0, 0]) for row in order] == order
    assert len(opened) == groups_read


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"text": ["a"]}, r"no image column \(columns: text\)"),
        ({"one": [b"a"], "two": [b"b"]}, "2 columns may contain the images: one, two"),
    ],
)
def test_a_table_without_images_is_refused(tmp_path: Path, columns: dict[str, list[Any]], problem: str) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(DatasetError, match=problem):
        listed(tmp_path / "a.parquet")


def test_damaged_tables_and_rows_are_told(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and nothing more")
    with pytest.raises(DatasetError, match=r"a.parquet: cannot be read"):
        listed(tmp_path / "a.parquet")
    pq.write_table(pa.table({"image": [picture(1), None]}), tmp_path / "b.parquet")
    found = listed(tmp_path / "b.parquet")
    assert int(found.source.read(0).decode(3)[0, 0, 0]) == 1
    with pytest.raises(BadImageError, match="contains no image"):
        found.source.read(1)
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    again = pickle.loads(pickle.dumps(found.source))  # which holds no group of rows
    with pytest.raises(BadImageError, match=r"b.parquet cannot be read"):
        again.read(0)
