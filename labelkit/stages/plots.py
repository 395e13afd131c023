"""Draw curves as PNG; the one import of matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator
from numpy.typing import NDArray

from labelkit.algorithms.calibration import Reliability, RiskCoverage
from labelkit.algorithms.class_number import ClassNumberChoice, CriterionCurve
from labelkit.algorithms.prototypes import cosine_counts
from labelkit.store.commit import commit_bytes

_SHAPE = (5.2, 4.4)
"""Width and height of one set of axes in inches."""

# Wider ranges of numbers are easier to read on a logarithmic axis.
_LINEAR_RANGE = 12


def write_reliability_plot(
    path: Path, curves: Mapping[str, Reliability], risk: RiskCoverage | None = None, *, title: str = ""
) -> Path:
    """Draw confidence against accuracy and, if given, errors against coverage beside it.

    Args:
        path: PNG to write; an existing file is replaced.
        curves: reliability by what it is of; each is one line, its points as large as their bins are full.
        risk: the risk-coverage curve.
        title: above both.

    Raises:
        ResourceError: it cannot be written.
    """
    figure = Figure(figsize=(_SHAPE[0] * (2 if risk else 1), _SHAPE[1]), layout="constrained")
    columns = 2 if risk else 1
    _draw_reliability(figure.add_subplot(1, columns, 1), curves)
    if risk is not None:
        _draw_risk_coverage(figure.add_subplot(1, columns, 2), risk)
    if title:
        figure.suptitle(title)
    return write_figure(path, figure)


def write_class_number_plot(path: Path, choice: ClassNumberChoice) -> Path:
    """Draw the curve of each criterion, its best number and what it cannot tell from it; then all together.

    Args:
        path: PNG to write; an existing file is replaced.
        choice: the number of classes with its evidence.

    Raises:
        ResourceError: it cannot be written.
    """
    panels = len(choice.criteria) + 1
    columns = min(panels, 3)
    lines = -(-panels // columns)
    figure = Figure(figsize=(_SHAPE[0] * columns, _SHAPE[1] * lines), layout="constrained")
    for place, curve in enumerate(choice.criteria, start=1):
        _draw_criterion(figure.add_subplot(lines, columns, place), curve)
    _draw_choice(figure.add_subplot(lines, columns, panels), choice)
    return write_figure(path, figure)


def write_spread_plot(path: Path, prototypes: NDArray[np.float32], bound: float) -> Path:
    """Draw how often each cosine occurs: of all pairs, and of each vector with its nearest other.

    Args:
        path: PNG to write; an existing file is replaced.
        prototypes: (c, d) unit rows.
        bound: what the largest cosine cannot be below.

    Raises:
        ResourceError: it cannot be written.
    """
    pairs, nearest, edges = cosine_counts(prototypes)
    figure = Figure(figsize=_SHAPE, layout="constrained")
    axes = figure.add_subplot()
    axes.stairs(pairs / pairs.sum(), edges, fill=True, alpha=0.4, label="all pairs")
    axes.stairs(nearest / nearest.sum(), edges, linewidth=1.5, label="nearest other")
    axes.axvline(bound, color="0.3", linestyle="--", linewidth=1, label=f"largest: at least {bound:.4f}")
    axes.set(xlim=(-1, 1), xlabel="cosine", ylabel="share")
    axes.set_title(f"{len(prototypes)} prototypes in {prototypes.shape[1]} dimensions")
    axes.legend(loc="upper left", fontsize="small")
    return write_figure(path, figure)


def write_figure(path: Path, figure: Figure) -> Path:
    """Write a figure as PNG; the same figure gives the same bytes.

    Raises:
        ResourceError: it cannot be written.
    """
    buffer = io.BytesIO()
    # Without this the file would name the version that drew it.
    figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    commit_bytes(path, buffer.getvalue())
    return path


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


def _draw_criterion(axes: Axes, curve: CriterionCurve) -> None:
    low = [score - error for score, error in zip(curve.scores, curve.errors, strict=True)]
    high = [score + error for score, error in zip(curve.scores, curve.errors, strict=True)]
    axes.fill_between(curve.numbers, low, high, alpha=0.2, linewidth=0, label="± one standard error")
    _draw_numbers(axes, curve.name, curve.numbers, curve.scores, curve.best, curve.low, curve.high)


def _draw_choice(axes: Axes, choice: ClassNumberChoice) -> None:
    _draw_numbers(axes, "all together", choice.numbers, choice.scores, choice.best, choice.low, choice.high)
    axes.set_ylabel("mean share of the best score")


def _draw_numbers(
    axes: Axes, title: str, numbers: tuple[int, ...], scores: tuple[float, ...], best: int, low: int, high: int
) -> None:
    axes.plot(numbers, scores, marker="." if len(numbers) <= 60 else "", linewidth=1.5)
    axes.axvspan(low, high, color="0.85", zorder=0, label=f"{low} to {high}")
    axes.axvline(best, color="0.3", linestyle="--", linewidth=1, label=f"best: {best}")
    if numbers[-1] > _LINEAR_RANGE * numbers[0]:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FormatStrFormatter("%d"))
        axes.xaxis.set_minor_locator(NullLocator())
    axes.set(xlabel="number of classes", ylabel="score", title=title)
    axes.legend(loc="lower left", fontsize="small")
