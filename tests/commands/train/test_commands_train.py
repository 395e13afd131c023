"""``labelkit train`` from options to a run folder."""

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from labelkit.commands.common.networks import load_run_network
from labelkit.commands.train import run
from labelkit.commands.train.dry_run import _estimate_step_seconds
from labelkit.commands.train.setup import choose_run_folder, short_dataset_name
from labelkit.errors import CheckpointError, Interrupted
from labelkit.methods.discovery.options import FlipClassConfig
from labelkit.training.run_dir import read_run_config


def weights(run: Path) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in load_run_network(run).network.state_dict().items()}


@pytest.fixture
def train(labelkit: Any, photos: Path, small: tuple[str | Path, ...]) -> Any:
    """Return a function: further options to what training on the photos did."""

    def run(*words: object) -> Any:
        return labelkit(
            "train", "flipclass", "--dataset", photos, "--label-split", "gcd", "--align-blocks", "1", *small, *words
        )

    return run


def test_a_run_folder_says_what_ran_on_which_labels_and_with_what_outcome(trained: Path) -> None:
    method, options = read_run_config(trained)
    split = json.loads((trained / "split.json").read_text())
    summary = json.loads((trained / "summary.json").read_text())

    assert method == "flipclass"
    assert (options["epochs"], options["batch_size"]) == (1, 16)
    assert split["class_names"] == ["ant", "bee", "cat", "dog"]
    assert len(split["split"]["labeled"]) == 12
    assert summary["samples"] == {"images": 48, "labeled": 12, "unlabeled": 36, "old_classes": 2, "new_classes": 2}
    # 36 unlabeled images, 12 of old and 24 of new classes
    scores = summary["metrics"]
    parts = scores["old_accuracy"] * 12 + scores["new_accuracy"] * 24
    assert scores["all_accuracy"] * 36 == pytest.approx(parts, abs=1e-6)
    assert (trained / "checkpoints" / summary["checkpoint"] / "model.safetensors").is_file()
    assert {"environment.json", "metrics.jsonl"} <= {path.name for path in trained.iterdir()}


def test_an_existing_folder_is_refused_and_left_as_it_is(train: Any, trained: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in trained.rglob("*")}

    answer = train("--out", trained)

    assert answer.code == 2
    assert f"{trained}: already exists. Pass --resume" in answer.err
    assert {path: path.stat().st_mtime_ns for path in trained.rglob("*")} == before


@pytest.mark.slow
def test_a_dry_run_tells_the_plan_and_writes_nothing(
    train: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    answer = train("--dry-run", "--json")

    assert list(tmp_path.iterdir()) == []
    plan = answer.json
    assert plan["samples"]["images"] == 48
    assert plan["run"] == "runs/flipclass-photos"
    assert (plan["steps_per_epoch"], plan["steps"]) == (3, 3)
    assert plan["parameters"] >= plan["trained_parameters"] > 0
    assert plan["estimated_minutes"] >= 0
    assert plan["memory_mib"] >= 0
    assert plan["config"]["epochs"] == 1
    assert "epoch 1/" not in answer.err  # scores of the timed steps are not those of a run


def test_long_steps_are_recognized_on_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers: list[int] = []
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch, "set_num_threads", numbers.append)
    network = SimpleNamespace(embed=lambda images: numbers.append(len(images)))
    method = SimpleNamespace(network=network, eval_view=lambda: SimpleNamespace(size=8))
    parts = {"bank": SimpleNamespace(dataset=SimpleNamespace(in_channels=3)), "phases": [SimpleNamespace(views=())]}
    runtime = SimpleNamespace(device=torch.device("cpu"))
    trainer: Any = SimpleNamespace(method=method, runtime=runtime, **parts)

    assert _estimate_step_seconds(trainer, FlipClassConfig(dataset="x")) == 0  # no view
    assert numbers == [1, 2, 2, 2]  # one thread, two passes of two images, and two threads as before


@pytest.mark.slow
def test_weights_of_another_run_are_where_training_starts(train: Any, trained: Path, tmp_path: Path) -> None:
    # a learning rate of almost nothing: what is left are the weights it started from
    answer = train("--init-from", trained, "--lr", "1e-12", "--weight-decay", "0", "--out", tmp_path / "run", "-q")

    assert answer.code == 0
    first = weights(trained)
    for name, tensor in weights(tmp_path / "run").items():
        np.testing.assert_allclose(tensor, first[name], atol=1e-6, err_msg=name)


def test_a_run_is_named_after_method_and_data(trained: Path) -> None:
    config = FlipClassConfig(dataset="some/where/birds.csv")

    assert choose_run_folder(config) == Path("runs/flipclass-birds")
    assert short_dataset_name("photos/") == "photos"
    assert choose_run_folder(config.model_copy(update={"out": Path("x")})) == Path("x")


def test_only_a_run_that_has_begun_is_to_be_resumed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def stop(*_: object, **__: object) -> NoReturn:
        raise Interrupted(signal.SIGINT)

    config = FlipClassConfig(dataset="x", out=tmp_path / "run", device="cpu", threads=1)
    for stopped_in, has_begun in (("prepare_training", False), ("_write_facts", True)):
        monkeypatch.setattr(run, "prepare_training", lambda *_, **__: None)
        monkeypatch.setattr(run, stopped_in, stop)
        with pytest.raises(Interrupted) as caught:
            run.train_method(config)
        assert caught.value.resumable == has_begun


def test_a_run_folder_that_does_not_exist_is_not_called_one_without_options(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="run: does not exist"):
        read_run_config(tmp_path / "run")
