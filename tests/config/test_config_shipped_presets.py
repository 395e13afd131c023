"""Every preset that came with labelkit: valid, reachable, and naming the command that runs it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from labelkit.cli.config_classes import CONFIG_CLASSES
from labelkit.cli.main import main
from labelkit.config.base import StageConfig
from labelkit.config.presets import (
    available_presets,
    collect,
    preset_command,
    preset_folder_name,
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


def test_every_folder_of_presets_belongs_to_a_command() -> None:
    folder = shipped_presets()
    assert folder is not None
    known = {preset_folder_name(config_class.command) for config_class in CONFIG_CLASSES}
    assert {path.name for path in folder.iterdir() if path.is_dir()} <= {*known, TABLES}
