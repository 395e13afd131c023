"""``labelkit show schedule METHOD``: what a training with these options would do, by the update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.cli.options import Command, is_named, new_group, placeholder_command
from labelkit.commands.show.options import schedule_options, with_data_of_preset
from labelkit.methods.registry import METHODS


def build_app(words: Sequence[str] | None) -> typer.Typer:
    """Build the ``labelkit show schedule`` app, with options only for the method named in ``words``."""
    return new_group({name: _schedule_command(name, words) for name in METHODS}, words)


def schedule_text(name: str) -> str:
    """Return the help text of ``labelkit show schedule`` for a method."""
    return (
        f"Show what `labelkit train {name}` with the same options would do, by the update.\n\n"
        f"Example: labelkit show schedule {name} --preset digits --out curves.png"
    )


def _schedule_command(name: str, words: Sequence[str] | None) -> Command:
    if not is_named(name, words):
        return placeholder_command(schedule_text(name))

    def run(config: Any) -> None:
        from labelkit.commands.show.schedule import show_schedule  # torch loads here, not in --help

        print_result(show_schedule(config))

    run.__doc__ = schedule_text(name)
    return stage_command(schedule_options(METHODS[name].config), run, with_data_of_preset)
