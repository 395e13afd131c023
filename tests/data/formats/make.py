"""Make the golden files of the current format: ``python tests/data/formats/make.py``.

``run-1.0``, a training run that was stopped, comes from the command line in tests/commands/test_commands_golden_run.py.

Files that exist are left alone, for ever: what an old labelkit wrote is what a new one has to read. A new format
version gets new names and another run of this script.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

FORMATS = Path(__file__).parent
sys.path.insert(0, str(FORMATS.parents[1] / "store"))

from labelkit.commands.store_files.packing import pack_store  # noqa: E402
from labelkit.store.array_files import (  # noqa: E402  # noqa: E402
    Matches,
    MatchFile,
    NeighborFile,
    write_matches,
    write_neighbors,
    write_prototypes,
)
from labelkit.store.embeddings import ModelIdentity, open_store  # noqa: E402
from labelkit.store.patch_writing import PatchRun, Piece  # noqa: E402
from labelkit.store.plans import EmbeddingPlan, PatchPlan  # noqa: E402
from labelkit.store.results import write_result  # noqa: E402
from labelkit.store.writing import (  # noqa: E402
    EmbeddingRun,
    write_imported,
)
from labelkit.training.checkpoint import CheckpointWriter  # noqa: E402 - after the path of the samples
from store_samples import make_plan, make_store, write_part  # noqa: E402

SKIPPED = 1
"""Position in the plan of the image that the golden store skips."""


def make_golden_store(target: Path) -> None:
    """Seven rows of three values, with labels, splits, logits and one skipped image."""
    make_store(target, make_plan(), bad={SKIPPED: "truncated"})


def make_golden_result(target: Path) -> None:
    """Clusters of the seven rows."""
    folder = Path(tempfile.mkdtemp())
    store = open_store(shutil.copy(FORMATS / "store-1.0.h5", folder / "s.h5"))
    arrays = {
        "cluster_ids": np.array([0, 1, 0, 1, -1, 0, 1]),
        "confidence": np.arange(7, dtype=np.float32) / 6,
        "centroids": np.eye(3, dtype=np.float32)[:2],
        "names": ["chat", "größe"],
        "metrics": {"nmi": 0.25},
    }
    path = write_result(store, "clusters", kind="clusters", arrays=arrays, params={"seed": 0}, stage="cluster k-means")
    shutil.move(path, target)


def make_golden_packed_store(target: Path) -> None:
    """The golden store with the golden result."""
    folder = Path(tempfile.mkdtemp())
    shutil.copy(FORMATS / "store-1.0.h5", folder / "s.h5")
    (folder / "s.h5.results").mkdir()
    shutil.copy(FORMATS / "result-1.0.h5", folder / "s.h5.results" / "clusters.h5")
    pack_store(open_store(folder / "s.h5"), target)


def make_golden_sharded_store(target: Path) -> None:
    """The golden store in two shards."""
    target.mkdir()
    pack_store(open_store(FORMATS / "store-1.0.h5"), target / "s.h5", shards=2)


def _patches(number: int, plan: PatchPlan) -> Piece:
    """Value v of cell c of plan row r is 10 r + c + v / 2; of drawn cells, the last two."""
    _, start, stop = plan.pieces[number]
    rows = np.array([row for row in range(start, stop) if row != SKIPPED])
    features = 10 * rows[:, None, None] + np.arange(4)[:, None] + np.arange(2) / 2
    regions = np.tile([0.0, 1.0, 8.0, 9.0], (len(rows), 1))
    if not plan.is_sampled:
        return Piece(rows, features, None, regions)
    return Piece(rows, features[:, 2:], np.tile([[1, 0], [1, 1]], (len(rows), 1, 1)), regions)


def make_golden_patches(target: Path) -> None:
    """2 x 2 patches of the seven images, in two files; value v of cell c of plan row r is 10 r + c + v / 2."""
    folder = Path(tempfile.mkdtemp())
    store = open_store(shutil.copy(FORMATS / "store-1.0.h5", folder / "s.h5"))
    plan = PatchPlan(make_plan(), layer="last", grid=(2, 2), dim=2, set_bytes=300)
    run = PatchRun.open(store.path, plan)
    for number in range(len(plan.pieces)):
        run.write_piece(number, _patches(number, plan))
    shutil.copytree(run.publish(store), target)


def _one_match() -> Matches:
    keypoints = np.zeros((1, 2, 2, 2), dtype=np.float32)
    keypoints[0, 0] = [[-0.5, 0.25], [-0.25, 0.25]]
    return Matches(
        pairs=np.array([[0, 2]]),
        inliers=np.array([16]),
        homographies=np.array([[[1, 0, 0.25], [0, 1, 0], [0, 0, 1]]], dtype=np.float64),
        boxes=np.array([[[-0.5, -0.5, 0.5, 0.5], [-0.25, -0.5, 0.75, 0.5]]], dtype=np.float32),
        keypoints=keypoints,
        keypoint_counts=np.array([1]),
    )


def make_golden_matches(target: Path) -> None:
    """One pair of three images, explained by a shift of a quarter."""
    found = MatchFile(
        _one_match(),
        ("a.png", "b.png", "größe/c.png"),
        np.arange(96, dtype=np.uint8).reshape(3, 32),
        np.array([[10, 20], [30, 40], [50, 60]], dtype=np.uint32),
        np.array([40, 0, 41]),
        {"ratio": 0.75},
        "",
    )
    write_matches(target, found)


def make_golden_neighbors(target: Path) -> None:
    """Two neighbors of each of the images 1, 4 and 9."""
    neighbors = np.array([[4, 9], [9, 1], [4, 1]])
    scores = np.array([[0.75, 0.5], [0.25, 0.125], [1.0, -0.5]], dtype=np.float32)
    write_neighbors(target, NeighborFile(np.array([1, 4, 9]), neighbors, scores, {"listing": "abc"}))


def make_golden_prototypes(target: Path) -> None:
    """Two prototypes in three dimensions."""
    rows = np.array([[1, 0, 0], [0, 0.6, -0.8]], dtype=np.float32)
    write_prototypes(target, rows, {"seed": 0}, {"largest": 0.0})


def make_golden_imageless_store(target: Path) -> None:
    """Three rows without images, as float16, in another order than their names."""
    plan = EmbeddingPlan(
        sample_ids=["a.png", "b.png", "größe/c.png"],
        model=ModelIdentity("elsewhere", source="rows.npy", preprocess={"imported": "elsewhere"}),
        dim=2,
        batch_size=1,
        normalized=False,
        metric="l2",
        created_by="labelkit 0.1.0",
        dtype="float16",
        labels=np.array([1, -1, 0]),
        class_names=("chat", "größe"),
        labeled=np.array([True, False, False]),
        old_classes=np.array([False, True]),
        splits=np.array([0, 0, -1], dtype=np.int16),
        split_names=("train",),
    )
    write_imported(
        target,
        plan,
        embeddings=np.array([[0.5, 1.0], [-2.0, 0.25], [3.0, 4.0]], dtype=np.float32),
        order=np.array([2, 0, 1]),
        images=None,
        recipe={"from": "rows.npy"},
    )


def make_golden_drawn_patches(target: Path) -> None:
    """Two of the four patches of each of the seven images, in one file."""
    folder = Path(tempfile.mkdtemp())
    store = open_store(shutil.copy(FORMATS / "store-1.0.h5", folder / "s.h5"))
    plan = PatchPlan(make_plan(), layer="last", grid=(2, 2), dim=2, per_image=2, seed=3)
    run = PatchRun.open(store.path, plan)
    for number in range(len(plan.pieces)):
        run.write_piece(number, _patches(number, plan))
    shutil.copytree(run.publish(store), target)


def make_golden_unfinished_store(target: Path) -> None:
    """The run folder of the golden store, where one of two parts is there."""
    folder = Path(tempfile.mkdtemp())
    write_part(EmbeddingRun.open(folder / "s.h5", make_plan()), 0, {SKIPPED: "truncated"})
    shutil.copytree(folder / "s.h5.run", target, ignore=shutil.ignore_patterns("lock"))


def make_golden_unfinished_patches(target: Path) -> None:
    """The run folder of the golden patches, where those of one of two parts are there."""
    folder = Path(tempfile.mkdtemp())
    plan = PatchPlan(make_plan(), layer="last", grid=(2, 2), dim=2, set_bytes=300)
    run = PatchRun.open(folder / "s.h5", plan)
    for number in run.pieces_of(0):
        run.write_piece(number, _patches(number, plan))
    shutil.copytree(folder / "s.h5.patches.run", target, ignore=shutil.ignore_patterns("lock"))


def make_golden_checkpoints(target: Path) -> None:
    """The folder ``checkpoints`` of a run of one process after three steps."""
    target.mkdir()
    CheckpointWriter(target).save(
        3,
        model={"student.weight": torch.tensor([[1.0, -0.5], [0.25, 0.0]]), "steps": torch.tensor(3)},
        training={"optimizer.0/student.weight/exp_avg": torch.full((2, 2), 0.125)},
        per_rank={"torch": torch.arange(4, dtype=torch.uint8)},
        state={"epoch": 1, "step_in_epoch": 1, "best": float("inf"), "metrics": {"loss": 0.5}, "metrics_bytes": 0},
        metadata={"labelkit": '{"architecture":"tiny"}'},
    )
    (target / "best.json").write_bytes((target / "last.json").read_bytes())  # of version 0.1.0


GOLDEN: dict[str, Callable[[Path], None]] = {
    "store-1.0.h5": make_golden_store,
    "result-1.0.h5": make_golden_result,
    "packed-1.0.h5": make_golden_packed_store,
    "sharded-1.0": make_golden_sharded_store,
    "patches-1.0": make_golden_patches,
    "matches-1.0.h5": make_golden_matches,
    "checkpoints-1.0": make_golden_checkpoints,
    "neighbors-1.0.h5": make_golden_neighbors,
    "prototypes-1.0.h5": make_golden_prototypes,
    "imageless-1.0.h5": make_golden_imageless_store,
    "drawn-patches-1.0": make_golden_drawn_patches,
    "unfinished-store-1.0": make_golden_unfinished_store,
    "unfinished-patches-1.0": make_golden_unfinished_patches,
}
"""What there is for format 1.0, in the order that it is made in."""


def main() -> None:
    """Make what is not there yet."""
    for name, make in GOLDEN.items():
        if not (FORMATS / name).exists():
            make(FORMATS / name)
            sys.stdout.write(f"made {name}\n")


if __name__ == "__main__":
    main()
