"""``labelkit train METHOD``: one subcommand per row of the table of methods."""

from __future__ import annotations

from collections.abc import Sequence

import typer

from labelkit.cli.command import stage_command
from labelkit.cli.console import print_result
from labelkit.cli.options import Command, is_named, listed, new_group
from labelkit.config.train import RunConfig
from labelkit.methods.registry import METHODS


def _train_command(name: str, words: Sequence[str] | None) -> Command:
    text = f"{METHODS[name].summary}\n\nExample: labelkit train {name} --dataset digits --out runs/{name}-digits"
    if not is_named(name, words):
        return listed(text)

    def train(config: RunConfig) -> None:
        from labelkit.stages.train.run import train_method  # torch loads here, not in --help

        print_result(train_method(config))

    train.__doc__ = text
    return stage_command(METHODS[name].config)(train)


def build_app(words: Sequence[str] | None) -> typer.Typer:
    """Build ``labelkit train`` as far as the words after it need."""
    return new_group({name: _train_command(name, words) for name in METHODS}, words)
