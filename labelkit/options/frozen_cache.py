"""Computing once what a frozen part of a network makes of views, for methods that train its last blocks alone."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from labelkit.options.base import StageConfig, flag, option
from labelkit.options.memory import checked_size, size_bytes

_REUSE = option("Model")


class ReuseOptions(StageConfig):
    """A method that freezes the first part of its network."""

    reuse_frozen: int | None = Field(
        None,
        ge=1,
        le=1024,
        description="Keep what the frozen part makes of this number of views of each image, on disk beside the run; an "
        "epoch draws from them, and the frozen part runs once. Default: new views in each epoch.",
        json_schema_extra={**_REUSE, "before": None},
    )
    reuse_dtype: Literal["float16", "float32"] = Field(
        "float16",
        description="With --reuse-frozen: type of what is kept. float16: on a CPU with bf16 the frozen part "
        "computes in that, if what it makes of 64 images agrees; float32: as exact as the network.",
        json_schema_extra={**_REUSE, "before": "float16"},
    )
    max_disk: str | None = Field(
        None,
        description="With --reuse-frozen: most that may be kept, such as 20GiB or 500MB; a number alone is GiB. "
        "Default: what is free.",
        json_schema_extra=option("Run", preset=False),
    )

    @field_validator("max_disk", mode="before")
    @classmethod
    def _size(cls, value: object) -> object:
        return checked_size(value)

    @property
    def max_disk_bytes(self) -> int | None:
        """The bound in bytes; None without one."""
        return None if self.max_disk is None else size_bytes(self.max_disk)

    @model_validator(mode="after")
    def _goes_with_reuse(self) -> ReuseOptions:
        if self.reuse_frozen is None:
            for name in ("reuse_dtype", "max_disk"):
                if getattr(self, name) != ReuseOptions.model_fields[name].default:
                    raise ValueError(f"{flag(name)} goes with --reuse-frozen: leave it out, or give both")
        return self
