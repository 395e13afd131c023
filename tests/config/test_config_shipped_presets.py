"""Every preset that came with labelkit: valid, reachable, and naming the command that runs it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
import yaml
from labelkit.cli.config_classes import CONFIG_CLASSES
from labelkit.cli.main import main
from labelkit.config.base import StageConfig
from labelkit.config.methods.san import SANConfig
from labelkit.config.presets import (
    available_presets,
    collect,
    preset_command,
    preset_comment,
    preset_folder_name,
    preset_lines,
    shipped_presets,
)
from labelkit.config.yaml_file import read_yaml
from labelkit.stages.reproduce.tables import FOLDER as TABLES

PRESETS = [
    pytest.param(config_class, path, id=f"{path.parent.name}/{name}")
    for config_class in CONFIG_CLASSES
    for name, path in available_presets(config_class).items()
]


@pytest.mark.parametrize(("config_class", "path"), PRESETS)
def test_a_preset_has_no_faults(config_class: type[StageConfig], path: Path) -> None:
    assert collect(config_class, preset=path.stem).faults == ()


@pytest.mark.parametrize(("config_class", "path"), PRESETS)
def test_a_preset_changes_something(config_class: type[StageConfig], path: Path) -> None:
    assert read_yaml(path)


@pytest.mark.parametrize(("config_class", "path"), PRESETS)
def test_the_command_in_the_first_line_uses_the_preset(
    config_class: type[StageConfig], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(preset_command(path))[1:]
    assert tuple(words[: len(config_class.command)]) == config_class.command
    assert main(["config", *words]) == 0
    assert f"presets/{path.parent.name}/{path.name}" in capsys.readouterr().out


@pytest.mark.parametrize(("config_class", "path"), PRESETS)
def test_lines_of_a_preset_are_its_options_and_values(config_class: type[StageConfig], path: Path) -> None:
    lines = preset_lines(path)
    assert {line.option: yaml.safe_load(line.value) for line in lines} == yaml.safe_load(path.read_text())
    assert "#" not in "".join(line.value for line in lines)


def test_a_line_says_where_its_value_comes_from_and_the_comment_what_its_marks_mean() -> None:
    path = available_presets(SANConfig)["cub"]
    lines = {line.option: line for line in preset_lines(path)}
    assert (lines["embed_dim"].value, lines["embed_dim"].place) == ("512", "[D] 5.4.2")
    assert (lines["pretrained"].value, lines["pretrained"].place) == ("true", "")
    assert lines["recall_ks"].value == "[1, 2, 4, 8]"
    assert preset_comment(path).startswith("CUB-200-2011 with labels, Tables 5.1 and 5.4.")
    assert preset_comment(path).endswith("[O] ours, none says.")


def test_every_folder_of_presets_belongs_to_a_command() -> None:
    folder = shipped_presets()
    assert folder is not None
    known = {preset_folder_name(config_class.command) for config_class in CONFIG_CLASSES}
    assert {path.name for path in folder.iterdir() if path.is_dir()} <= {*known, TABLES}
