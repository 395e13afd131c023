"""Classes held out whole, and the two datasets of metric learning in their official layouts."""

from pathlib import Path

import numpy as np
import pytest
from labelkit.data.named.benchmark_classes import read_benchmark_classes
from labelkit.data.registry import DATASETS, load_dataset
from labelkit.data.splits import parse_holdout_classes
from labelkit.errors import DatasetError
from tests.miniature_sets import write_in_shop, write_online_products

NAMES = ("Greek_1", "Greek_2", "Korean_1", "Korean_2", "Latin_1")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("half",), (2, 3, 4)),
        (("first-half",), (0, 1)),
        (("Korean_*", "Latin_1"), (2, 3, 4)),
        (("0", "3-4"), (0, 3, 4)),
        (("*_1",), (0, 2, 4)),
        (("4-9",), (4,)),
    ],
)
def test_words_stand_for_classes(words: tuple[str, ...], expected: tuple[int, ...]) -> None:
    assert parse_holdout_classes(words, NAMES) == expected


def test_a_name_goes_before_a_number() -> None:
    assert parse_holdout_classes(("7",), ("9", "8", "7")) == (2,)
    assert parse_holdout_classes(("half",), ("whole", "half")) == (1,)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("Greec_1",), "no class 'Greec_1' among the 5"),
        (("5",), "no class '5'"),
        (("half", "Latin_1"), "no class 'half'"),
        (("*",), "5 of 5 classes would be held out"),
    ],
)
def test_words_for_no_class_or_all_are_refused(words: tuple[str, ...], problem: str) -> None:
    with pytest.raises(DatasetError) as refusal:
        parse_holdout_classes(words, NAMES)
    assert problem in str(refusal.value)


def test_halves_of_the_benchmarks_are_the_published_ones() -> None:
    """T§5.1, §4.2: CUB 1-100 and 101-200, Cars 1-98 and 99-196; all images of a class, 5,864 + 5,924 and so on."""
    for name, count, images in (("cub", 200, 11_788), ("scars", 196, 16_185)):
        spec = DATASETS[name]
        assert spec.num_classes == count
        assert sum(n for n in spec.num_images.values() if isinstance(n, int)) == images
        held_out = parse_holdout_classes(("half",), [str(i) for i in range(count)])
        assert held_out == tuple(range(count // 2, count))


def test_online_products_are_listed_by_their_lists(tmp_path: Path) -> None:
    write_online_products(tmp_path / "Stanford_Online_Products")
    dataset = load_dataset("sop", data_root=tmp_path)
    assert dataset.split_names == ("train", "test")
    assert dataset.class_names == ("chair/1", "lamp/2", "sofa/3")
    train, test = (set(dataset.labels[dataset.rows_in_split(name)].tolist()) for name in ("train", "test"))
    assert (train, test) == ({0, 1}, {2})
    assert dataset.sample_ids[0] == "chair_final/111_0.JPG"
    assert dataset.source.read(0).decode(3).shape == (10, 12, 3)


def test_in_shop_has_query_and_gallery_of_the_same_items(tmp_path: Path) -> None:
    write_in_shop(tmp_path / "In-shop Clothes Retrieval Benchmark")
    dataset = load_dataset("in_shop", data_root=tmp_path)
    assert dataset.split_names == ("train", "query", "gallery")
    # items of training first, whatever their numbers
    assert dataset.class_names == ("id_00000002", "id_00000001")
    query, gallery = (set(dataset.labels[dataset.rows_in_split(name)].tolist()) for name in ("query", "gallery"))
    assert query == gallery == {1}
    assert all(name.startswith("Img/img/WOMEN/") for name in dataset.sample_ids)


@pytest.mark.parametrize(
    ("file", "content", "problem"),
    [
        ("Ebay_train.txt", "nothing\n", "has damaged file lists"),
        (
            "Ebay_train.txt",
            "image_id class_id super_class_id path\n1 x 1 a.JPG\n",
            "has damaged file lists: invalid literal",
        ),
        (
            "Ebay_test.txt",
            "image_id class_id super_class_id path\n9 1 1 chair_final/111_0.JPG\n",
            "lists chair_final/111_0.JPG 2 times",
        ),
        (
            "Ebay_test.txt",
            "image_id class_id super_class_id path\n9 9 1 sofa_final/333_0.JPG\n",
            "has damaged file lists: 2",
        ),
    ],
)
def test_damaged_lists_of_online_products_are_refused(tmp_path: Path, file: str, content: str, problem: str) -> None:
    root = tmp_path / "Stanford_Online_Products"
    write_online_products(root)
    (root / file).write_text(content)
    with pytest.raises(DatasetError) as refusal:
        load_dataset("sop", data_root=tmp_path)
    assert problem in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("6\n", "7\n"), "its first line says 7"),
        (("6\n", "six\n"), "has damaged file lists"),
        ((" gallery", " galery"), "has damaged file lists"),
        (("id_00000001 query", "id_00000002 query"), "id_00000002 is in both the training split"),
    ],
)
def test_a_damaged_list_of_in_shop_is_refused(tmp_path: Path, change: tuple[str, str], problem: str) -> None:
    root = tmp_path / "inshop"
    path = write_in_shop(root)
    path.write_text(path.read_text().replace(*change, 1))
    with pytest.raises(DatasetError) as refusal:
        load_dataset("in_shop", data_root=tmp_path)
    assert problem in str(refusal.value)


def test_both_have_published_counts() -> None:
    """T§4.2."""
    assert DATASETS["sop"].num_images == {
        "train": 59_551,
        "test": 60_502,
    }
    assert DATASETS["in_shop"].num_images == {
        "train": 25_882,
        "query": 14_218,
        "gallery": 12_612,
    }
    assert read_benchmark_classes("sop").old_classes == tuple(range(11_318))
    assert np.array_equal(read_benchmark_classes("in_shop").new_classes, np.arange(3_997, 7_982))
