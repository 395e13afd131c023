"""The whole command line: every command's help, lists, config, version, and what a shell sees."""

import json
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from labelkit import __version__, launch
from labelkit.cli.config_classes import CONFIG_CLASSES
from labelkit.cli.main import COMMANDS, EXIT_CODES, build_app, main
from labelkit.commands.table import all_commands
from labelkit.methods.registry import METHODS
from labelkit.options.presets import list_presets
from typer.main import get_command

HEAVY = ("torch", "sklearn", "numpy", "scipy", "timm", "faiss", "h5py", "PIL", "accelerate", "matplotlib")
STAGE_COMMANDS = [config_class.command for config_class in CONFIG_CLASSES]
OTHERS = [("list", what) for what in ("methods", "datasets", "backbones", "presets")] + [("doctor",), ("version",)]
GROUPS = [(name,) for name in COMMANDS if (name,) not in [*STAGE_COMMANDS, *OTHERS]]
ALL = [(), *STAGE_COMMANDS, *GROUPS, *OTHERS]

# Runs command lines one after the other; tells the exit code and output of each, and what is heavy and loaded by then.
RUNS = """
import contextlib, io, json, sys
from labelkit.cli.main import main
runs = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(words)
    runs.append((code, out.getvalue(), [name for name in {heavy!r} if name in sys.modules]))
print(json.dumps(runs))
""".replace("{heavy!r}", repr(HEAVY))
Run = tuple[int, str, list[str]]


def run_apart(*lines: tuple[str, ...]) -> list[Run]:
    """Run command lines in one process of their own."""
    done = python("-c", RUNS, json.dumps(lines))
    assert done.returncode == 0, done.stderr
    return [(code, out, loaded) for code, out, loaded in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def helps() -> dict[tuple[str, ...], Run]:
    """What ``--help`` of each command did, all in one process: a heavy package stays loaded for those after."""
    return dict(zip(ALL, run_apart(*((*words, "--help") for words in ALL)), strict=True))


def python(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command, env = [sys.executable, *arguments], os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_has_an_example_and_loads_nothing_heavy(helps: dict[tuple[str, ...], Run], words: tuple[str, ...]) -> None:
    code, shown, loaded = helps[words]
    assert code == 0
    assert f"Example: labelkit {' '.join(words)}".rstrip() in " ".join(shown.split())
    assert loaded == []


def test_every_command_stands_in_one_panel_of_help_and_every_exit_code_below(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out

    panels = [panel.split("\n", 1) for panel in shown.split("╭─ ")[2:]]
    found = {title.split(" ─")[0]: re.findall(r"^│ (\w+)  ", rest, flags=re.MULTILINE) for title, rest in panels}

    assert list(found) == ["First steps", "Training and analysis", "Labels", "Inspect", "Files", "Installation"]
    assert sorted(name for names in found.values() for name in names) == sorted(COMMANDS)
    assert [code for code in EXIT_CODES if f" {code}  " not in shown] == []


def test_a_row_of_the_table_has_the_words_of_its_config_and_a_stage() -> None:
    for words, command in all_commands().items():
        module, _, name = command.function.partition(":")
        assert command.load_config_class().command == words
        assert callable(getattr(import_module(module), name))


def test_help_of_labelkit_does_not_load_the_options() -> None:
    code = "import sys; from labelkit.cli.main import main; main(['--help']); print('pydantic' in sys.modules)"
    assert python("-c", code).stdout.splitlines()[-1] == "False"


def test_only_the_command_that_is_named_gets_its_options() -> None:
    app = get_command(build_app(["train", "sela", "--lr", "1"]))
    built = [name for name, command in app.commands["train"].commands.items() if len(command.params) > 1]
    assert built == ["sela"]
    assert len(app.commands["embed"].params) <= 1


def test_version_is_printed_in_three_ways_and_an_unknown_command_met_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"labelkit {__version__}\n"
    assert main(["version", "-q"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"
    assert main(["version", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["labelkit"] == __version__
    assert main(["trian"]) == 2
    assert "train" in capsys.readouterr().err
    assert main(["train", "mine"]) == 2
    assert "for your own method, set LABELKIT_METHODS to its file" in capsys.readouterr().err
    assert main(["train", "softmax", "--lr"]) == 2
    assert "LABELKIT_METHODS" not in capsys.readouterr().err


def test_the_installed_program_runs() -> None:
    program = Path(sys.executable).parent / "labelkit"
    done = subprocess.run([program, "list", "methods", "-q"], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, list(METHODS), "")


def test_presets_are_listed_with_their_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "presets", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["presets"]
    names = [name for config_class in CONFIG_CLASSES for name in list_presets(config_class)]
    assert [row["name"] for row in rows] == names
    assert all(row["command"].startswith("labelkit ") for row in rows)


def test_backbones_are_listed_by_pattern(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "backbones", "--pattern", "vit_base_patch16_224*", "-q"]) == 0
    names = capsys.readouterr().out.split()
    assert names
    assert all(name.startswith("vit_base_patch16_224") for name in names)


def test_doctor_checks_parts_devices_and_cache(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "cache"))
    assert main(["doctor", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["ok"] is True
    found = {check["name"]: check["found"] for check in shown["checks"]}
    assert {"python", "torch", "devices", "threads", "cache"} <= set(found)
    assert found["cache"] == str(tmp_path / "cache")

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "file" / "cache"))
    assert main(["doctor", "--json"]) == 5
    captured = capsys.readouterr()
    assert json.loads(captured.out)["ok"] is False
    assert captured.err.startswith("error: cache: ")
    assert "LABELKIT_CACHE" in captured.err


def test_doctor_names_the_other_package_that_is_called_labelkit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, own_cache: Path, tmp_path: Path
) -> None:
    other = tmp_path / "labelkit-7.5.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: labelkit\nVersion: 7.5\nSummary: build pipelines\n")
    monkeypatch.syspath_prepend(tmp_path)

    assert main(["doctor", "--json"]) == 5

    said = capsys.readouterr()
    first = json.loads(said.out)["checks"][0]
    assert (first["name"], first["status"]) == ("labelkit", "failed")
    assert "an unrelated package is also named labelkit: build pipelines" in said.err
    assert "pip uninstall labelkit" in said.err


@pytest.mark.slow
def test_an_install_in_its_folder_starts_though_the_other_package_comes_first(own_cache: Path, tmp_path: Path) -> None:
    launcher = Path(launch.__file__).read_text()
    (tmp_path / "labelkit_images.py").write_text(launcher)
    (tmp_path / "labelkit").mkdir()
    (tmp_path / "labelkit" / "__init__.py").write_text("")
    for name, version in (("labelkit", "7.5"), ("labelkit_images", __version__)):
        folder = tmp_path / f"{name}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: a test\n")
    root = Path(launch.__file__).parents[1]
    (folder / "direct_url.json").write_text(json.dumps({"url": root.as_uri(), "dir_info": {"editable": True}}))
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['labelkit', 'doctor']; "
    code += "from labelkit_images import run; run()"

    ended = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True)

    assert ended.returncode == 5
    assert "an unrelated package is also named labelkit: a test" in ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "completions"),
    [
        ("labelkit tr", ["train"]),
        ("labelkit train fl", ["flipclass"]),
        ("labelkit cluster ss", ["ss-kmeans"]),
        ("labelkit train flipclass --optimizer a", ["adam", "adamw"]),
    ],
)
def test_the_shell_completes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: str, completions: list[str]
) -> None:
    monkeypatch.setenv("_LABELKIT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    assert main([]) == 0
    assert capsys.readouterr().out.split() == completions
