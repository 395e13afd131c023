"""Draw curves and grids of images as PNG; the one import of matplotlib."""

from __future__ import annotations

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

from labelkit.algorithms.calibration import Reliability, RiskCoverage
from labelkit.commands.common.images.contact_sheet import shortened
from labelkit.commands.common.outputs import PNG_MARK
from labelkit.errors import ConfigError
from labelkit.store.commit import commit_bytes

DPI = 120

_SHAPE = (5.2, 4.4)
"""Width and height of one set of axes in inches."""

_PANEL, _PANEL_GAP, _PANEL_TEXT, _PANEL_HEAD, _PANEL_FOOT = 1.4, 0.12, 0.56, 0.42, 0.36
"""Side of one image of a grid, and what is left between and around, in inches."""

_CAPTION, _CAPTION_LETTERS = 7, 24
"""Size of the letters below an image of a grid, in points, and how many of them are as wide as it."""

# Matplotlib draws at most 2^16 pixels in a direction, and people look at far fewer.
_LARGEST_SIDE = 30_000


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
class Panel:
    """Panel of an image grid, optionally with a heat map.

    Attributes:
        pixels: (h, w, c) float in [0, 1], c = 1 or 3; shown gray below a map.
        heat: (h', w') float, drawn over it; ``None`` = the image alone.
        limits: values of the darkest and the brightest color of the map.
        lines: below it, without their middle if they are too wide; at most three are seen.
    """

    pixels: NDArray[np.float32]
    heat: NDArray[np.float32] | None = None
    limits: tuple[float, float] = (0.0, 1.0)
    lines: tuple[str, ...] = ()


def write_panels(path: Path, headings: Sequence[str], rows: Sequence[Sequence[Panel]], *, note: str) -> Path:
    """Draw a grid of image panels with a heading over each column.

    Args:
        path: PNG to write; an existing file is replaced.
        headings: one per column, up to two lines.
        rows: one panel per column.
        note: below all.

    Raises:
        ConfigError: the picture would be too large.
        ResourceError: it cannot be written.
    """
    size = panels_size(len(rows), len(headings))
    if max(size) > _LARGEST_SIDE:
        problem = f"{len(rows)} x {len(headings)} panels make an image of {size[0]:,} x {size[1]:,} pixels"
        raise ConfigError("--out", problem, "Request fewer images.")
    # Places are computed, not solved for: a layout engine takes minutes for hundreds of axes.
    width, height = _panels_inches(len(rows), len(headings))
    figure = Figure(figsize=(width, height))
    for column, heading in enumerate(headings):
        x = (_PANEL_GAP + column * (_PANEL + _PANEL_GAP) + _PANEL / 2) / width
        y = 1 - (_PANEL_HEAD - 0.06) / height
        figure.text(x, y, heading, ha="center", va="bottom", fontsize=8, fontweight="bold", parse_math=False)
    for r, row in enumerate(rows):
        top = _PANEL_HEAD + r * (_PANEL + _PANEL_TEXT)
        for column, panel in enumerate(row):
            left = _PANEL_GAP + column * (_PANEL + _PANEL_GAP)
            place = (left / width, 1 - (top + _PANEL) / height, _PANEL / width, _PANEL / height)
            _draw_panel(figure.add_axes(place), panel)
    figure.text(_PANEL_GAP / width, 0.06 / height, note, ha="left", va="bottom", fontsize=7, parse_math=False)
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


def panels_size(rows: int, columns: int) -> tuple[int, int]:
    """Return the width and height in pixels of the image that :func:`write_panels` writes."""
    width, height = _panels_inches(rows, columns)
    return int(width * DPI), int(height * DPI)


def _panels_inches(rows: int, columns: int) -> tuple[float, float]:
    return (
        columns * (_PANEL + _PANEL_GAP) + _PANEL_GAP,
        _PANEL_HEAD + rows * (_PANEL + _PANEL_TEXT) + _PANEL_FOOT,
    )


def _draw_legend(figure: Figure, handles: Sequence[Line2D], most_columns: int) -> None:
    columns = min(len(handles), most_columns)
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize="small")
    for text in legend.get_texts():
        text.set_parse_math(False)


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
