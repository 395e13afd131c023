"""Class vectors from word embeddings: what is read, what is refused, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.commands.common.training_data import PreparedData
from labelkit.data.splits import Classes, given_split
from labelkit.errors import ConfigError, DatasetError
from labelkit.methods.prototypes import class_separation
from labelkit.methods.prototypes.class_separation import separated_prototypes
from labelkit.methods.prototypes.class_vectors import read_class_vectors, word_prototypes
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
    with pytest.raises(DatasetError, match="no vector of 2 of 3 classes: pear, plum") as caught:
        read_class_vectors(words, ["pear", "apple", "plum"])
    assert caught.value.where == str(words)
    with pytest.raises(DatasetError, match="c0, c1, c2, c3, c4 and 3 more"):
        read_class_vectors(words, [f"c{i}" for i in range(8)])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a 1 2\na 3 4\nb 1 2\n", "line 2.*has a second vector of a"),
        (b"a 1 2\nb 1 x\n", "line 2.*could not convert"),
        (b"a 1 2\nb 1 nan\n", "line 2.*not finite"),
        (b"a 1 2\nb 1 2 3\n", "has vectors of 2 and of 3 numbers"),
        (b"a 1 2\nB 1 2\n b 3 4\nB 0 0\n", ""),
        (b"\xff\xfe\x00 1 2\n", "is not a text file"),
        (b"", "no vector of 2 of 2"),
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


def test_names_that_differ_in_capitals_alone_are_refused_where_none_is_exact(words: Path) -> None:
    with pytest.raises(DatasetError, match="several vectors for APPLE: Apple, apple"):
        read_class_vectors(words, ["APPLE"])


@pytest.mark.parametrize("place", ["missing.txt", "."])
def test_a_place_without_a_file_is_refused(tmp_path: Path, place: str) -> None:
    with pytest.raises(DatasetError):
        read_class_vectors(tmp_path / place, ["a"])


@pytest.mark.parametrize("dim", [4, 5, 7])
def test_cosines_between_centered_vectors_stay_where_the_dimensions_suffice(dim: int) -> None:
    vectors = np.random.default_rng(0).standard_normal((5, 7)) + 3
    centered = vectors - vectors.mean(axis=0)
    expected = [
        [sum(a * b for a, b in zip(u, v, strict=True)) / (np.sqrt(sum(u * u)) * np.sqrt(sum(v * v))) for v in centered]
        for u in centered
    ]
    rows = word_prototypes(vectors, dim)
    assert rows.shape == (5, dim)
    np.testing.assert_allclose(rows @ rows.T, expected, atol=1e-6)


def test_fewer_dimensions_are_the_principal_directions() -> None:
    vectors = np.random.default_rng(1).standard_normal((9, 6))
    expected = PCA(n_components=2).fit_transform(vectors)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    rows = word_prototypes(vectors, 2)
    np.testing.assert_allclose(rows @ rows.T, expected @ expected.T, atol=1e-6)


def test_vectors_without_a_direction_are_refused() -> None:
    with pytest.raises(ValueError, match="row 2 has no direction in 2 dimensions"):
        word_prototypes(np.array([[1.0, 0], [-1, 0], [0, 0]]), 2)
    with pytest.raises(ValueError, match="dim must be at most 2"):
        word_prototypes(np.eye(2), 3)


def test_a_run_takes_the_vectors_of_its_classes_in_their_order(
    make: Make, prepared: PreparedData, tmp_path: Path
) -> None:
    vectors = np.random.default_rng(2).standard_normal((10, 12))
    path = tmp_path / "digits.txt"
    path.write_text("".join(f"{i} {' '.join(map(str, row))}\n" for i, row in enumerate(vectors)))
    labels = prepared.dataset.labels
    split = given_split(Classes(labels, np.isin(labels, [8, 1, 4]), 10))
    some = PreparedData(prepared.dataset, split, split.training_labels(labels))
    setup = make("dl2pa", data=some, prototypes="words", class_vectors=path, reassign=False, epochs=1)
    setup.trainer.fit()
    assert setup.method.data.class_order[:3] == (1, 4, 8)
    head = setup.method.network.head
    expected = word_prototypes(vectors[list(setup.method.data.class_order)], head.prototypes.shape[1])
    assert torch.equal(head.prototypes, torch.from_numpy(expected))
    with pytest.raises(ConfigError, match="has vectors of 12 numbers, 13 are needed"):
        make("dl2pa", prototypes="words", class_vectors=path, embed_dim=13).trainer.fit()
    with pytest.raises(ConfigError, match="11 classes are asked for, and 10 have a name"):
        make("dl2pa", prototypes="words", class_vectors=path, num_classes=11).trainer.fit()


@pytest.mark.slow
def test_a_run_with_prototypes_of_hpn_pushes_each_from_its_nearest(make: Make, own_cache: Path) -> None:
    heads = []
    for _ in range(2):
        setup = make("dl2pa", prototypes="hpn", embed_dim=4, reassign=False, epochs=1)
        setup.trainer.fit()
        heads.append(setup.method.network.head.prototypes.clone())
    assert torch.equal(heads[0], heads[1])  # the second is from the cache
    cosines = heads[0] @ heads[0].T - 2 * torch.eye(10)
    # nearest others are about equally near, and farther than those of 10 random directions of 4 dimensions would be
    assert float(cosines.max(dim=1).values.std()) < 0.03
    assert float(cosines.max()) < 0.5


def test_words_change_the_prototypes_of_hpn_and_their_place_in_the_cache(
    make: Make, own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_separation, "separated_prototypes", partial(separated_prototypes, iterations=50))
    heads, before = [], len(list(own_cache.rglob("*.h5")))
    for seed in (None, 0, 0, 1):
        path = None
        if seed is not None:
            path = tmp_path / f"{seed}.txt"
            rows = np.random.default_rng(seed).standard_normal((10, 12))
            path.write_text("".join(f"{i} {' '.join(map(str, row))}\n" for i, row in enumerate(rows)))
        options = {"embed_dim": 5, "reassign": False, "epochs": 1}
        setup = make("dl2pa", prototypes="hpn", class_vectors=path, **options)
        setup.trainer.fit()
        heads.append(setup.method.network.head.prototypes.clone())
    assert torch.equal(heads[1], heads[2])
    assert not torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[1], heads[3])
    assert len(list(own_cache.rglob("*.h5"))) - before == 3


@pytest.mark.parametrize("options", [{"prototypes": "words"}, {"class_vectors": "x.txt"}])
def test_word_vectors_and_their_option_go_together(make: Make, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="go together"):
        make("dl2pa", **options)
