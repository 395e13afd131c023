"""Groups keep their ids when images are added."""

from collections.abc import Callable, Sequence
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import KMeansConfig, SSKMeansConfig
from labelkit.commands.common.stable_ids import match_groups
from labelkit.commands.discover.categories import classify_by_logits
from labelkit.commands.discover.options import DiscoverHeadConfig
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import read_result

MakeNamed = Callable[..., EmbeddingStore]
CORNERS = {"a": (1, 0, 0), "b": (0, 1, 0), "c": (0, 0, 1), "d": (-1, 0, 0), "e": (0, -1, 0)}


@pytest.fixture
def make_named(make_store: Any) -> MakeNamed:
    """Return a function: names of images to a store; their first letter tells the corner they lie in.

    An image is its name without folder: the digest is that of the rest, so that moved files are the same image.
    """

    def make(name: str, images: Sequence[str], **columns: Any) -> EmbeddingStore:
        ids = sorted(images)
        bases = [image.rsplit("/", 1)[-1] for image in ids]
        rows = np.array([CORNERS[base[0]] for base in bases], dtype=np.float32)
        rows += [[0, 0, 0.001 * int(base[1:])] for base in bases]
        store: EmbeddingStore = make_store(rows, name=name, sample_ids=ids, contents=bases, **columns)
        return store

    return make


def images(letters: str, number: int = 4) -> list[str]:
    return [f"{letter}{i}" for letter in letters for i in range(number)]


def cluster(store: EmbeddingStore, k: int, previous: EmbeddingStore | None = None, **options: Any) -> dict[str, Any]:
    found = cluster_store(
        KMeansConfig(index=store.path, num_clusters=k, previous=previous and previous.path, **options)
    ).values
    return found


def group_of(store: EmbeddingStore, result: str = "k-means") -> dict[str, int]:
    ids = read_result(store, result).arrays["cluster_ids"]
    found: dict[str, set[int]] = {}
    for name, group in zip(store.sample_ids, ids.tolist(), strict=True):
        found.setdefault(name.rsplit("/", 1)[-1][0], set()).add(group)
    assert all(len(groups) == 1 for groups in found.values())
    return {letter: groups.pop() for letter, groups in found.items()}


@pytest.mark.slow
def test_ids_of_vanished_groups_are_never_used_again(make_named: MakeNamed) -> None:
    first, second, third = (
        make_named(f"{name}.h5", images(letters)) for name, letters in (("1", "abc"), ("2", "bc"), ("3", "bcde"))
    )
    cluster(first, 3)
    cluster(second, 2, first)
    cluster(third, 4, second)
    before, after = group_of(first), group_of(third)
    result = read_result(second, "k-means")

    assert (after["b"], after["c"]) == (before["b"], before["c"])
    assert {after["d"], after["e"]} == {3, 4}
    assert np.flatnonzero(result.arrays["retired"]).tolist() == [before["a"]]
    assert np.isnan(result.arrays["centroids"][before["a"]]).all()
    assert np.isfinite(np.delete(result.arrays["centroids"], before["a"], axis=0)).all()


def test_moved_files_are_the_same_images(make_named: MakeNamed) -> None:
    old = make_named("old.h5", images("abc"))
    new = make_named("new.h5", [f"elsewhere/{name}" for name in images("abc")])
    cluster(old, 3)
    cluster(new, 3, old, seed=5)

    assert group_of(new) == group_of(old)


def test_named_groups_keep_their_class_and_new_ones_their_number(make_named: MakeNamed) -> None:
    def labels(names: list[str]) -> dict[str, Any]:
        return {
            "labels": np.array(["abcde".index(name[0]) for name in sorted(names)]),
            "labeled": np.array([name == "a0" for name in sorted(names)]),
            "class_names": ["ant", "bee", "cat", "dog", "eel"],
        }

    old = make_named("old.h5", images("abc"), **labels(images("abc")))
    new = make_named("new.h5", images("abcd"), **labels(images("abcd")))
    cluster_store(SSKMeansConfig(index=old.path, num_clusters=3))
    cluster_store(SSKMeansConfig(index=new.path, num_clusters=4, previous=old.path, seed=3))
    before, after = read_result(old, "ss-kmeans").arrays, read_result(new, "ss-kmeans").arrays
    ids_before, ids_after = group_of(old, "ss-kmeans"), group_of(new, "ss-kmeans")

    assert {letter: ids_after[letter] for letter in "abc"} == ids_before
    assert after["names"][:3] == before["names"]
    assert after["names"][ids_after["a"]] == "ant"
    assert after["names"][ids_after["d"]] == "new-3"


def test_classes_of_a_classifier_keep_ids(make_named: MakeNamed) -> None:
    def logits(names: list[str], order: str) -> Any:
        return [[5.0 if name[0] == letter else 0.0 for letter in order] for name in sorted(names)]

    old = make_named("old.h5", images("ab"), logits=logits(images("ab"), "abc"))
    new = make_named("new.h5", images("abc"), logits=logits(images("abc"), "cba"))
    classify_by_logits(DiscoverHeadConfig(index=old.path))
    classify_by_logits(DiscoverHeadConfig(index=new.path, previous=old.path))
    before, after = (read_result(store, "head").arrays["pseudo_labels"].tolist() for store in (old, new))

    assert after[:8] == before
    assert set(after[8:]) == {3}


def test_groups_match_so_that_the_most_images_stay() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = rng.integers(1, 20, size=(5, 5))
        best = max(sum(counts[row, column] for column, row in enumerate(order)) for order in permutations(range(5)))

        earlier = match_groups(counts, min_overlap=1e-9)

        assert sorted(earlier.tolist()) == list(range(5))
        assert sum(counts[row, column] for column, row in enumerate(earlier)) == best


@pytest.mark.parametrize(("overlap", "earlier"), [(0.2, [0]), (0.25, [0]), (0.26, [-1])])
def test_a_pair_matches_if_enough_of_its_union_is_in_both(overlap: float, earlier: list[int]) -> None:
    # 5 in both, 10 in the first earlier group, 15 in the later one: 5 of 20
    counts = np.array([[5, 5], [10, 0]])

    found = match_groups(counts, min_overlap=overlap, fixed=[(1, 1)])

    assert found[:1].tolist() == earlier
    # fixed pairs match whatever their images
    assert match_groups([[9, 1], [1, 9]], min_overlap=0.1, fixed=[(0, 1)]).tolist() == [-1, 0]
    assert match_groups([[9, 3], [3, 9]], min_overlap=0.1, fixed=[(0, 1)]).tolist() == [1, 0]
