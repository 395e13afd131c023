"""The config classes of all commands, for those who go through all of them; this imports every one."""

from __future__ import annotations

from labelkit.commands.table import all_commands
from labelkit.options.base import StageConfig

CONFIG_CLASSES: tuple[type[StageConfig], ...] = tuple(command.config_class() for command in all_commands().values())
"""The config of every stage command."""
