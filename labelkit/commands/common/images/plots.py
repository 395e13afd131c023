"""Draw curves and maps as PNG; the one import of matplotlib."""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
<<<<<<< HEAD
from numpy.typing import NDArray

from labelkit.algorithms.calibration import Reliability, RiskCoverage
from labelkit.commands.common.images.contact_sheet import shortened
=======
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from labelkit.algorithms.calibration import Reliability, RiskCoverage
from labelkit.algorithms.num_classes import NumClassesEstimate
>>>>>>> cut-commands2
from labelkit.commands.common.outputs import PNG_MARK
from labelkit.store.commit import commit_bytes

DPI = 120

_SHAPE = (5.2, 4.4)
"""Width and height of one set of axes in inches."""

<<<<<<< HEAD
_PANEL, _PANEL_GAP, _PANEL_TEXT, _PANEL_HEAD, _PANEL_FOOT = 1.4, 0.12, 0.56, 0.42, 0.36
"""Side of one image of a grid, and what is left between and around, in inches."""

_CAPTION, _CAPTION_LETTERS = 7, 24
"""Size of the letters below an image of a grid, in points, and how many of them are as wide as it."""

# Matplotlib draws at most 2^16 pixels in a direction, and people look at far fewer.
_LARGEST_SIDE = 30_000
=======
# A legend of more classes is larger than the map.
_MAX_LEGEND = 30

# Wider ranges of numbers are easier to read on a logarithmic axis.
_LINEAR_RANGE = 12
>>>>>>> cut-commands2


def write_reliability_plot(path: Path, curves: Mapping[str, Reliability], risk: RiskCoverage, *, title: str) -> Path:
    """Plot accuracy against confidence, and error rate against coverage.

    Args:
        path: PNG to write; an existing file is replaced.
        curves: reliability by what it is of; each is one line, its points as large as their bins are full.
        risk: the risk-coverage curve.
        title: above both.

    Raises:
        ResourceError: it cannot be written.
    """
    figure = Figure(figsize=(_SHAPE[0] * 2, _SHAPE[1]), layout="constrained")
    _draw_reliability(figure.add_subplot(1, 2, 1), curves)
    _draw_risk_coverage(figure.add_subplot(1, 2, 2), risk)
    figure.suptitle(title)
    return write_figure(path, figure)


@dataclass(frozen=True)
class Line:
    """Line of a curve plot.

    Attributes:
        run: what the legend calls it; lines of one run have one color.
        x: (n,) float, increasing.
        y: (n,) float, NaN where there is no value.
        is_main: thick, with a mark at every point if they are few; else thin and pale.
    """

    run: str
    x: NDArray[np.float64]
    y: NDArray[np.float64]
    is_main: bool


