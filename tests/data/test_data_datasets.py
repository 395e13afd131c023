"""Listings: digits, folders, CSV files, CIFAR in its official layouts, and their errors."""

import hashlib
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.data.datasets import ArraySource, ImageDataset
from labelkit.data.folders import infer_split
from labelkit.data.named.benchmark_classes import read_benchmark_classes
from labelkit.data.registry import DATASETS, load_dataset
from labelkit.errors import DatasetError
from PIL import Image
from tests.textures import dataset_of


def put(path: Path, value: int = 0, size: tuple[int, int] = (4, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, value, value)).save(path)


def load(path: Path | str, data_root: Path | None = None) -> ImageDataset:
    return load_dataset(str(path), data_root=data_root or Path("nowhere"))


def test_digits_are_scaled_to_bytes_in_the_original_order() -> None:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    dataset = load("digits")
    pixels = np.stack([dataset.source.read(i).decode(1)[..., 0] for i in range(len(dataset))])
    assert np.abs(pixels * (16 / 255) - bundle.images).max() <= 0.5 * 16 / 255 + 1e-9
    assert pixels.max() == 255
    assert dataset.labels.tolist() == bundle.target.tolist()
    assert dataset.sample_ids[:2] == ("digits/0000.png", "digits/0001.png")
    assert (len(dataset), dataset.in_channels, dataset.chiral, dataset.photographic) == (1797, 1, True, False)
    assert dataset.given.all()
    assert dataset.split_names == ("train",)


def test_images_of_arrays_have_a_digest_and_convert_their_channels() -> None:
    gray = ArraySource(np.array([[[[7], [9]]]], dtype=np.uint8)).read(0)
    assert gray.sha256 == hashlib.sha256(bytes([7, 9])).digest()
    assert gray.size == 2
    assert gray.decode(3).tolist() == [[[7, 7, 7], [9, 9, 9]]]
    color = ArraySource(np.array([[[[200, 100, 50]]]], dtype=np.uint8)).read(0)
    assert color.decode(1).item() == round(0.299 * 200 + 0.587 * 100 + 0.114 * 50)


def small() -> ImageDataset:
    pixels = np.arange(4, dtype=np.uint8).reshape(4, 1, 1, 1)
    splits = {"splits": np.arange(4, dtype=np.int16) % 2, "split_names": ("train", "test")}
    return dataset_of(pixels, np.arange(4) % 2, **splits)


def test_the_digest_sees_names_labels_and_class_names_and_nothing_else() -> None:
    from dataclasses import replace

    base = small().digest()
    assert replace(small(), name="other", chiral=True).digest() == base
    assert replace(small(), labels=np.array([0, 1, 1, 1])).digest() != base
    assert replace(small(), class_names=("a", "c")).digest() != base
    assert replace(small(), sample_ids=("0.png", "1.png", "2.png", "4.png")).digest() != base


def test_an_unknown_name_suggests_near_ones_and_paths() -> None:
    with pytest.raises(DatasetError, match=r"Did you mean cifar10.*folder or a CSV"):
        load("cifar11")
    with pytest.raises(DatasetError, match=r"folder, a CSV or the name of a dataset: digits, cifar10, cifar100"):
        load("zzz")


def test_registered_sets_describe_themselves() -> None:
    # FlipClass, Table 8 and specification 4.2
    labeled = {name: spec for name, spec in DATASETS.items() if spec.num_classes}
    assert {
        name: (spec.num_classes, len(read_benchmark_classes(name).old_classes)) for name, spec in labeled.items()
    } == {
        "digits": (10, 5),
        "cifar10": (10, 5),
        "cifar100": (100, 80),
        "imagenet_100": (100, 50),
        "imagenet_1k": (1000, 500),
        "cub": (200, 100),
        "scars": (196, 98),
        "aircraft": (100, 50),
        "herbarium_19": (683, 341),
        "imagenet_200": (200, 100),
        "imagenet_lt": (1000, 500),
        "svhn": (10, 5),
        "stl10": (10, 5),
        "sop": (22_634, 11_318),
        "in_shop": (7_982, 3_997),
        "scene_objects": (6, 3),
    }
    assert all(spec.name == name and spec.summary and spec.license for name, spec in DATASETS.items())
    assert all(spec.purpose and spec.source_url and spec.layout for spec in DATASETS.values())


