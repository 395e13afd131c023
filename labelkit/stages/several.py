"""Commands that several processes run together, as torchrun starts them; all others are refused there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal

from labelkit.algorithms.shared_rows import ALONE, Processes
from labelkit.config.base import StageConfig, shell_name, value_text
from labelkit.engine.launched import process_count
from labelkit.errors import ConfigError
from labelkit.stages.result import SimpleResult

Shares = Literal["images", "rows"]
"""What several processes of a command share: images, by ``engine.devices.Runtime``; or rows, by ``Processes``."""

# Where the images lie is a matter of the machine.
_MAY_DIFFER: Final = frozenset({"data_root"})
_REMEDY: Final = "Give all processes the same options."
_current: ContextVar[Processes] = ContextVar("labelkit_processes", default=ALONE)


def current_processes() -> Processes:
    """Return the processes that share the rows of the command under way; one, unless torchrun started more."""
    return _current.get()


def of_others() -> SimpleResult:
    """Return what processes other than the first hand back: nothing, since that one has it all."""
    return SimpleResult({})


def refuse_several(option: str, problem: str, remedy: str) -> None:
    """Refuse an option that only one process can work by.

    Raises:
        ConfigError: there are several.
    """
    if current_processes().size > 1:
        raise ConfigError(option, f"{problem}, which several processes do not share", remedy)


@contextmanager
def together(shares: Shares | None, config: StageConfig) -> Iterator[Processes]:
    """Let the processes of torchrun run a command together; in the end all wait for the one that writes.

    Args:
        shares: what they share; ``None``: the command works alone.
        config: its options.

    Raises:
        ConfigError: several were started for a command that works alone, or their options differ.
        ResourceError: another process ended.
    """
    count = process_count()
    if count == 1 or shares == "images":
        yield ALONE
        return
    if shares is None:
        raise ConfigError(
            f"labelkit {' '.join(config.command)}",
            f"was started as {count} processes (WORLD_SIZE), and does not share its work: each would do all of it",
            "Start it without torchrun, or unset WORLD_SIZE in a process that works alone.",
        )
    from labelkit.engine.joined import JoinedProcesses  # torch loads where there are several

    joined = JoinedProcesses.join_once()
    token = _current.set(joined)
    try:
        check_same_on_all(config, joined.texts)
        yield joined
        joined.barrier()
    except BaseException:
        joined.leave()
        raise
    finally:
        _current.reset(token)


def check_same_on_all(config: StageConfig, texts: Callable[[str], list[str]]) -> None:
    """Refuse options that differ between processes.

    Args:
        config: of this process.
        texts: gives the text of each process for the one of this.

    Raises:
        ConfigError: on every process, naming the first option that differs.
    """
    own = {"command": list(config.command), **config.to_yaml_dict()}
    first, *others = (json.loads(text) for text in texts(json.dumps(own)))
    for rank, other in enumerate(others, start=1):
        if other["command"] != first["command"]:
            said, there = (" ".join(one["command"]) for one in (first, other))
            raise ConfigError("torchrun", f"process 0 runs {said}, process {rank} runs {there}", _REMEDY)
        for name, field in type(config).model_fields.items():
            if name not in _MAY_DIFFER and first[name] != other[name]:
                said, there = (value_text(one[name]) for one in (first, other))
                problem = f"is {said} in process 0, and {there} in process {rank}"
                raise ConfigError(shell_name(name, field), problem, _REMEDY)
