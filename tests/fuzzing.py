"""How long fuzzing tests look: a quick profile, the same examples every time, and a slow one with thousands."""

import contextlib
import io
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from labelkit.cli.main import main

CODES = {0, 2, 3, 5}
"""What input may lead to: success, or an error that names option, input or resource."""


def profile(max_examples: int, *, quick: bool) -> settings:
    """Settings of a fuzzing test; an example that takes longer than its deadline fails."""
    return settings(
        max_examples=max_examples,
        derandomize=quick,
        database=None,
        deadline=timedelta(seconds=20),
        suppress_health_check=list(HealthCheck),
    )


def fuzzed(quick: int, slow: int) -> Callable[[Any], Any]:
    """Run a test with a profile of so many examples, and with the other one when slow tests run."""
    return pytest.mark.parametrize(
        "examples",
        [
            pytest.param(profile(quick, quick=True), id="quick"),
            pytest.param(profile(slow, quick=False), id="slow", marks=[pytest.mark.slow, pytest.mark.timeout(1800)]),
        ],
    )


def run(*words: str) -> tuple[int, str]:
    """Run a command line in this process; return its exit code and what it says on stderr."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(list(words))
    err.flush()
    return code, err.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined] # a BytesIO


def ends_well(*words: str) -> int:
    """Run a command line that must end in success or a clear error, without a traceback."""
    code, err = run(*words)
    assert code in CODES, err
    assert "Traceback" not in err, err
    assert code == 0 or err.startswith(("error: ", "Usage")) or "error" in err.lower(), err
    return code