def test_class_folders_give_labels_in_string_order(tmp_path: Path) -> None:
    for name in ("10/b.png", "9/a.JPG", "10/deep/er/c.webp"):
        put(tmp_path / name)
    dataset = load(tmp_path)
    assert dataset.sample_ids == ("10/b.png", "10/deep/er/c.webp", "9/a.JPG")
    assert dataset.class_names == ("10", "9")
    assert dataset.labels.tolist() == [0, 0, 1]
    assert dataset.given.all()
    assert (dataset.in_channels, dataset.chiral, dataset.photographic) == (3, False, True)
    assert dataset.split_names == ()


def test_split_folders_share_their_classes(tmp_path: Path) -> None:
    for name in ("train/cat/1.png", "train/dog/2.png", "valid/dog/3.png", "test/emu/4.png", "test/5.png"):
        put(tmp_path / name)
    dataset = load(tmp_path)
    assert dataset.split_names == ("train", "val", "test")
    assert dataset.class_names == ("cat", "dog", "emu")
    assert dict(zip(dataset.sample_ids, dataset.labels.tolist(), strict=True)) == {
        "train/cat/1.png": 0,
        "train/dog/2.png": 1,
        "valid/dog/3.png": 1,
        "test/emu/4.png": 2,
        "test/5.png": -1,
    }
    assert [dataset.sample_ids[row] for row in dataset.rows_in_split("val")] == ["valid/dog/3.png"]


def test_a_class_may_be_called_train_beside_other_classes_which_is_said(tmp_path: Path) -> None:
    put(tmp_path / "train/1.png")
    put(tmp_path / "bus/2.png")
    dataset = load(tmp_path)
    assert (dataset.class_names, dataset.split_names) == (("bus", "train"), ())
    assert (
        "train/ next to other folders: used as classes, not as splits (to exclude folders, pass --exclude"
        in dataset.notes[0]
    )


def folders_of(dataset: ImageDataset) -> dict[str, tuple[str | None, str | None]]:
    """Split and class of each image."""
    splits, classes = (*dataset.split_names, None), (*dataset.class_names, None)
    pairs = zip(dataset.splits.tolist(), dataset.labels.tolist(), strict=True)
    return {name: (splits[i], classes[k]) for name, (i, k) in zip(dataset.sample_ids, pairs, strict=True)}


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("Training", "TEST", ("train", "test")),
        ("train", "dev", ("train", "val")),
    ],
)
def test_folders_and_csv_know_the_same_words_for_splits(
    tmp_path: Path, first: str, second: str, names: tuple[str, ...]
) -> None:
    for name in (f"{first}/cat/1.png", f"{first}/dog/2.png", f"{second}/cat/3.png", f"{second}/dog/4.png"):
        put(tmp_path / name)
    table = write_csv(tmp_path, f"path,split\n{first}/cat/1.png,{first}\n{second}/dog/4.png,{second}\n")

    folder, listed = load(tmp_path), load(table)

    assert (folder.split_names, folder.class_names) == (names, ("cat", "dog"))
    assert listed.split_names == names
    assert len(folder.rows_in_split(second)) == 2  # asked for by its own word
    assert len(listed.rows_in_split(names[1])) == 1


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train2017", "train"),
        ("training_set", "train"),
        ("test images", "test"),
        ("train-00000-of-00002-b42a775f407cee45", "train"),
        ("Unlabelled", "unlabeled"),
        ("train-station", None),
        ("test-tubes", None),
        ("trained", None),
        ("validity", None),
        ("value", None),
    ],
)
def test_a_name_is_a_split_only_if_nothing_but_numbers_and_fillers_follow_the_word(
    name: str, split: str | None
) -> None:
    assert infer_split(name) == split


