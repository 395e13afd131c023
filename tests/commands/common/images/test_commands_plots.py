"""Curves as PNG."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from labelkit.algorithms.calibration import reliability, risk_coverage
from labelkit.commands.common.images.plots import _draw_reliability, _draw_risk_coverage, write_reliability_plot
from labelkit.errors import ResourceError
from matplotlib.figure import Figure
from PIL import Image

CONFIDENCE, CORRECT = [0.95, 0.85, 0.75, 0.15], [True, True, False, False]


@pytest.mark.slow
def test_risk_stands_beside_reliability_and_the_same_curves_give_the_same_file(tmp_path: Path) -> None:
    curve, risk = reliability(CONFIDENCE, CORRECT), risk_coverage(CONFIDENCE, CORRECT)
    one = write_reliability_plot(tmp_path / "one.png", {"it": curve})
    two = write_reliability_plot(tmp_path / "two.png", {"it": curve}, risk, title="both")
    again = write_reliability_plot(tmp_path / "again.png", {"it": curve}, risk, title="both")
    with Image.open(one) as first, Image.open(two) as second:
        assert (2 * first.width, first.height) == second.size
    assert two.read_bytes() == again.read_bytes()


@pytest.mark.slow
def test_plots_are_drawn_under_the_backend_of_a_notebook_that_is_not_installed() -> None:
    drawn = "import os; from labelkit.commands.common.images.plots import Figure; "
    drawn += "Figure().savefig(os.devnull, format='png')"
    environment = os.environ | {"MPLBACKEND": "module://not_installed.backend_inline"}

    done = subprocess.run([sys.executable, "-c", drawn], env=environment, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr


def test_lines_are_the_curves() -> None:
    curve, risk = reliability(CONFIDENCE, CORRECT), risk_coverage(CONFIDENCE, CORRECT)
    left, right = Figure().subplots(1, 2)
    _draw_reliability(left, {"it": curve})
    _draw_risk_coverage(right, risk)
    np.testing.assert_allclose(left.get_lines()[1].get_xydata(), [[0.15, 0], [0.75, 0], [0.85, 1], [0.95, 1]])
    np.testing.assert_allclose(right.get_lines()[0].get_xydata(), [[0.25, 0], [0.5, 0], [0.75, 1 / 3], [1, 1 / 2]])


def test_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="does not exist"):
        write_reliability_plot(tmp_path / "none" / "p.png", {"it": reliability(CONFIDENCE, CORRECT)})
