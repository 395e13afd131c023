"""The config classes of all commands, for code that iterates over them; importing this module imports them all."""

from labelkit.commands.table import all_commands
from labelkit.options.base import StageConfig

CONFIG_CLASSES: tuple[type[StageConfig], ...] = tuple(command.config_class() for command in all_commands().values())
"""The config class of every stage command."""
