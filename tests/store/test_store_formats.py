"""Files of past formats stay readable, for ever; they are never made again."""

import hashlib
import shutil
from pathlib import Path

import h5py
import numpy as np
from labelkit.commands.store_files.packing import pack_store
from labelkit.commands.store_files.status import read_embedding_status
from labelkit.files import sha256_file
from labelkit.store.array_files import read_matches, read_neighbors, read_prototypes
from labelkit.store.embeddings import open_store
from labelkit.store.patch_writing import PatchRun
from labelkit.store.patches import open_patches
from labelkit.store.plans import PatchPlan
from labelkit.store.results import list_results, read_result
from labelkit.store.writing import EmbeddingRun
from store_samples import MODEL, SAMPLE_IDS, make_plan, make_store, write_part

FORMATS = Path(__file__).parents[1] / "data" / "formats"
ALL_FILES = "9ac718100f9703c8f788d6efb0a826abe85a2fb30c65c9f3e1e3b5ed7b74a95f"
"""SHA-256 of one line per file: its path below the folder, and its SHA-256. The run is resumed in tests/commands."""
STORE = "c005208587f844dc732bbc82bbda3626cc4ad4d86fe8983c7f3b6f799bc099a5"
RESULT = "3440c408a3dbf1707c8b9079dcdb7507719b2881f3341348cc58cf5bb39730a2"
"""Content digests, as computed once from the files by the words of the format (in code: test_store_patches.py)."""


