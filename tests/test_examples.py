"""What README, docs, presets and help show is what works: examples run, and every command line shown is one."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.cli.config_classes import CONFIG_CLASSES
from labelkit.cli.main import COMMANDS, EXIT_CODES, main
from labelkit.commands.table import Command, all_commands
from labelkit.methods.registry import METHODS
from PIL import Image
from tests.pages import PAGES, README, ROOT, code_blocks, command_lines
from tests.textures import photo

# What ``labelkit config`` resolves without running it; for the others only the options are looked at.
STAGES = {config.command[0] for config in CONFIG_CLASSES}


def shown() -> dict[str, list[str]]:
    """Every command line of the pages, by the place that shows it; those of presets: test_config_shipped_presets."""
    # Pages repeat each other's lines; one look at each is enough.
    found = {}
    for page, text in PAGES.items():
        for line in command_lines(page):
            if line[0] == "labelkit" and line[1:] not in found.values():
                found[f"{page}: {shlex.join(line)}"] = line[1:]
        for words in re.findall(r"`(labelkit [^`\n]+)`", text):
            # METHOD, NAME, FILE and ... stand for something
            line = shlex.split(words)[1:]
            if not re.search(r"\.\.\.|\|| [A-Z]+\b", words) and line not in found.values():
                found[f"{page}: {words}"] = line
    return found


SHOWN = shown()


def test_the_pages_show_every_stage() -> None:
    assert STAGES <= {line[0] for place, line in SHOWN.items() if not place.startswith("presets/")}


def test_the_readme_is_short() -> None:
    assert len(PAGES[README].splitlines()) <= 200


def test_links_of_the_readme_lead_to_files_and_headings() -> None:
    links = re.findall(r"\]\(([^)#]*)(?:#([^)]*))?\)", PAGES[README])
    assert len(links) > 20

    for path, heading in links:
        assert (ROOT / path).is_file(), path
        headings = re.findall(r"^#+ (.*)$", (ROOT / path).read_text(), flags=re.MULTILINE) if heading else []
        slugs = [re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-") for text in headings]
        assert not heading or heading in slugs, (path, heading)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(line, id=place, marks=() if place.startswith(README) else pytest.mark.slow)
        for place, line in SHOWN.items()
    ],
)
def test_a_shown_command_line_is_one(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    if line[0] in STAGES and line[:2] != ["show", "schedule"]:
        code = main(["config", *line])
    else:
        code = main([*line, "--help"])

    assert code == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("command", [config.command for config in CONFIG_CLASSES], ids=" ".join)
def test_the_example_in_the_help_of_a_command_is_a_command_line(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    example = re.search(r"Example: labelkit (.*)", " ".join(all_commands()[command].help.split()))

    assert example is not None
    assert tuple(shlex.split(example[1]))[: len(command)] == command
    assert main(["config", *shlex.split(example[1])]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "name", [name for name, entry in COMMANDS.items() if not isinstance(entry, Command) and entry.example]
)
def test_the_example_of_a_group_is_a_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = shlex.split(COMMANDS[name].example)[1:]

    assert line[0] == name
    assert main(["config", *line] if name in STAGES else [*line, "--help"]) == 0, capsys.readouterr().err


def test_a_guide_explains_every_exit_code() -> None:
    text = PAGES["docs/guides/scripts.md"]
    table = text[text.index("| Exit code |") :].split("\n\n")[0]
    numbers = {int(number) for row in table.splitlines()[2:] for number in re.findall(r"\d+", row.split("|")[1])}

    assert numbers == set(EXIT_CODES)


def test_the_table_of_methods_in_a_guide_names_methods_that_are_there_in_order() -> None:
    text = PAGES["docs/guides/compare.md"]
    table = text[text.index("| Method |") :].split("\n\n")[0]
    named = re.findall(r"^\| `([a-z0-9-]+)`", table, flags=re.MULTILINE)

    assert len(named) >= 15
    assert named == [name for name in METHODS if name in named]


@pytest.mark.slow
def test_the_python_of_a_guide_reads_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "cache"))
    assert main(["embed", "--backbone", "pixels", "--image-size", "8", "--out", "digits.h5", "-q"]) == 0
    block, door, network = code_blocks("docs/guides/exchange.md", "python")
    names: dict[str, Any] = {}
    run = ["--max-per-class", "4", "--epochs", "1", "--batch-size", "8", "--backbone", "smallcnn", "--image-size", "32"]
    assert main(["train", "softmax", "--dataset", "digits", *run, "--out", "runs/flipclass", "-q"]) == 0
    for name in ("a.jpg", "b.jpg"):
        Image.new("L", (40, 30), 90).save(name)

    exec(block, names)
    exec(door, names)
    stored = names["rows"].paths[0]
    exec(network, names)

    assert names["embeddings"].shape == (1797, 64)
    assert names["paths"][0] == "digits/0000.png"
    assert names["labels"][:3].tolist() == [0, 1, 2]
    names["f"].close()
    assert names["groups"].values["num_clusters"] == 10
    assert stored == Path("rows.h5")
    assert names["rows"].shape == (2, names["network"].dim)
    assert any(parameter.grad is not None for parameter in names["network"].parameters())


@pytest.mark.slow
def test_the_python_of_a_guide_reads_patches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "cache"))
    network = ["--backbone", "vit_mini_p4_32", "--random-weights", "--image-size", "64", "--max-images", "3", "--dense"]
    assert main(["embed", "--dataset", "scenes", "--split", "val", *network, "--out", "scenes.h5", "-q"]) == 0
    capsys.readouterr()
    (block,) = code_blocks("docs/guides/dense-features.md", "python")
    names: dict[str, Any] = {}

    exec(block, names)

    assert names["first"].features.shape == (256, 192)
    assert names["first"].grid == (16, 16)
    assert capsys.readouterr().out.strip().endswith("0 2")


@pytest.mark.slow
def test_images_of_new_classes_are_looked_for_in_all_ways(tmp_path: Path) -> None:
    store = tmp_path / "digits.h5"
    assert main(["embed", "--backbone", "pixels", "--image-size", "8", "--out", str(store), "-q"]) == 0
    options = ["--index", "digits.h5", "--labels", "5", "--seeds", "1", "--out", "cases.json"]

    done = run_example(tmp_path, "novel_cases.py", *options)

    assert done.returncode == 0, done.stderr
    half, later = json.loads((tmp_path / "cases.json").read_text())["cases"]
    assert (half["kind"], later["kind"]) == ("half of the classes", "later images")
    assert half["mean"]["find novel, AUROC"] > half["mean"]["logistic regression, AUROC"]
    assert later["mean"]["images"] < half["mean"]["images"] / 4
    assert later["mean"]["find novel, previous, AUROC"] > later["mean"]["logistic regression, AUROC"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tour_of_the_digits_runs_and_leaves_what_it_names(tmp_path: Path) -> None:
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "LABELKIT_CACHE": str(tmp_path / "cache"),
        "EPOCHS": "1",
    }
    script = ["bash", str(ROOT / "examples" / "discover_digits.sh"), "made"]

    first = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    again = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr

    made = first.stdout.splitlines()[-1].removeprefix("made: ").split()
    assert made == ["made/flipclass-digits", "made/digits.h5", "made/scores.json", "made/sheet.png"]
    assert all((tmp_path / path).exists() for path in made)
    scores = json.loads((tmp_path / "made" / "scores.json").read_text())["scores"]
    assert [score["result"] for score in scores] == ["categories", "head", "ss-kmeans"]
    assert [score["rows"] for score in scores] == [1347] * 3  # 1,797 digits less 450 labels
    with Image.open(tmp_path / "made" / "sheet.png") as sheet:
        assert sheet.size == (8 + 11 * 120, 8 + 150)
    assert re.search(r"estimated number of classes: \d+", first.stdout)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_tour_in_python_runs_twice_and_leaves_what_it_names(tmp_path: Path) -> None:
    first = run_example(tmp_path, "tour.py")
    assert first.returncode == 0, first.stderr
    again = run_example(tmp_path, "tour.py")
    assert again.returncode == 0, again.stderr

    assert {path.name for path in (tmp_path / "tour").iterdir()} >= {
        "run", "learned.h5", "digits.h5", "hits.png", "next.csv", "report.html"
    }  # fmt: skip
    assert re.search(r"estimated number of classes: \d+", first.stdout)
    assert "(1797, 64)" in first.stdout
    assert first.stdout.splitlines()[-1].startswith("num_clusters: must be >= 1")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_comparison_prints_and_keeps_its_table(tmp_path: Path) -> None:
    environment = os.environ | {"LABELKIT_CACHE": str(tmp_path / "cache")}
    script = [sys.executable, str(ROOT / "examples" / "compare_discovery.py"), "--seeds", "1", "--out", "table.json"]

    done = subprocess.run(
        [*script, "--", "--epochs", "1"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "table.json").read_text())["results"]
    assert {"k-means on pixels", "ss-kmeans on pixels", "simgcd", "flipclass, key space"} <= kept.keys()
    for name, row in kept.items():
        assert 0 <= row["all"]["mean"] <= 100, name
        assert f"| {name} | {row['all']['mean']:.1f} ± 0.0 " in done.stdout


@pytest.mark.slow
def test_discovery_from_a_few_labels_prints_and_keeps_its_tables(tmp_path: Path) -> None:
    environment = os.environ | {"LABELKIT_CACHE": str(tmp_path / "cache")}
    script = [sys.executable, str(ROOT / "examples" / "discover_few_labels.py"), "--seeds", "1", "--out", "table.json"]

    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    kept = json.loads((tmp_path / "table.json").read_text())
    assert {"snowball", "lmcs", "self-training"} <= kept["precision"].keys()
    for name, row in kept["precision"].items():
        assert f"| {name} | {row['20']['mean']:.1f} ± 0.0 " in done.stdout
    assert kept["error"]["20"]["snowball, min"]["error"]["mean"] < kept["error"]["20"]["no discovery"]["error"]["mean"]


@pytest.mark.slow
def test_planted_wrong_labels_are_looked_for_in_all_ways(tmp_path: Path) -> None:
    store = tmp_path / "digits.h5"
    assert (
        main(["embed", "--backbone", "pixels", "--image-size", "8", "--split", "all", "--out", str(store), "-q"]) == 0
    )
    options = ["--index", "digits.h5", "--labels", "10", "--seeds", "2", "--out", "cases.json"]

    done = run_example(tmp_path, "mislabeled_cases.py", *options)

    assert done.returncode == 0, done.stderr
    cases = json.loads((tmp_path / "cases.json").read_text())["cases"]
    assert [case["kind"] for case in cases] == ["at random", "confused"]
    for case in cases:
        assert (case["mean"]["labels"], case["mean"]["wrong"]) == (100, 5)
        assert case["mean"]["find mislabeled, precision"] > 0.5


@pytest.mark.slow
def test_planted_copies_and_odd_images_are_found(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for seed in range(60):
        photo(seed).save(photos / f"{seed:02d}.png")
    for name, words in (("duplicate", []), ("odd", ["--strangers", "photos", "--num-strangers", "1"])):
        options = ["--dataset", "photos", "--per-kind", "2", "--out", f"{name}.json", *words]
        done = run_example(tmp_path, f"{name}_cases.py", *options)
        assert done.returncode == 0, done.stderr
    copies = json.loads((tmp_path / "duplicate.json").read_text())
    assert [set(half["recall"].values()) for half in copies["halves"]] == [{1.0}, {1.0}]
    assert (copies["same_picture_pairs"], copies["planted_found"], copies["unplanted_pairs"]) == (16, 16, [])
    odd = json.loads((tmp_path / "odd.json").read_text())
    # the stranger is no stranger here
    assert {reason for reason, recall in odd["recall"].items() if recall == 1} == set(odd["planted"]) - {
        "unlike all others"
    }


@pytest.mark.slow
def test_rows_held_out_are_named_as_well_as_in_the_store(tmp_path: Path) -> None:
    options = ["--seeds", "1", "--shares", "1.0", "--held-out", "200", "--out", "cases.json"]

    done = run_example(tmp_path, "predict_cases.py", *options)

    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "cases.json").read_text())["rows"]
    assert row["predict"]["all"] > row["in the store"]["all"] - 0.03


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_check_of_a_gpu_goes_on_where_it_stopped(tmp_path: Path) -> None:
    def check(*words: object) -> dict[str, Any]:
        run_example(tmp_path, "gpu_check.py", "--stand-in", "--out", "check.json", *words)
        pieces: dict[str, Any] = json.loads((tmp_path / "check.json").read_text())["pieces"]
        return pieces

    assert len(check("--pieces", 2)) == 2
    pieces = check("--parts", "runs", "fast")
    assert {name: piece.get("error") for name, piece in pieces.items() if piece["state"] != "done"} == {}
    assert pieces["runs/softmax resumed"]["result"]["same"] is True
    assert set(pieces["runs/cluster and retrieve"]["result"]["same"].values()) == {True}
    assert pieces["fast/search"]["result"]["same"] is True
    assert {name.partition("/")[0] for name in pieces} == {"runs", "fast"}
    listed = run_example(tmp_path, "gpu_check.py", "--stand-in", "--out", "check.json", "--list")
    assert {line.split()[0] for line in listed.stdout.splitlines()} == {"done"}


def run_example(folder: Path, name: str, *words: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of examples/ in a folder, with its output there too."""
    names = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "LABELKIT_CACHE": str(folder / "cache"),
        "OUT": "made",
        **environment,
    }
    program = ["bash"] if name.endswith(".sh") else [sys.executable]
    command = [*program, str(ROOT / "examples" / name), *map(str, words)]
    return subprocess.run(command, cwd=folder, env=names, capture_output=True, text=True, check=False)


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """A folder of 24 pictures of each digit with lists of labels, as the scripts make it for themselves."""
    done = run_example(tmp_path, "digit_photos.py", "photos", "--per-class", "24")
    assert done.returncode == 0, done.stderr
    return tmp_path / "photos"


