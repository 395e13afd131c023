"""A training run that an old labelkit began is read and ended by today's."""

import json
import shutil
from pathlib import Path

import pytest
from labelkit.cli.main import main
from labelkit.methods.registry import METHODS
from labelkit.options.base import is_allowed_in_presets, list_legacy_defaults, list_retired_options
from labelkit.training.checkpoint import load_checkpoint
from safetensors.numpy import load_file
from tests.running import Labelkit

FORMATS = Path(__file__).parents[1] / "data" / "formats"
OLD_OPTIONS = json.loads((FORMATS / "train_options.json").read_text())
"""Of the methods that labelkit 0.1.0 had, and of all of them."""
WORDS = (
    "train dl2pa --dataset digits --preset digits --backbone wrn10_1 --image-size 16 --epochs 2 --batch-size 40 "
    "--max-per-class 25 --lr-schedule constant --embed-dim 4 --log-every-steps 1 --device cpu --threads 1 -q"
).split()
"""What labelkit 0.1.0 was told, with ``--stop-after-steps 3``."""

LOSSES = [56.7906, 48.953, 50.2915, 31.868, 45.4358, 25.044, 31.4497, 45.41, 28.2271, 24.5012, 28.6463, 27.7378]
"""Of the steps of a run that labelkit 0.1.0 did not stop."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(FORMATS / "run-1.0", tmp_path / "run"))


def test_a_checkpoint_of_an_old_run_is_read(run: Path) -> None:
    found = load_checkpoint(run)
    assert found is not None
    assert (found.state["step"], list(found.warnings)) == (3, [])
    stored = load_file(run / "checkpoints" / "step-00000003" / "model.safetensors")
    tensors = found.tensors("model.safetensors")
    assert {name: value.numpy().tolist() for name, value in tensors.items()} == {
        name: value.tolist() for name, value in stored.items()
    }


def test_an_old_run_goes_on_as_if_it_had_not_stopped(run: Path) -> None:
    assert main([*WORDS, "--resume", "--out", str(run)]) == 0

    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line.get("kind") == "step"]
    # other processors and versions of torch round otherwise, and what they round grows with the steps
    assert losses[:6] == pytest.approx(LOSSES[:6], rel=1e-3)
    assert losses == pytest.approx(LOSSES, rel=2e-2)
    assert json.loads((run / "summary.json").read_text())["finished"] is True


def test_a_value_of_an_option_that_is_a_constant_now_is_said(trained: Path, tmp_path: Path, labelkit: Labelkit) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    with (run / "config.yaml").open("a") as file:
        file.write("fixmatch_threshold: 0.9\n")

    answer = labelkit("embed", "--dataset", "digits", "--checkpoint", run, "--dry-run", "--out", tmp_path / "s.h5")

    assert "was trained with fixmatch_threshold 0.9 (now always 0.95), which this version does not" in answer.err


def test_an_option_that_old_runs_lack_says_what_they_did() -> None:
    unsaid = [
        (method, name)
        for method in OLD_OPTIONS.keys() - {"all"}
        for name, field in METHODS[method].config.model_fields.items()
        if name not in {*OLD_OPTIONS["all"], *OLD_OPTIONS[method]}
        and field.default is not None
        and is_allowed_in_presets(field)  # others are no part of a run
        and name not in list_legacy_defaults(METHODS[method].config)
    ]

    assert not unsaid  # json_schema_extra={..., "before": VALUE}, or old runs cannot be resumed


@pytest.mark.parametrize("method", [name for name in OLD_OPTIONS if name != "all"])
def test_an_option_of_old_runs_is_still_there_or_says_what_it_became(method: str) -> None:
    config = METHODS[method].config

    gone = {*OLD_OPTIONS["all"], *OLD_OPTIONS[method]} - config.model_fields.keys()

    assert gone <= list_retired_options(config).keys()
