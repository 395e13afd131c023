"""What a training for searches starts from is measured and shown beside what it reached."""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from labelkit.store.embeddings import open_store
from labelkit.training.inputs import HeldOutImages, MonitorInputs
from labelkit.training.monitors.retrieval import RetrievalMonitor

SMALL = (
    "--preset", "none", "--backbone", "smallcnn", "--image-size", 32, "--no-san", "--memory", "none", "--embed-dim", 8,
    "--images-per-class", 4, "--batch-size", 8, "--augmentation", "crop-flip", "--holdout-classes", "half",
    "--threads", 1, "--device", "cpu", "--recall-ks", "1",
)  # fmt: skip


@pytest.fixture
def started(labelkit: Any, photos: Path, tmp_path: Path) -> Path:
    done = labelkit("train", "san", "--dataset", photos, *SMALL, "--epochs", 1, "--out", tmp_path / "first", "--json")
    assert done.code == 0, done.err
    assert not (tmp_path / "first" / "before.json").exists()  # features of random weights mean nothing
    assert "search_before_training" not in done.json
    return tmp_path / "first"


def test_scores_before_training_stand_beside_those_after_it(
    labelkit: Any, photos: Path, started: Path, tmp_path: Path
) -> None:
    words = ("train", "san", "--dataset", photos, *SMALL, "--init-from", started)
    planned = labelkit(*words, "--epochs", 2, "--dry-run", "--json")
    assert planned.code == 0, planned.err
    out = tmp_path / "second"
    stopped = labelkit(*words, "--epochs", 2, "--out", out, "--stop-after-steps", 1)
    assert stopped.code == 0, stopped.err
    before = json.loads((out / "before.json").read_text())
    assert set(before) == {"recall_at_1", "map_at_r"}
    assert planned.json["search_before_training"] == before
    # also where the run goes on later
    done = labelkit(*words, "--epochs", 2, "--out", out, "--resume", "--json")
    assert done.code == 0, done.err
    assert done.json["search_before_training"] == before
    assert "before training" in labelkit(*words, "--epochs", 1, "--out", tmp_path / "third").out


def test_before_training_the_features_of_the_backbone_are_searched() -> None:
    # the embedding puts every image beside one of another class, the features beside its own
    held_out = HeldOutImages(cast(Any, SimpleNamespace(rows=np.arange(4))), np.array([0, 0, 1, 1]))
    features = torch.eye(2)[[0, 0, 1, 1]]
    network = SimpleNamespace(features=lambda rows: features[rows], embed=lambda rows: features[[0, 2, 1, 3]][rows])
    state = SimpleNamespace(is_main=True, full_pass=lambda embed, rows, how: embed(torch.from_numpy(rows)))
    monitor = RetrievalMonitor(MonitorInputs(np.arange(0), np.zeros(0, np.int64), (), held_out), (1,))

    found = monitor.score_before_training(cast(Any, SimpleNamespace(network=network)), cast(Any, state))

    assert found == {"recall_at_1": 1.0, "map_at_r": 1.0}
    plain = SimpleNamespace(network=SimpleNamespace(embed=network.embed))
    assert monitor.score_before_training(cast(Any, plain), cast(Any, state)) == {"recall_at_1": 0.0, "map_at_r": 0.0}


@pytest.mark.slow
def test_the_command_that_comes_next_embeds_with_the_run(
    labelkit: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def next_of(*words: object) -> list[str]:
        done = labelkit("train", *words, "--epochs", 1)
        assert done.code == 0, done.err
        return shlex.split(done.err.partition("next, embed images with it: ")[2].splitlines()[0])

    of_photos = next_of("san", "--dataset", photos, *SMALL, "--out", tmp_path / "first")
    assert of_photos[0] == "labelkit"
    assert labelkit(*of_photos[1:]).code == 0
    head = ("softmax", "--index", "first.h5", "--split", "all", "--batch-size", 8, "--threads", 1, "--device", "cpu")
    of_rows = next_of(*head, "--out", "head")
    assert "--index" in of_rows
    assert labelkit(*of_rows[1:]).code == 0
    assert open_store(tmp_path / "head.h5").n == open_store(tmp_path / "first.h5").n
