"""Options for ``labelkit predict``, which predicts classes of new photos."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from labelkit.options.base import field_factory
from labelkit.options.memory import ProcessesConfig
from labelkit.options.shared import RESULT_NAME, DeviceOption, LabelColumnOption, ListingOptions, OverwriteOption

_PREDICTIONS = field_factory("Predictions", preset=False)
_PREDICTION_SETTINGS = field_factory("Predictions")
_LABELS = field_factory("Labels", preset=False)
_MODEL = field_factory("Model", preset=False)
_PHOTOS = field_factory("Photos")
_OUTPUT = field_factory("Output")
_OUTPUT_ONLY = field_factory("Output", preset=False)


class PredictConfig(LabelColumnOption, ListingOptions, OverwriteOption, DeviceOption, ProcessesConfig):
    """Options for ``labelkit predict``."""

    command: ClassVar[tuple[str, ...]] = ("predict",)

    new: tuple[Path, ...] = Field(
        ...,
        min_length=1,
        description="Photos, folders of photos, or stores created with the same model. Pass - to read paths from "
        "standard input, one per line or separated by NUL (`find -print0`).",
        json_schema_extra={"positional": True},
    )
    from_: Path = _PREDICTIONS(
        ..., "Output folder of `labelkit start`, or a store with a result of `labelkit discover answer`."
    )
    result: str | None = _PREDICTIONS(
        None,
        "Result in the store to use for prediction: predictions from `discover answer`, or groups. Default: the "
        "newest predictions.",
        pattern=RESULT_NAME,
    )
    min_confidence: float | None = _PREDICTION_SETTINGS(
        None,
        "Minimum confidence; photos below it are marked as unsure. Default: as in the stored predictions.",
        ge=0,
        le=1,
    )
    labels: Path | None = _LABELS(None, "CSV with the true labels of the new photos, used only to report accuracy.")
    checkpoint: Path | None = _MODEL(
        None, "Run folder or weights file used to create the store. Default: its last known location."
    )
    max_bad: float = _PHOTOS(
        0.01,
        "Maximum fraction of unreadable photos, which are skipped and listed. If more are unreadable, the command "
        "exits with code 3 after predicting the readable photos.",
        ge=0,
        le=1,
    )
    format: Literal["table", "csv", "jsonl"] | None = _OUTPUT(
        None,
        "Output format: table (only without --out), csv, or jsonl (one JSON object per line). Default: table; with "
        "--out, jsonl for .jsonl and .ndjson, otherwise csv.",
    )
    out: Path | None = _OUTPUT_ONLY(None, "File to write. Default: standard output.", makes="answers")

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.label_column is not None and self.labels is None:
            raise ValueError("--label-column requires --labels FILE")
        if self.out is not None and self.format == "table":
            raise ValueError("--format table cannot be combined with --out: pass csv or jsonl")
        return self

    @property
    def output_format(self) -> str:
        """Output format: ``format`` if set, otherwise inferred from ``out``."""
        if self.format is not None or self.out is None:
            return self.format or "table"
        return "jsonl" if self.out.suffix.lower() in (".jsonl", ".ndjson") else "csv"
