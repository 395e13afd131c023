"""``labelkit list``: the available methods, datasets, backbones, presets and tables."""

# Config classes and tables are imported on use: `labelkit list --help` needs none.
from collections.abc import Sequence
from typing import Annotated

import typer

from labelkit.cli.console import current_output, print_line, print_result
from labelkit.cli.options import with_output_options
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.errors import ConfigError


@with_output_options
def list_methods() -> None:
    """List the methods of `labelkit train`.

    Example: labelkit list methods
    """
    from labelkit.methods.registry import METHODS
    from labelkit.options.presets import list_presets

    rows = [(name, spec.summary, ", ".join(list_presets(spec.config))) for name, spec in METHODS.items()]
    _print_rows("methods", ("name", "summary", "presets"), rows)


@with_output_options
def list_datasets() -> None:
    """List the registered datasets; for your own folder or CSV, pass its path to --dataset.

    Example: labelkit list datasets
    """
    from labelkit.data.registry import DATASETS

    rows = [(name, spec.num_classes, spec.license, spec.summary, spec.layout) for name, spec in DATASETS.items()]
    _print_rows("datasets", ("name", "classes", "license", "summary", "layout"), rows)


@with_output_options
def list_backbones(
    pattern: Annotated[
        str, typer.Option("--pattern", metavar="GLOB", help="Show only matching names, such as vit_*dino*.")
    ] = "*",
) -> None:
    """List the backbones of labelkit and timm, with the weights on this machine and their licenses.

    Example: labelkit list backbones --pattern "vit_*dino*"
    """
    from labelkit.models.backbones.registry import list_backbones as backbone_names  # timm loads here, not in --help
    from labelkit.models.weights.published import describe_published_weights

    rows = [(name, *describe_published_weights(name)) for name in backbone_names(pattern)]
    _print_rows("backbones", ("name", "weights", "license"), rows)


@with_output_options
def list_presets(
    pattern: Annotated[
        str, typer.Option("--pattern", metavar="GLOB", help="Show only matching METHOD/NAME, such as san/*.")
    ] = "*",
) -> None:
    """List the presets with their commands and descriptions.

    Example: labelkit list presets --pattern "san/*"
    """
    from fnmatch import fnmatchcase

    from labelkit.cli.config_classes import CONFIG_CLASSES
    from labelkit.options.presets import list_presets, preset_folder_name, read_preset_command, read_preset_comment

    found = [
        (" ".join(config_class.command), name, path)
        for config_class in CONFIG_CLASSES
        for name, path in list_presets(config_class).items()
        if fnmatchcase(f"{preset_folder_name(config_class.command)}/{name}", pattern)
        # without presets inherited from another method
        and path.parent.name == preset_folder_name(config_class.command)
    ]
    if not found:
        remedy = "Pass METHOD/NAME, such as 'san/*'; `labelkit list presets` shows all presets."
        raise ConfigError("--pattern", f"no preset matches {pattern}", remedy)
    shown = [(command, name, read_preset_command(path), read_preset_comment(path)) for command, name, path in found]
    columns = ("for", "name", "command", "about")
    _print_rows("presets", columns, shown, name_column=1)


@with_output_options
def list_tables() -> None:
    """List the published tables that `labelkit reproduce` can reproduce, and those that it cannot.

    Example: labelkit list tables
    """
    from labelkit.pipelines.reproduce.tables import list_available_tables, list_excluded_tables, read_table

    tables = map(read_table, list_available_tables())
    rows = [(table.name, table.source, table.place, len(table.rows), table.title) for table in tables]
    why = ("source", "place", "reason")
    missing = Table("not included", why, [[entry[key] for key in why] for entry in list_excluded_tables()])
    _print_rows("tables", ("name", "source", "place", "rows", "title"), rows, left_out=missing)


def _print_rows(
    what: str, columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, name_column: int = 0, **others: Table
) -> None:
    """Print rows and other tables, as JSON ``{what: [{column: cell}]}``, or only the names of the rows with ``-q``."""
    output = current_output()
    if output.quiet and not output.json:
        for row in rows:
            print_line(str(row[name_column]))
        return
    tables = {what: Table("", columns, rows), **others}
    values = {name: [dict(zip(one.columns, row, strict=True)) for row in one.rows] for name, one in tables.items()}
    print_result(CommandResult(dict(values), shown=tuple(tables.values())))


FUNCTIONS = {
    "methods": list_methods,
    "datasets": list_datasets,
    "backbones": list_backbones,
    "presets": list_presets,
    "tables": list_tables,
}
"""The commands of ``labelkit list``."""
