"""Groups keep their ids when images are added, and ``labelkit diff`` tells what became of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.diff import diff_groups
from labelkit.commands.cluster.options import (
    DiffConfig,
    KMeansConfig,
    SSKMeansConfig,
)
from labelkit.commands.discover.categories import discover_head
from labelkit.commands.discover.options import DiscoverHeadConfig
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import read_result, write_result
from tests.running import read_table

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
    """Group of each letter."""
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
    discover_head(DiscoverHeadConfig(index=old.path))
    discover_head(DiscoverHeadConfig(index=new.path, previous=old.path))
    before, after = (read_result(store, "head").arrays["pseudo_labels"].tolist() for store in (old, new))

    assert after[:8] == before
    assert set(after[8:]) == {3}


def put(store: EmbeddingStore, groups: dict[str, int]) -> None:
    ids = np.array([groups.get(name.rsplit("/", 1)[-1], -1) for name in store.sample_ids])
    write_result(store, "groups", kind="clusters", arrays={"cluster_ids": ids}, params={}, stage="test")


def diff(new: EmbeddingStore, old: EmbeddingStore, **options: Any) -> dict[str, Any]:
    return diff_groups(DiffConfig(index=new.path, result="groups", previous=old.path, **options)).values


def test_a_difference_names_groups_and_images(make_named: MakeNamed, tmp_path: Path) -> None:
    old = make_named("old.h5", [*images("ab", 5), *images("c", 4), "d0"])
    new = make_named("new.h5", [*images("ab", 5), *images("c", 4), *images("e", 2)])
    # a: kept but for a4, which moves to b; b: kept; c: split into 7 and 8; d: gone; e: new
    put(old, {name: "abcd".index(name[0]) for name in old.sample_ids})
    moved = {"a4": 1, "c0": 7, "c1": 7, "c2": 8, "c3": 8, "e0": 9, "e1": 9, "b4": -1}
    put(new, {name: moved.get(name, "abcde".index(name[0])) for name in new.sample_ids})
    told = diff(new, old, csv=tmp_path / "d.csv")
    lines = {row["path"] or row["previous_path"]: row for row in read_table(tmp_path / "d.csv")}

    assert [(pair["previous"]["id"], pair["now"]["id"], pair["shared"]) for pair in told["kept"]] == [
        (0, 0, 4),
        (1, 1, 4),
    ]
    assert [(one["previous"]["id"], [part["id"] for part in one["now"]]) for one in told["split"]] == [(2, [7, 8])]
    assert ([group["id"] for group in told["new"]], [group["id"] for group in told["vanished"]]) == ([9], [3])
    assert told["merged"] == []
    assert told["moved"] == [{"path": "a4", "previous_group": "0", "group": "1"}]
    assert told["images"] == {
        "stayed": 12,
        "moved": 1,
        "added": 2,
        "removed": 1,
        "grouped": 0,
        "ungrouped": 1,
        "without group": 0,
    }
    assert {name: lines[name]["change"] for name in ("a4", "b4", "d0", "e1", "c3")} == {
        "a4": "moved",
        "b4": "ungrouped",
        "d0": "removed",
        "e1": "added",
        "c3": "stayed",
    }


@pytest.mark.parametrize("kind", ["a class with labels", "an id that went on", "an id by chance"])
def test_a_group_of_which_most_images_are_others_is_changed(make_named: MakeNamed, kind: str) -> None:
    old, new = make_named("old.h5", images("ab", 6)), make_named("new.h5", images("ab", 6))
    before = {name: int(name[1] in "345") for name in old.sample_ids}
    after = {name: int(name[0] == "b") for name in new.sample_ids}
    for store, groups in ((old, before), (new, after)):
        ids = np.array([groups[name] for name in store.sample_ids])
        first = read_result(old, "groups").content_digest if store is new else ""
        is_class = kind == "a class with labels"
        write_result(
            store,
            "groups",
            kind="classes",
            arrays={
                "pseudo_labels": ids,
                "names": ["milk", "oats"] if is_class else ["new-1", "new-2"],
                "new_classes": np.array([not is_class] * 2, dtype=np.uint8),
            },
            params={"previous": {"content_digest": first}} if kind == "an id that went on" else {},
            stage="test",
        )

    told = diff(new, old)

    pairs = [(pair["previous"]["id"], pair["now"]["id"], pair["shared"]) for pair in told["changed"]]
    if kind == "an id by chance":
        assert (pairs, len(told["new"]), len(told["vanished"])) == ([], 2, 2)
    else:
        assert (pairs, told["new"], told["vanished"]) == ([(0, 0, 3), (1, 1, 3)], [], [])
        assert (told["images"]["stayed"], told["images"]["moved"]) == (6, 6)
