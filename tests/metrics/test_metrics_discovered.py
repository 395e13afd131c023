import math

import numpy as np
import pytest
from labelkit.metrics.discovered import discovery_errors


def test_errors_are_counted_by_round_and_by_class_named() -> None:
    found = discovery_errors(
        [0, 0, 1, 1, 1], [0, 1, 1, 1, 0], [1, 2, 1, 2, 2], [1, 2, 3, 4, 5], num_given=3, class_names="ab"
    )

    assert (found["found"], found["wrong"], found["error"]) == (5, 2, 0.4)
    assert found["held_error"] == 2 / 8
    assert [tuple(share.values())[:3] for share in found["per_round"]] == [(1, 2, 0), (2, 3, 2)]
    assert [tuple(share.values())[:3] for share in found["per_class"]] == [("a", 2, 1), ("b", 3, 1)]
    assert found["per_class"][1]["error"] == pytest.approx(1 / 3)


def test_precision_is_that_of_the_first_by_rank() -> None:
    ranks = np.random.default_rng(0).permutation(50) + 1
    truth = np.where(ranks > 30, 1, 0)  # those of rank 31 to 50 are wrong

    found = discovery_errors(np.zeros(50, int), truth, np.ones(50, int), ranks, num_given=2, class_names="a")

    assert found["precision_of_first"] == {20: 1.0, 40: 0.75}


def test_rows_of_unknown_truth_are_left_out() -> None:
    found = discovery_errors([0, 1, 1], [0, -1, 0], [1, 1, 1], [1, 2, 3], num_given=2, class_names="ab")
    assert (found["found"], found["wrong"], found["held_error"]) == (2, 1, 0.25)


def test_nothing_found_has_no_error() -> None:
    found = discovery_errors([], [], [], [], num_given=0, class_names=())
    assert math.isnan(found["error"])
    assert found["per_round"] == []
    assert found["precision_of_first"] == {}
