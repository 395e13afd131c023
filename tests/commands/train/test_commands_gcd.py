"""``train gcd``: what it prints at its end, and what it says before images are read."""

import shutil
from pathlib import Path
from typing import Any

import pytest

FEW = ("--dataset", "digits", "--max-per-class", "12")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ss-kmeans", ("--seed", "3", "--old-classes", "1,4-7")),
        ("k-means", ("--label-split", "none", "--supervised-weight", "0")),
    ],
)
def test_the_printed_accuracy_is_that_of_the_named_command_on_the_embedded_rows(
    labelkit: Any, tmp_path: Path, algorithm: str, options: tuple[str, ...]
) -> None:
    short = ("--epochs", "1", "--batch-size", "32", "--device", "cpu", "--out", tmp_path / "run")
    trained = labelkit("train", "gcd", *FEW, *options, *short)
    assert trained.code == 0, trained.err
    named = trained.out.partition("`labelkit ")[2].partition("`")[0].split()
    assert named[:4] == ["cluster", algorithm, "--num-clusters", "10"]
    index = tmp_path / "x.h5"
    assert labelkit("embed", "--checkpoint", tmp_path / "run", *FEW, "--device", "cpu", "--out", index).code == 0

    grouped = labelkit(*named, "--index", index)

    assert grouped.code == 0, grouped.err
    (score,) = labelkit("evaluate", "clustering", "--index", index, "--json").json["scores"]
    shown = f"{100 * score['all_accuracy']:.1f}"
    assert f" {shown} " in next(line for line in trained.out.splitlines() if line.startswith("gcd "))
    again = labelkit("train", "gcd", *FEW, *options, *short[:-1], tmp_path / "again", "--json")
    metrics = again.json["metrics"]
    assert metrics["all_accuracy"] == pytest.approx(score["all_accuracy"], abs=1e-9)
    if algorithm == "ss-kmeans":
        found = metrics["old_accuracy"], metrics["new_accuracy"]
        assert found == pytest.approx((score["old_accuracy"], score["new_accuracy"]), abs=1e-9)


@pytest.mark.parametrize("dry_run", [(), ("--dry-run",)])
def test_old_classes_without_a_label_are_named_before_images_are_read(
    labelkit: Any, photos: Path, tmp_path: Path, dry_run: tuple[str, ...]
) -> None:
    broken = Path(shutil.copytree(photos, tmp_path / "photos"))
    for path in broken.rglob("*.png"):
        path.write_bytes(path.read_bytes()[:40])
    words = ("--old-classes", "ant,bee,cat", "--label-ratio", "0.03", "--device", "cpu", "--out", tmp_path / "run")

    answer = labelkit("train", "gcd", "--dataset", broken, "--preset", "digits", *words, *dry_run)

    assert answer.code == 3
    warned, _, refused = " ".join(answer.err.split()).partition("error: ")
    assert "warning: 2 of 3 old classes have no labeled image: " in warned
    assert "read" in refused
