"""Images at addresses: the rows of a folder, whole files or none, and faults by name."""

import io
import pickle
import tarfile
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from labelkit.data.datasets import EncodedImage, ImageDataset
from labelkit.data.registry import load_dataset
from labelkit.errors import DatasetError
from PIL import Image

NAMES = [f"{split}/{kind}/{i}.png" for split in ("train", "test") for kind in ("cat", "dog") for i in range(3)]


class Shaky(MemoryFileSystem):
    """Files in memory whose reads fail as ``faults`` says, one after the other."""

    protocol = "shaky"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False
    faults: ClassVar[list[Exception]] = []

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.replace("shaky://", "memory://")))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        content = bytes(super().cat_file(path, start, end, **options))
        if self.faults:
            raise self.faults.pop(0)
        return content


@pytest.fixture(autouse=True)
def _empty() -> None:
    fsspec.register_implementation("shaky", Shaky, clobber=True)
    MemoryFileSystem.store.clear()
    Shaky.store.clear()
    Shaky.faults.clear()


def picture(number: int) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), 10 * number, dtype=np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def fill(folder: Path, *more: str) -> Path:
    for number, name in enumerate([*NAMES, *more]):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    return folder


def upload(folder: Path, address: str) -> None:
    system, path = fsspec.core.url_to_fs(address)
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            system.pipe_file(f"{path}/{file.relative_to(folder).as_posix()}", file.read_bytes())


def listed(text: object) -> ImageDataset:
    return load_dataset(str(text), data_root=Path("nowhere"))


def test_a_folder_at_an_address_has_the_rows_of_the_folder(tmp_path: Path) -> None:
    folder = fill(
        tmp_path / "photos", "train/cat/.hidden.png", ".git/a.png", "train/cat/notes.txt", "train/@eaDir/1.png/S.png"
    )
    upload(folder, "memory://bucket/photos")

    here, there = listed(folder), listed("memory://bucket/photos/")

    assert there.sample_ids == here.sample_ids
    assert there.digest() == here.digest()
    assert (there.name, there.split_names, there.notes) == (here.name, here.split_names, here.notes)
    assert there.splits.tolist() == here.splits.tolist()
    for row in range(len(here)):
        assert there.source.read(row).sha256 == here.source.read(row).sha256
    part = pickle.loads(pickle.dumps(there.select([1, 4]).source))
    assert part.read(1).sha256 == here.source.read(4).sha256


@pytest.mark.parametrize("pattern", ["{train,test}.tar", "t*.tar"])
def test_archives_at_an_address_have_the_rows_of_archives_here(tmp_path: Path, pattern: str) -> None:
    folder = fill(tmp_path / "photos")
    (tmp_path / "tars").mkdir()
    for split in ("train", "test"):
        with tarfile.open(tmp_path / "tars" / f"{split}.tar", "w") as archive:
            archive.add(folder / split, split)
    upload(tmp_path / "tars", "memory://bucket/tars")

    here, there = listed(tmp_path / "tars" / pattern), listed(f"memory://bucket/tars/{pattern}")

    assert there.digest() == here.digest()
    assert there.splits.tolist() == here.splits.tolist()
    assert [there.source.read(row).sha256 for row in range(12)] == [here.source.read(row).sha256 for row in range(12)]


def test_parquet_at_an_address_has_the_rows_of_files_here(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "files").mkdir()
    images = [{"bytes": picture(number), "path": None} for number in range(5)]
    parquet.write_table(
        arrow.table({"image": images, "label": ["a", "b", "a", "b", "a"]}), tmp_path / "files/a.parquet"
    )
    upload(tmp_path / "files", "memory://bucket/files")

    here, there = listed(tmp_path / "files/*.parquet"), listed("memory://bucket/files/*.parquet")

    assert there.digest() == here.digest()
    assert there.source.read(3).sha256 == here.source.read(3).sha256


def test_a_server_that_sends_whole_archives_for_each_image_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(fill(tmp_path / "photos"), "photos")
    upload(tmp_path, "shaky://host")
    there = listed("shaky://host/all.tar")
    assert isinstance(there.source.read(0), EncodedImage)

    whole = (tmp_path / "all.tar").read_bytes()
    monkeypatch.setattr(Shaky, "cat_file", lambda *words, **options: whole)
    with pytest.raises(DatasetError, match=r"^shaky://host/all\.tar: returned [\d,]+ bytes instead of \d+") as error:
        there.source.read(0)

    assert "download the file" in str(error.value.remedy)


@pytest.fixture
def shaky(tmp_path: Path) -> ImageDataset:
    upload(fill(tmp_path / "photos"), "shaky://bucket/photos")
    return listed("shaky://bucket/photos")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (OSError("connection reset"), "cannot be read: connection reset"),
        (TimeoutError(), "cannot be read: TimeoutError"),
        (PermissionError("AccessDenied"), "access is denied: AccessDenied. Check the credentials"),
    ],
)
def test_a_file_that_cannot_be_fetched_ends_the_command_with_its_name(
    shaky: ImageDataset, fault: Exception, said: str
) -> None:
    Shaky.faults[:] = [fault]

    with pytest.raises(DatasetError) as found:
        shaky.source.read(0)

    assert said in str(found.value)
    assert str(found.value).startswith("shaky://bucket/photos/test/cat/0.png: ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("memory://bucket/nothing", "memory://bucket/nothing: does not exist or is empty"),
        ("memory://bucket/{a,b}.tar", "2 of 2 files are missing: memory://bucket/a.tar, memory://bucket/b.tar"),
        ("memory://bucket/*.tar", "1 of 1 files are missing: memory://bucket/*.tar"),
        ("memory://bucket/list.csv", "is a remote CSV"),
        ("memory://bucket/a.tar.gz", "is a compressed archive"),
        ("nosuch://bucket/photos", "nosuch://bucket/photos: is not a URL that fsspec supports"),
    ],
)
def test_what_is_not_there_is_named(text: str, said: str) -> None:
    with pytest.raises(DatasetError) as found:
        listed(text)

    assert said in str(found.value)
