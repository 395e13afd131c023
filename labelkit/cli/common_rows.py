"""What all commands share: the name of the program, and what help says of their common options."""

from __future__ import annotations

from labelkit.cli.help_layout import OptionRow

PROGRAM = "labelkit"
COMPLETION_VARIABLE = "_LABELKIT_COMPLETE"
HELP_NAMES = ("-h", "--help")
COMMON_PANEL = "All commands"

HELP = OptionRow("Show this message and exit.", "--help", "-h", kind="<bool>")
CONFIG = OptionRow(
    "YAML file with options; stronger than a preset, weaker than options given here.", "--config", kind="FILE"
)
SET = OptionRow("Set any option by its key; may be repeated.", "--set", kind="KEY=VALUE")
JSON = OptionRow("Print one JSON object on stdout.", "--json")
QUIET = OptionRow("Print only the path of what was made.", "--quiet", "-q")
VERBOSE = OptionRow(
    "Also say on stderr what was set and what libraries log; show the traceback of an error.", "--verbose", "-v"
)
