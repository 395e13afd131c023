"""Names of samples: what is a path below the data root."""

import pytest
from labelkit.store.schema import find_name_fault


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/", "/a", "a//b", "a/./b", "a/..", "../a", "./a", "a\0b", "\0", "/", "..\n/.."]
)
def test_what_is_no_path_below_the_data_root_cannot_be_a_name(name: str) -> None:
    assert find_name_fault(name) is not None


@pytest.mark.parametrize(
    "name", ["a", "a/b.png", "..a/.b", "a..", "a/...", "...", "\u00e9/\u00fc", "a\nb", "..\n", "\udcff"]
)
def test_other_names_are_paths(name: str) -> None:
    assert find_name_fault(name) is None
