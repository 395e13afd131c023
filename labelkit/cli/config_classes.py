"""The config classes of all commands; importing this module imports all of them."""

from labelkit.commands.table import all_commands
from labelkit.options.base import BaseConfig

CONFIG_CLASSES: tuple[type[BaseConfig], ...] = tuple(command.load_config_class() for command in all_commands().values())
"""Config classes in the order of the command table."""
