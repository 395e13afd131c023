"""``labelkit train METHOD``: one subcommand per row of the table of methods."""

from __future__ import annotations

import typer

from labelkit.cli.command import Command, stage_command
from labelkit.cli.console import print_result
from labelkit.cli.options import new_group
from labelkit.config.train import RunConfig
from labelkit.methods.registry import METHODS


def _train_command(name: str, summary: str, config_class: type[RunConfig]) -> Command:
    def train(config: RunConfig) -> None:
        from labelkit.stages.train.run import train_method  # torch loads here, not in --help

        print_result(train_method(config))

    train.__doc__ = f"{summary}\n\nExample: labelkit train {name} --dataset digits --out runs/{name}-digits"
    return stage_command(config_class)(train)


def build_app() -> typer.Typer:
    """Build ``labelkit train`` with all its subcommands."""
    app = new_group()
    for name, spec in METHODS.items():
        app.command(name)(_train_command(name, spec.summary, spec.config))
    return app
