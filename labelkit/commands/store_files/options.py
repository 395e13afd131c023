"""Options for the commands that verify, pack and show the status of stores and runs."""

from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import model_validator

from labelkit.options.base import OUTPUT, STORE, BaseConfig, field_factory
from labelkit.options.shared import FIND_STORE, IndexOption, OverwriteOption, ShardsOption

_RUN = field_factory("Run", preset=False)


class VerifyConfig(BaseConfig):
    """Options for ``labelkit verify``."""

    command: ClassVar[tuple[str, ...]] = ("verify",)

    index: Path = STORE(
        ...,
        "File or folder to check: a store with its results and patches, a folder of results, a result, patches (folder "
        "or SET.json), matches, prototypes, a run folder or a checkpoint.",
        aliases=["--store"],
    )
    images: Path | None = STORE(
        None,
        "Also check the image files in this folder against the sizes and SHA-256 digests recorded in the store or the "
        "matches.",
    )


class PackConfig(OverwriteOption, ShardsOption, IndexOption):
    """Options for ``labelkit pack``."""

    command: ClassVar[tuple[str, ...]] = ("pack",)

    out: Path = OUTPUT(
        ...,
        "File to write, with the store and all its results. A sharded store becomes one file unless --shards is set.",
        makes="store",
    )


class StatusConfig(BaseConfig):
    """Options for ``labelkit status``."""

    command: ClassVar[tuple[str, ...]] = ("status",)

    index: Annotated[Path | None, FIND_STORE] = STORE(
        None,
        "Store (NAME.h5) from `labelkit embed`, complete or not, or an output folder of `labelkit start`.",
        aliases=["--store"],
    )
    run: Path | None = _RUN(None, "Run folder from `labelkit train`.")

    @model_validator(mode="after")
    def _check_one_given(self) -> Self:
        if (self.index is None) == (self.run is None):
            raise ValueError("pass either --index or --run, not both")
        return self
