"""``labelkit cluster``: numbers as the algorithms give them, kept beside the store."""

from typing import Any

import numpy as np
import pytest
from labelkit.algorithms.clustering import kmeans, semi_supervised_kmeans
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import ClusterConfig, KMeansConfig, SphericalKMeansConfig, SSKMeansConfig
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import ConfigError, StoreError
from labelkit.progress import use_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import read_result
from numpy.typing import NDArray
from tests.running import Heard

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


def test_k_means_and_spherical_k_means_are_the_algorithms(blobs: EmbeddingStore, make_store: Any) -> None:
    expected = kmeans(
        unit(blobs.embeddings), 3, generator=keyed_generator(4, "cluster"), num_inits=10, max_iter=300, tol=1e-4
    )

    result = cluster_store(KMeansConfig(index=blobs.path, num_clusters=3, seed=4)).to_json()

    stored = read_result(blobs, "k-means")
    np.testing.assert_array_equal(stored.arrays["cluster_ids"], expected.cluster_ids)
    np.testing.assert_allclose(stored.arrays["centroids"], expected.centroids, atol=1e-6)
    assert result["inertia"] == pytest.approx(expected.inertia, rel=1e-6)
    assert sorted(result["sizes"]) == [10, 10, 10]  # type: ignore[call-overload] # JSON

    generator = keyed_generator(0, "cluster")
    expected = kmeans(blobs.embeddings, 3, generator=generator, num_inits=10, max_iter=300, tol=1e-4, spherical=True)
    cluster_store(SphericalKMeansConfig(index=blobs.path, num_clusters=3))
    ids = read_result(blobs, "spherical-k-means").arrays["cluster_ids"]
    np.testing.assert_array_equal(ids, expected.cluster_ids)
    # same direction, two lengths: only unscaled rows fall apart
    store = make_store([[1, 0], [1, 0], [9, 0], [9, 0]], name="plain.h5")
    cluster_store(KMeansConfig(index=store.path, num_clusters=2, normalize=False))
    ids = read_result(store, "k-means").arrays["cluster_ids"]
    assert ids[0] == ids[1] != ids[2] == ids[3]


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
def test_test_images_are_mentioned_unless_a_split_is_chosen(make_store: Any) -> None:
    splits = {"splits": [0, 0, 0, 1], "split_names": ["train", "test"]}
    store = make_store(np.eye(4), labels=[0, -1, -1, -1], labeled=[1, 0, 0, 0], old_classes=[1], **splits)

    with use_progress(heard := Heard()):
        cluster_store(SSKMeansConfig(index=store.path, num_clusters=2))
        cluster_store(SSKMeansConfig(index=store.path, num_clusters=2, split="all"))
        cluster_store(SSKMeansConfig(index=store.path, num_clusters=2, split="train", overwrite=True))

    (said,) = [text for text in heard.messages if "--split" in text]
    assert said.startswith("clustering 4 images of the splits train, test")


def test_rows_of_other_splits_have_no_cluster(make_store: Any, rng: np.random.Generator) -> None:
    store = make_store(rng.normal(size=(8, 2)), splits=[0, 1, 0, 1, 0, 1, 0, -1], split_names=("train", "test"))

    cluster_store(KMeansConfig(index=store.path, num_clusters=2, split="train"))

    ids = read_result(store, "k-means").arrays["cluster_ids"]
    assert (ids[[0, 2, 4, 6]] >= 0).all()
    assert ids[[1, 3, 5, 7]].tolist() == [-1] * 4


@pytest.mark.parametrize("config", CONFIGS)
def test_equal_rows_end_in_one_cluster(config: type[ClusterConfig], make_store: Any) -> None:
    store = make_store(np.ones((5, 2)), labels=[0] * 5, labeled=[1, 0, 0, 0, 0], old_classes=[1])

    result = cluster_store(config(index=store.path, num_clusters=3)).to_json()

    assert sum(result["sizes"]) == 5  # type: ignore[call-overload] # JSON
    assert result["inertia"] == pytest.approx(0, abs=1e-9)


def test_new_clusters_need_unlabeled_rows_to_start_from(make_store: Any) -> None:
    store = make_store(np.eye(6), labels=[0, 0, 0, 1, 1, 1], labeled=[1] * 5 + [0], old_classes=[1, 1])

    cluster_store(SSKMeansConfig(index=store.path, num_clusters=3))
    with pytest.raises(ConfigError, match=r"only 1 unlabeled images") as caught:
        cluster_store(SSKMeansConfig(index=store.path, num_clusters=4, overwrite=True))

    assert caught.value.remedy == "Choose at most 3 clusters."


def test_rows_without_a_direction_are_named_where_direction_counts(make_store: Any) -> None:
    store = make_store([[1, 0], [0, 0], [0, 1]])

    with pytest.raises(StoreError, match=r"1 embeddings are all zeros.*0001\.png"):
        cluster_store(SphericalKMeansConfig(index=store.path, num_clusters=2))
    cluster_store(KMeansConfig(index=store.path, num_clusters=2))
