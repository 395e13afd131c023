"""Options for the commands that verify, pack and show the status of stores and runs."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import field_validator, model_validator

from labelkit.options.base import OUTPUT, STORE, BaseConfig, field_factory
from labelkit.options.shared import IndexOption, OverwriteOption, ShardsOption, find_newest_store

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

    index: Path | None = STORE(
        None,
        "Store (NAME.h5) from `labelkit embed`, complete or not, or an output folder of `labelkit start`.",
        aliases=["--store"],
    )
    run: Path | None = _RUN(None, "Run folder from `labelkit train`.")

    @field_validator("index")
    @classmethod
    def _find_in_folder(cls, index: Path | None) -> Path | None:
        return index and (find_newest_store(index) or index)

    @model_validator(mode="after")
    def _check_one_given(self) -> Self:
        if (self.index is None) == (self.run is None):
            raise ValueError("pass either --index or --run, not both")
        return self
