"""Files of past formats stay readable, for ever; they are never made again."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from labelkit.commands.store_files.packing import pack_store
from labelkit.commands.store_files.status import embedding_status
from labelkit.store.array_files import read_matches, read_neighbors, read_prototypes
from labelkit.store.embeddings import open_store
from labelkit.store.patch_writing import PatchRun, Piece
from labelkit.store.patches import open_patches
from labelkit.store.plans import PatchPlan
from labelkit.store.results import list_results, read_result
from labelkit.store.writing import EmbeddingRun
from store_samples import MODEL, SAMPLE_IDS, make_plan, make_store, write_part

FORMATS = Path(__file__).parents[1] / "data" / "formats"
FILES = {
    "store-1.0.h5": (
        "da4549def1a4e680f64c0749c51f0a1fea9cd8a9527baff260a2d61afb2d8f13",
        "c005208587f844dc732bbc82bbda3626cc4ad4d86fe8983c7f3b6f799bc099a5",
    ),
    "result-1.0.h5": (
        "3cdb0d5ad0c75c7afb240c146c1b2a6e95c6fa6a2a78ab450950f13cf987be32",
        "3440c408a3dbf1707c8b9079dcdb7507719b2881f3341348cc58cf5bb39730a2",
    ),
}


BYTES = {
    "packed-1.0.h5": "2dc265e198f8ece111fbd526a50efc3bcedfed4f1c68d48c260b790fcd7181ee",
    "patches-1.0/SET.json": "832dd31390011279ca0c6237264d9d72358b178dbbc280d3ef9e437446de5a6e",
    "patches-1.0/SET-00000-of-00002.h5": "55e2f2bb03089053aeaecdd48ca18d5b29594876ae5d9a93c3b2dd2e27ed40b6",
    "patches-1.0/SET-00001-of-00002.h5": "16c412a93719cde9014ffe5c4900db9317030b3d2e642ef900074ef70521fbac",
    "matches-1.0.h5": "917954a1b1c05f1c9b15fc9065bd0b6c13231d4dfc37a19badda5c6ca4a233d5",
    "neighbors-1.0.h5": "03f7404f7fe0df9a1900acfaad21f56e2d5cc9e339fe7deb381eea810ee59b5a",
    "prototypes-1.0.h5": "d768c2b0519e2000b321dfb05556d5377501ac0bef090c4e847e266ebfb9c992",
    "imageless-1.0.h5": "f12d7fc6dd0cd7cda5b791f33901ff9736ff9009772fc9ec5eb99aab306ed94a",
}
"""SHA-256 of the golden files that came later; checkpoints are in tests/engine."""

TREES = {
    "drawn-patches-1.0": "fb5f909cfd53015742db9cec18918e416e15c35cf2e5e432054cac6ac4af3f40",
    "unfinished-store-1.0": "1c484b52f0cfb9bc38380e13cdc551c212e6046df40c1c46d78a7988b677af44",
    "unfinished-patches-1.0": "4b90bfe2124a345bb852120d1de3e3c23731a575324afa6a8ccd2fe75cc6223e",
    "sharded-1.0": "3fc0868f5502083be41eab157b702d448dd8457ef73a53c766bd0fcb196b7e3e",
    "run-1.0": "1a4997ea202f79b0513929c93f05ccbe5f11987974a37c9c80ce5918431d51cd",
}
"""SHA-256 of one line per file: its path below the folder, and its SHA-256. The run is resumed in tests/stages."""


def content_digest(path, root="/"):
    """The content digest by the words of labelkit.store.schema, for files without block digests."""
    lines = []

    def line(kind, name, value, dtype):
        shape = "x".join(map(str, value.shape)) or "scalar"
        digest = hashlib.sha256(value.tobytes()).hexdigest()
        lines.append(f"{kind} {name} {dtype.str} {shape} {digest}\n".encode())

    def visit(name, item):
        if isinstance(item, h5py.Dataset):
            line("D", name, np.asarray(item[()]).astype(item.dtype.str), item.dtype)
        else:
            lines.append(f"G {name}\n".encode())
        for key in item.attrs:
            if (name, key) != ("/", "content_digest"):
                dtype = item.attrs.get_id(key).dtype
                line("A", f"{name}@{key}", np.asarray(item.attrs[key]).astype(dtype.str), dtype)

    with h5py.File(path) as file:
        group = file[root]
        visit("/", group)
        group.visititems(lambda name, item: None if f"{name}/".startswith("results/") else visit(f"/{name}", item))
        stored = group.attrs["content_digest"].decode()
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest(), stored


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


@pytest.mark.parametrize("name", FILES)
def test_files_of_past_formats_are_as_they_were(name):
    assert hashlib.sha256((FORMATS / name).read_bytes()).hexdigest() == FILES[name][0]


@pytest.mark.parametrize("name", BYTES)
def test_later_files_of_past_formats_are_as_they_were(name):
    assert hashlib.sha256((FORMATS / name).read_bytes()).hexdigest() == BYTES[name]


@pytest.mark.parametrize("name", TREES)
def test_folders_of_past_formats_are_as_they_were(name):
    files = sorted(path for path in (FORMATS / name).rglob("*") if path.is_file())
    lines = [
        f"{path.relative_to(FORMATS / name).as_posix()} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in files
    ]
    assert hashlib.sha256("".join(lines).encode()).hexdigest() == TREES[name]


def test_all_files_of_past_formats_are_small():
    assert sum(path.stat().st_size for path in FORMATS.rglob("*") if path.is_file()) < 400_000


@pytest.mark.parametrize("name", FILES)
def test_the_content_digest_follows_its_description(name):
    assert content_digest(FORMATS / name) == (FILES[name][1], FILES[name][1])


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
    assert (store.normalized, store.metric, store.created_by) == (False, "cosine", "labelkit 0.1.0")
    assert store.content_digest == FILES["store-1.0.h5"][1]


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


def test_the_table_of_shards_follows_its_description():
    folder = FORMATS / "sharded-1.0" / "s.h5.shards"
    with h5py.File(FORMATS / "sharded-1.0" / "s.h5") as index:
        table = json.loads(index.attrs["shards"])
        assert index.attrs["requires"] == b"sharded"
        assert {"embeddings", "logits"}.isdisjoint(index)
    own = {key: value for key, value in table.items() if key != "sha256"}
    text = json.dumps(own, sort_keys=True, separators=(",", ":"))
    assert hashlib.sha256(text.encode()).hexdigest() == table["sha256"]
    columns = {name: [] for name in ("embeddings", "logits")}
    assert len(list(folder.iterdir())) == len(table["files"]) == 2
    for number, entry in enumerate(table["files"]):
        data = (folder / f"{number:05d}-{entry['frame'][:16]}.h5").read_bytes()
        assert len(data) == entry["bytes"]
        frame = np.ones(len(data), bool)
        with h5py.File(io.BytesIO(data)) as shard:
            for name, pieces in columns.items():
                rows = shard[name][:]
                start = shard[name].id.get_offset()
                frame[start : start + rows.nbytes] = False
                pieces.append(rows.tobytes())
                assert (len(rows), start) == (entry["rows"], entry["offsets"][name])
                assert hashlib.sha256(pieces[-1]).hexdigest() == entry["sha256"][name]
        assert hashlib.sha256(np.frombuffer(data, np.uint8)[frame].tobytes()).hexdigest() == entry["frame"]
    for name, pieces in columns.items():
        digest = hashlib.sha256(b"".join(pieces)).hexdigest()
        assert table["columns"][name]["sha256"] == digest
        assert (table["columns"][name]["dtype"], table["columns"][name]["width"]) == ("<f4", {"logits": 2}.get(name, 3))


def test_a_packed_store_of_format_1_0_is_read():
    path = FORMATS / "packed-1.0.h5"
    store = open_store(path)
    assert (store.n, store.content_digest) == (7, FILES["store-1.0.h5"][1])
    assert content_digest(path) == (FILES["store-1.0.h5"][1],) * 2
    assert content_digest(path, "/results/clusters") == (FILES["result-1.0.h5"][1],) * 2
    assert store.embeddings[0].tolist() == [5.0, np.float32(148 / 7), np.float32(165 / 7)]
    assert list_results(store) == ["clusters"]
    result = read_result(store, "clusters")
    assert (result.where, result.content_digest) == (
        f"{path}:/results/clusters",
        FILES["result-1.0.h5"][1],
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
    assert (patches.layer, patches.is_sampled) == ("last", False)
    # position 1 of the plan was skipped; value v of cell c of position r is 10 r + c + v / 2
    for row, position in enumerate((0, 2, 3, 4, 5, 6, 7)):
        image = patches.image(row)
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
    assert (store.has_images, store.metric, store.normalized) == (False, "l2", False)
    assert (store.labels.tolist(), store.labeled.tolist()) == ([1, -1, 0], [True, False, False])
    assert (store.class_names, store.old_classes.tolist()) == (("chat", "größe"), [False, True])
    assert (store.split_names, store.splits.tolist()) == (("train",), [0, 0, -1])
    assert (store.model.name, store.model.preprocess) == ("elsewhere", {"imported": "elsewhere"})


def test_drawn_patches_of_format_1_0_are_read(tmp_path):
    shutil.copy(FORMATS / "store-1.0.h5", tmp_path / "s.h5")
    shutil.copytree(FORMATS / "drawn-patches-1.0", tmp_path / "s.h5.patches")
    patches = open_patches(open_store(tmp_path / "s.h5"))
    assert (patches.n, patches.num_patches, patches.is_sampled) == (7, 14, True)
    # position 1 of the plan was skipped; value v of cell c of position r is 10 r + c + v / 2, of the last two of four
    for row, position in enumerate((0, 2, 3, 4, 5, 6, 7)):
        image = patches.image(row)
        assert image.features.tolist() == [[10 * position + cell, 10 * position + cell + 0.5] for cell in (2, 3)]
        assert image.cells.tolist() == [[1, 0], [1, 1]]


def test_an_unfinished_store_of_format_1_0_is_gone_on_with(tmp_path):
    shutil.copytree(FORMATS / "unfinished-store-1.0", tmp_path / "s.h5.run")
    status = embedding_status(tmp_path / "s.h5")
    assert (status.planned_parts, status.done_parts, status.num_images, status.damaged) == (2, 1, 3, [])
    assert status.skipped == [("a/1.png", "truncated")]
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
        run.write_piece(number, Piece(rows, features, None, np.tile([0.0, 1.0, 8.0, 9.0], (len(rows), 1))))
    run.publish(store)
    made = open_patches(store)
    shutil.copytree(FORMATS / "patches-1.0", tmp_path / "g.h5.patches")
    golden = open_patches(open_store(shutil.copy(FORMATS / "store-1.0.h5", tmp_path / "g.h5")))
    for row in range(7):
        np.testing.assert_array_equal(made.image(row).features, golden.image(row).features)
        assert made.image(row).region == golden.image(row).region
    assert not (tmp_path / "s.h5.patches.run").exists()


def test_todays_writer_still_writes_format_1_0(tmp_path):
    store = make_store(tmp_path / "s.h5", make_plan(), bad={1: "truncated"})
    assert store.content_digest == FILES["store-1.0.h5"][1]
