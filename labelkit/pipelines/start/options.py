"""Options for ``labelkit start``, which turns a folder of photos into a table of labels."""

from pathlib import Path
from typing import ClassVar, Self

from pydantic import Field, model_validator

from labelkit.options.base import field_factory
from labelkit.options.shared import LabelColumnOption, ListingOptions, NewClassesOption

_LABELS = field_factory("Labels", preset=False)
_OUTPUT = field_factory("Output", preset=False)
_RUN = field_factory("Run")


class StartConfig(LabelColumnOption, ListingOptions, NewClassesOption):
    """Options for ``labelkit start``."""

    command: ClassVar[tuple[str, ...]] = ("start",)

    photos: Path = Field(
        ..., description="Folder of photos, searched recursively.", json_schema_extra={"positional": True}
    )
    labels: tuple[Path, ...] | None = _LABELS(
        None,
        "Labels for some photos: a CSV with columns path,label, or folders (each photo's label is the name of its "
        "folder). Can be repeated. Labels from earlier runs, and those entered in next.csv, novel.csv and check.csv, "
        "are kept. Without labels, groups have no names.",
    )
    out: Path | None = _OUTPUT(None, "Output folder. Default: PHOTOS-labeled.", makes="folder")
    other_photos: bool = _OUTPUT(False, "Continue in --out even if more than half of its earlier photos are missing.")
    backbone: str = Field(
        "auto",
        description="Backbone that embeds the photos: a name, or several names joined as A+B; published weights are "
        "downloaded if missing. auto: the best installed backbone, without a download; pixels: no network.",
    )
    num_classes: int | None = Field(None, ge=2, description="Number of classes to expect. Default: estimated.")
    min_confidence: float = Field(0.8, ge=0, le=1, description="Photos with a lower confidence are marked as unsure.")
    num_suggestions: int = Field(
        20, ge=1, description="Number of photos to suggest for labeling in next.csv.", json_schema_extra={"short": "-n"}
    )
    serve: bool = _LABELS(
        False,
        'After writing the tables, label in the browser. "Predict again" on the page, and Ctrl-C at the end, update '
        "all tables. Requires starlette and uvicorn.",
    )
    seed: int = _RUN(0, "Random seed for all steps.", ge=0)
    dry_run: bool = _RUN(False, "Show the steps and the estimated time without writing anything.")

    @model_validator(mode="after")
    def _check_label_column(self) -> Self:
        if self.label_column is not None and not self.labels:
            raise ValueError("--label-column requires --labels FILE")
        return self
