"""What is wrong with options, presets and config files, all of it in one error."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from labelkit.errors import ConfigError


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong: ``where: problem. remedy``."""

    where: str
    problem: str
    remedy: str = ""

    def line(self) -> str:
        """Return the fault as one line."""
        return str(ConfigError(self.where, self.problem, self.remedy))


def faults_error(faults: Iterable[Fault]) -> ConfigError:
    """Return one error whose text has one line per fault, without repetitions."""
    first, *rest = dict.fromkeys(faults)
    if not rest:
        return ConfigError(first.where, first.problem, first.remedy)
    lines = [first.line().removeprefix(f"{first.where}: "), *(fault.line() for fault in rest)]
    return ConfigError(first.where, "\n".join(lines))
