"""A config class as a command: options, faults, output, exit codes."""

from __future__ import annotations

import errno
import inspect
import json
import logging
import os
import signal
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, NoReturn

import pytest
import typer
from labelkit.cli.command import build_typer_command
from labelkit.cli.console import OutputOptions
from labelkit.cli.main import build_group, main, run_app
from labelkit.commands.common.results import CommandResult, Table
from labelkit.errors import (
    BusyError,
    ConfigError,
    DivergenceError,
    GateError,
    Interrupted,
    LabelkitError,
    ResourceError,
    StoreError,
)
from labelkit.options.base import BaseConfig
from labelkit.progress import current_progress
from pydantic import Field, model_validator


class SieveConfig(BaseConfig):
    """Imaginary."""

    command: ClassVar[tuple[str, ...]] = ("train", "sieve")

    index: Path = Field(..., description="Store to read.", json_schema_extra={"panel": "Store", "preset": False})
    dataset: str = Field("digits", description="What [b]to[/b] read [x].")
    num_clusters: int = Field(10, ge=1, description="Groups to find.", json_schema_extra={"short": "-k"})
    optimizer: Literal["sgd", "adamw"] = Field("sgd", description="Optimizer.")
    way: Literal["a-long-word", "another-long-word"] = Field("a-long-word", description="Way.")
    lr: float = Field(0.1, gt=0, description="Learning rate.")
    blocks: tuple[int, ...] = Field((8, 9), description="Blocks.")
    normalize: bool = Field(True, description="Scale rows first.")
    limit: float | None = Field(None, description="Limit; default: none at all.")

    @model_validator(mode="after")
    def _check(self) -> SieveConfig:
        if self.lr > 1 and self.optimizer == "adamw":
            raise ValueError("lr above 1 does not go with --optimizer adamw")
        return self


Run = Callable[..., int]


@pytest.fixture
def presets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "presets"
    (folder / "sieve").mkdir(parents=True)
    (folder / "sieve" / "digits.yaml").write_text("# labelkit train sieve\nnum_clusters: 12\nlr: 0.5\n")
    (folder / "sieve" / "cub.yaml").write_text("# labelkit train sieve --dataset cub\nnum_clusters: 200\n")
    monkeypatch.setattr("labelkit.options.presets.find_bundled_presets", lambda: folder)
    return folder


@pytest.fixture
def seen() -> list[SieveConfig]:
    return []


@pytest.fixture
def run(presets: Path, seen: list[SieveConfig]) -> Run:
    """Run ``sieve ARGUMENTS`` (or ``config ARGUMENTS``) and return its exit code."""

    def sieve(config: SieveConfig) -> CommandResult:
        """Sift the rows.

        Example: labelkit train sieve --index a.h5
        """
        seen.append(config)
        current_progress().message("sifting")
        table = Table("Rows", ("kept",), ((3,),))
        return CommandResult({"kept": 3, "share": float("nan")}, (config.index,), (table,))

    def start(*arguments: str) -> int:
        app = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="rich")
        app.command("sieve")(stage_command(SieveConfig, sieve))
        app.command("config")(stage_command(SieveConfig, sieve))
        return run_app(lambda: app, list(arguments), OutputOptions(shows_config=arguments[:1] == ("config",)))

    return start


def stage_command(config_class: type[BaseConfig], stage: Callable[[Any], CommandResult | None]) -> Any:
    command: Any = SimpleNamespace(
        load_config_class=lambda: config_class,
        run=lambda config: (stage(config) or CommandResult({}), None),
        help=inspect.getdoc(stage) or "",
    )
    return build_typer_command(command)


def code_of(act: Callable[[], None], *words: str) -> int:
    """Return the exit code of a command that does something, one of a group of two."""
    app = build_group()
    for name in ("sieve", "other"):
        app.command(name)(stage_command(SieveConfig, lambda config: act()))
    return run_app(lambda: app, ["sieve", "--index", "a.h5", *words])


def raising(error: BaseException, *words: str) -> int:
    def act() -> None:
        raise error

    return code_of(act, *words)


