"""A row of the benchmarks whose figure cannot be is told, and the run fails."""

import pytest
from benchmarks.measure import Row, Side, Wanted, compare_several, fault
from benchmarks.profile_table import profiled, table

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
        ({"ratio_min": 1.0, "ratio_max": 9.0, "ratio_inner": [1.1, 5.4]}, False),
        ({"ratio_min": 1.0, "ratio_max": 9.0, "ratio_inner": [1.1, 5.6]}, True),
    ],
)
def test_what_cannot_be_is_no_figure(changes: dict[str, object], broken: bool) -> None:
    row: Row = {**SOUND, **changes}  # type: ignore[typeddict-item] # as annotated
    assert (fault(row) is not None) == broken


def test_each_of_several_sides_is_compared_with_the_turn_of_the_peer_beside_it() -> None:
    turns: list[str] = []

    def work(name: str, seconds: list[float]) -> float:
        turns.append(name)
        return seconds.pop(0)

    first, second, peer = [9.0, 1, 2, 3], [9.0, 4, 4, 4], [9.0, 8, 8, 6]
    rows = compare_several(
        [
            Side("one", lambda: work("one", first), Wanted(">=", 3)),
            Side("two", lambda: work("two", second), Wanted("<=", 0.4)),
        ],
        lambda: work("peer", peer),
        repetitions=3,
    )

    assert turns == 4 * ["one", "two", "peer"]
    # the first turn warms up; peer over ours is 8, 4, 2, and ours over peer 1/2, 1/2, 2/3
    assert [(row["ratio"], row["ok"], row["peer_s"]) for row in rows] == [(4, True, 8), (0.5, False, 8)]
    assert [row["ours_s"] for row in rows] == [2, 4]
    assert (rows[0].get("ratio_min"), rows[0].get("ratio_max")) == (2, 8)


@pytest.mark.parametrize(("repetitions", "broken"), [(6, True), (7, False)])
def test_one_turn_of_seven_that_is_far_out_breaks_no_row_but_is_told(repetitions: int, broken: bool) -> None:
    peer = iter([1.0, 50.0, *[2.0] * repetitions])

    (row,) = compare_several(
        [Side("one", lambda: 1.0, Wanted(">=", 2))], lambda: next(peer), repetitions=repetitions, warmups=1
    )

    assert (row["ratio"], row.get("ratio_min"), row.get("ratio_max")) == (2, 2, 50)
    assert (fault(row) is not None) == broken


def test_a_profile_names_the_function_that_takes_the_time_and_how_often_it_was_called() -> None:
    def adds_up() -> int:
        return sum(number * number for number in range(20_000))

    _, stats = profiled(lambda: [adds_up() for _ in range(7)])

    lines = [line.split() for line in table(stats).splitlines()[1:]]
    calls = {line[-1]: line[3] for line in lines if line[4].startswith("tests/test_benchmark_rows.py")}
    # one call more than numbers, seven times
    assert calls["<genexpr>"] == str(7 * 20_001)
    assert calls["adds_up"] == "7"
    own = [float(line[1]) for line in lines]
    assert own == sorted(own, reverse=True)
    assert sum(float(line[0].rstrip("%")) for line in lines) == pytest.approx(100, abs=1)
