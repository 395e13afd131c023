"""The newest of results that were numbered."""

import pytest
from labelkit.store.results import find_newest_name


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], "answer"),
        (["answer"], "answer"),
        (["answer", "answer-2", "answer-10", "answer-9"], "answer-10"),
        # the store that a later round made has no first one
        (["answer-4", "groups-7"], "answer-4"),
        (["answer-02", "answer-x", "my-answer-3", "answer-2-5"], "answer"),
    ],
)
def test_the_largest_number_is_the_newest(names: list[str], expected: str) -> None:
    assert find_newest_name(names, "answer") == expected