def test_options_become_the_config(run: Run, seen: list[SieveConfig]) -> None:
    code = run(
        *(
            "sieve",
            "--index",
            "a.h5",
            "-k",
            "7",
            "--optimizer",
            "adamw",
            "--lr",
            "1e-2",
            "--blocks",
            "1",
            "--blocks",
            "2",
        ),
        *("--no-normalize", "--limit", "none", "--set", "way=another-long-word", "--preset", "none"),
        *("--set", "num-clusters=5"),  # an option overrides --set
    )
    assert code == 0
    assert seen == [
        SieveConfig(
            index=Path("a.h5"),
            num_clusters=7,
            optimizer="adamw",
            lr=0.01,
            blocks=(1, 2),
            normalize=False,
            way="another-long-word",
        )
    ]


@pytest.mark.parametrize(
    ("words", "out", "err"),
    [
        ((), "Rows\nkept\n   3\nmade a.h5\n", "sifting\n"),
        (("--json",), '{"kept": 3, "share": null, "made": ["a.h5"]}\n', "sifting\n"),
        (("-q",), "a.h5\n", ""),
    ],
)
def test_people_see_tables_and_progress_programs_json_and_pipes_paths(
    run: Run, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], out: str, err: str
) -> None:
    assert run("sieve", "--index", "a.h5", *words) == 0
    assert capsys.readouterr() == (out, err)


def test_verbose_restores_the_level_of_log_messages(run: Run) -> None:
    level = logging.getLogger().level
    assert run("sieve", "--index", "a.h5", "-v") == 0
    assert logging.getLogger().level == level


