"""Curves as PNG."""

import numpy as np
from labelkit.algorithms.calibration import reliability_curve, risk_coverage_curve
from labelkit.commands.common.images.plots import _draw_reliability, _draw_risk_coverage
from matplotlib.figure import Figure

CONFIDENCE, CORRECT = [0.95, 0.85, 0.75, 0.15], [True, True, False, False]


def test_lines_are_the_curves() -> None:
    curve, risk = reliability_curve(CONFIDENCE, CORRECT), risk_coverage_curve(CONFIDENCE, CORRECT)
    left, right = Figure().subplots(1, 2)
    _draw_reliability(left, {"it": curve})
    _draw_risk_coverage(right, risk)
    np.testing.assert_allclose(left.get_lines()[1].get_xydata(), [[0.15, 0], [0.75, 0], [0.85, 1], [0.95, 1]])
    np.testing.assert_allclose(right.get_lines()[0].get_xydata(), [[0.25, 0], [0.5, 0], [0.75, 1 / 3], [1, 1 / 2]])
