"""Snowball: plain training without growth, doubling, what never changes, generations, stopping, resuming, the table."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.cli.main import main
from labelkit.commands.common.training_data import PreparedData
from labelkit.methods.few_labels.growth import NETWORKS
from labelkit.training.inputs import MonitorInputs

Make = Callable[..., Any]
# a network of four steps names some classes so rarely that their share cannot be found: global
QUICK = {
    "steps": 4,
    "later_steps": 2,
    "eval_every_steps": 4,
    "churn": 0.0,
    "labeled_batch_size": 6,
    "balance": "global",
}


def grow(make: Make, path: Path | None = None, **options: Any) -> Any:
    setup = make("snowball", path, **{**QUICK, "cap": 2.0, **options})
    setup.notes = []
    setup.trainer.message = setup.notes.append
    return setup


@pytest.mark.slow
def test_without_growth_it_is_mean_teacher_to_the_last_bit(make: Make) -> None:
    grown = grow(make, cap=1.0, trainer="mean-teacher", steps=8)
    fit = grown.trainer.fit()
    plain = make("mean-teacher", steps=8, eval_every_steps=4, labeled_batch_size=6)
    assert fit.step == plain.trainer.fit().step == 8
    for name, value in plain.method.state_dict().items():
        assert torch.equal(value, grown.method.state_dict()[name]), name


@pytest.mark.slow
def test_labels_double_up_to_the_cap_and_given_ones_never_change(make: Make, few: PreparedData) -> None:
    setup = grow(make, cap=2.6)
    fit = setup.trainer.fit()
    growth = setup.method.growth
    assert [epoch["labeled"] for epoch in fit.history if "labeled" in epoch] == [20, 40, 52]
    assert fit.step == 4 + 2 + 2
    labels = growth.labels()
    given = few.labels >= 0
    assert (labels[given] == few.labels[given]).all()
    assert (growth.given == few.labels).all()
    assert int((labels >= 0).sum()) == 52
    found, _ = growth.table()
    assert len(set(found[:, 0].tolist())) == len(found) == 32
    assert found[:, 4].tolist() == [1] * 20 + [2] * 12
    assert found[:, 5].tolist() == [NETWORKS.index("teacher")] * 20 + [NETWORKS.index("master")] * 12


def test_a_run_that_asks_for_true_labels_gets_them_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (
        "train snowball --dataset digits --max-per-class 6 --num-labels 10 --steps 2 --later-steps 1 --cap 2".split()
    )
    words += "--eval-every-steps 2 --batch-size 16 --labeled-batch-size 4 --generations 1 --device cpu".split()
    assert main([*words, "--found-labels", "true", "--out", str(tmp_path / "run")]) == 0
    assert "--found-labels true uses labels that are otherwise hidden from training" in capsys.readouterr().err
    lines = list(csv.DictReader(io.StringIO((tmp_path / "run/discovered.csv").read_text())))
    assert len(lines) > 4
    assert all(line["label"] == line["truth"] for line in lines)


def test_growth_ends_before_it_would_take_too_many_steps(make: Make) -> None:
    setup = grow(make, cap=3.0, generations=5, max_steps=7)
    assert setup.trainer.total_steps() == 6
    assert setup.trainer.fit().step == 6


@pytest.mark.slow
def test_the_table_has_every_discovered_image_and_counts_the_wrong_ones(make: Make, few: PreparedData) -> None:
    written: dict[str, str] = {}
    setup = grow(make, cap=2.6)
    data = few.dataset
    known = MonitorInputs(setup.bank.rows, data.labels, data.sample_ids, write_text=written.__setitem__)
    setup.trainer.monitor = setup.method.monitor(known)
    fit = setup.trainer.fit()
    lines = list(csv.DictReader(io.StringIO(written["discovered.csv"])))
    assert len(lines) == 32
    for line in lines:
        row = int(line["sample_index"])
        assert line["path"] == few.dataset.sample_ids[row]
        assert line["truth"] == str(few.dataset.labels[row])
    wrong = [line["label"] != line["truth"] for line in lines]
    assert fit.metrics["discovered_error"] == pytest.approx(np.mean(wrong))
    assert fit.metrics["label_error"] == pytest.approx(np.sum(wrong) / 52)
    assert fit.metrics["newest_error"] == pytest.approx(np.mean(wrong[20:]))
