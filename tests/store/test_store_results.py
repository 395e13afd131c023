"""Named results beside a store."""

import h5py
import numpy as np
import pytest
from labelkit.errors import Damaged, Mismatch, OutputExistsError, Refused, StoreError
from labelkit.store.results import list_results, read_result
from store_samples import SAMPLE_IDS, contents_of, make_plan, make_store, write_clusters
from tests.running import flip_bit

ARRAYS = {
    "cluster_ids": np.array([0, 1, 0, 1, -1, 0, 0, 1], dtype=np.int32),
    "confidence": np.linspace(0, 1, 8),
    "centroids": np.ones((2, 3)),
    "names": ["chat", "größe \udcff"],
    "new_classes": np.array([False, True]),
    "query_rows": np.array([1, 2]),
    "neighbor_rows": np.array([[3, -1], [4, 5]]),
    "scores": np.array([[0.5, 0], [1, 2]], dtype=np.float16),
    "metrics": {"accuracy": 0.5},
    "confusion": np.eye(3, dtype=np.int64),
    "uncertainty": np.arange(8, dtype=np.uint8),
}


def test_what_was_written_is_read(store):
    path = write_clusters(store, arrays=ARRAYS)
    result = read_result(store, "first")
    assert path == result.path == store.path.with_name("s.h5.results") / "first.h5"
    assert (result.name, result.kind, result.stage) == ("first", "clusters", "cluster k-means")
    assert result.params == {"seed": 3}
    assert result.metrics == {"accuracy": 0.5}
    assert result.arrays["metrics"] == '{"accuracy":0.5}'
    assert result.arrays["names"] == ["chat", "größe \udcff"]
    assert result.arrays["new_classes"].dtype == np.bool_
    for name, array in ARRAYS.items():
        if isinstance(array, np.ndarray):
            np.testing.assert_array_equal(result.arrays[name], array.astype(result.arrays[name].dtype))


def test_types_are_those_of_the_format(store):
    with h5py.File(write_clusters(store, arrays=ARRAYS)) as file:
        types = {
            name: file[name].dtype.str for name in ("cluster_ids", "confidence", "centroids", "new_classes", "scores")
        }
    assert types == {
        "cluster_ids": "<i8",
        "confidence": "<f4",
        "centroids": "<f4",
        "new_classes": "|u1",
        "scores": "<f4",
    }


def test_the_same_result_twice_is_no_error_and_has_the_same_bytes(store):
    path = write_clusters(store)
    before = path.read_bytes(), path.stat().st_ino
    assert write_clusters(store) == path
    assert (path.read_bytes(), path.stat().st_ino) == before
    assert write_clusters(store, "second").read_bytes() == before[0]


def test_another_result_of_the_same_name_is_refused_unless_overwritten(store):
    write_clusters(store)
    with pytest.raises(OutputExistsError, match="--overwrite to replace it, or another --result"):
        write_clusters(store, params={"seed": 4})
    assert read_result(store, "first").params == {"seed": 3}
    write_clusters(store, params={"seed": 4}, overwrite=True)
    assert read_result(store, "first").params == {"seed": 4}


def test_groups_are_not_lost_to_scores_of_the_same_name(store):
    write_clusters(store)
    kind = read_result(store, "first").kind
    with pytest.raises(OutputExistsError, match=f"contains {kind} created by .* Pass another --result"):
        write_clusters(store, kind="evaluation", overwrite=True)
    assert read_result(store, "first").kind == kind


def test_a_damaged_result_may_be_replaced(store):
    path = write_clusters(store)
    path.write_bytes(path.read_bytes()[:-9])
    write_clusters(store, kind="evaluation", overwrite=True)
    assert read_result(store, "first").kind == "evaluation"


def test_results_of_other_content_are_stale(store):
    write_clusters(store)
    other = make_store(store.path, make_plan(metric="l2"), overwrite=True)
    with pytest.raises(Mismatch, match="Recreate the result with --overwrite"):
        read_result(other, "first")
    assert read_result(store, "first").kind == "clusters"
    nothing = dict.fromkeys(("labels", "labeled", "old_classes", "splits"))
    fewer = make_plan(**nothing, sample_ids=SAMPLE_IDS[:3], class_names=(), split_names=())
    with pytest.raises(Mismatch, match=r"another version of .*s\.h5, with 8 images instead of 3"):
        read_result(make_store(store.path, fewer, overwrite=True), "first")


def test_results_are_listed_by_name(store):
    assert list_results(store) == []
    for name in ("b", "a.1"):
        write_clusters(store, name)
    (store.path.with_name("s.h5.results") / ".tmp-1-2").write_bytes(b"")
    (store.path.with_name("s.h5.results") / "Notes.txt").write_bytes(b"")
    assert list_results(store) == ["a.1", "b"]


@pytest.mark.parametrize("name", ["", "../x", "A", ".x", "a b", "x" * 65, "a/b"])
def test_names_that_could_leave_the_folder_are_refused(store, name):
    with pytest.raises(StoreError, match="is not a valid name for a result"):
        write_clusters(store, name)
    with pytest.raises(StoreError, match="is not a valid name for a result"):
        read_result(store, name)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"cluster_ids": np.zeros(7, int)}, "cluster_ids: 7 rows, but the file has 8"),
        ({"centroids": np.zeros((2, 3)), "names": ["a"]}, "1 rows, but /centroids has 2|2 rows, but /names has 1"),
        ({"confusion": np.zeros((2, 3), int)}, "confusion: 3 rows, but"),
        ({"a/b": np.zeros(2)}, "invalid array name"),
        ({"metrics": "{"}, "Expecting"),
    ],
)
def test_arrays_that_do_not_fit_are_the_programmers_error(store, arrays, message):
    with pytest.raises(ValueError, match=message):
        write_clusters(store, arrays=arrays)
    assert list_results(store) == []


def test_a_damaged_result_is_found(store):
    path = write_clusters(store)
    flip_bit(path, "cluster_ids")
    with pytest.raises(Damaged) as caught:
        read_result(store, "first")
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("change", "error"),
    [({"n": 7}, Mismatch), ({"params": "[1]"}, Refused), ({"params": "{"}, Refused)],
)
def test_a_forged_result_is_refused(store, change, error):
    path = write_clusters(store)
    contents = contents_of(path)
    contents.set_attributes("", **change)
    path.write_bytes(contents.sealed().to_bytes())
    with pytest.raises(error):
        read_result(store, "first")


def test_a_compressed_result_is_read(store, rng):
    # Results are small; other programs may compress them.
    path = write_clusters(store, arrays={"confusion": rng.integers(0, 9, (60, 60))})
    digest = read_result(store, "first").content_digest
    contents = contents_of(path)
    with h5py.File(path, "r+", libver=("v108", "v108")) as file:
        del file["confusion"]
        data = contents.datasets["confusion"]
        file.create_dataset("confusion", data=data, chunks=(60, 60), compression="gzip", shuffle=True, fletcher32=True)
    result = read_result(store, "first")
    assert result.content_digest == digest
    assert result.arrays["confusion"].shape == (60, 60)
