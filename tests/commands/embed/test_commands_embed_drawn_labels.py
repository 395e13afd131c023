"""``embed --checkpoint`` of a run without labels: the split of discovery methods may be drawn afterwards."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.common.training_data import prepare_data
from labelkit.methods.discovery.options import GCDConfig
from labelkit.store.embeddings import EmbeddingStore, open_store

FEW = ("--dataset", "digits", "--max-per-class", "12")


@pytest.fixture(scope="module")
def runs(labelkit: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs that saw no label, on 12 digits of each class; of ``held`` a fifth of all digits was held out."""
    found = {name: tmp_path_factory.mktemp("label-free") / name for name in ("siamese", "held")}
    for name, out in found.items():
        short = ("--epochs", "1", "--batch-size", "32", "--device", "cpu", "--out", out)
        done = labelkit("train", "siamese", *FEW, "--holdout", "none" if name == "siamese" else "0.2", *short)
        assert done.code == 0, done.err
        assert json.loads((out / "split.json").read_text())["split"]["labeled"] == []
    return found


def store_of(labelkit: Any, run: Path, out: Path, *options: str) -> EmbeddingStore:
    done = labelkit("embed", "--checkpoint", run, *FEW, *options, "--out", out)
    assert done.code == 0, done.err
    return open_store(out)


def test_images_that_the_run_held_out_get_no_label(labelkit: Any, runs: dict[str, Path], tmp_path: Path) -> None:
    shared = {"dataset": "digits", "max_per_class": 12, "holdout": 0.2, "old_classes": "0-4"}
    drawn = prepare_data(GCDConfig.model_validate(shared))
    held_out = set(json.loads((runs["held"] / "split.json").read_text())["held_out"])

    store = store_of(labelkit, runs["held"], tmp_path / "x.h5", "--old-classes", "0-4", "--split", "all")

    usable = [name for name, used in zip(store.sample_ids, store.labeled, strict=True) if used]
    assert usable == [drawn.dataset.sample_ids[row] for row in np.flatnonzero(drawn.split.labeled)]
    assert len(usable) == 30
    assert held_out.isdisjoint(usable)
    assert {store.sample_ids[int(row)] for row in store.rows("test")} <= held_out
    assert len(store.rows("test")) == 120


def test_without_such_an_option_no_label_is_usable(labelkit: Any, runs: dict[str, Path], tmp_path: Path) -> None:
    store = store_of(labelkit, runs["siamese"], tmp_path / "x.h5")

    assert store.labeled is not None
    assert store.old_classes is not None
    assert not store.labeled.any()
    assert not store.old_classes.any()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--split-seed", "3"), "--split-seed"),
        (("--label-seed", "3"), "--label-seed"),
        (("--label-split", "gcd", "--holdout", "0.5"), "--holdout"),
        (("--old-classes", "0-4", "--holdout-classes", "half"), "--holdout-classes"),
    ],
)
def test_what_draws_nothing_or_sets_images_apart_stays_refused(
    labelkit: Any, runs: dict[str, Path], tmp_path: Path, options: tuple[str, ...], named: str
) -> None:
    done = labelkit("embed", "--checkpoint", runs["siamese"], *FEW, *options, "--out", tmp_path / "x.h5")

    assert done.code == 2
    assert f"error: {named}: has no effect" in done.err
    assert list(tmp_path.iterdir()) == []
