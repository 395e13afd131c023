"""What a dry run says of training, by measured cases."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.stages.train import verdict
from labelkit.stages.train.verdict import MeasuredGain, heads_verdict, measured_gains, training_verdict
from tests.stages.conftest import Labelkit

ROOT = Path(__file__).parents[3]


class Options:
    """A configuration with these options."""

    def __init__(self, **options: object) -> None:
        vars(self).update(options)


def gain(points: float, *, share: float = 1.0, labels: float = 5, method: str = "simgcd", kind: Any = "rows") -> Any:
    about = {"data": "photos", "row": "row", "score": "accuracy", "source": "file.json"}
    return MeasuredGain(
        kind=kind, method=method, share=share, labels_per_class=labels, before=0.5, after=0.5 + points / 100,
        spread=0.01, **about,
    )  # fmt: skip


def advice(
    monkeypatch: pytest.MonkeyPatch, cases: list[Any], per_class: int = 5, classes: int = 10, **more: Any
) -> Any:
    monkeypatch.setattr(verdict, "measured_gains", lambda: cases)
    options: Any = Options(**({"index": "photos.h5"} | more))
    return training_verdict("simgcd", options, np.repeat(np.arange(10), per_class), classes)


def test_heads_on_views_are_advised_by_cases_of_views(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [gain(-3), gain(-2), gain(4, kind="rows with views")]
    monkeypatch.setattr(verdict, "measured_gains", lambda: cases)
    options, labels = Options(index="photos.h5"), np.repeat(np.arange(10), 5)
    found = [training_verdict("simgcd", options, labels, 10, num_row_views=views) for views in (0, 4)]  # type: ignore[arg-type]
    assert [(one.kind, one.advice, len(one.cases)) for one in found] == [
        ("rows", "stop here", 2),
        ("rows with views", "may help", 1),
    ]
    # start embeds without views
    assert heads_verdict(labels, 10).advice == "stop here"


def test_names_are_not_advised_by_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = [replace(gain(5), score="Recall@1 among other classes")]
    monkeypatch.setattr(verdict, "measured_gains", lambda: [gain(-3), *searches])
    assert heads_verdict(np.repeat(np.arange(10), 5), 10).advice == "stop here"
    monkeypatch.setattr(verdict, "measured_gains", lambda: searches)
    assert heads_verdict(np.repeat(np.arange(10), 5), 10).advice == "not measured"


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ((-3, -1, 0.5, 5), "stop here"),  # one of four gained, and the median lost
        ((3, 2, 5), "may help"),
        ((-3, 2, 5), "may help"),
        ((-3, -3, 2, 5), "try it"),
        ((0.5, 0.8, 0.9), "try it"),  # none beyond its spread, and none lost
        ((), "not measured"),
    ],
)
def test_advice_follows_how_many_cases_gained(
    monkeypatch: pytest.MonkeyPatch, points: tuple[float, ...], expected: str
) -> None:
    assert advice(monkeypatch, [gain(value) for value in points]).advice == expected


def test_of_heads_the_cases_of_all_methods_count_by_their_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [
        gain(9, method="gcd"),
        gain(9, method="softmax"),
        gain(-9, method="softmax", labels=50),  # too many labels
        gain(-9, method="simgcd", share=0.5),  # of half of the classes
        gain(-9, method="sela", share=0.0, labels=0),
        gain(-9, method="softmax", kind="last stages"),
    ]
    monkeypatch.setattr(verdict, "measured_gains", lambda: cases)

    found = heads_verdict(np.repeat(np.arange(10), 5), 10)

    assert (found.advice, found.to_json()["cases"]) == ("may help", 2)
    assert heads_verdict(np.repeat(np.arange(5), 5), 10).to_json()["cases"] == 1


def test_cases_like_yours_count_and_others_only_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many, half = gain(5, labels=2), gain(-5, labels=50), gain(1, share=0.5)
    other = gain(9, method="gcd")
    network = gain(7, kind="last stages")
    cases = [few, many, half, other, network]
    assert advice(monkeypatch, cases, per_class=3).cases == (few,)
    assert advice(monkeypatch, cases, per_class=40).cases == (many,)
    assert advice(monkeypatch, cases, per_class=3, classes=20).cases == (half,)
    # none has a thousand labels: all of the method, the nearest first
    assert advice(monkeypatch, cases, per_class=1000).cases[0] == many
    assert advice(monkeypatch, cases, index=None, pretrained=True, freeze_stages=3).cases == (network,)
    assert advice(monkeypatch, cases, index=None, pretrained=True).advice == "not measured"
    # a training without labels has cases without labels, and none of the others
    without = gain(2, share=0.0, labels=0)
    assert advice(monkeypatch, [few, without], mode="unsupervised").cases == (without,)
    assert advice(monkeypatch, [few, without]).cases == (few,)
    assert advice(monkeypatch, cases, index=None, pretrained=False).kind is None


def test_the_words_name_counts_and_data(monkeypatch: pytest.MonkeyPatch) -> None:
    found = advice(monkeypatch, [gain(-3), gain(-1), gain(2)])
    assert found.describe() == (
        "stop here: 1 of 3 measured cases of this method gained more than their spread, median -1.0 points (photos)"
    )
    assert found.to_json() == {
        "advice": "stop here", "trained": "rows", "cases": 3, "gained": 1, "median_gain": -1.0,
        "measured_on": ["photos"],
    }  # fmt: skip


def test_the_cases_are_those_of_the_results_of_the_repository(tmp_path: Path) -> None:
    file = ROOT / "labelkit" / "stages" / "train" / "measured_gains.json"
    copy = tmp_path / "labelkit" / "stages" / "train"
    copy.mkdir(parents=True)
    (tmp_path / "examples").mkdir()
    (tmp_path / "examples" / "results").symlink_to(ROOT / "examples" / "results")
    script = tmp_path / "examples" / "measured_gains.py"
    script.write_text((ROOT / "examples" / "measured_gains.py").read_text())
    subprocess.run([sys.executable, str(script)], check=True, capture_output=True)
    assert (copy / file.name).read_text() == file.read_text()
    assert {case.kind for case in measured_gains()} >= {"rows"}
    assert all(0 <= case.before <= 1 and 0 <= case.after <= 1 and case.spread >= 0 for case in measured_gains())


def test_the_advice_is_checked_on_images_that_it_does_not_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The committed count of right advice is that of the cases that are committed."""
    out = tmp_path / "cases.json"
    monkeypatch.setattr("sys.argv", ["examples/verdict_cases.py", "--out", str(out)])
    with pytest.raises(SystemExit) as done:
        runpy.run_path(str(ROOT / "examples" / "verdict_cases.py"), run_name="__main__")
    assert done.value.code == 0
    found = json.loads(out.read_text())
    assert found["rows"] == json.loads((ROOT / "examples" / "results" / "verdict_cases.json").read_text())["rows"]
    alone = [row for row in found["cases"] if row["method"] == "flipclass"]
    assert not alone  # measured on one set of images
    for row in found["rows"]:
        cases = [one for one in found["cases"] if (one["by"], one["advice"]) == (row["by"], row["advice"])]
        assert (row["cases"], row["gained"]) == (len(cases), sum(one["gained"] for one in cases))
        assert row["smallest"] == min(one["gain"] for one in cases)
    assert "stop here: " in capsys.readouterr().out


def test_a_dry_run_gives_the_verdict(labelkit: Labelkit, tmp_path: Path) -> None:
    store = tmp_path / "digits.h5"
    words = ("--dataset", "digits", "--backbone", "pixels", "--image-size", 8, "--max-per-class", 20)
    assert labelkit("embed", *words, "--label-split", "given", "--out", store).code == 0
    answer = labelkit("train", "softmax", "--index", store, "--label-split", "given", "--dry-run", "--json")
    assert answer.code == 0, answer.err
    found = answer.json["verdict"]
    assert found["trained"] == "rows"
    assert found["advice"] in ("stop here", "try it", "may help")
    assert 0 <= found["gained"] <= found["cases"]
    assert "will training help?" in labelkit("train", "softmax", "--index", store, "--dry-run").out
    json.dumps(found)
