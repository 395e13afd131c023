"""Classes in the images of VOC 2007, read from lists in the official layout."""

from pathlib import Path

import numpy as np
import pytest
from labelkit.data.registry import DATASETS, load_dataset
from labelkit.errors import DatasetError
from tests.miniature_sets import write_voc_classes

ROOT = "VOCdevkit/VOC2007"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_voc_classes(tmp_path / ROOT)
    return tmp_path


def test_an_image_has_classes_lacks_others_and_some_do_not_count(root: Path) -> None:
    dataset = load_dataset("voc_2007_classes", data_root=root)
    assert (dataset.split_names, len(dataset.rows_in_split("train")), len(dataset.rows_in_split("test"))) == (
        ("train", "test"), 4, 4,
    )  # fmt: skip
    assert dataset.presence_classes[:4] == ("aeroplane", "bicycle", "bird", "boat")
    assert dataset.presence is not None
    # image 1 of the training images has classes 1 and 2, and class 3 in difficult objects alone
    assert dataset.presence[1].tolist() == [0, 1, 1, -1, *[0] * 16]
    test = dataset.select(dataset.rows_in_split("test"))
    assert test.presence is not None
    np.testing.assert_array_equal(test.presence, dataset.presence[4:])
    assert test.source.read(0).decode(3).shape == (10, 12, 3)


def test_published_numbers_are_those_of_the_development_kit() -> None:
    assert DATASETS["voc_2007_classes"].num_images == {"train": 5011, "test": 4952}


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("ImageSets/Main/boat_test.txt", "200000  1\n", "the lists of boat and aeroplane contain different images"),
        (
            "ImageSets/Main/boat_test.txt",
            "200000  2\n",
            "boat_test.txt:1: '200000  2' is not an image name followed by 1, 0 or -1",
        ),
        ("ImageSets/Main/boat_test.txt", "200000\n", "is not an image name followed by 1, 0 or -1"),
    ],
)
def test_lists_that_do_not_fit_are_refused(root: Path, name: str, text: str, said: str) -> None:
    (root / ROOT / name).write_text(text)
    with pytest.raises(DatasetError, match=said):
        load_dataset("voc_2007_classes", data_root=root)
