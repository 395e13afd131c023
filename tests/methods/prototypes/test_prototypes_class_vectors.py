"""Class vectors from word embeddings: what is read, what is refused, and what comes of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.commands.common.training_data import PreparedData
from labelkit.data.splits import ClassLabels, make_dataset_label_split
from labelkit.errors import ConfigError, DatasetError
from labelkit.methods.prototypes.source import project_word_vectors, read_class_vectors
from sklearn.decomposition import PCA

Make = Callable[..., Any]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("4 3\nthe 9 9 9\nApple 1 0 0\napple 0 2 0.5\nsea_lion -1 1e-2 3\nTRUCK 0 0 1\n")
    return path


def test_vectors_come_by_name_in_the_order_of_the_names(words: Path) -> None:
    found = read_class_vectors(words, ["truck", "apple", "Apple", "sea lion"])
    assert found.tolist() == [[0, 0, 1], [0, 2, 0.5], [1, 0, 0], [-1, 0.01, 3]]


def test_a_file_without_a_head_is_read_from_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "glove.txt"
    path.write_text("a 1 2\nb 3 4\n")
    assert read_class_vectors(path, ["b", "a"]).tolist() == [[3, 4], [1, 2]]


def test_a_class_without_a_vector_is_named(words: Path) -> None:
    with pytest.raises(DatasetError, match="no vector for 2 of 3 classes: pear, plum") as caught:
        read_class_vectors(words, ["pear", "apple", "plum"])
    assert caught.value.where == str(words)
    with pytest.raises(DatasetError, match="c0, c1, c2, c3, c4 and 3 more"):
        read_class_vectors(words, [f"c{i}" for i in range(8)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a 1 2\nb 1 x\n", "line 2.*could not convert"),
        (b"a 1 2\nb 1 nan\n", "line 2.*not finite"),
        (b"a 1 2\nb 1 2 3\n", "has vectors of different dimensions, from 2 to 3"),
        (b"a 1 2\nB 1 2\n b 3 4\nB 0 0\n", ""),
        (b"\xff\xfe\x00 1 2\n", "no vector for 2 of 2"),
        (b"", "no vector for 2 of 2"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "words.txt"
    path.write_bytes(content)
    if not message:  # the exact spelling wins over others
        assert read_class_vectors(path, ["a", "b"]).tolist() == [[1, 2], [3, 4]]
        return
    with pytest.raises(DatasetError, match=message):
        read_class_vectors(path, ["a", "b"])


@pytest.mark.parametrize("dim", [4, 5, 7])
def test_cosines_between_centered_vectors_stay_where_the_dimensions_suffice(dim: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((5, 7)) + 3
    centered = vectors - vectors.mean(axis=0)
    expected = [
        [sum(a * b for a, b in zip(u, v, strict=True)) / (np.sqrt(sum(u * u)) * np.sqrt(sum(v * v))) for v in centered]
        for u in centered
    ]
    rows = project_word_vectors(vectors, dim)
    assert rows.shape == (5, dim)
    np.testing.assert_allclose(rows @ rows.T, expected, atol=1e-6)


def test_fewer_dimensions_are_the_principal_directions() -> None:
    vectors = np.random.default_rng(1).standard_normal((9, 6))
    expected = PCA(n_components=2).fit_transform(vectors)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    rows = project_word_vectors(vectors, 2)
    np.testing.assert_allclose(rows @ rows.T, expected @ expected.T, atol=1e-6)


def test_a_run_takes_the_vectors_of_its_classes_in_their_order(
    make: Make, prepared: PreparedData, tmp_path: Path
) -> None:
    vectors = np.random.default_rng(2).standard_normal((10, 12))
    path = tmp_path / "digits.txt"
    path.write_text("".join(f"{i} {' '.join(map(str, row))}\n" for i, row in enumerate(vectors)))
    labels = prepared.dataset.labels
    split = make_dataset_label_split(ClassLabels(labels, np.isin(labels, [8, 1, 4]), 10))
    some = PreparedData(prepared.dataset, split, split.to_training_labels(labels))
    setup = make("dl2pa", data=some, prototypes="words", class_vectors=path, reassign=False, epochs=1)
    setup.trainer.fit()
    assert setup.method.data.class_order[:3] == (1, 4, 8)
    head = setup.method.network.head
    expected = project_word_vectors(vectors[list(setup.method.data.class_order)], head.prototypes.shape[1])
    assert torch.equal(head.prototypes, torch.from_numpy(expected))
    with pytest.raises(ConfigError, match="contains vectors of dimension 12, but dimension 13 is required"):
        make("dl2pa", prototypes="words", class_vectors=path, embed_dim=13).trainer.fit()
    with pytest.raises(ConfigError, match="11 classes were requested, but only 10 have names"):
        make("dl2pa", prototypes="words", class_vectors=path, num_classes=11).trainer.fit()
