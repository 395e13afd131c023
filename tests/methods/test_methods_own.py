"""Methods of a user, named by ``LABELKIT_METHODS``: trained, compared, embedded, resumed; files that cannot be used."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from labelkit.commands.train.run import _check_same_code
from labelkit.errors import CheckpointMismatch, ConfigError, OutputExistsError, StoreError
from labelkit.methods.own import import_user_methods
from labelkit.methods.registry import METHODS, OWN_SOURCES, compute_method_digest
from labelkit.methods.spec import MethodSource, MethodSpec
from labelkit.options.presets import list_presets
from labelkit.pipelines import own_code
from labelkit.pipelines.reproduce import running
from labelkit.training.run_dir import RunDir
from tests.short_runs import short_run

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_method.py"
HEAD = """
from typing import ClassVar
from labelkit.methods.prototypes.options import SoftmaxConfig
from labelkit.methods.spec import MethodSpec

class Config(SoftmaxConfig):
    command: ClassVar[tuple[str, ...]] = ("train", "mine")
"""
SOFTMAX = '"labelkit.methods.prototypes.softmax:Softmax"'
SMOOTH = ("train", "smooth", "--dataset", "digits", "--smoothing", "0.3", *short_run("softmax").split())


@pytest.fixture(autouse=True)
def no_methods_are_left(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("labelkit_own_"):
            del sys.modules[name]


def labelkit(*words: str, cwd: Path, methods: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "LABELKIT_METHODS"}
    if methods is not None:
        environment["LABELKIT_METHODS"] = methods
    command = [sys.executable, "-m", "labelkit", *words]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_method_of_ones_own_is_a_command_whose_runs_are_known_by_its_file(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(EXAMPLE.read_text())
    trained = labelkit(*SMOOTH, "--out", "run", cwd=tmp_path, methods="mine.py")
    assert trained.returncode == 0, trained.stderr
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["own_method"]["name"] == "mine.py"

    embed = ("embed", "--dataset", "digits", "--checkpoint", "run", "--max-images", "20", "-q")
    embedded = labelkit(*embed, "--out", "a.h5", cwd=tmp_path, methods="mine.py")
    assert embedded.returncode == 0, embedded.stderr
    unknown = labelkit(*embed, "--out", "b.h5", cwd=tmp_path, methods=None)
    assert unknown.returncode == 3
    assert "trained with 'smooth'" in unknown.stderr
    assert "LABELKIT_METHODS" in unknown.stderr


@pytest.mark.slow
def test_a_comparison_is_not_mixed_from_two_versions_of_the_code(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(EXAMPLE.read_text())
    words = ("compare", "--dataset", "digits", "--methods", "smooth,softmax", "--budget", "20s", "--seeds", "1")
    words = (*words, "--max-per-class", "20", "--keep", "kept", "--json")

    compared = labelkit(*words, cwd=tmp_path, methods="mine.py")
    assert compared.returncode == 0, compared.stderr
    assert {"smooth", "softmax"} <= {row["method"] for row in json.loads(compared.stdout)["rows"]}

    # a method more goes on with what is there, and one that fails is a row
    bad = EXAMPLE.read_text().replace('"train", "smooth"', '"train", "bad"').replace('"smooth": ', '"bad": ')
    (tmp_path / "bad.py").write_text(
        bad.replace("        self.loss = SmoothedCrossEntropy(config.smoothing)", "        1 / 0")
    )
    more = [word.replace("smooth,softmax", "smooth,softmax,bad") for word in words]
    grown = labelkit(*more, cwd=tmp_path, methods=os.pathsep.join(["mine.py", "bad.py"]))
    assert grown.returncode == 0, grown.stderr
    rows = {row["method"]: row for row in json.loads(grown.stdout)["rows"]}
    assert "ZeroDivisionError" in str(rows["bad"]["failures"])
    assert rows["smooth"]["runs"]

    mine.write_text(EXAMPLE.read_text() + "\n# changed\n")
    again = labelkit(*words, cwd=tmp_path, methods="mine.py")
    assert again.returncode == 2
    assert "kept: contains a run with a different version of the code of smooth" in again.stderr


@pytest.mark.slow
def test_an_error_in_the_code_of_a_user_names_its_place(tmp_path: Path) -> None:
    broken = EXAMPLE.read_text().replace("        self.loss = SmoothedCrossEntropy(config.smoothing)", "        1 / 0")
    (tmp_path / "mine.py").write_text(broken)
    line = broken.splitlines().index("        1 / 0") + 1

    done = labelkit("train", "smooth", "--dataset", "digits", "--out", "run", cwd=tmp_path, methods="mine.py")

    assert done.returncode == 1
    assert f'mine.py", line {line}, in __init__' in done.stderr
    assert "unless it is in your own method (mine.py)" in done.stderr

    # what it returns fails elsewhere
    (tmp_path / "mine.py").write_text(EXAMPLE.read_text().replace("* terms).mean()", "* terms)"))
    done = labelkit("train", "smooth", "--dataset", "digits", "--out", "other", cwd=tmp_path, methods="mine.py")
    assert done.returncode == 1
    assert "unless it is in your own method (mine.py)" in done.stderr


@pytest.mark.slow
def test_a_module_that_no_step_calls_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(EXAMPLE.read_text().replace("self.loss = ", "self.cost = "))
    words = ("train", "smooth", "--dataset", "digits", *short_run("softmax").split(), "--out")

    wrong = labelkit(*words, "wrong", cwd=tmp_path, methods="mine.py")
    (tmp_path / "mine.py").write_text(EXAMPLE.read_text())
    right = labelkit(*words, "right", cwd=tmp_path, methods="mine.py")

    assert wrong.returncode == right.returncode == 0, wrong.stderr
    assert wrong.stderr.count("the first step did not call 'cost' (SmoothedCrossEntropy)") == 1
    assert "did not call" not in right.stderr


def test_it_has_the_presets_of_the_method_that_it_extends() -> None:
    found, sources = import_user_methods(str(EXAMPLE), METHODS)

    assert list_presets(found["smooth"].config) == list_presets(METHODS["softmax"].config)
    assert (sources["smooth"].name, sources["smooth"].path) == ("own_method.py", EXAMPLE)
    assert compute_method_digest("softmax") is None


def test_files_and_modules_are_separated_as_in_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def table(name: str) -> str:
        row = f'MethodSpec("{name}", Config, {SOFTMAX})'
        return f'{HEAD.replace("mine", name)}\nMETHODS = {{"{name}": {row}}}'

    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "one.py").write_text("from beside import NAME\n" + table("one"))
    (tmp_path / "a" / "beside.py").write_text('NAME = "x"')
    (tmp_path / "one.py").write_text(table("other-one"))
    (tmp_path / "own_two.py").write_text(table("two"))
    monkeypatch.syspath_prepend(tmp_path)
    named = [str(tmp_path / "a" / "one.py"), str(tmp_path / "one.py"), "own_two", "", "own_two"]

    found, sources = import_user_methods(os.pathsep.join(named), METHODS)

    assert list(found) == ["one", "other-one", "two"]
    assert found["two"].config.command == ("train", "two")
    assert isinstance(found["one"], MethodSpec)
    assert found["one"].load() is METHODS["softmax"].load()
    assert sources["one"].sha256 != sources["other-one"].sha256


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "no such file"),
        ("import nothing_of_this_name", "cannot be imported: ModuleNotFoundError"),
        ("def broken(:", "cannot be imported: SyntaxError"),
        ("raise SystemExit(3)", "cannot be imported: SystemExit"),
        ("METHODS = {}", "does not define METHODS"),
        (
            f'{HEAD.replace("mine", "softmax")}\nMETHODS = {{"softmax": MethodSpec("x", Config, {SOFTMAX})}}',
            "which is already taken",
        ),
        (f'{HEAD}\nMETHODS = {{"mine": Config}}', "is not a MethodSpec"),
        (f'{HEAD}\nMETHODS = {{"mine": MethodSpec("x", dict, {SOFTMAX})}}', "must have the command"),
        (f'{HEAD}\nMETHODS = {{"other": MethodSpec("x", Config, {SOFTMAX})}}', 'command = ("train", "other")'),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_what_is_wrong(tmp_path: Path, text: str | None, told: str) -> None:
    path = tmp_path / "mine.py"
    if text is not None:
        path.write_text(text)

    with pytest.raises(ConfigError, match=r"LABELKIT_METHODS: .*mine\.py: ") as raised:
        import_user_methods(str(path), METHODS)

    assert told in str(raised.value)


def test_a_step_of_a_table_that_other_code_made_or_began_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["train", "smooth", "--out", str(tmp_path / "run")]
    asked: list[list[str]] = []

    def trained(words: list[str]) -> tuple[int, str]:
        asked.append(words)
        return (1, "") if len(asked) == 1 else (0, '{"epochs": 1}')

    monkeypatch.setattr(running, "run_command", trained)
    monkeypatch.setattr(own_code, "compute_method_digest", lambda name: "as it was")
    with pytest.raises(StoreError, match="exit code 1"):
        running._run_once(command, tmp_path, 0, {})
    monkeypatch.setattr(own_code, "compute_method_digest", lambda name: "another")
    with pytest.raises(OutputExistsError, match="contains a run with a different version of the code of smooth"):
        running._run_once(command, tmp_path, 0, {})
    monkeypatch.setattr(own_code, "compute_method_digest", lambda name: "as it was")
    assert running._run_once(command, tmp_path, 0, {}) == {"epochs": 1}
    assert running._run_once(command, tmp_path, 0, {}) == {"epochs": 1}
    assert len(asked) == 2

    monkeypatch.setattr(own_code, "compute_method_digest", lambda name: "another")
    with pytest.raises(OutputExistsError, match="contains a run with a different version of the code of smooth"):
        running._run_once(command, tmp_path, 0, {})


def test_a_run_does_not_go_on_with_another_version_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "environment.json").write_text('{"own_method": {"name": "mine.py", "sha256": ["as it was"]}}')
    for digest, fault in (
        ("as it was", nullcontext()),
        ("another", pytest.raises(CheckpointMismatch, match=r"mine\.py has")),
    ):
        monkeypatch.setitem(OWN_SOURCES, "smooth", MethodSource("mine.py", tmp_path / "mine.py", digest))
        with fault:
            _check_same_code(RunDir(tmp_path), "smooth")


@pytest.mark.parametrize(
    "words", [("list", "methods"), pytest.param(("train", "softmax", "--help"), marks=pytest.mark.slow)]
)
def test_a_broken_file_is_one_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "mine.py").write_text("1 / 0")

    done = labelkit(*words, cwd=tmp_path, methods="mine.py")

    assert done.returncode == 2
    assert done.stderr.strip().splitlines() == [
        "error: LABELKIT_METHODS: mine.py: cannot be imported: ZeroDivisionError: division by zero. "
        "Correct the file, or unset LABELKIT_METHODS."
    ]


@pytest.mark.slow
def test_a_file_that_imports_training_itself_keeps_its_source(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(EXAMPLE.read_text() + "import labelkit.commands.train.run\n")
    asked = "from labelkit.methods import registry; from labelkit.commands.train import run; " + (
        "print(bool(registry.OWN_SOURCES), run.OWN_SOURCES is registry.OWN_SOURCES)"
    )
    environment = {**os.environ, "LABELKIT_METHODS": str(tmp_path / "own.py")}
    done = subprocess.run([sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "True True\n", done.stderr
