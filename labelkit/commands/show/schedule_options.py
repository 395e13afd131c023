"""Options of ``labelkit show schedule METHOD``: those of ``labelkit train METHOD``, and how large the data set is."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TypeVar, cast

from pydantic import Field, create_model, model_validator

from labelkit.options.base import StageConfig, flag, option
from labelkit.options.presets import DEFAULT_ORIGIN, Collected, preset_command, shipped_presets
from labelkit.options.shared import OverwriteOption
from labelkit.options.training import RunConfig

C = TypeVar("C", bound=StageConfig)

_OF_DATA = ("dataset", "index", "scene_dataset", "num_labels", "holdout_classes")
_OF_RUNS = ("resume", "stop_after_steps", "dry_run")
_HIDDEN = {**option("Run", preset=False), "hidden": True}


class ScheduleOptions(OverwriteOption):
    """What comes to the options of a training, or takes the place of one of them."""

    images: int | None = Field(
        None,
        ge=2,
        description="Number of images that are trained on. Default: the published one of a named set; else the set or "
        "store is looked at.",
        json_schema_extra=option("Data", preset=False),
    )
    out: Path | None = Field(
        None,
        description="Draw the curves to this .png, or write them to this .csv.",
        json_schema_extra=option("Output", preset=False, makes="export"),
    )
    resume: bool = Field(False, json_schema_extra=_HIDDEN)
    stop_after_steps: int | None = Field(None, json_schema_extra=_HIDDEN)
    dry_run: bool = Field(False, json_schema_extra=_HIDDEN)

    @model_validator(mode="after")
    def _nothing_runs(self) -> ScheduleOptions:
        given = [flag(name) for name in _OF_RUNS if getattr(self, name)]
        if given:
            raise ValueError(f"{' and '.join(given)} has no meaning where nothing is trained")
        if self.out is not None and self.out.suffix.lower() not in (".png", ".csv"):
            raise ValueError(f"out ({self.out}) must end in .png or .csv")
        return self


@cache
def schedule_options(config_class: type[RunConfig]) -> type[RunConfig]:
    """Return the options of a method with those of ``show schedule``; presets are the method's."""
    name = f"{config_class.__name__.removesuffix('Config')}ScheduleConfig"
    bases: tuple[type[StageConfig], ...] = (ScheduleOptions, config_class)
    return cast(type[RunConfig], create_model(name, __base__=bases, __doc__=config_class.__doc__))


def with_data_of_preset(collected: Collected[C]) -> Collected[C]:
    """Return the options with the data that the first line of a shipped preset names, if no source says which."""
    path, folder = collected.preset_path, shipped_presets()
    named = any(collected.origins.get(name, DEFAULT_ORIGIN) != DEFAULT_ORIGIN for name in ("dataset", "index"))
    if named or path is None or folder is None or not path.is_relative_to(folder):
        return collected
    words = shlex.split(preset_command(path))
    values, origins = dict(collected.values), dict(collected.origins)
    for name in _OF_DATA:
        if flag(name) in words and name in origins and origins[name] == DEFAULT_ORIGIN:
            values[name] = words[words.index(flag(name)) + 1]
            origins[name] = f"first line of {path.name}"
    return replace(collected, values=values, origins=origins)