def test_a_folder_of_unlabeled_images_beside_splits_is_a_split_without_classes(tmp_path: Path) -> None:
    found = {
        "test/cat/3.png": ("test", "cat"),
        "train/cat/1.png": ("train", "cat"),
        "train/dog/2.png": ("train", "dog"),
        "train/no_label/6.png": ("train", None),
        "unlabeled/4.png": ("unlabeled", None),
        "unlabeled/batch/5.png": ("unlabeled", None),
    }
    for name in found:
        put(tmp_path / name)
    assert folders_of(load(tmp_path)) == found


@pytest.mark.parametrize("around", ["archive/", "archive/archive/", "dataset/"])
@pytest.mark.parametrize("loose", ["", "readme.png"])
def test_a_folder_around_splits_or_classes_means_nothing(tmp_path: Path, around: str, loose: str) -> None:
    for name in ("train/cat/1.png", "train/dog/2.png", "test/cat/3.png"):
        put(tmp_path / "splits" / around / name)
    for name in ("cat/1.png", "dog/2.png"):
        put(tmp_path / "classes" / around / name)
    if loose:
        put(tmp_path / "splits" / loose)
    splits, classes = folders_of(load(tmp_path / "splits")), folders_of(load(tmp_path / "classes"))
    assert splits[f"{around}train/dog/2.png"] == ("train", "dog")
    assert splits[f"{around}test/cat/3.png"] == ("test", "cat")
    assert classes == {f"{around}cat/1.png": (None, "cat"), f"{around}dog/2.png": (None, "dog")}


@pytest.mark.parametrize("second", ["test/cat/3.png", "more/4.png"])
def test_a_stray_folder_beside_splits_is_neither_split_nor_class_and_named(tmp_path: Path, second: str) -> None:
    for name in ("train/cat/1.png", "train/dog/2.png", second, "extra/5.png", "extra/6.png"):
        put(tmp_path / name)
    dataset = load(tmp_path)
    assert dataset.class_names == ("cat", "dog")
    assert folders_of(dataset)["extra/5.png"] == (None, None)
    assert "extra/ (2 images) is next to " in dataset.notes[0]
    assert "(to exclude it, pass --exclude)" in dataset.notes[0]
    left = load_dataset(str(tmp_path), data_root=tmp_path, exclude=("extra", "more"))
    assert len(left) == (3 if second.startswith("test") else 2)
    assert "extra/" not in " ".join(left.notes)


def test_hidden_files_other_suffixes_and_linked_folders_are_counted(tmp_path: Path) -> None:
    put(tmp_path / "set/a/1.png")
    put(tmp_path / "outside/2.png")
    (tmp_path / "set/.hidden.png").touch()
    (tmp_path / "set/a/notes.txt").touch()
    (tmp_path / "set/link").symlink_to(tmp_path / "outside")
    (tmp_path / "set/again").symlink_to("../outside")
    (tmp_path / "set/loop").symlink_to(tmp_path / "set")
    (tmp_path / "outside/up").symlink_to("../..")
    (tmp_path / "set/a/3.png").symlink_to(tmp_path / "outside/2.png")
    dataset = load(tmp_path / "set")
    assert dataset.sample_ids == ("a/1.png", "a/3.png", "again/2.png", "link/2.png")
    assert dataset.source.read(2).decode(1).shape == (4, 4, 1)
    assert dataset.notes == (
        "ignored: 1 hidden, 3 in circular links, 1 with other suffixes; if a table contains labels "
        "(a/notes.txt?), pass it as --labels or --dataset",
    )