def held(path):
    """All objects and attributes of a file, with their types."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            found[name] = (item.dtype.str, item.shape, item[()].tobytes())
        else:
            found[name] = None
        for key in item.attrs:
            attribute = item.attrs.get_id(key)
            found[name, key] = (attribute.dtype.str, attribute.shape, np.asarray(item.attrs[key]).tobytes())

    with h5py.File(path) as file:
        visit("", file)
        file.visititems(visit)
    return found


def test_files_of_past_formats_are_as_they_were():
    files = sorted(path for path in FORMATS.rglob("*") if path.is_file() and path.name != "train_options.json")
    lines = [f"{path.relative_to(FORMATS).as_posix()} {sha256_file(path)}\n" for path in files]
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == ALL_FILES


def test_a_store_of_format_1_0_is_read():
    store = open_store(FORMATS / "store-1.0.h5")
    assert (store.n, store.dim) == (7, 3)
    assert store.sample_ids == [SAMPLE_IDS[row] for row in (0, 2, 3, 4, 5, 6, 7)]
    assert store.sha256[0].tobytes() == hashlib.sha256(b"a/0.png").digest()
    assert store.embeddings[0].tolist() == [5.0, np.float32(148 / 7), np.float32(165 / 7)]
    assert store.extras["logits"].tolist() == [[0.5, 0.5]] * 7
    assert store.file_sizes.tolist() == [100, 102, 103, 104, 105, 106, 107]
    assert store.image_sizes.tolist() == [[8, 9 + row] for row in (0, 2, 3, 4, 5, 6, 7)]
    assert store.labels.tolist() == [0, 1, 1, 2, 2, -1, 2]
    assert store.labeled.tolist() == [True, True, False, False, False, False, False]
    assert store.class_names == ("cat", "dog", "eel")
    assert store.old_classes.tolist() == [True, True, False]
    assert store.splits.tolist() == [0, 0, 1, 0, 1, -1, 0]
    assert store.split_names == ("train", "test")
    assert store.skipped == [("a/1.png", "truncated")]
    assert store.model == MODEL
    assert (store.metric, store.created_by) == ("cosine", "labelkit 0.1.0")
    assert store.content_digest == STORE


def test_a_result_of_format_1_0_is_read(tmp_path):
    shutil.copy(FORMATS / "store-1.0.h5", tmp_path / "s.h5")
    (tmp_path / "s.h5.results").mkdir()
    shutil.copy(FORMATS / "result-1.0.h5", tmp_path / "s.h5.results" / "clusters.h5")
    result = read_result(open_store(tmp_path / "s.h5"), "clusters")
    assert (result.kind, result.stage, result.params) == (
        "clusters",
        "cluster k-means",
        {"seed": 0},
    )
    assert result.arrays["cluster_ids"].tolist() == [0, 1, 0, 1, -1, 0, 1]
    assert result.arrays["confidence"].tolist() == [np.float32(row / 6) for row in range(7)]
    assert result.arrays["centroids"].tolist() == [[1, 0, 0], [0, 1, 0]]
    assert result.arrays["names"] == ["chat", "größe"]
    assert result.metrics == {"nmi": 0.25}


def test_a_sharded_store_of_format_1_0_is_read():
    one, many = open_store(FORMATS / "store-1.0.h5"), open_store(FORMATS / "sharded-1.0" / "s.h5")
    assert (many.num_shards, many.content_digest) == (2, one.content_digest)
    assert many.embeddings.tolist() == one.embeddings.tolist()
    assert many.extras["logits"].tolist() == one.extras["logits"].tolist()
    assert many.sample_ids == one.sample_ids


def test_a_packed_store_of_format_1_0_is_read():
    path = FORMATS / "packed-1.0.h5"
    store = open_store(path)
    assert (store.n, store.content_digest) == (7, STORE)
    assert store.embeddings[0].tolist() == [5.0, np.float32(148 / 7), np.float32(165 / 7)]
    assert list_results(store) == ["clusters"]
    result = read_result(store, "clusters")
    assert (result.where, result.content_digest) == (
        f"{path}:/results/clusters",
        RESULT,
    )
    assert result.arrays["cluster_ids"].tolist() == [0, 1, 0, 1, -1, 0, 1]
    assert result.arrays["names"] == ["chat", "größe"]


def test_todays_packing_still_writes_format_1_0(tmp_path):
    shutil.copy(FORMATS / "store-1.0.h5", tmp_path / "s.h5")
    (tmp_path / "s.h5.results").mkdir()
    shutil.copy(FORMATS / "result-1.0.h5", tmp_path / "s.h5.results" / "clusters.h5")
    pack_store(open_store(tmp_path / "s.h5"), tmp_path / "all.h5")
    assert held(tmp_path / "all.h5") == held(FORMATS / "packed-1.0.h5")


def test_patches_of_format_1_0_are_read(tmp_path):
    shutil.copy(FORMATS / "store-1.0.h5", tmp_path / "s.h5")
    shutil.copytree(FORMATS / "patches-1.0", tmp_path / "s.h5.patches")
    patches = open_patches(open_store(tmp_path / "s.h5"))
    assert (patches.n, patches.dim, patches.dtype, patches.num_patches) == (7, 2, "float16", 28)
    assert (patches.layer, patches.recipe["per_image"]) == ("last", None)
    # position 1 of the plan was skipped; value v of cell c of position r is 10 r + c + v / 2
    for row, position in enumerate((0, 2, 3, 4, 5, 6, 7)):
        image = patches.get_image(row)
        assert image.features.tolist() == [[10 * position + cell, 10 * position + cell + 0.5] for cell in range(4)]
        assert (image.grid, image.region) == ((2, 2), (0, 1, 8, 9))
        assert image.cells.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_matches_of_format_1_0_are_read():
    found = read_matches(FORMATS / "matches-1.0.h5")
    assert found.sample_ids == ("a.png", "b.png", "größe/c.png")
    assert found.sha256.tolist() == np.arange(96).reshape(3, 32).tolist()
    assert found.image_sizes.tolist() == [[10, 20], [30, 40], [50, 60]]
    assert found.num_keypoints.tolist() == [40, 0, 41]
    assert found.recipe == {"ratio": 0.75}
    matches = found.matches
    assert (matches.pairs.tolist(), matches.inliers.tolist()) == ([[0, 2]], [16])
    assert matches.homographies.tolist() == [[[1, 0, 0.25], [0, 1, 0], [0, 0, 1]]]
    assert matches.boxes.tolist() == [[[-0.5, -0.5, 0.5, 0.5], [-0.25, -0.5, 0.75, 0.5]]]
    assert matches.keypoint_counts.tolist() == [1]
    assert matches.keypoints[0, 0].tolist() == [[-0.5, 0.25], [-0.25, 0.25]]


def test_neighbors_of_format_1_0_are_read():
    found = read_neighbors(FORMATS / "neighbors-1.0.h5")
    assert found.query_rows.tolist() == [1, 4, 9]
    assert found.neighbor_rows.tolist() == [[4, 9], [9, 1], [4, 1]]
    assert found.scores.tolist() == [[0.75, 0.5], [0.25, 0.125], [1.0, -0.5]]
    assert found.recipe == {"listing": "abc"}


def test_prototypes_of_format_1_0_are_read():
    found = read_prototypes(FORMATS / "prototypes-1.0.h5")
    assert found.prototypes.tolist() == [[1, 0, 0], [0, np.float32(0.6), np.float32(-0.8)]]
    assert found.recipe == {"seed": 0}


def test_an_imageless_store_of_format_1_0_is_read():
    store = open_store(FORMATS / "imageless-1.0.h5")
    assert store.sample_ids == ["a.png", "b.png", "größe/c.png"]
    assert (store.embeddings.dtype, store.embeddings.tolist()) == (np.float16, [[3, 4], [0.5, 1], [-2, 0.25]])
    assert (store.has_images, store.metric) == (False, "l2")
    assert (store.labels.tolist(), store.labeled.tolist()) == ([1, -1, 0], [True, False, False])
    assert (store.class_names, store.old_classes.tolist()) == (("chat", "größe"), [False, True])
    assert (store.split_names, store.splits.tolist()) == (("train",), [0, 0, -1])
    assert (store.model.name, store.model.preprocess) == ("elsewhere", {"imported": "elsewhere"})


def test_drawn_patches_of_format_1_0_are_read(tmp_path):
    shutil.copy(FORMATS / "store-1.0.h5", tmp_path / "s.h5")
    shutil.copytree(FORMATS / "drawn-patches-1.0", tmp_path / "s.h5.patches")
    patches = open_patches(open_store(tmp_path / "s.h5"))
    assert (patches.n, patches.num_patches, patches.recipe["per_image"]) == (7, 14, 2)
    # position 1 of the plan was skipped; value v of cell c of position r is 10 r + c + v / 2, of the last two of four
    for row, position in enumerate((0, 2, 3, 4, 5, 6, 7)):
        image = patches.get_image(row)
        assert image.features.tolist() == [[10 * position + cell, 10 * position + cell + 0.5] for cell in (2, 3)]
        assert image.cells.tolist() == [[1, 0], [1, 1]]


def test_an_unfinished_store_of_format_1_0_is_gone_on_with(tmp_path):
    shutil.copytree(FORMATS / "unfinished-store-1.0", tmp_path / "s.h5.run")
    status, damaged = read_embedding_status(tmp_path / "s.h5")
    assert (status["parts"], status["images"]["done"], damaged) == ({"done": 1, "planned": 2}, 3, [])
    assert status["skipped"] == [{"image": "a/1.png", "reason": "truncated"}]
    run = EmbeddingRun.open(tmp_path / "s.h5", make_plan())
    assert run.pending_parts() == [1]
    write_part(run, 1)
    run.publish(max_bad=0.5)
    assert held(tmp_path / "s.h5") == held(FORMATS / "store-1.0.h5")


def test_unfinished_patches_of_format_1_0_are_made_again(tmp_path):
    store = open_store(shutil.copy(FORMATS / "store-1.0.h5", tmp_path / "s.h5"))
    shutil.copytree(FORMATS / "unfinished-patches-1.0", tmp_path / "s.h5.patches.run")
    run = PatchRun.open(store.path, PatchPlan(make_plan(), layer="last", grid=(2, 2), dim=2, set_bytes=300))
    assert run.pending_parts() == [0, 1]
    for number, rows in enumerate((np.array([0, 2, 3]), np.arange(4, 8))):
        features = 10 * rows[:, None, None] + np.arange(4)[:, None] + np.arange(2) / 2
        run.write_chunk(number, rows, features, np.tile([0.0, 1.0, 8.0, 9.0], (len(rows), 1)))
    run.publish(store)
    made = open_patches(store)
    shutil.copytree(FORMATS / "patches-1.0", tmp_path / "g.h5.patches")
    golden = open_patches(open_store(shutil.copy(FORMATS / "store-1.0.h5", tmp_path / "g.h5")))
    for row in range(7):
        np.testing.assert_array_equal(made.get_image(row).features, golden.get_image(row).features)
        assert made.get_image(row).region == golden.get_image(row).region
    assert not (tmp_path / "s.h5.patches.run").exists()


def test_todays_writer_still_writes_format_1_0(tmp_path):
    store = make_store(tmp_path / "s.h5", make_plan(), bad={1: "truncated"})
    assert store.content_digest == STORE
