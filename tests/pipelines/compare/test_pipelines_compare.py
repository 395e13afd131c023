"""``labelkit compare``: lengths that fit a budget, labels of each kind, rows for what failed, going on."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from labelkit.commands.common.training_data import prepare_data
from labelkit.errors import ConfigError
from labelkit.methods.registry import METHODS
from labelkit.options.training import StepRunConfig
from labelkit.pipelines.compare import runs
from labelkit.pipelines.compare.compare import MethodRow, _open_runs_folder, format_training_length
from labelkit.pipelines.compare.options import CompareConfig
from labelkit.pipelines.compare.runs import DatasetInfo, FailedRunError, method_config, run_process
from tests.short_runs import EACH_METHOD

DIGITS = DatasetInfo(num_classes=10, test_split="test", holdout=0.25)
KINDS = {
    "cotap": ("none", "nothing"),
    "dl2pa": ("all", "names"),
    "flipclass": ("some", "groups"),
    "freematch": ("few", "names"),
    "gcd": ("some", "nothing"),
    "lmcs": ("few", "names"),
    "mean-teacher": ("few", "names"),
    "mixmatch": ("few", "names"),
    "san": ("all", "nothing"),
    "sela": ("none", "nothing"),
    "siamese": ("none", "nothing"),
    "simgcd": ("some", "groups"),
    "snowball": ("few", "names"),
    "softmax": ("all", "names"),
    "supervised": ("few", "names"),
    "tac-ccl": ("none", "nothing"),
}


def test_a_method_gets_the_labels_of_its_kind() -> None:
    for name, (kind, output) in KINDS.items():
        config = method_config(name, CompareConfig(labels_per_class=3), DIGITS, seed=2)

        assert (config.label_kind, config.own_output) == (kind, output), name
        assert (config.holdout, config.seed, config.threads) == (0.25, 2, 1)
        # three of each of ten classes
        assert (config.num_labels, config.label_seed) == ((30, 2) if kind == "few" else (None, None)), name


@pytest.mark.parametrize("name", [name for name, (kind, _) in KINDS.items() if kind == "some"])
def test_discovery_methods_get_the_labels_of_the_old_classes_that_are_named(name: str, photos: Path) -> None:
    options = CompareConfig(dataset=str(photos), old_classes=("dog", "b*"))

    split = prepare_data(method_config(name, options, DatasetInfo(4, "test", 0.25), seed=0)).split

    # bee and dog are 1 and 3 of ant, bee, cat, dog; 9 of the 12 images of each are trained on, half with a label
    assert (split.kind, split.old_classes, int(split.labeled.sum())) == ("gcd", (1, 3), 9)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--old-classes", "1,whale"), "--old-classes: there is no class 'whale' among the 10"),
    ],
)
def test_old_classes_that_cannot_be_are_refused_before_the_work(
    labelkit: Callable[..., Any], tmp_path: Path, words: tuple[str, ...], problem: str
) -> None:
    answer = labelkit("compare", "--methods", "gcd", *words, "--keep", tmp_path / "kept")

    assert answer.code == 2
    assert problem in " ".join(answer.err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fraction", [0.5, 0.01])
@pytest.mark.parametrize("name", EACH_METHOD)
def test_a_shortened_run_is_one_that_the_method_accepts(name: str, fraction: float) -> None:
    whole = method_config(name, CompareConfig(), DIGITS, seed=0)

    short = method_config(name, CompareConfig(), DIGITS, seed=0, fraction=fraction)

    for key, value in whole.length_options().items():
        assert short.length_options()[key] <= max(1, value * fraction) or name == "lmcs"
        assert short.length_options()[key] >= 1


def test_a_run_in_steps_keeps_its_number_of_evaluations() -> None:
    whole = METHODS["lmcs"].config(steps=400, eval_every_steps=20, num_labels=20)
    assert isinstance(whole, StepRunConfig)

    short = whole.shortened_options(0.33)

    # twenty blocks of six steps: a third of twenty, rounded down
    assert (short["eval_every_steps"], short["steps"]) == (6, 120)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400)])
def test_a_budget_is_a_number_with_a_unit(text: str, seconds: float) -> None:
    assert CompareConfig(budget=text).budget_seconds == seconds


@pytest.mark.parametrize(
    "words", [("--budget", "10"), ("--budget", "0s"), ("--budget", "-1m"), ("--methods", "simgdc")]
)
def test_options_that_cannot_be_used_exit_with_2(labelkit: Callable[..., Any], words: tuple[str, ...]) -> None:
    assert labelkit("compare", *words).code == 2


def test_an_output_that_cannot_be_is_refused_before_the_work(labelkit: Callable[..., Any], tmp_path: Path) -> None:
    for out in (tmp_path / "out.json", tmp_path / "absent" / "out.json"):  # which is there, or has no folder
        (tmp_path / "out.json").write_text("{}")
        assert labelkit("compare", "--methods", "gcd", "--out", out).code == 2
    (tmp_path / "out.json").rename(tmp_path / "mine.txt")

    answer = labelkit("compare", "--methods", "gcd", "--keep", tmp_path)

    assert answer.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_finished_runs_are_not_compared_with_those_on_changed_data(tmp_path: Path) -> None:
    config = CompareConfig(methods=("gcd",), keep=tmp_path / "kept")
    for _ in range(2):
        with _open_runs_folder(config, "digest of the data"):
            pass

    with pytest.raises(ConfigError, match="labels or splits of digits have changed"):
        _open_runs_folder(config, "another").__enter__()


def test_images_without_a_label_cannot_judge(labelkit: Callable[..., Any], photos: Path, tmp_path: Path) -> None:
    table = tmp_path / "some.csv"
    names = [path.relative_to(photos.parent) for path in sorted(photos.rglob("*.png"))]
    table.write_text(
        "path,label\n" + "".join(f"{photos.parent / name},{'a' if i % 2 else ''}\n" for i, name in enumerate(names))
    )

    answer = labelkit("compare", "--methods", "gcd", "--dataset", table)

    assert answer.code == 3
    assert "are unlabeled" in answer.err


def test_a_process_tells_what_it_took_and_how_it_ended(tmp_path: Path) -> None:
    program = "import sys, time; x = bytearray(100 << 20); time.sleep(1); sys.stderr.write('error: bad'); sys.exit(4)"
    # a process begins as a copy of the one that starts it, whose memory is not its own
    ballast = bytearray(b"1" * (400 << 20))

    peak_memory, code = run_process(
        [sys.executable, "-c", program],
        tmp_path / "said",
        time_limit=60,
        environment=dict(os.environ),
    )

    assert code == 4
    assert (tmp_path / "said").read_text() == "error: bad"
    assert 100 < peak_memory < (len(ballast) >> 20 if sys.platform == "linux" else 1e9)


def test_a_process_ends_when_its_time_is_over_or_the_comparison_is_whatever_it_does(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(runs, "_END_SECONDS", 1)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    forever = [sys.executable, "-c", deaf]
    started = time.monotonic()

    with pytest.raises(FailedRunError, match="did not finish within 1 s"):
        run_process(forever, tmp_path / "said", time_limit=1, environment=dict(os.environ))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 1)
    with pytest.raises(KeyboardInterrupt):
        run_process(forever, tmp_path / "said", time_limit=600, environment=dict(os.environ))
    signal.signal(signal.SIGALRM, before)

    assert time.monotonic() - started < 60


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_comparison_keeps_what_is_finished_and_shows_what_failed(
    labelkit: Callable[..., Any], tmp_path: Path
) -> None:
    # twelve images of each digit in each split: too few for a batch of softmax
    words = ("compare", "--methods", "supervised,softmax", "--max-per-class", "12", "--budget", "3s")
    keep = ("--keep", tmp_path / "kept")

    first = labelkit(*words, *keep, "--seeds", "1", "--out", tmp_path / "out.json", "--json")

    assert first.code == 0, first.err
    rows = {row["method"]: row for row in first.json["rows"]}
    assert list(rows) == [
        "pixels", "wrn10_1, before training", "convnet_demo, before training", "supervised", "softmax",
    ]  # fmt: skip
    assert first.json["images"] == {"train": 1347, "test": 450}
    assert "--batch-size" in rows["softmax"]["failures"]["0"]
    assert not rows["softmax"]["runs"]
    (run,) = rows["supervised"]["runs"]
    assert run["labels"] == 40
    assert run["length"]["steps"] <= 400
    assert all(0 <= run["scores"][name] <= 1 for name in ("knn_accuracy", "recall_at_1", "own_accuracy"))
    # pixels of digits name most digits
    assert rows["pixels"]["scores"]["knn_accuracy"]["mean"] > 0.8

    started = time.monotonic()
    again = labelkit(*words, *keep, "--seeds", "1")
    assert again.code == 0
    assert f"{run['length']['steps']} steps" in again.out
    assert time.monotonic() - started < 60
    other = labelkit(*words, *keep, "--seeds", "1", "--set", "neighbors=5")
    assert other.code == 2
    assert "--neighbors 10 (now 5)" in other.err


def test_steps_are_named_before_later_steps_also_after_a_stop() -> None:
    read_again = json.loads(json.dumps({"steps": 200, "later_steps": 1}, sort_keys=True))
    run = {"length": read_again, "share_of_preset": 0.5, "over_budget": True}

    assert format_training_length(MethodRow("snowball", runs=[run])) == "200 steps, 1 later step (50.0%), over budget"
