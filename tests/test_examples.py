"""What README, docs, presets and help show is what works: examples run, and every command line shown is one."""

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
import yaml
from labelkit.cli.config_classes import CONFIG_CLASSES
from labelkit.cli.main import COMMANDS, EXIT_CODES, main
from labelkit.commands.table import Group, all_commands
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


def test_the_first_page_of_the_site_shows_the_first_minute_of_the_readme() -> None:
    for language in ("bash", "text"):
        assert code_blocks("docs/index.md", language)[0] == code_blocks(README, language)[0]


@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=() if place.startswith(README) else pytest.mark.slow) for place in SHOWN]
)
def test_a_shown_command_line_is_one(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    page, line = place.partition(": ")[0], SHOWN[place]

    # a command named in a sentence may lack required options, but must not have unknown ones
    in_a_sentence = f"`labelkit {shlex.join(line)}`" in PAGES[page]
    code = main([*line, "--help"] if in_a_sentence or line[0] not in STAGES else ["config", *line])

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


@pytest.mark.parametrize("name", [name for name, entry in COMMANDS.items() if isinstance(entry, Group)])
def test_the_example_of_a_group_is_a_command_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = shlex.split(COMMANDS[name].example)[1:]

    assert line[0] == name
    assert main(["config", *line]) == 0, capsys.readouterr().err


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
    block, door, network, plain = code_blocks("docs/guides/exchange.md", "python")
    names: dict[str, Any] = {}
    run = ["--max-per-class", "4", "--epochs", "1", "--batch-size", "8", "--backbone", "smallcnn", "--image-size", "32"]
    assert main(["train", "softmax", "--dataset", "digits", *run, "--out", "runs/flipclass", "-q"]) == 0
    for name in ("a.jpg", "b.jpg"):
        Image.new("L", (40, 30), 90).save(name)

    exec(block, names)
    exec(door, names)
    stored = names["rows"].paths[0]
    exec(network, names)
    exec(plain, names)

    names["network"].network.backbone.net.load_state_dict(names["weights"])
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


def test_what_a_cluster_gets_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "examples" / "cluster"
    job = yaml.safe_load((folder / "embed-rayjob.yaml").read_text())

    subprocess.run(["bash", "-n", str(folder / "train.sbatch")], check=True)
    assert main(["config", *job["spec"]["entrypoint"].split()[1:]]) == 0, capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "line",
    [
        "novel_cases.py --index digits.h5 --labels 5 --seeds 1",
        "mislabeled_cases.py --index digits.h5 --labels 10 --seeds 2",
        "predict_cases.py --seeds 1 --shares 1.0 --held-out 200",
        "discover_few_labels.py --seeds 1",
        "suggest_labels.py --seeds 1 --rounds 2 --features pixels --strategies random,both",
        "index_costs.py --rows 3000",
        "compare_detection.py --backbone vit_micro_p8_64 --weights random --image-size 64 --max-images 4 --steps 1 "
        "--batch-size 1 --samples-per-image 8 --proposals 8",
        "compare_discovery.py --seeds 1 -- --epochs 1",
        "tour.py",
    ],
    ids=lambda line: line.partition(" ")[0],
)
def test_an_example_in_python_runs_and_keeps_its_numbers(tmp_path: Path, line: str) -> None:
    name, *words = line.split()
    embed = ["--backbone", "pixels", "--image-size", "8", "--split", "all", "--out", str(tmp_path / "digits.h5")]
    assert main(["embed", *embed, "-q"]) == 0
    if name != "tour.py":
        words = ["--out", "numbers.json", *words]

    done = run_example(tmp_path, name, *words)

    assert done.returncode == 0, done.stderr
    assert name == "tour.py" or json.loads((tmp_path / "numbers.json").read_text())


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "words", "train"),
    [
        ("discover_photos.sh", "photos/discover.csv", "--preset digits --epochs 2"),
        (
            "selflabel_and_retrieve.sh",
            "photos photos/3/0001.png",
            "--preset digits --holdout none --epochs 2 --lr-drop-epochs 1 --num-optimizations 2",
        ),
        (
            "few_labels_to_classifier.sh",
            "photos/few.csv photos/truth.csv",
            "--preset digits --num-labels none --holdout none --steps 20 --eval-every-steps 20 --batch-size 64",
        ),
        (
            "dense_to_segmentation.sh",
            "",
            "--preset scene_objects_stage1 --steps 2 --eval-every-steps 2 --lr-warmup-steps 1",
        ),
        ("metric_to_index.sh", "photos", "--preset digits --epochs 1"),
    ],
)
def test_a_script_runs_and_leaves_what_it_names(
    tmp_path: Path, digits: Path, name: str, words: str, train: str
) -> None:
    given = [digits.parent / word for word in words.split()]

    done = run_example(tmp_path, name, *given, TRAIN=train, LIMIT="8")

    assert len(made_by(done, tmp_path)) >= 3


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
def test_the_gate_lets_good_features_pass_and_stops_worse_ones(tmp_path: Path) -> None:
    passed = run_example(tmp_path, "ci_gate.sh")
    worse = tmp_path / "worse.h5"
    embed = ["--backbone", "pixels", "--image-size", "2", "--holdout", "0.2", "--split", "all", "--out", str(worse)]
    assert main(["embed", "--dataset", "digits", *embed, "-q"]) == 0
    stopped = run_example(tmp_path, "ci_gate.sh", worse)

    assert passed.returncode == 0, passed.stderr
    assert "MISSED" not in passed.stdout
    # four gray values are no match for the limit
    assert stopped.returncode == 10
    assert "MISSED" in stopped.stdout


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
