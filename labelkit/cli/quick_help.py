"""Answer ``labelkit COMMAND --help`` without a parser: neither Typer nor rich is loaded for it."""

from __future__ import annotations

import os
from collections.abc import Sequence

from labelkit.cli.common_rows import COMPLETION_VARIABLE, HELP_NAMES, PROGRAM
from labelkit.methods import OWN_METHODS_VARIABLE
from labelkit.stages.commands import COMMANDS, Command, Group

_CONFIG = "config"


def quick_help(arguments: Sequence[str]) -> str | None:
    """Return what stdout shows, or None where the line does more than to name a command with options and ``--help``."""
    *words, last = arguments or ("",)
    # code of a user may fail, which the whole command line tells
    if last not in HELP_NAMES or COMPLETION_VARIABLE in os.environ or os.environ.get(OWN_METHODS_VARIABLE):
        return None
    shows_config = words[:1] == [_CONFIG]
    command = _named(words[1:] if shows_config else words)
    if command is None:
        return None
    from labelkit.cli.help_page import config_text, help_page  # pydantic loads here, not in `labelkit --help`

    text = config_text(words[1:]) if shows_config else command.help
    # behind it stands the empty line that ends the help of a parser
    return help_page(command.config_class(), text).drawn(" ".join((PROGRAM, *words))) + "\n"


def _named(words: Sequence[str]) -> Command | None:
    entry = COMMANDS.get(words[0]) if words else None
    if isinstance(entry, Group):
        return entry.commands.get(words[1]) if len(words) == 2 else None
    return entry if len(words) == 1 else None
