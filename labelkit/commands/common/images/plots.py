"""Draw curves as PNG; only this module imports matplotlib."""

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from labelkit.algorithms.calibration import ReliabilityCurve, RiskCoverageCurve
from labelkit.commands.common.outputs import PNG_MARK
from labelkit.store.commit import commit_bytes

DPI = 120

_SHAPE = (5.2, 4.4)
"""Width and height of one subplot in inches."""


def write_reliability_plot(
    path: Path, curves: Mapping[str, ReliabilityCurve], risk: RiskCoverageCurve, *, title: str
) -> Path:
    """Plot accuracy against confidence, and error rate against coverage, as a PNG; an existing file is replaced.

    In reliability curves, the size of a point shows the weight of its bin.

    Raises:
        ResourceError: the file cannot be written.
    """
    figure = Figure(figsize=(_SHAPE[0] * 2, _SHAPE[1]), layout="constrained")
    _draw_reliability(figure.add_subplot(1, 2, 1), curves)
    _draw_risk_coverage(figure.add_subplot(1, 2, 2), risk)
    figure.suptitle(title)
    return write_figure(path, figure)


@dataclass(frozen=True)
class Curve:
    """Curve of one run, as drawn in a plot.

    Attributes:
        run: name of the run in the legend; all lines of a run have the same color.
        x: (n,) float, increasing.
        y: (n,) float, NaN for missing values.
        is_main: whether the line is thick, with markers if there are few points; otherwise thin and pale.
    """

    run: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    is_main: bool


def write_curves_plot(path: Path, panels: Mapping[str, Sequence[Curve]], *, x_label: str) -> Path:
    """Plot the curves of several runs as a PNG, with one subplot per metric; an existing file is replaced.

    Raises:
        ResourceError: the file cannot be written.
    """
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(_SHAPE[0] * columns, 0.75 * _SHAPE[1] * lines), layout="constrained")
    runs = list(dict.fromkeys(line.run for curves in panels.values() for line in curves))
    colors = {run: f"C{number % 10}" for number, run in enumerate(runs)}
    patterns: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
    styles = {run: patterns[number // 10 % 4] for number, run in enumerate(runs)}
    for place, (name, curves) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(lines, columns, place)
        for line in curves:
            style: dict[str, Any] = {"linewidth": 0.8, "alpha": 0.45}
            if line.is_main:
                style = {"linewidth": 1.5, "marker": "." if len(line.x) <= 60 else ""}
            axes.plot(line.x, line.y, color=colors[line.run], linestyle=styles[line.run], **style)
        axes.set_title(name, fontsize="medium", parse_math=False)
        axes.set_xlabel(x_label)
        axes.grid(color="0.9")
    if len(runs) > 1:
        handles = [Line2D([], [], color=colors[run], linestyle=styles[run], label=run) for run in runs]
        columns = min(len(handles), 4)
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize="small")
        for text in legend.get_texts():
            text.set_parse_math(False)
    return write_figure(path, figure)


def write_figure(path: Path, figure: Figure) -> Path:
    """Write a matplotlib figure as a PNG; identical figures produce identical files.

    Raises:
        ResourceError: the file cannot be written.
    """
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # characters in file and run names that the font lacks are drawn as boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # replaces matplotlib's version, so that files do not depend on it
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": PNG_MARK})
    commit_bytes(path, buffer.getvalue())
    return path


def _draw_reliability(axes: Axes, curves: Mapping[str, ReliabilityCurve]) -> None:
    axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="confidence = accuracy")
    for name, curve in curves.items():
        filled = curve.count > 0
        x, y = curve.confidence[filled], curve.accuracy[filled]
        (line,) = axes.plot(x, y, linewidth=1.5, label=f"{name}, ECE {curve.ece:.3f}")
        axes.scatter(x, y, s=15 + 250 * curve.weight[filled], color=line.get_color(), alpha=0.6)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", title="reliability")
    axes.legend(loc="upper left", fontsize="small")


def _draw_risk_coverage(axes: Axes, risk: RiskCoverageCurve) -> None:
    axes.plot(risk.coverage, risk.risk, linewidth=1.5, label=f"area {risk.aurc:.3f}")
    axes.axhline(float(risk.risk[-1]), color="0.6", linestyle="--", linewidth=1, label="full coverage")
    axes.set(xlim=(0, 1), xlabel="coverage (fraction of images predicted)", ylabel="risk (error rate of these)")
    axes.set_ylim(bottom=0)
    axes.set_title("risk-coverage curve")
    axes.legend(loc="upper left", fontsize="small")