def test_patterns_leave_out_images_and_folders(tmp_path: Path) -> None:
    for name in ("cat/1.png", "cat/1_mask.png", "dog/2.png", "dog/old/3.png", "emu/4.png"):
        put(tmp_path / "set" / name)

    folder = load_dataset(str(tmp_path / "set"), data_root=tmp_path, exclude=("*_mask.png", "old/", "*/emu", "emu"))
    listed = load_dataset(
        str(write_csv(tmp_path, "path,label\nset/cat/1.png,b\n")), data_root=tmp_path, exclude=("cat",)
    )

    assert folder.sample_ids == ("cat/1.png", "dog/2.png")
    assert (folder.class_names, folder.notes) == (("cat", "dog"), ("ignored: 3 excluded",))
    assert listed.sample_ids == ("set/cat/1.png",)
    assert listed.notes == ("--exclude cat: nothing was excluded; it applies only to folders and tar archives",)


def test_names_that_are_not_utf8_are_kept_and_sorted_by_their_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    try:
        (tmp_path / "a" / os.fsdecode(b"\xff.png")).touch()
    except OSError:
        pytest.skip("this file system wants UTF-8")
    for name in ("é.png", "z.png"):
        put(tmp_path / "a" / name)
    assert [os.fsencode(name) for name in load(tmp_path).sample_ids] == [b"a/z.png", "a/é.png".encode(), b"a/\xff.png"]


def test_a_folder_without_images_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DatasetError, match=r"no images \(1 with other suffixes; .*notes\.txt.*\.jpg.*class folders"):
        load(tmp_path)


def write_csv(folder: Path, text: str) -> Path:
    path = folder / "list.csv"
    path.write_text(text)
    return path


def test_csv_labels_sort_naturally_and_empty_ones_are_unlabeled(tmp_path: Path) -> None:
    for name in "abcd":
        put(tmp_path / f"img/{name}.png")
    path = write_csv(tmp_path, "path,label\nimg/c.png,10\nimg/a.png,2\nimg/d.png,\nimg/b.png, 9\n")
    dataset = load(path)
    assert dataset.sample_ids == ("img/a.png", "img/b.png", "img/c.png", "img/d.png")
    assert dataset.class_names == ("2", "9", "10")
    assert dataset.labels.tolist() == [0, 1, 2, -1]
    assert dataset.given.tolist() == [True, True, True, False]
    assert dataset.root == tmp_path


def test_csv_splits_other_columns_and_quotes(tmp_path: Path) -> None:
    for name in ("a, b.png", "c.png", "d.png"):
        put(tmp_path / name)
    path = write_csv(
        tmp_path, '\ufeffLabel,note,path,split\r\nx2,,"a, b.png",test\r\nx10,,c.png,train\r\nx2,,d.png,\r\n'
    )
    dataset = load(path)
    assert dataset.class_names == ("x2", "x10")
    assert dataset.split_names == ("train", "test")
    assert dict(zip(dataset.sample_ids, dataset.splits.tolist(), strict=True)) == {
        "a, b.png": 1,
        "c.png": 0,
        "d.png": -1,
    }


def test_csv_paths_that_lead_out_of_its_folder_move_the_root(tmp_path: Path) -> None:
    put(tmp_path / "images/x/a.png", 1)
    put(tmp_path / "images/y/b.png", 2)
    (tmp_path / "lists").mkdir()
    path = write_csv(tmp_path / "lists", f"path,label\n../images/x/a.png,1\n{tmp_path}/images/y/b.png,2\n")
    dataset = load(path)
    assert dataset.root == tmp_path / "images"
    assert dataset.sample_ids == ("x/a.png", "y/b.png")
    assert dataset.source.read(1).decode(1).item(0) == 2


