"""Draw curves as PNG; the one import of matplotlib."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from labelkit.algorithms.calibration import Reliability, RiskCoverage
from labelkit.store.commit import commit_bytes

_SHAPE = (5.2, 4.4)
"""Width and height of one set of axes in inches."""


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
