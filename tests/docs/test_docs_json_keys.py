"""The recorded keys of ``--json`` are those that the commands print."""

import json
from pathlib import Path

import pytest

from generate.commands import all_commands
from generate.json_keys import RECORD, keys, keys_table
from generate.recording import command_lines, record


def test_every_command_is_recorded() -> None:
    leaves = {" ".join(words) for words, command in all_commands() if not getattr(command, "commands", None)}
    expected = leaves - {"config"}
    recorded = set(json.loads(RECORD.read_text()))
    assert recorded <= expected
    # the slow test below asks for a new method
    assert {name for name in expected - recorded if not name.startswith("train ")} == set()


def test_keys_of_objects_and_of_lists_of_objects_are_joined() -> None:
    found = keys(
        {"n": 3, "model": {"name": "a"}, "rows": [{"id": 1}, {"id": 2, "score": 0.5}, {"id": None}], "none": None}
    )
    assert found == {
        "n": "whole number",
        "model": "object",
        "model.name": "text",
        "rows": "list of objects",
        "rows[].id": "whole number or null",
        "rows[].score": "number",
        "none": "null",
    }
    # names that come from the data are no keys
    assert keys({"per_class": {"7": 0.5, "8": 1.0}}) == {"per_class": "object by name"}
    assert keys({"per_class": {f"class_{i}": 1 for i in range(31)}}) == {"per_class": "object by name"}
    assert keys({"a": [], "b": ["x"], "c": [True], "d": [[1]]}) == {
        "a": "list",
        "b": "list of texts",
        "c": "list of switches",
        "d": "list of lists of whole numbers",
    }


def test_the_table_of_a_command_has_its_keys() -> None:
    assert "| `content_digest` | text |" in keys_table("embed")
    assert keys_table("no such command") == ""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_commands_print_the_recorded_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = record(command_lines())
    recorded = json.loads(RECORD.read_text())
    assert {name: sorted(found) for name, found in printed.items()} == {
        name: sorted(found) for name, found in recorded.items()
    }