def test_labels_in_columns_of_classes_can_be_hidden_too(tmp_path: Path) -> None:
    for number, name in enumerate(("a.png", "b.png")):
        put(tmp_path / name, number)
    path = write_csv(tmp_path, "path,cat,dog,labeled\na.png,1,0,0\nb.png,0,1,1\n")
    assert load(path).class_names == ("cat", "dog")
    assert load(path).given.tolist() == [False, True]

    write_csv(tmp_path, "path,label,labeled\na.png,cat,0\n./a.png,cat,1\n")
    with pytest.raises(DatasetError, match=r"line 3: '\./a\.png' is also in line 2, with another value of labeled"):
        load(path)


@pytest.mark.parametrize(
    ("column", "values", "given", "note"),
    [
        (
            "labelled",
            ("1", "0", "0"),
            [True, False, False],
            "labels hidden from training, since the column labeled is 0: 1",
        ),
        ("Labeled", ("true", "True", "no"), [True, True, False], None),
        ("labeled", ("1", "maybe", "0"), [True, True, False], "unused columns: labeled"),
    ],
)
def test_a_column_says_which_labels_are_hidden_from_training(
    tmp_path: Path, column: str, values: tuple[str, ...], given: list[bool], note: str | None
) -> None:
    names = ("a.png", "b.png", "c.png")
    for number, name in enumerate(names):
        put(tmp_path / name, number)
    labels = ("cat", "dog", "")
    lines = [f"{name},{label},{value}\n" for name, label, value in zip(names, labels, values, strict=True)]
    dataset = load(write_csv(tmp_path, f"path,label,{column}\n" + "".join(lines)))
    assert dataset.labels.tolist() == [0, 1, -1]
    assert dataset.given.tolist() == given
    assert dataset.notes == (() if note is None else (note,))


@pytest.mark.parametrize(
    ("column", "values", "names", "notes"),
    [
        ("Set", ("Training", "dev"), ("train", "val"), ("unused columns: Size",)),
        ("partition", ("", "test"), ("test",), ("unused columns: Size",)),
        ("set", ("A", "train"), (), ("unused columns: set, Size",)),
    ],
)
def test_other_names_of_the_column_of_splits_count_if_their_words_do(
    tmp_path: Path, column: str, values: tuple[str, str], names: tuple[str, ...], notes: tuple[str, ...]
) -> None:
    for name in ("a.png", "b.png"):
        put(tmp_path / name)
    first, second = values
    table = write_csv(tmp_path, f"path,label,{column},Size\na.png,cat,{first},3\nb.png,dog,{second},4\n")
    dataset = load(table)
    assert (dataset.split_names, dataset.notes) == (names, notes)


def test_json_is_a_list_of_images(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        put(tmp_path / name)
    (tmp_path / "labels.json").write_text('{"a": "cat", "b.png": null}')
    dataset = load(tmp_path / "labels.json")
    assert (dataset.sample_ids, dataset.class_names, dataset.labels.tolist()) == (("a.png", "b.png"), ("cat",), [0, -1])


@pytest.mark.parametrize(
    ("header", "note"),
    [
        (
            "path,kind,sort",
            "no labels: no column 'label' (or labels, class, class_name, category, choice), found path, kind, sort",
        ),
        ("path,class,category", "no labels: 2 columns may contain the labels: class, category"),
    ],
)
def test_csv_without_a_clear_column_of_labels_lists_images_and_says_so(tmp_path: Path, header: str, note: str) -> None:
    put(tmp_path / "a.png")
    dataset = load(write_csv(tmp_path, f"{header}\na.png,x,y\n"))
    assert dataset.labels.tolist() == [-1]
    assert dataset.notes == (f"{note}; choose the column with --label-column",)
    assert load_dataset(
        str(tmp_path / "list.csv"), data_root=tmp_path, label_column=header[5:].split(",")[0]
    ).class_names == ("x",)


def test_all_faults_of_a_csv_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    put(tmp_path / "a.png")
    (tmp_path / "folder").mkdir()
    path = write_csv(tmp_path, "path,label\na.png,1\nnone.png,2\n./a.png,2\na.png,1\nfolder,3\n")
    with pytest.raises(DatasetError) as caught:
        load(path)
    text = str(caught.value)
    assert "contains 3 errors" in text
    assert "line 3: no file 'none.png'" in text
    assert "line 4: './a.png' is also in line 2, with another label or split" in text
    assert "line 6: 'folder' is a folder" in text


def test_a_missing_file_names_the_option_by_which_it_is_found(tmp_path: Path) -> None:
    put(tmp_path / "photos" / "a.png")
    (tmp_path / "lists").mkdir()
    path = write_csv(tmp_path / "lists", "path,label\na.png,1\n")
    with pytest.raises(DatasetError) as caught:
        load(path)
    assert "--data-root FOLDER" in caught.value.remedy
    assert load(path, tmp_path / "photos").sample_ids == ("a.png",)
    with pytest.raises(DatasetError) as caught:
        load(write_csv(tmp_path / "photos", "path,label\na.png,1\na.png,2\n"))
    assert "--data-root" not in caught.value.remedy


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("path,label\n", "contains a header, but no images"),
        ("picture,label\na,1\n", "no path column"),
        ('path,label\n"a.png,1\n', "line 2: a quotation mark is not closed"),
        ("path,label\nA.png,1\n", r"no file 'A.png' .*\(is it a.png\?\)"),
    ],
)
def test_a_csv_that_cannot_be_used_says_why(tmp_path: Path, text: str, problem: str) -> None:
    put(tmp_path / "a.png")
    with pytest.raises(DatasetError, match=problem):
        load(write_csv(tmp_path, text))


