"""What results look like on stdout, for people, programs and pipes."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from labelkit.cli.console import (
    OutputOptions,
    current_output,
    dump_json,
    escape_controls,
    format_cell,
    format_table,
    print_error,
    print_message,
    print_result,
    use_output_options,
    write_text,
)
from labelkit.commands.common.results import CommandResult, Table
from labelkit.formatting import percent, percent_range

RESULT = CommandResult(
    {"accuracy": 0.75, "old": float("nan"), "store": Path("a.h5")},
    (Path("a.h5"), Path("sheet.png")),
    (Table("Scores", ("group", "rows", "accuracy"), (("all", 1797, 0.75), ("old", 0, float("nan")))),),
)


def test_people_get_aligned_text_when_stdout_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_result(RESULT)
    assert capsys.readouterr().out == (
        "Scores\ngroup   rows  accuracy\nall    1,797      0.75\nold        0         -\nmade a.h5\nmade sheet.png\n"
    )


def test_programs_get_one_strict_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    with use_output_options(OutputOptions(json=True)):
        print_result(RESULT)
    assert json.loads(capsys.readouterr().out) == {
        "accuracy": 0.75,
        "old": None,
        "store": "a.h5",
        "made": ["a.h5", "sheet.png"],
    }
    with use_output_options(OutputOptions(json=True)):
        print_result(CommandResult({"rows": 3}))
    assert json.loads(capsys.readouterr().out) == {"rows": 3}
    assert current_output() == OutputOptions()


def test_other_ranks_print_errors_only(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    print_result(RESULT)
    print_message("hello")
    print_error("it broke")
    assert capsys.readouterr() == ("", "error: [process 3] it broke\n")


def test_whole_cells_are_kept_however_long() -> None:
    name = "x" * 500
    assert name in format_table(Table("", ("name", "rows"), ((name, 1),)))


@pytest.mark.parametrize(
    ("cell", "text"),
    [(None, "-"), (float("nan"), "-"), (0.123456, "0.1235"), (12345, "12,345"), (True, "yes"), (Path("a/b"), "a/b")],
)
def test_cells_are_short_and_readable(cell: str | int | float | None, text: str) -> None:
    assert format_cell(cell) == text


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100.0"), (0.97149, "97.1"), (0.05, "5.0"), (0.0, "0.0"), (float("nan"), "-")]
)
def test_percent_has_one_decimal_in_tables_and_sentences(share: float, text: str) -> None:
    assert format_cell(percent(share)) == text
    assert f"{percent(0.97149)}%" == "97.1%"
    assert percent_range(0.8124, 1) == "81.2 - 100.0"


def test_a_name_cannot_drive_the_terminal() -> None:
    assert format_cell("a\x1b[2Jb\n\udce9") == r"a\x1b[2Jb\n\udce9"
    assert escape_controls("\x07\x9b") == r"\x07\x9b"


def test_arrays_and_numpy_numbers_become_json() -> None:
    value = {"ids": np.array([1, 2]), "score": np.float32(0.5), "bad": np.array([np.nan]), "many": (1, 2)}
    assert json.loads(dump_json({"a": percent(0.97149)}))["a"] == pytest.approx(97.149, abs=1e-12)
    assert json.loads(dump_json(value)) == {"ids": [1, 2], "score": 0.5, "bad": [None], "many": [1, 2]}


@pytest.mark.parametrize(
    ("encoding", "text", "content"),
    [
        ("utf-8", "na\udce9ve", b"na\xe9ve"),
        ("ascii", "naïve", b"na\\xefve"),
        ("utf-8", "naïve", "naïve".encode()),
    ],
)
def test_any_text_can_be_written_in_any_encoding(encoding: str, text: str, content: bytes) -> None:
    buffer = io.BytesIO()
    stream = io.TextIOWrapper(buffer, encoding=encoding)
    write_text(text, stream)
    assert buffer.getvalue() == content