def write_curves_plot(path: Path, panels: Mapping[str, Sequence[Line]], *, x_name: str) -> Path:
    """Plot the curves of several runs, with one set of axes per quantity.

    Args:
        path: PNG to write; an existing file is replaced.
        panels: lines by what they show.
        x_name: what runs to the right.

    Raises:
        ResourceError: it cannot be written.
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
            style: dict[str, Any] = {"color": colors[line.run], "linestyle": styles[line.run]}
            if line.is_main:
                axes.plot(line.x, line.y, marker="." if len(line.x) <= 60 else "", linewidth=1.5, **style)
            else:
                axes.plot(line.x, line.y, linewidth=0.8, alpha=0.45, **style)
        axes.set_title(name, fontsize="medium", parse_math=False)
        axes.set_xlabel(x_name)
        axes.grid(color="0.9")
    if len(runs) > 1:
        handles = [Line2D([], [], color=colors[run], linestyle=styles[run], label=run) for run in runs]
        _draw_legend(figure, handles, 4)
    return write_figure(path, figure)


<<<<<<< HEAD
=======
@dataclass(frozen=True)
class MapPanel:
    """Panel of a map plot, with the points discovered so far and those known to be wrong.

    Attributes:
        title: above it.
        labels: (n,) int64 class of the points discovered by then, -1 = not discovered.
        wrong: (n,) bool, of these, those that are known to be wrong.
    """

    title: str
    labels: NDArray[np.int64]
    wrong: NDArray[np.bool_]


def write_map_plot(
    path: Path,
    points: NDArray[np.float64],
    given: NDArray[np.int64],
    panels: Sequence[MapPanel],
    class_names: Sequence[str],
    *,
    axis_names: tuple[str, str],
) -> Path:
    """Plot a 2-D map once per panel: unlabeled points pale, labeled and discovered points in color.

    Args:
        path: PNG to write; an existing file is replaced.
        points: (n, 2).
        given: (n,) int64 class of the points that had a label from the start, -1 = none.
        panels: one set of axes each.
        class_names: by number.
        axis_names: below and beside.

    Raises:
        ResourceError: it cannot be written.
    """
    columns = min(len(panels), 4)
    lines = -(-len(panels) // columns)
    figure = Figure(figsize=(0.85 * _SHAPE[0] * columns, _SHAPE[1] * lines), layout="constrained")
    x, y = points.T
    colors = [f"C{number % 10}" for number in range(len(class_names))]
    shapes = ("o", "s", "^", "D", "v", "P")  # beyond ten classes colors come again
    for place, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(lines, columns, place)
        rest = (given < 0) & (panel.labels < 0)
        axes.scatter(x[rest], y[rest], s=5, color="0.82", linewidths=0)
        for number, color in enumerate(colors):
            marker = shapes[number // 10 % len(shapes)]
            found, own = panel.labels == number, given == number
            axes.scatter(x[found], y[found], s=16, color=color, marker=marker, linewidths=0)
            axes.scatter(x[own], y[own], s=60, color=color, marker=marker, edgecolors="black", zorder=3)
        axes.scatter(x[panel.wrong], y[panel.wrong], s=45, color="red", marker="x", linewidths=1.2, zorder=4)
        axes.set_title(panel.title, fontsize="medium", parse_math=False)
        axes.set(xlabel=axis_names[0], ylabel=axis_names[1], xticks=[], yticks=[])
    handles = [
        Line2D([], [], linestyle="", marker=shapes[number // 10 % len(shapes)], color=colors[number], label=name)
        for number, name in enumerate(class_names[:_MAX_LEGEND])
    ]
    handles += [
        Line2D([], [], linestyle="", marker="o", color="0.82", markersize=3, label="other"),
        Line2D([], [], linestyle="", marker="o", color="white", markeredgecolor="black", label="given label"),
    ]
    if any(panel.wrong.any() for panel in panels):
        handles.append(Line2D([], [], linestyle="", marker="x", color="red", label="wrong"))
    _draw_legend(figure, handles, 4 * columns)
    return write_figure(path, figure)


def paint_heat(pixels: NDArray[np.uint8], heat: NDArray[np.float32], limits: tuple[float, float]) -> NDArray[np.uint8]:
    """Paint a heat map over an image, from blue to yellow; return it in color, (h, w, 3) uint8.

    Args:
        pixels: (h, w, c) uint8, shown gray.
        heat: (h', w') float.
        limits: values of the darkest and the brightest color.
    """
    low, high = limits
    places = [np.arange(side) * cells // side for side, cells in zip(pixels.shape[:2], heat.shape, strict=True)]
    colors = colormaps["viridis"]((heat[np.ix_(*places)] - low) / max(high - low, 1e-12))[..., :3]
    # Pale and without black: a dark image must not look like a dark map.
    gray = 0.35 + 0.65 * pixels.mean(axis=2, keepdims=True) / 255
    return np.asarray((255 * (0.35 * gray + 0.65 * colors)).round(), dtype=np.uint8)


>>>>>>> cut-commands2
def write_figure(path: Path, figure: Figure) -> Path:
    """Write a matplotlib figure as PNG; equal figures give equal bytes.

    Raises:
        ResourceError: it cannot be written.
    """
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        # names of files and runs may have characters that the font lacks; they become boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        # matplotlib would name the version that drew it
        figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": PNG_MARK})
    commit_bytes(path, buffer.getvalue())
    return path


def _draw_legend(figure: Figure, handles: Sequence[Line2D], most_columns: int) -> None:
    columns = min(len(handles), most_columns)
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize="small")
    for text in legend.get_texts():
        text.set_parse_math(False)


<<<<<<< HEAD
def _draw_panel(axes: Axes, panel: Panel) -> None:
    gray = panel.pixels.mean(axis=2)
    if panel.heat is None:
        is_gray = panel.pixels.shape[2] == 1
        axes.imshow(gray if is_gray else panel.pixels, cmap="gray", vmin=0, vmax=1, extent=(0, 1, 0, 1))
    else:
        low, high = panel.limits
        # Pale and without black: a dark image must not look like a dark map.
        axes.imshow(0.35 + 0.65 * gray, cmap="gray", vmin=0, vmax=1, extent=(0, 1, 0, 1))
        axes.imshow(panel.heat, cmap="viridis", vmin=low, vmax=high, alpha=0.65, extent=(0, 1, 0, 1))
    axes.set_axis_off()
    for number, line in enumerate(panel.lines[:3]):
        text = shortened(line, len, _CAPTION_LETTERS)
        axes.text(0.5, -0.03 - 0.105 * number, text, ha="center", va="top", fontsize=_CAPTION, parse_math=False)


=======
>>>>>>> cut-commands2
def _draw_reliability(axes: Axes, curves: Mapping[str, Reliability]) -> None:
    axes.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1, label="confidence = accuracy")
    for name, curve in curves.items():
        filled = curve.count > 0
        x, y = curve.confidence[filled], curve.accuracy[filled]
        (line,) = axes.plot(x, y, linewidth=1.5, label=f"{name}, ECE {curve.ece:.3f}")
        axes.scatter(x, y, s=15 + 250 * curve.weight[filled], color=line.get_color(), alpha=0.6)
    axes.set(xlim=(0, 1), ylim=(0, 1), xlabel="confidence", ylabel="accuracy", title="reliability")
    axes.legend(loc="upper left", fontsize="small")


def _draw_risk_coverage(axes: Axes, risk: RiskCoverage) -> None:
    axes.plot(risk.coverage, risk.risk, linewidth=1.5, label=f"area {risk.aurc:.3f}")
    axes.axhline(float(risk.risk[-1]), color="0.6", linestyle="--", linewidth=1, label="nothing left out")
    axes.set(xlim=(0, 1), xlabel="coverage: share of images answered", ylabel="risk: share of these that is wrong")
    axes.set_ylim(bottom=0)
    axes.set_title("risk and coverage")
    axes.legend(loc="upper left", fontsize="small")
