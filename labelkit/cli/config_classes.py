"""The config classes of all commands, for those who go through all of them; this imports every one."""

from __future__ import annotations

from labelkit.config.base import StageConfig
from labelkit.stages.commands import all_commands

CONFIG_CLASSES: tuple[type[StageConfig], ...] = tuple(command.config_class() for command in all_commands().values())
"""The config of every stage command."""
