"""The files that ``labelkit find`` writes: checked before any work, and the table."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from labelkit.config.find import FindConfig
from labelkit.errors import ConfigError
from labelkit.stages.new_files import check_new_file
from labelkit.store.commit import commit_bytes


def check_outputs(config: FindConfig) -> None:
    """Find out before anything is read that the files cannot be written.

    Raises:
        ConfigError: they are there, or are named like a store.
    """
    for name, path in (("--out", config.out), ("--sheet", config.sheet)):
        if path is None:
            continue
        if path.suffix == ".h5":
            raise ConfigError(name, f"{path} is named like a store", "Choose another name.")
        check_new_file(path, overwrite=config.overwrite, option=name)
    if config.sheet is not None and config.sheet.resolve() == config.out.resolve():
        raise ConfigError("--sheet", f"{config.sheet} is also the table", "Choose another name.")


def write_table(config: FindConfig, columns: Sequence[str], lines: Sequence[Sequence[object]]) -> None:
    """Write the CSV."""
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(lines)
    commit_bytes(config.out, buffer.getvalue().encode())