def made_by(done: subprocess.CompletedProcess[str], folder: Path) -> list[Path]:
    """What the last line of a script says it made, all of it there."""
    assert done.returncode == 0, done.stderr
    paths = [folder / word for word in done.stdout.splitlines()[-1].removeprefix("made: ").split()]
    assert paths
    assert all(path.exists() for path in paths)
    return paths


@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.sh")))
def test_a_shell_script_is_short_and_stops_at_the_first_error(name: str) -> None:
    lines = (ROOT / "examples" / name).read_text().splitlines()

    assert len(lines) < 40
    assert "set -euo pipefail" in lines


@pytest.mark.slow
def test_the_digits_for_the_scripts_have_the_labels_that_they_say(digits: Path) -> None:
    def labels(name: str) -> list[str]:
        with (digits / name).open(newline="") as file:
            return [row["label"] for row in csv.DictReader(file)]

    assert len(list(digits.rglob("*.png"))) == len(labels("discover.csv")) == 240
    assert sum(map(bool, labels("discover.csv"))) == 50
    assert {label for label in labels("discover.csv") if label} == {f"digit {number}" for number in range(5)}
    assert sum(map(bool, labels("few.csv"))) == 50
    assert len(set(labels("truth.csv"))) == 10


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_categories_of_photos_are_discovered_from_a_list(tmp_path: Path, digits: Path) -> None:
    done = run_example(tmp_path, "discover_photos.sh", digits / "discover.csv", TRAIN="--preset digits --epochs 2")

    answers = made_by(done, tmp_path)[-1]
    assert re.search(r"estimated number of categories: \d+", done.stdout)
    with answers.open(newline="") as file:
        # a line for each image without a label
        assert len(list(csv.DictReader(file))) == 240 - 50


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_photos_without_labels_are_grouped_and_found(tmp_path: Path, digits: Path) -> None:
    options = "--preset digits --holdout none --epochs 2 --lr-drop-epochs 1 --num-optimizations 2"
    done = run_example(tmp_path, "selflabel_and_retrieve.sh", digits, digits / "3" / "0001.png", TRAIN=options)

    *_, hits, sheet = made_by(done, tmp_path)
    with hits.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 8
    with Image.open(sheet) as picture:
        assert picture.format == "PNG"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_few_labels_give_every_photo_a_class(tmp_path: Path, digits: Path) -> None:
    pytest.importorskip("pandas")
    options = "--preset digits --num-labels none --holdout none --steps 20 --eval-every-steps 20 --batch-size 64"
    done = run_example(tmp_path, "few_labels_to_classifier.sh", digits / "few.csv", digits / "truth.csv", TRAIN=options)

    classes = made_by(done, tmp_path)[-1]
    with classes.open(newline="") as file:
        groups = [row["group"] for row in csv.DictReader(file)]
    assert len(groups) == 240
    assert set(groups) <= {f"digit {number}" for number in range(10)}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_patches_of_scenes_are_segmented_and_found(tmp_path: Path) -> None:
    options = "--preset scene_objects_stage1 --steps 2 --eval-every-steps 2 --lr-warmup-steps 1"
    done = run_example(tmp_path, "dense_to_segmentation.sh", TRAIN=options, LIMIT="8")

    _, _, head, groups, *pictures = made_by(done, tmp_path)
    assert 0 <= json.loads(head.read_text())["mean_iou"]["mean"] <= 1
    assert 0 <= json.loads(groups.read_text())["mean_iou"]["mean"] <= 1
    assert [path.name for path in pictures] == ["head.png", "parts.png"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_parts_of_masks_are_objects_to_find(tmp_path: Path) -> None:
    pytest.importorskip("pycocotools", reason="needs the extra coco")
    words = ("--backbone", "vit_micro_p8_64", "--weights", "random", "--image-size", "64", "--max-images", "4")
    words += (
        "--steps",
        "1",
        "--batch-size",
        "1",
        "--samples-per-image",
        "8",
        "--proposals",
        "8",
        "--out",
        "found.json",
    )
    done = run_example(tmp_path, "compare_detection.py", *words)

    record = json.loads((tmp_path / "found.json").read_text())
    assert f"{record['objects']['train']} objects to train on" in done.stdout
    assert [(row["weights"], row["tune"]) for row in record["rows"]] == [("random", True), ("random", False)]
    assert all(0 <= row["mask_ap50"] <= 100 for row in record["rows"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_learned_metric_becomes_an_index(tmp_path: Path, digits: Path) -> None:
    done = run_example(tmp_path, "metric_to_index.sh", digits, TRAIN="--preset digits --epochs 1")

    assert "R@1" in done.stdout
    hits = made_by(done, tmp_path)[2]
    with hits.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 8


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_gate_lets_good_features_pass_and_stops_worse_ones(tmp_path: Path) -> None:
    passed = run_example(tmp_path, "ci_gate.sh")
    worse = tmp_path / "worse.h5"
    embed = ["--backbone", "pixels", "--image-size", "2", "--holdout", "0.2", "--split", "all", "--out", str(worse)]
    assert main(["embed", "--dataset", "digits", *embed, "-q"]) == 0
    stopped = run_example(tmp_path, "ci_gate.sh", worse, LIMITS="knn_accuracy=0.1")

    assert passed.returncode == 0, passed.stderr
    assert "MISSED" not in passed.stdout
    # four gray values are no match for the baseline
    assert stopped.returncode == 10
    assert re.search(r"kept\s+knn_accuracy .* fail-under", stopped.stdout)
    assert re.search(r"MISSED knn_accuracy .* baseline", stopped.stdout)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_store_is_read_without_labelkit(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    script = (ROOT / "examples" / "read_store.py").read_text()
    assert not re.search(r"^\s*(import|from) labelkit", script, flags=re.MULTILINE)
    index = tmp_path / "digits.h5"
    assert (
        main(["embed", "--dataset", "digits", "--backbone", "pixels", "--image-size", "8", "--out", str(index), "-q"])
        == 0
    )
    assert main(["cluster", "k-means", "--index", str(index), "--num-clusters", "10", "-q"]) == 0

    done = run_example(tmp_path, "read_store.py", index, "--result", "k-means", "--csv", "rows.csv")

    assert done.returncode == 0, done.stderr
    table = pandas.read_csv(tmp_path / "rows.csv")
    assert len(table) == 1797
    assert table["group"].nunique() == 10
    assert (table["nearest"] != table["path"]).all()
    assert table["cosine"].between(0, 1.0001).all()


@pytest.mark.slow
def test_an_index_that_grows_is_measured_step_by_step(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "examples" / "index_growth.py"), "--rows", "3000", "--out", "grown.json"]

    done = subprocess.run(script, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "grown.json").read_text())["rows"]
    found = {(row["kind"], row["step"]): row for row in rows}
    for kind in ("hnsw", "ivfpq"):
        assert [found[kind, step]["added_rows"] for step in ("built", "extended", "searched")] == [2728, 272, 0]
        assert all(row["recall"] > 0.95 for row in rows if row["kind"] == kind and "recall" in row)


@pytest.mark.slow
def test_suggested_labels_print_and_keep_their_scores(tmp_path: Path) -> None:
    environment = os.environ | {"LABELKIT_CACHE": str(tmp_path / "cache")}
    options = ["--seeds", "1", "--rounds", "2", "--features", "pixels", "--strategies", "random,both"]
    script = [sys.executable, str(ROOT / "examples" / "suggest_labels.py"), *options, "--out", "scores.json"]

    done = subprocess.run(script, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    runs = json.loads((tmp_path / "scores.json").read_text())["runs"]
    found = {(run["strategy"], run["classifier"]): run for run in runs}
    assert [run["labels"] for run in runs] == [[10, 20]] * 4
    for classifier in ("logistic regression", "nearest label"):
        assert found["both", classifier]["accuracy"][0][1] > found["random", classifier]["accuracy"][0][1]


@pytest.mark.slow
def test_bundled_photos_are_sorted_in_one_command(tmp_path: Path) -> None:
    photos, out = ROOT / "examples" / "photos", tmp_path / "labeled"

    assert main(["start", str(photos), "--labels", str(photos / "labels.csv"), "--out", str(out)]) == 0

    def column(path: Path, name: str) -> dict[str, str]:
        with path.open(newline="") as file:
            return {row["path"]: row[name] for row in csv.DictReader(file)}

    truth, kinds = column(photos / "truth.csv", "label"), column(out / "labels.csv", "kind")
    answered = {path: label for path, label in column(out / "labels.csv", "label").items() if kinds[path] == "known"}
    assert len(answered) >= 60
    assert sum(truth[path] == label for path, label in answered.items()) >= 0.9 * len(answered)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_published_rows_stop_in_time_and_continue(tmp_path: Path) -> None:
    for split, count in (("train", 40), ("test", 4)):
        for name in ("cat", "dog"):
            for number in range(count):
                place = tmp_path / "data" / "cifar10" / split / name / f"{number}.png"
                place.parent.mkdir(parents=True, exist_ok=True)
                pixels = np.random.default_rng(number)
                Image.fromarray(pixels.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(place)
    few = "--imbalance-factor 0.5 --batch-size 8 --epochs 2 --lr-warmup-epochs 0 --lr-drop-epochs 1"
    words = ["--cifar10", "data", "--work", "rows", "--out", "rows.json", "--device", "cpu", "--seeds", "0"]
    words += ["--epochs", "2", "--jobs", "3"]

    stopped = run_example(tmp_path, "published_rows.py", *words, "--options", f"{few} --stop-after-steps 1")
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert stopped.returncode == 0, stopped.stdout
    assert [(row["row"], row["measured"]) for row in rows] == [("softmax", None), ("ETF", None), ("DL2PA", None)]

    ended = run_example(tmp_path, "published_rows.py", *words, "--options", few)
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    assert ended.returncode == 0, ended.stdout
    assert all(row["epochs"] == 2 and row["measured"] == row["curve"][-1][1] for row in rows)