NAMES10 = [f"name{i}" for i in range(10)]


def planes(n: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (n, 3072), dtype=np.uint8)


def write_cifar10_python(root: Path) -> dict[str, Any]:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    made = {}
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        made[name] = planes(2, i), [i, (i + 1) % 10]
        record = {"data": made[name][0], "labels": made[name][1], "batch_label": "batch"}
        (folder / name).write_bytes(pickle.dumps(record, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": NAMES10}, protocol=2))
    return made


@pytest.fixture
def any_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a test are not the published ones."""
    monkeypatch.setattr("torchvision.datasets.cifar.check_integrity", lambda path, md5: Path(path).is_file())


@pytest.mark.usefixtures("any_digest")
@pytest.mark.parametrize("place", ["", "cifar10"])
def test_cifar10_python_layout_is_read(tmp_path: Path, place: str) -> None:
    made = write_cifar10_python(tmp_path / place)
    dataset = load("cifar10", tmp_path)
    assert dataset.class_names == tuple(NAMES10)
    assert dataset.sample_ids[:3] == ("test/00000.png", "test/00001.png", "train/00000.png")
    assert dataset.split_names == ("train", "test")
    assert dataset.labels.tolist() == [5, 6, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    # Row 3 of the training set is the second image of the second file; planes are red, green, blue.
    pixels = dataset.source.read(2 + 3).decode(3)
    assert np.array_equal(pixels.transpose(2, 0, 1).reshape(-1), made["data_batch_2"][0][1])


def test_python_files_that_are_not_the_published_ones_are_not_unpickled(tmp_path: Path) -> None:
    write_cifar10_python(tmp_path)
    (tmp_path / "cifar-10-batches-py/data_batch_3").write_bytes(pickle.dumps({"data": Attack(tmp_path / "hit")}))
    with pytest.raises(DatasetError, match=r"does not match its published MD5.*--download"):
        load("cifar10", tmp_path)
    assert not (tmp_path / "hit").exists()


class Attack:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.usefixtures("any_digest")
def test_a_download_appears_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def archive(_url: str, folder: Path, **_: str) -> None:
        write_cifar10_python(Path(folder))

    monkeypatch.setattr("torchvision.datasets.cifar.download_and_extract_archive", archive)
    assert len(load_dataset("cifar10", data_root=tmp_path, download=True)) == 12
    assert [path.name for path in tmp_path.iterdir()] == ["cifar-10-batches-py"]
