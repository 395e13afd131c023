"""The help of a command, made from its config class; the parser takes names and texts of its options from here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic.fields import FieldInfo

from labelkit.cli import common_rows
from labelkit.cli.help_layout import OptionRow, Paper, lay_out
from labelkit.config.base import (
    StageConfig,
    aliases,
    allows_none,
    bounds,
    choices,
    field_extra,
    flag,
    is_switch,
    metavar,
    value_text,
)
from labelkit.config.presets import available_presets

_WIDEST_METAVAR = 20
_LAST_PANELS = ("Output", "Gate", "Run")
_ARGUMENTS, _OPTIONS = "Arguments", "Options"


@dataclass(frozen=True)
class HelpPage:
    """All that ``--help`` of a command says, but its name.

    Attributes:
        arguments: what the line with the usage has behind ``[OPTIONS]``.
        text: what the command does, and an example.
        panels: titles, and the options below each.
    """

    arguments: str
    text: str
    panels: dict[str, list[OptionRow]]

    def drawn(self, command: str) -> str:
        """Return it as stdout shows it; ``command`` is the whole name, ``labelkit train sela``."""
        usage = f"{command} [OPTIONS]{self.arguments}"
        return lay_out(usage, self.text, self.panels.items(), Paper.of(sys.stdout))


def help_page(config_class: type[StageConfig], text: str, presets_folder: Path | None = None) -> HelpPage:
    """Return the help of a command.

    Args:
        config_class: the source of its options.
        text: what it does.
        presets_folder: as for :func:`labelkit.config.presets.resolve`.
    """
    arguments = ""
    panels: dict[str, list[OptionRow]] = {_ARGUMENTS: [], _OPTIONS: []}
    for name, field in ordered_fields(config_class):
        row = option_row(name, field)
        if field_extra(field, "positional"):
            arguments += f" [{row.short}]{'...' if is_list(field) else ''}"
            panels[_ARGUMENTS].append(row)
        else:
            panels.setdefault(str(field_extra(field, "panel") or _OPTIONS), []).append(row)
    panels[_OPTIONS].append(common_rows.HELP)
    common = panels.setdefault(common_rows.COMMON_PANEL, [])
    presets = available_presets(config_class, presets_folder)
    if takes_presets(config_class, presets):
        common.append(preset_row(config_class, presets))
    common += (common_rows.CONFIG, common_rows.SET, common_rows.JSON, common_rows.QUIET, common_rows.VERBOSE)
    return HelpPage(arguments, text, {title: rows for title, rows in panels.items() if rows})


def config_text(words: Sequence[str]) -> str:
    """Return the text of ``labelkit config`` with the words of a command."""
    command = " ".join(words)
    return (
        f"Print what `labelkit {command}` would run with, and where each value comes from.\n\n"
        f"Example: labelkit config {command} > my.yaml"
    )


def ordered_fields(config_class: type[StageConfig]) -> list[tuple[str, FieldInfo]]:
    """Return the fields as help lists them: what is read, what is written, how it is run."""
    shown = [item for item in config_class.model_fields.items() if not field_extra(item[1], "hidden")]
    return sorted(shown, key=lambda item: _place(item[1]))


def option_row(name: str, field: FieldInfo) -> OptionRow:
    """Return what help says of a field."""
    if field_extra(field, "positional"):
        return OptionRow(_text(field), short=name.upper(), kind="<list[str]>" if is_list(field) else "<str>")
    switch = is_switch(field.annotation)
    return OptionRow(
        _text(field),
        long=",".join((flag(name), *aliases(field))),
        short=str(field_extra(field, "short") or ""),
        negative=f"--no-{flag(name)[2:]}" if switch else "",
        kind=_kind(field),
    )


def takes_presets(config_class: type[StageConfig], presets: dict[str, Path]) -> bool:
    """Return whether the command has ``--preset``."""
    return bool(presets) or config_class.command[:1] == ("train",)


def preset_row(config_class: type[StageConfig], presets: dict[str, Path]) -> OptionRow:
    """Return what help says of ``--preset``."""
    is_train = config_class.command[:1] == ("train",)
    chosen = "; default: the one named like the data set, if any" if is_train else ""
    text = f"Preset by name or YAML file, or none ({', '.join(presets) or 'no names yet'}{chosen})."
    return OptionRow(text, "--preset", kind="NAME|FILE")


def is_list(field: FieldInfo) -> bool:
    """Return whether a field takes all words behind the command that belong to no option."""
    return bool(field_extra(field, "positional")) and "tuple" in str(field.annotation)


def _place(field: FieldInfo) -> int:
    panel = field_extra(field, "panel")
    return _LAST_PANELS.index(str(panel)) + 1 if panel in _LAST_PANELS else 0


def _text(field: FieldInfo) -> str:
    notes = [bounds(field)] if bounds(field) else []
    if _kind(field) == "CHOICE":
        notes.append("one of " + ", ".join(choices(field.annotation)))
    description = (field.description or "").strip()
    if field.is_required():
        notes.append("required")
    else:
        default = field.get_default(call_default_factory=True)
        is_told = default is None and "default" in description.lower()
        if not is_told and not (allows_none(field.annotation) and default is None and not description):
            notes.append(f"default: {value_text(default)}")
    return f"{description} [{'; '.join(notes)}]" if notes else description


def _kind(field: FieldInfo) -> str:
    """Return the word for a value; long choices go to the description, where they can wrap."""
    if is_switch(field.annotation):
        return ""
    word = metavar(field.annotation)
    return word if len(word) <= _WIDEST_METAVAR else "CHOICE"
