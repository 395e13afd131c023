"""A row of the benchmarks whose figure cannot be is told, and the run fails."""

from __future__ import annotations

import pytest
from tests.benchmarks.measure import Row, fault

SOUND = Row(name="ours / peer", ours_s=1.0, peer_s=2.0, ratio=2.0, wanted=">= 1", ok=True)


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, False),
        ({"ratio": 0.5, "ok": False}, False),  # missed, but measured
        ({"peer_s": -4.56}, True),
        ({"ours_s": 0.0}, True),
        ({"ratio": float("nan")}, True),
        ({"ratio": float("nan"), "wanted": "skipped"}, False),
        ({"ratio_min": 1.0, "ratio_max": 4.9}, False),
        ({"ratio_min": 1.0, "ratio_max": 5.1}, True),
    ],
)
def test_what_cannot_be_is_no_figure(changes: dict[str, object], broken: bool) -> None:
    row: Row = {**SOUND, **changes}  # type: ignore[typeddict-item] # as annotated
    assert (fault(row) is not None) == broken