def test_a_fault_between_options_names_their_sources(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sieve", "--index", "a.h5", "--lr", "2", "--set", "optimizer=adamw") == 2
    assert capsys.readouterr().err == (
        "error: labelkit train sieve: lr above 1 does not go with --optimizer adamw. "
        "optimizer = adamw comes from --set optimizer; lr = 2 comes from --lr\n"
    )


@pytest.mark.parametrize("setting", ["lr", "=3"])
def test_settings_without_a_key_or_a_value_are_refused(
    run: Run, capsys: pytest.CaptureFixture[str], setting: str
) -> None:
    assert run("sieve", "--index", "a.h5", "--set", setting) == 2
    assert f"--set: {setting} is not of the form KEY=VALUE. Write, for" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--bogus", "1"], ["extra"], ["--lr"]])
def test_usage_errors_exit_with_2_and_leave_stdout_alone(
    run: Run, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run("sieve", "--index", "a.h5", *arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Error" in captured.err


def test_help_shows_description_default_bounds_choices_and_panels(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    assert run("sieve", "--help") == 0
    shown = capsys.readouterr().out
    assert "Example: labelkit train sieve --index a.h5" in shown
    assert "─ Store ─" in shown
    assert "[required]" in shown
    assert "What [b]to[/b] read [x]. [default: digits]" in shown
    assert "Groups to find. [>= 1; default: 10]" in shown
    assert "[sgd|adamw]" in shown
    assert "[one of a-long-word, another-long-word; default: a-long-word]" in shown
    assert "--no-normalize" in shown
    assert "Limit; default: none at all." in shown
    assert "cub, digits" in shown
    assert "-k" in shown


def test_choices_complete_in_the_shell(
    run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_LABELKIT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "labelkit sieve --optimizer a")
    monkeypatch.setenv("COMP_CWORD", "3")
    run()
    assert capsys.readouterr().out.split() == ["adamw"]


def test_config_prints_yaml_with_the_origin_of_each_value(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("config", "--index", "a.h5", "--set", "blocks=1,2", "--lr", "0.2") == 0
    assert capsys.readouterr().out.splitlines() == [
        "# labelkit train sieve",
        "# index: a.h5     # --index",
        "dataset: digits   # default",
        "num_clusters: 12  # presets/sieve/digits.yaml",
        "optimizer: sgd    # default",
        "way: a-long-word  # default",
        "lr: 0.2           # --lr",
        "blocks: [1, 2]    # --set blocks",
        "normalize: true   # default",
        "limit: null       # default",
    ]


def test_config_as_json_holds_values_and_origins(run: Run, capsys: pytest.CaptureFixture[str], presets: Path) -> None:
    assert run("config", "--index", "a.h5", "--preset", "cub", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["command"] == "labelkit train sieve"
    assert shown["preset"] == str(presets / "sieve" / "cub.yaml")
    assert shown["config"]["blocks"] == [8, 9]
    assert shown["origins"]["index"] == "--index"
    assert shown["origins"]["num_clusters"] == "presets/sieve/cub.yaml"
    assert set(shown["origins"]) == set(shown["config"]) == set(SieveConfig.model_fields)


def test_what_config_prints_is_a_config_file(
    run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path, seen: list[SieveConfig]
) -> None:
    assert run("config", "--index", "b.h5", "--dataset", "a\nb # c: [", "--blocks", "", "--lr", "1e-7") == 0
    mine = tmp_path / "mine.yaml"
    mine.write_text(capsys.readouterr().out)
    assert run("sieve", "--index", "a.h5", "--config", str(mine), "--preset", "none") == 0
    assert seen == [SieveConfig(index=Path("a.h5"), dataset="a\nb # c: [", blocks=(), lr=1e-7)]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("--lr", "too high", "Lower it."), 2),
        (StoreError("a.h5", "no labels", "Embed again."), 3),
        (DivergenceError("step 3", "loss is nan"), 4),
        (ResourceError("a.h5", "the disk is full"), 5),
        (BusyError("runs/x", "another run holds it"), 6),
        (GateError("accuracy", "0.4 < 0.5"), 10),
        (LabelkitError("a", "b"), 1),
    ],
)
def test_each_error_has_its_exit_code_and_one_line(
    capsys: pytest.CaptureFixture[str], error: LabelkitError, code: int
) -> None:
    assert raising(error) == code
    assert capsys.readouterr() == ("", f"error: {error}\n")
    assert raising(error, "-v") == code
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EROFS, errno.EDQUOT])
def test_what_the_system_refuses_is_a_resource_error(capsys: pytest.CaptureFixture[str], number: int) -> None:
    assert raising(OSError(number, os.strerror(number), "runs/x")) == 5
    assert capsys.readouterr().err.startswith("error: runs/x: ")


@pytest.mark.parametrize("error", [KeyError("x"), OSError(errno.EBADF, "bad"), EOFError(), ValueError("shape")])
def test_anything_else_is_our_bug_and_keeps_its_traceback(capsys: pytest.CaptureFixture[str], error: Exception) -> None:
    assert raising(error) == 1
    told = capsys.readouterr().err
    assert "Traceback" in told
    assert type(error).__name__ in told
    assert "bug in labelkit" in told


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_interrupt_with_their_code(
    capsys: pytest.CaptureFixture[str], signum: signal.Signals, code: int
) -> None:
    before = signal.getsignal(signum)
    assert code_of(lambda: signal.raise_signal(signum)) == code
    assert signal.getsignal(signum) is before
    assert capsys.readouterr().err == f"error: stopped by {signum.name}\n"


def test_an_interrupted_command_says_how_to_continue(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stop = Interrupted(signal.SIGINT)

    def build(words: object) -> NoReturn:
        raise stop

    monkeypatch.setattr("labelkit.cli.main.build_app", build)
    instead = " with --resume instead of --overwrite; if training has not started, run it again unchanged"
    ways = [
        ("train x", " again", False),  # the first signal came before the run began
        ("train x", " with --resume", True),
        ("train x --overwrite", instead, True),  # both options together are refused
        ("embed x --overwrite", " again", False),
        ("start x", " again", False),
    ]
    for command, way, resumable in ways:
        stop.resumable = resumable
        assert main(command.split()) == 130
        told = f"error: stopped by SIGINT; to continue, run the same command{way}\n"
        assert capsys.readouterr().err == told


@pytest.mark.parametrize("wrapped", [ValueError("from Rust"), StoreError("a.h5", "cannot be read")])
def test_a_signal_that_a_library_made_another_error_of_is_still_a_signal(
    capsys: pytest.CaptureFixture[str], wrapped: Exception
) -> None:
    def act() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        except Interrupted:
            raise wrapped from None

    assert code_of(act) == 143
    assert capsys.readouterr().err == "error: stopped by SIGTERM\n"


def test_a_field_named_like_a_common_option_is_a_programmers_error() -> None:
    class Clash(BaseConfig):
        verbose: bool = False

    with pytest.raises(ValueError, match="verbose"):
        stage_command(Clash, lambda config: None)


def test_a_command_without_presets_has_no_preset_option(capsys: pytest.CaptureFixture[str]) -> None:
    class Plain(BaseConfig):
        command: ClassVar[tuple[str, ...]] = ("plain",)
        seed: int = 0

    app = typer.Typer(add_completion=False)
    app.command()(stage_command(Plain, lambda config: None))
    assert run_app(lambda: app, ["--preset", "x"]) == 2
    assert run_app(lambda: app, ["--seed", "3"]) == 0
