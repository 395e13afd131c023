"""``labelkit cluster``: numbers as the algorithms give them, kept beside the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms.clustering import kmeans, semi_supervised_kmeans, spherical_kmeans
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import ClusterConfig, KMeansConfig, SphericalKMeansConfig, SSKMeansConfig
from labelkit.commands.common.stable_ids import LastingIds
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, DatasetError, OutputExistsError, StoreError
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import list_results, read_result
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from tests.tiers import quick_every

CONFIGS = (KMeansConfig, SphericalKMeansConfig, SSKMeansConfig)


@pytest.fixture
def blobs(make_store: Any, rng: np.random.Generator) -> EmbeddingStore:
    """Three far blobs of ten rows around the axes; three rows of each of the first two have labels."""
    rows = np.repeat(np.eye(3) * 5, 10, axis=0) + rng.normal(0, 0.1, (30, 3))
    labels = [0] * 10 + [1] * 10 + [2] * 10
    return make_store(
        rows, labels=labels, labeled=[int(i % 10 < 3 and i < 20) for i in range(30)], old_classes=[1, 1, 0]
    )


def unit(rows: NDArray[Any]) -> NDArray[np.float32]:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def test_k_means_is_the_algorithm_on_rows_of_length_one(blobs: EmbeddingStore) -> None:
    expected = kmeans(
        unit(blobs.embeddings), 3, generator=keyed_generator(4, "cluster"), num_inits=10, max_iter=300, tol=1e-4
    )

    result = cluster_store(KMeansConfig(index=blobs.path, num_clusters=3, seed=4)).to_json()

    stored = read_result(blobs, "k-means")
    np.testing.assert_array_equal(stored.arrays["cluster_ids"], expected.cluster_ids)
    np.testing.assert_allclose(stored.arrays["centroids"], expected.centroids, atol=1e-6)
    assert result["inertia"] == pytest.approx(expected.inertia, rel=1e-6)
    assert sorted(result["sizes"]) == [10, 10, 10]  # type: ignore[call-overload] # JSON


def test_rows_can_be_clustered_as_they_are(make_store: Any) -> None:
    # same direction, two lengths: only unscaled rows fall apart
    store = make_store([[1, 0], [1, 0], [9, 0], [9, 0]])

    cluster_store(KMeansConfig(index=store.path, num_clusters=2, normalize=False))

    ids = read_result(store, "k-means").arrays["cluster_ids"]
    assert ids[0] == ids[1] != ids[2] == ids[3]


def test_spherical_k_means_is_the_algorithm(blobs: EmbeddingStore) -> None:
    expected = spherical_kmeans(
        blobs.embeddings, 3, generator=keyed_generator(0, "cluster"), num_inits=10, max_iter=300, tol=1e-4
    )

    cluster_store(SphericalKMeansConfig(index=blobs.path, num_clusters=3))

    stored = read_result(blobs, "spherical-k-means")
    np.testing.assert_array_equal(stored.arrays["cluster_ids"], expected.cluster_ids)


def test_ss_kmeans_is_the_algorithm_and_names_its_clusters(blobs: EmbeddingStore) -> None:
    rows, labeled = unit(blobs.embeddings), np.asarray(blobs.labeled)
    expected = semi_supervised_kmeans(
        rows[~labeled], rows[labeled], np.asarray(blobs.labels)[labeled], 3, generator=keyed_generator(0, "cluster")
    )

    cluster_store(SSKMeansConfig(index=blobs.path, num_clusters=3))

    stored = read_result(blobs, "ss-kmeans")
    np.testing.assert_array_equal(stored.arrays["cluster_ids"][~labeled], expected.unlabeled_ids)
    np.testing.assert_array_equal(stored.arrays["cluster_ids"][labeled], expected.labeled_ids)
    assert stored.arrays["names"] == ["class-0", "class-1", "new-1"]
    assert stored.arrays["new_classes"].tolist() == [False, False, True]
    # blobs are far apart, so every row is where its class is
    np.testing.assert_array_equal(stored.arrays["cluster_ids"], blobs.labels)


@pytest.mark.slow
@pytest.mark.parametrize("exchange", quick_every(2, [True, False]))
def test_classes_change_places_in_ss_kmeans_unless_told_not_to(make_store: Any, exchange: bool) -> None:
    bundle = load_digits()
    labeled = np.zeros(len(bundle.target), dtype=bool)
    labeled[np.concatenate([np.flatnonzero(bundle.target == label)[:2] for label in range(5)])] = True
    store = make_store(bundle.data, labels=bundle.target, labeled=labeled)
    rows = unit(store.embeddings)
    expected = semi_supervised_kmeans(
        rows[~labeled],
        rows[labeled],
        bundle.target[labeled],
        14,
        generator=keyed_generator(0, "cluster"),
        exchange=exchange,
    )

    cluster_store(SSKMeansConfig(index=store.path, num_clusters=14, exchange=exchange))

    stored = read_result(store, "ss-kmeans").arrays["cluster_ids"]
    np.testing.assert_array_equal(stored[~labeled], expected.unlabeled_ids)


def test_new_clusters_are_numbered_in_order() -> None:
    ids = LastingIds(np.arange(4), 4, None, 0, [])

    assert ids.names(np.array([1, -1, 0, -1]), ("cat", "dog")) == ["dog", "new-1", "cat", "new-2"]


@pytest.mark.slow
def test_ss_kmeans_sees_no_label_that_training_could_not_use(make_store: Any, rng: np.random.Generator) -> None:
    rows = rng.normal(size=(20, 4))
    labeled = [1] * 6 + [0] * 14
    truth = [i % 2 for i in range(20)]
    other = truth[:6] + [1 - label for label in truth[6:]]
    stores = [
        make_store(rows, name=f"{i}.h5", labels=labels, labeled=labeled, old_classes=[1, 1])
        for i, labels in enumerate((truth, other))
    ]

    for store in stores:
        cluster_store(SSKMeansConfig(index=store.path, num_clusters=3))

    first, second = (read_result(store, "ss-kmeans").arrays["cluster_ids"] for store in stores)
    np.testing.assert_array_equal(first, second)


def test_rows_of_other_splits_have_no_cluster(make_store: Any, rng: np.random.Generator) -> None:
    store = make_store(rng.normal(size=(8, 2)), splits=[0, 1, 0, 1, 0, 1, 0, -1], split_names=("train", "test"))

    cluster_store(KMeansConfig(index=store.path, num_clusters=2, split="train"))

    ids = read_result(store, "k-means").arrays["cluster_ids"]
    assert (ids[[0, 2, 4, 6]] >= 0).all()
    assert ids[[1, 3, 5, 7]].tolist() == [-1] * 4


@pytest.mark.slow
def test_the_same_command_again_leaves_the_result_as_it_is(blobs: EmbeddingStore) -> None:
    config = KMeansConfig(index=blobs.path, num_clusters=3)
    path = cluster_store(config).made()[0]
    before = (path.stat().st_mtime_ns, path.read_bytes())

    assert cluster_store(config).made() == [path]

    assert (path.stat().st_mtime_ns, path.read_bytes()) == before


@pytest.mark.slow
def test_other_options_need_overwrite_or_another_name(blobs: EmbeddingStore) -> None:
    path = cluster_store(KMeansConfig(index=blobs.path, num_clusters=3)).made()[0]
    before = path.read_bytes()

    with pytest.raises(OutputExistsError, match=r"--overwrite to replace it, or another --result"):
        cluster_store(KMeansConfig(index=blobs.path, num_clusters=2))

    assert path.read_bytes() == before
    cluster_store(KMeansConfig(index=blobs.path, num_clusters=2, result="two"))
    assert list_results(blobs) == ["k-means", "two"]
    cluster_store(KMeansConfig(index=blobs.path, num_clusters=2, overwrite=True))
    assert read_result(blobs, "k-means").params["num_clusters"] == 2


def test_a_result_says_how_it_was_made(blobs: EmbeddingStore) -> None:
    cluster_store(SSKMeansConfig(index=blobs.path, num_clusters=3, seed=7))

    stored = read_result(blobs, "ss-kmeans")
    assert (stored.stage, stored.kind, stored.stale) == ("cluster ss-kmeans", "clusters", False)
    assert stored.params["seed"] == 7
    assert stored.params["inertia"] >= 0
    assert stored.store_digest == blobs.content_digest


@pytest.mark.slow
def test_the_store_itself_never_changes(blobs: EmbeddingStore) -> None:
    before = blobs.path.read_bytes()

    for config in CONFIGS:
        cluster_store(config(index=blobs.path, num_clusters=3))

    assert blobs.path.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
def test_as_many_clusters_as_rows_are_possible_and_more_are_not(config: type[ClusterConfig], make_store: Any) -> None:
    store = make_store(np.eye(4), labels=[0, 0, 1, 1], labeled=[1, 0, 1, 0], old_classes=[1, 1])

    cluster_store(config(index=store.path, num_clusters=4))
    with pytest.raises(ConfigError, match="5 clusters for 4 rows") as caught:
        cluster_store(config(index=store.path, num_clusters=5))

    assert caught.value.where == "--num-clusters"


@pytest.mark.parametrize("config", CONFIGS)
def test_equal_rows_end_in_one_cluster(config: type[ClusterConfig], make_store: Any) -> None:
    store = make_store(np.ones((5, 2)), labels=[0] * 5, labeled=[1, 0, 0, 0, 0], old_classes=[1])

    result = cluster_store(config(index=store.path, num_clusters=3)).to_json()

    assert sum(result["sizes"]) == 5  # type: ignore[call-overload] # JSON
    assert result["inertia"] == pytest.approx(0, abs=1e-9)


def test_fewer_clusters_than_classes_with_labels_are_refused(blobs: EmbeddingStore) -> None:
    with pytest.raises(ConfigError, match="1 is fewer than the 2 classes that have labels"):
        cluster_store(SSKMeansConfig(index=blobs.path, num_clusters=1))


def test_new_clusters_need_unlabeled_rows_to_start_from(make_store: Any) -> None:
    store = make_store(np.eye(6), labels=[0, 0, 0, 1, 1, 1], labeled=[1] * 5 + [0], old_classes=[1, 1])

    cluster_store(SSKMeansConfig(index=store.path, num_clusters=3))
    with pytest.raises(ConfigError, match=r"only 1 unlabeled rows") as caught:
        cluster_store(SSKMeansConfig(index=store.path, num_clusters=4, overwrite=True))

    assert caught.value.remedy == "Choose at most 3."


@pytest.mark.slow
@pytest.mark.parametrize("columns", [{}, {"labels": [0, 1, 0, 1]}, {"labels": [0, 1, 0, 1], "labeled": [0] * 4}])
def test_ss_kmeans_without_usable_labels_says_what_to_do(make_store: Any, columns: dict[str, Any]) -> None:
    store = make_store(np.eye(4), **columns)

    with pytest.raises(DatasetError, match="has no labels that may be used") as caught:
        cluster_store(SSKMeansConfig(index=store.path, num_clusters=2))

    assert "cluster k-means" in caught.value.remedy
    assert list_results(store) == []


def test_rows_without_a_direction_are_named_where_direction_counts(make_store: Any) -> None:
    store = make_store([[1, 0], [0, 0], [0, 1]])

    with pytest.raises(StoreError, match=r"1 rows are all zero .*0001\.png"):
        cluster_store(SphericalKMeansConfig(index=store.path, num_clusters=2))
    cluster_store(KMeansConfig(index=store.path, num_clusters=2))


def test_a_split_that_the_store_lacks_is_named(blobs: EmbeddingStore) -> None:
    with pytest.raises(ConfigError, match=r"has no split 'test' \(it has: none\)"):
        cluster_store(KMeansConfig(index=blobs.path, num_clusters=2, split="test"))


def test_half_precision_rows_can_be_clustered(labelkit: Any, photos: Path, tmp_path: Path) -> None:
    words = ("embed", "--dataset", photos, "--backbone", "pixels", "--image-size", 8, "--dtype", "float16")
    assert labelkit(*words, "--out", tmp_path / "half.h5", "-q").code == 0

    answer = labelkit("cluster", "k-means", "--index", tmp_path / "half.h5", "--num-clusters", 4, "--json")

    assert answer.json["rows"] == 48
    stored = read_result(open_store(tmp_path / "half.h5"), "k-means")
    assert stored.arrays["centroids"].dtype == np.float32


@pytest.mark.slow
def test_the_command_prints_the_path_of_the_result(labelkit: Any, index: Path) -> None:
    answer = labelkit("cluster", "ss-kmeans", "--index", index, "--num-clusters", 4, "-q")

    assert answer.out == f"{index}.results/ss-kmeans.h5\n"


# ---- bad input


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "sizes"), quick_every(3, [(np.ones((9, 3)), [0, 0, 9]), (np.eye(2).repeat(5, axis=0), [0, 5, 5])])
)
@pytest.mark.parametrize("command", ["k-means", "spherical-k-means"])
def test_fewer_different_rows_than_groups_are_said(
    labelkit: Any, make_store: Any, rows: NDArray[Any], sizes: list[int], command: str
) -> None:
    store = make_store(rows)

    answer = labelkit("cluster", command, "--index", store.path, "--num-clusters", 3, "--json")

    assert sorted(answer.json["sizes"]) == sizes
    assert f"has only {3 - sizes.count(0)} different rows" in answer.err


def test_labels_at_random_are_said_to_contradict_the_images(labelkit: Any, make_store: Any) -> None:
    rng = np.random.default_rng(5)
    rows = np.repeat(4 * rng.normal(size=(8, 16)), 20, axis=0) + rng.normal(size=(160, 16))
    truth, drawn = np.repeat(np.arange(8), 20), rng.integers(0, 6, 160)
    labeled = [1, 0] * 80

    said = []
    for labels, classes in ((truth, 8), (drawn, 6)):
        store = make_store(rows, labels=labels.tolist(), labeled=labeled, old_classes=[1] * classes)
        words = ("--index", store.path, "--num-clusters", 8, "--overwrite")
        said.append("labels contradict the images" in labelkit("cluster", "ss-kmeans", *words).err)

    assert said == [False, True]


def test_one_class_with_all_labels_is_one_group_beside_new_ones(make_store: Any) -> None:
    rng = np.random.default_rng(1)
    rows = np.repeat(np.eye(6)[:3] * 5, 20, axis=0) + rng.normal(0, 0.1, (60, 6))
    store = make_store(rows, labels=[0] * 20 + [1] * 40, labeled=[1] * 20 + [0] * 40, old_classes=[1, 0])

    made = cluster_store(SSKMeansConfig(index=store.path, num_clusters=3)).to_json()

    assert made["sizes"] == [20, 20, 20]
    assert read_result(store, "ss-kmeans").arrays["new_classes"].tolist() == [0, 1, 1]


@pytest.mark.slow
@pytest.mark.parametrize("config_class", CONFIGS)
def test_not_a_number_is_refused(config_class: Any, blobs: EmbeddingStore, spoil: Any) -> None:
    spoil(blobs, 7)
    with pytest.raises(StoreError, match="finite"):
        cluster_store(config_class(index=blobs.path, num_clusters=3))
