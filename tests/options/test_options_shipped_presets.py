"""Every preset that came with labelkit: valid, reachable, and naming the command that runs it."""

import shlex
from pathlib import Path

import pytest
import yaml
from labelkit.cli.config_classes import CONFIG_CLASSES
from labelkit.cli.main import main
from labelkit.methods.metric.options import SANConfig
from labelkit.options.base import BaseConfig
from labelkit.options.presets import (
    find_bundled_presets,
    list_presets,
    preset_folder_name,
    read_preset_command,
    read_preset_comment,
    read_yaml,
    resolve_config,
)
from labelkit.pipelines.reproduce.tables import FOLDER as TABLES

from generate.tables import preset_lines

PRESETS = [(config_class, path) for config_class in CONFIG_CLASSES for path in list_presets(config_class).values()]


def faults_of(config_class: type[BaseConfig], path: Path) -> list[str]:
    found = resolve_config(config_class, preset=path.stem)
    values = read_yaml(path)
    lines = preset_lines(path)
    words = shlex.split(read_preset_command(path))[1:]
    rules = {
        "changes nothing": bool(values),
        "sets what it does not say": {key for key, origin in found.origins.items() if "presets/" in origin}
        == set(values),
        "has lines that are not its options and values": {option: yaml.safe_load(value) for option, value, _ in lines}
        == yaml.safe_load(path.read_text())
        and "#" not in "".join(value for _, value, _ in lines),
        "names another command in its first line": tuple(words[: len(config_class.command)]) == config_class.command,
    }
    return [f"{path.parent.name}/{path.name} {fault}" for fault, kept in rules.items() if not kept]


@pytest.mark.slow
def test_a_preset_is_valid_changes_something_and_is_told_line_by_line() -> None:
    assert [fault for preset in PRESETS for fault in faults_of(*preset)] == []


@pytest.mark.slow
def test_the_command_in_the_first_line_uses_the_preset(capsys: pytest.CaptureFixture[str]) -> None:
    unused = []
    for _, path in PRESETS:
        code, shown = main(["config", *shlex.split(read_preset_command(path))[1:]]), capsys.readouterr().out
        if code != 0 or f"presets/{path.parent.name}/{path.name}" not in shown:
            unused.append(path)
    assert unused == []


def test_a_line_says_where_its_value_comes_from_and_the_comment_what_its_marks_mean() -> None:
    path = list_presets(SANConfig)["cub"]
    lines = {option: (value, place) for option, value, place in preset_lines(path)}
    assert lines["embed_dim"] == ("512", "[D] 5.4.2")
    assert lines["pretrained"] == ("true", "")
    assert lines["recall_ks"][0] == "[1, 2, 4, 8]"
    assert read_preset_comment(path).startswith("CUB-200-2011 with labels, Tables 5.1 and 5.4.")
    assert read_preset_comment(path).endswith("[O] ours, as none specifies it.")


def test_every_folder_of_presets_belongs_to_a_command() -> None:
    folder = find_bundled_presets()
    assert folder is not None
    known = {preset_folder_name(config_class.command) for config_class in CONFIG_CLASSES}
    assert {path.name for path in folder.iterdir() if path.is_dir()} <= {*known, TABLES}
