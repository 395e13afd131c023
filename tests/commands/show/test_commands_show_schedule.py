"""``labelkit show schedule``: values of the specifications by hand, what a real run logs, files and faults."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import pytest
from labelkit.commands.show.schedule import planned_curves
from labelkit.methods.registry import METHODS
from labelkit.options.presets import resolve
from labelkit.training.timing import RunSize
from PIL import Image


def schedule(labelkit: Any, *options: str | Path) -> Any:
    """What ``--json`` prints."""
    answer = labelkit("show", "schedule", *options, "--json")
    assert answer.code == 0, answer.err
    return answer.json


def curves(found: Any) -> dict[str, dict[int, float]]:
    """Values by name and step, at all steps that are shown."""
    return {curve["name"]: dict(zip(found["shown_steps"], curve["values"], strict=True)) for curve in found["curves"]}


def at_step(method: str, preset: str, size: RunSize, step: int, **options: Any) -> dict[str, float]:
    """Values of a preset before an update, counted from 0."""
    config = resolve(METHODS[method].config, preset=preset, overrides=options).config
    return planned_curves(method, config, size).at(step)


# ------------------------------------------------------------------ against the texts


@pytest.mark.parametrize(
    ("step", "rate", "weight", "decay", "beta"),
    [
        # ramps of 40,005 of 150,000 steps and of the last 25,005; the average is one of all steps at first
        (0, math.exp(-5), math.exp(-5), 0.5, 0.9),
        (9, math.exp(-5 * (1 - 9 / 40_005) ** 2), math.exp(-5 * (1 - 9 / 40_005) ** 2), 1 - 1 / 11, 0.9),
        (20_000, math.exp(-5 * (1 - 20_000 / 40_005) ** 2), math.exp(-5 * (1 - 20_000 / 40_005) ** 2), 0.99, 0.9),
        (100_000, 1, 1, 0.999, 0.9),
        (149_999, math.exp(-12.5), 1, 0.999, 0.5 + 0.4 * math.exp(-12.5)),
    ],
)
def test_mean_teacher_ramps_up_and_down(step: int, rate: float, weight: float, decay: float, beta: float) -> None:
    found = at_step("mean-teacher", "cifar10", RunSize(50_000, 250), step)
    assert found["lr"] == pytest.approx(3e-3 * rate, rel=2e-3)
    assert found["consistency_weight"] == pytest.approx(100 * weight, rel=2e-3)
    assert found["ema_decay"] == pytest.approx(decay)
    assert found["adam_beta1"] == pytest.approx(beta, abs=1e-6)


@pytest.mark.parametrize(
    ("step", "rate", "decay", "ema"),
    [
        (25_000, 2.575305e-5, 0.055632, 0.999744),
        (50_000, 1.55e-5, 0.132, 0.99985),
        (75_000, 5.246952e-6, 0.208368, 0.999956),
    ],
)
def test_cotap_has_the_values_of_its_specification(step: int, rate: float, decay: float, ema: float) -> None:
    options = {"steps": 100_000, "lr": 3e-5, "lr_final": 1e-6, "lr_warmup_steps": 0}
    options |= {"weight_decay": 0.024, "weight_decay_final": 0.24, "ema_start": 0.9997, "ema_end": 1.0}
    found = at_step("cotap", "digits", RunSize(None), step, **options)
    assert found == {
        "lr/backbone": pytest.approx(rate, rel=1e-6),
        "lr/head": pytest.approx(rate, rel=1e-6),
        "weight_decay": pytest.approx(decay, abs=1e-6),
        "ema_decay": pytest.approx(ema, abs=1e-6),
    }


def test_labels_of_snowball_double_up_to_their_limit(labelkit: Any) -> None:
    found = schedule(
        labelkit, "snowball", "--preset", "cifar10_cpu", "--images", "50000", "--cap", "10", "--generations", "2",
        "--max-steps", "9000",
    )  # fmt: skip
    labels = [int(phase["name"].removesuffix(" labels").replace(",", "")) for phase in found["phases"]]
    assert labels == [250, 500, 1000, 2000, 2500, 500, 1000, 2000, 2500]
    starts = [phase["first_step"] for phase in found["phases"]]
    shown = curves(found)
    assert [shown["labels"][start] for start in starts] == labels
    # a master is formed after the first discovery; networks are new in the first phase
    first = [True] + 8 * [False]
    assert [shown["master_decay"][start] is None for start in starts] == first
    assert [shown["ema_decay"][start] == 0.5 for start in starts] == first
    full = max(shown["consistency_weight"].values())
    assert [shown["consistency_weight"][start] < 0.01 * full for start in starts] == first


def test_labels_of_lmcs_come_one_phase_late(labelkit: Any) -> None:
    found = schedule(
        labelkit, "lmcs", "--preset", "cifar10", "--images", "50000", "--num-labels", "100", "--steps", "10",
        "--eval-every-steps", "1", "--first-blocks", "2", "--generation-blocks", "1", "--growth-factor", "2",
        "--growth-limit", "4",
    )  # fmt: skip
    # 200, then 400 are found; the student learns each a phase later
    assert [(phase["name"], phase["steps"]) for phase in found["phases"]] == [
        ("100 labels", 2), ("100 labels", 1), ("200 labels", 1), ("400 labels", 6),
    ]  # fmt: skip


def test_san_warms_its_backbone_and_lets_terms_grow_in() -> None:
    # 100 steps of 8 images in each of 10 epochs
    options = {"epochs": 10, "batch_size": 8, "images_per_class": 2, "warm_epochs": 2, "lr_schedule": "constant"}
    options |= {"lr": 0.01, "new_lr_scale": 10, "san_lr_scale": 3, "term_ramp": (0.1, 0.5)}
    options |= {"memory": "momentum"}
    rows = [at_step("san", "digits", RunSize(900, 793), step, **options) for step in (0, 199, 200, 300, 500, 999)]
    assert [row["lr/backbone"] for row in rows] == pytest.approx([0, 0, 0.01, 0.01, 0.01, 0.01])
    assert [row["lr/new_layers"] for row in rows] == pytest.approx([0.1] * 6)
    assert [row["lr/predictor"] for row in rows] == pytest.approx([0.03] * 6)
    assert [row["term_strength"] for row in rows] == pytest.approx([0, 0.2475, 0.25, 0.5, 1, 1])
    assert [row["memory_weight"] for row in rows] == [0, 1, 1, 1, 1, 1]
    assert {row["ema_decay"] for row in rows} == {0.999}


# ------------------------------------------------------------------ files and faults


def test_curves_are_drawn_and_written(labelkit: Any, tmp_path: Path) -> None:
    picture, table = tmp_path / "c.png", tmp_path / "c.csv"
    words = ("show", "schedule", "gcd", "--preset", "cub")
    assert labelkit(*words, "--out", picture, "-q").out.strip() == str(picture)
    with Image.open(picture) as drawn:
        assert drawn.size[0] > 100
    assert labelkit(*words, "--out", table).code == 0
    rows = list(csv.reader(table.read_text().splitlines()))
    assert rows[0] == ["step", "epoch", "lr"]
    assert (rows[1][0], rows[-1][0]) == ("1", "9200")
    assert labelkit(*words, "--out", table).code == 2  # it is there
    assert labelkit(*words, "--out", table, "--overwrite").code == 0
    assert labelkit(*words, "--out", picture.rename(tmp_path / "x.csv"), "--overwrite").code == 2  # is a picture


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("simgcd", "--preset", "cub", "--images", "100"), "exceed the 100 images of an epoch"),
        (("simgcd", "--preset", "cub", "--set", "resume=true"), "--resume has no effect"),
        (("simgcd", "--preset", "cub", "--out", "curves.pdf"), "must end in .png or .csv"),
        (("simgcd", "--dataset", "nowhere/", "--set", "backbone=vit_nano_p8_32"), "--images"),
        (("san", "--preset", "cub"), "--images"),
        (("snowball", "--dataset", "nowhere/", "--images", "500"), "--num-labels"),
    ],
)
def test_what_cannot_be_shown_is_refused(labelkit: Any, words: tuple[str, ...], message: str) -> None:
    answer = labelkit("show", "schedule", *words)
    assert (answer.code, answer.out) == (2, "")
    assert message in " ".join(answer.err.split())
