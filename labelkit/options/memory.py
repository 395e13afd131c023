"""Options for the memory limit of a command and for parallel processes."""

import re
from typing import Self

from pydantic import field_validator, model_validator

from labelkit.options.base import RUN, RUN_ONLY, BaseConfig

_SIZE = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)\s*([KMGT]I?B|B)?", re.IGNORECASE | re.ASCII)
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def parse_size(text: str) -> int:
    """Parse a size such as ``2GiB``, ``500 MB`` or ``1.5`` (GiB) to a number of bytes.

    Raises:
        ValueError: the text is not a size, or the size is 0.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError("must be a size such as 2GiB or 500MB")
    size = int(float(found[1]) * _UNITS[(found[2] or "GiB").upper()])
    if size < 1:
        raise ValueError("must be > 0")
    return size


class MemoryConfig(BaseConfig):
    """Option for a memory limit, which sets block sizes; see ``labelkit.commands.common.embeddings``."""

    max_memory: str | None = RUN(
        None,
        "Memory limit, such as 2GiB or 500MB; a plain number is in GiB. Embeddings larger than half of this limit "
        "are read in blocks. Default: hold all embeddings in memory.",
    )

    @field_validator("max_memory", mode="before")
    @classmethod
    def _size(cls, value: object) -> object:
        """Add the unit GiB to a plain number; invalid types are rejected later."""
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = repr(value)
        if isinstance(value, str) and value.strip().lower() not in ("none", "null"):
            parse_size(value)
            if value.strip()[-1].isdigit():
                return f"{value.strip()}GiB"
        return value

    @property
    def max_memory_bytes(self) -> int | None:
        """Return the memory limit in bytes, or ``None`` if there is none."""
        return None if self.max_memory is None else parse_size(self.max_memory)


class ProcessesConfig(BaseConfig):
    """Options for parallel processing, which does not affect the result."""

    processes: int = RUN_ONLY(
        1,
        "Number of parallel processes, each of which works on one part at a time; for `embed` with several GPUs, one "
        "process per GPU. The result does not depend on this number.",
        ge=1,
    )
    ray_address: str | None = RUN_ONLY(
        None,
        "Ray cluster to distribute the work over: the address printed by `ray start --head`, auto, or local (this "
        "machine only). All nodes must have access to the same files. If a node is lost, others take over its parts.",
    )

    @model_validator(mode="after")
    def _check_local_or_cluster(self) -> Self:
        if self.ray_address is not None and self.processes != 1:
            raise ValueError(
                "--processes (this machine) and --ray-address (a cluster) cannot be combined: remove one of them"
            )
        return self
