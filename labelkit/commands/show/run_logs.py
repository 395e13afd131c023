"""Read the logged metrics of a training run from its ``metrics.jsonl``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.errors import CheckpointError
from labelkit.files import parse_json_object, read_bytes
from labelkit.training.run_dir import METRICS, read_run_config

_CLOCK = ("epoch", "step", "kind")
# metrics plotted by default
MAIN_METRICS = ("loss", "all_accuracy", "old_accuracy", "new_accuracy")


@dataclass(frozen=True)
class MetricSeries:
    """Values of one logged metric over a training run.

    Attributes:
        kind: ``epoch``: one value per epoch; ``step``: one value per logged step.
        steps: (n,) number of optimizer updates.
        epochs: (n,) the same, converted to epochs; NaN if no epoch was completed.
        values: (n,) NaN where the metric was undefined.
    """

    kind: str
    steps: NDArray[np.int64]
    epochs: NDArray[np.float64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class LoggedMetrics:
    """Logged metrics of one run, by name; if a metric has several series, the one per epoch comes first."""

    name: str
    folder: Path
    series: dict[str, list[MetricSeries]]


def read_metric_log(folder: Path, name: str) -> LoggedMetrics:
    """Read the logged metrics of a training run.

    Raises:
        CheckpointError: the folder is not a run folder, or its log is missing, empty or damaged.
    """
    if not folder.exists():
        raise CheckpointError(str(folder), "does not exist", "Train first: `labelkit train METHOD`.")
    read_run_config(folder)
    path = folder / METRICS
    try:
        lines = read_bytes(path).splitlines(keepends=True)
    except FileNotFoundError:
        lines = []
    except OSError as error:
        raise CheckpointError(str(path), f"cannot be read: {error.strerror or error}", "Restore the file.") from error
    records = []
    for number, line in enumerate(lines, start=1):
        if not line.endswith(b"\n"):  # the line is still being written, or the run was killed
            break
        records.append(_parse_record(line, path, number))
    if not records:
        raise CheckpointError(str(folder), "has no log yet", "Start training, or wait for the end of the first epoch.")
    ends = {record["epoch"] + 1: record["step"] for record in records if record.get("kind") != "step"}
    series: dict[str, list[MetricSeries]] = {}
    for kind in ("epoch", "step"):
        of_kind = [record for record in records if (record.get("kind") == "step") == (kind == "step")]
        for key in dict.fromkeys(key for record in of_kind for key in record if key not in _CLOCK):
            having = [record for record in of_kind if key in record]
            steps = np.array([record["step"] for record in having], dtype=np.int64)
            logged = np.array([np.nan if record[key] is None else record[key] for record in having], dtype=np.float64)
            series.setdefault(key, []).append(MetricSeries(kind, steps, _steps_to_epochs(steps, ends), logged))
    return LoggedMetrics(name, folder, series)


def _parse_record(line: bytes, path: Path, number: int) -> dict[str, Any]:
    try:
        record = parse_json_object(line, {"epoch": int, "step": int})
        if not all(value is None or isinstance(value, int | float) for key, value in record.items() if key != "kind"):
            raise ValueError("contains text instead of a number")
    except ValueError as error:
        problem = "is not a valid line of a training log"
        raise CheckpointError(f"{path}:{number}", problem, "Restore the file.") from error
    return record


def _steps_to_epochs(steps: NDArray[np.int64], ends: dict[int, int]) -> NDArray[np.float64]:
    """Convert steps to epochs by interpolation; beyond the last complete epoch, extrapolate with its length."""
    if not ends:
        return np.full(len(steps), np.nan)
    epochs = [0, *sorted(ends)]
    at = [0, *(ends[epoch] for epoch in epochs[1:])]
    length = (at[-1] - at[-2]) / (epochs[-1] - epochs[-2])
    inside = np.interp(steps, at, epochs)
    return np.where(steps > at[-1], epochs[-1] + (steps - at[-1]) / max(length, 1.0), inside)
