"""What help says of the options of all commands: each is told by itself, in order, and by one word for one thing."""

import re

import pytest
from labelkit.cli.config_classes import CONFIG_CLASSES
from labelkit.cli.main import main
from labelkit.options.base import BaseConfig, read_field_extra

# One with a group, one without, one that takes a folder by its place; all others among the slow tests.
ONE_OF_EACH = {("cluster", "k-means"), ("embed",), ("start",)}
COMMANDS = [
    pytest.param(one, id=" ".join(one.command), marks=[] if one.command in ONE_OF_EACH else pytest.mark.slow)
    for one in CONFIG_CLASSES
]
TEXTS = [
    (f"{' '.join(config_class.command)} {name}", field.description or "")
    for config_class in CONFIG_CLASSES
    for name, field in config_class.model_fields.items()
]
# An option is also read alone: no text may go on with the one above it.
LEANS_ON_ANOTHER = re.compile(
    r"(Its|Their|And|But|but|They|These|Those|When they|The same (?!images)|Over the (?!images)|Of (?!a |the ))"
    r"|.*\b(that weight|that loss)\b"
)


def test_every_option_is_explained_by_itself() -> None:
    assert [name for name, text in TEXTS if not text.endswith((".", ")."))] == []
    assert [name for name, text in TEXTS if LEANS_ON_ANOTHER.match(text)] == []


def test_one_thing_has_one_name() -> None:
    others = {
        "learning_rate", "dim", "iterations", "num_starts", "random_seed", "restarts", "short_side", "store", "workers",
    }  # fmt: skip

    assert others & {name.split()[-1] for name, _ in TEXTS} == set()


@pytest.mark.slow
@pytest.mark.parametrize("config_class", COMMANDS)
def test_help_tells_what_is_read_before_what_is_written_and_how_it_runs(
    config_class: type[BaseConfig], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*config_class.command, "--help"]) == 0

    shown = capsys.readouterr().out
    assert f"Example: labelkit {' '.join(config_class.command)}" in " ".join(shown.split())
    panels = re.findall(r"^╭─ (.*?) ─", shown, flags=re.MULTILINE)
    last = [name for name in ("Output", "Limits", "Run", "All commands") if name in panels]
    positional = any(read_field_extra(field, "positional") for field in config_class.model_fields.values())
    assert panels[: 1 + positional] == ["Arguments", "Options"][1 - positional :]
    assert panels[-len(last) :] == last


def test_help_is_in_plain_sentences() -> None:
    sentences = [(name, part) for name, text in TEXTS for part in re.split(r"(?<=[.;:]) ", text)]

    assert [name for name, part in sentences if len(part.split()) > 25] == []
    assert [name for name, text in TEXTS if re.search("so many|what fits|at the most|[Oo]f more,", text)] == []
