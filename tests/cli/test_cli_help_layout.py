"""Help as it is laid out here is help as Typer lays it out, and neither Typer nor rich is loaded to show it."""

import subprocess
import sys
from importlib.metadata import version
from typing import Any

import pytest
from labelkit.cli.help_layout import OptionRow, Paper, lay_out
from labelkit.cli.main import build_app, main
from labelkit.cli.quick_help import quick_help
from rich.text import Text
from typer import rich_utils
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

SHOWN = [
    (),
    ("discover",),
    ("start",),
    ("predict",),
    ("embed",),
    ("train", "sela"),
    ("evaluate", "knn"),
    ("config", "compare"),
]

AS_TYPER = pytest.mark.skipif(
    not version("typer").startswith("0.29."), reason="the layout is that of Typer 0.29; another one may differ"
)


def built(words: tuple[str, ...]) -> Any:
    """Return what Typer made of a command."""
    command: Any = get_command(build_app(words))
    for word in words:
        command = command.commands[word]
    return command


def of_typer(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """Return help as Typer and rich lay it out."""
    command = built(words)
    name, help_names = " ".join(("labelkit", *words)), ["-h", "--help"]
    context = command.make_context(name, [], resilient_parsing=True, help_option_names=help_names)
    kind = TyperGroup if isinstance(command, TyperGroup) else TyperCommand
    capsys.readouterr()
    kind.format_help(command, context, context.make_formatter())
    return capsys.readouterr().out


def ours(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """Return help as the command line shows it, without the empty line that ends it."""
    capsys.readouterr()
    assert main([*words, "--help"]) == 0
    return capsys.readouterr().out.removesuffix("\n")


def without_usage(text: str) -> list[str]:
    """Return the lines under the one that shows the usage, which Typer breaks in ways of its own."""
    lines = text.split("\n")
    return lines[next(number for number, line in enumerate(lines) if number and not line.strip()) :]


def styled(text: str) -> list[tuple[str, set[str]]]:
    """Return each character that is not blank, with the names of its styles."""
    drawn = Text.from_ansi(text)
    styles: list[set[str]] = [set() for _ in drawn.plain]
    for span in drawn.spans:
        for number in range(span.start, min(span.end, len(styles))):
            styles[number].add(str(span.style))
    return [pair for pair in zip(drawn.plain, styles, strict=True) if pair[0].strip()]


@AS_TYPER
@pytest.mark.parametrize("width", [100, 80, 63, 40])
@pytest.mark.parametrize("words", SHOWN, ids=" ".join)
def test_help_is_the_text_that_typer_shows(
    words: tuple[str, ...], width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert without_usage(ours(words, capsys)) == without_usage(of_typer(words, capsys))


@AS_TYPER
@pytest.mark.parametrize("no_color", ["", "1"])
@pytest.mark.parametrize("words", [(), ("start",), ("embed",), ("train", "sela")], ids=" ".join)
def test_help_on_a_terminal_has_the_styles_of_typer(
    words: tuple[str, ...], no_color: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"COLUMNS": "80", "TERM": "xterm-256color", "NO_COLOR": no_color, "FORCE_COLOR": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(rich_utils, "FORCE_TERMINAL", True)
    shown = ours(words, capsys)
    assert "\x1b[1" in shown
    assert styled(shown) == styled(of_typer(words, capsys))


@pytest.mark.parametrize("words", [("start",), ("train", "sela"), ("config", "train", "sela"), ("config", "embed")])
def test_quick_help_is_the_help_of_the_parser(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--help", "-h"):
        assert main([*words, option]) == 0
        assert quick_help([*words, option]) == capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        *("", "--help", "train --help", "embed", "embed --out --help", "-v embed --help", "train nothing --help"),
        *("list methods --help", "config --help", "config train --help", "embed sela --help", "nothing --help"),
    ],
)
def test_quick_help_leaves_all_other_lines_to_the_parser(line: str) -> None:
    assert quick_help(line.split()) is None


def test_quick_help_leaves_completion_to_the_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_LABELKIT_COMPLETE", "complete_bash")
    assert quick_help(["embed", "--help"]) is None


@pytest.mark.parametrize(("words", "unloaded"), [("train sela", "typer, rich"), ("train", "rich")])
def test_help_does_not_load_what_it_does_not_need(words: str, unloaded: str) -> None:
    code = (
        "import sys; from labelkit.__main__ import run\n"
        f"sys.argv = ['labelkit', *{words.split()!r}, '--help']\n"
        "try: run()\n"
        f"finally: print([name for name in '{unloaded}'.split(', ') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert f"Usage: labelkit {words} " in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_table_drawn_by_hand() -> None:
    rows = [
        OptionRow("Width of it.", "--width", "-w", kind="INT"),
        OptionRow("Cut long lines.", "--cut", "", "--no-cut"),
    ]
    drawn = lay_out("sieve [OPTIONS]", "Sieve.", [("Run", rows)], Paper(width=50))
    assert drawn.split("\n")[5:] == [
        "╭─ Run ──────────────────────────────────────────╮",
        "│ --width  -w              INT  Width of it.     │",
        "│ --cut        --no-cut         Cut long lines.  │",
        "╰────────────────────────────────────────────────╯",
        "",
    ]


def test_frames_are_of_ascii_where_the_encoding_has_no_others() -> None:
    drawn = lay_out("sieve [OPTIONS]", "Sieve.", [("Run", [OptionRow("Cut.", "--cut")])], Paper(width=30, lines=False))
    assert drawn.isascii()
    assert "| --cut          Cut.        |" in drawn
