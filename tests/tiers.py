"""Which cases of a test are among the quick ones; the rest is slow."""

from collections.abc import Iterable
from typing import Any

import pytest


def quick_every(number: int, cases: Iterable[Any]) -> list[Any]:
    """Mark all cases slow but the first and each ``number``-th after it.

    Args:
        number: 1 or more.
        cases: values of one argument, or tuples with a value of each.
    """
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow if row % number else ())
        for row, case in enumerate(cases)
    ]
