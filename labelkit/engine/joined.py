"""Processes that torchrun started for one command exchange arrays over gloo, on CPUs.

They are joined once in the life of a process: another command of the same process goes on with the same group. A
process that ends, or fails, closes its connections, so that no other waits for it.
"""

from __future__ import annotations

import atexit
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import distributed

from labelkit.engine.launched import JOIN_WAIT, LONGEST_WAIT
from labelkit.errors import ConfigError, ResourceError

_NAMES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class JoinedProcesses:
    """This process among the others; it is ``algorithms.shared_rows.Processes``.

    Raises:
        ConfigError: the launcher did not say who they are.
        ResourceError: another one is not there, or ended.
    """

    _joined: ClassVar[JoinedProcesses | None] = None

    def __init__(self) -> None:
        missing = [name for name in _NAMES if not os.environ.get(name)]
        if missing:
            raise ConfigError(
                "WORLD_SIZE",
                f"is {os.environ.get('WORLD_SIZE')}, and {', '.join(missing)} is not set",
                "Start the command by torchrun, or unset WORLD_SIZE.",
            )
        with _while_all_are_there():
            distributed.init_process_group("gloo", timeout=JOIN_WAIT)
            # once all are there, a process that ends is noticed by its connections; one that works may take hours
            self._group: Any = distributed.new_group(backend="gloo", timeout=LONGEST_WAIT)
        self.rank: int = distributed.get_rank()
        self.size: int = distributed.get_world_size()
        self._left = False

    @classmethod
    def join_once(cls) -> JoinedProcesses:
        """The processes of this run; the first call waits for all of them.

        Raises:
            ResourceError: a command failed here, which the others may not know.
        """
        if cls._joined is None:
            cls._joined = cls()
            # gloo's threads must end before the interpreter takes them down: they abort the process
            atexit.register(cls._joined.leave)
        if cls._joined._left:
            raise ResourceError("torchrun", "this process left the others when a command failed", "Start all anew.")
        return cls._joined

    def leave(self) -> None:
        """Close the connections: the others stop at their next exchange."""
        if not self._left:
            self._left = True
            distributed.destroy_process_group()
            # connections stay while anything refers to the group
            self._group = None

    def sum(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum over the processes of arrays of equal shape; the same bits on each."""
        total = torch.from_numpy(np.array(values, dtype=np.float64, order="C"))
        with _while_all_are_there():
            distributed.all_reduce(total, group=self._group)
        return total.numpy()

    def join(self, part: NDArray[Any]) -> NDArray[Any]:
        """The parts of all processes one after the other, on each; they may differ in length along the first axis."""
        lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(self.size)]
        with _while_all_are_there():
            distributed.all_gather(lengths, torch.tensor([len(part)]), group=self._group)
        numbers = [int(length) for length in lengths]
        row_bytes = part.dtype.itemsize * int(np.prod(part.shape[1:]))
        # gloo gathers what is equally long
        own = np.zeros(max(numbers) * row_bytes, dtype=np.uint8)
        own[: part.nbytes] = np.frombuffer(np.ascontiguousarray(part).tobytes(), dtype=np.uint8)
        gathered = [torch.empty(len(own), dtype=torch.uint8) for _ in range(self.size)]
        with _while_all_are_there():
            distributed.all_gather(gathered, torch.from_numpy(own), group=self._group)
        whole = np.concatenate([one.numpy()[: n * row_bytes] for one, n in zip(gathered, numbers, strict=True)])
        return whole.view(part.dtype).reshape(-1, *part.shape[1:])

    def texts(self, text: str) -> list[str]:
        """The text of each process, by its number."""
        content = np.frombuffer(text.encode(), dtype=np.uint8)
        ends = np.cumsum(self.join(np.array([len(content)])))
        whole = self.join(content).tobytes()
        return [whole[start:end].decode() for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)]

    def barrier(self) -> None:
        """Wait for all processes."""
        self.sum(np.zeros(1))


@contextmanager
def _while_all_are_there() -> Iterator[None]:
    """Say in an error of ours that another process is gone.

    Raises:
        ResourceError: it is.
    """
    try:
        yield
    except RuntimeError as error:
        # the file of gloo's source before it and advice behind it say nothing to a user
        reason = re.sub(r"^\[[^\]]*\] ", "", str(error).strip().partition("\n")[0]).partition(". ")[0]
        raise ResourceError(
            "torchrun",
            f"another process of this command ended before the work was done ({reason})",
            "Its own message says why, unless it was killed; run the command again.",
        ) from error
