"""Names of samples: read together as they would be one by one."""

from __future__ import annotations

from itertools import product

from labelkit.store.schema import has_name_fault, name_fault, name_text

PATHS = [
    "",
    ".",
    "..",
    "a",
    "a/b.png",
    "a/",
    "/a",
    "a//b",
    "a/./b",
    "a/..",
    "../a",
    "./a",
    "..a/.b",
    "a..",
    "a/...",
    "é/ü",
]
NAMES = [*map(str.encode, PATHS), b"a\0b", b"\0", b"a\nb", b"\xff\xc3", b"\xc3", b"\xa9"]


def test_names_read_together_are_those_read_one_by_one() -> None:
    for first, second in product(NAMES, repeat=2):
        alone = [name_text(first), name_text(second)]

        assert has_name_fault(alone) == any(name_fault(name) is not None for name in alone)


def test_no_names_are_none() -> None:
    assert not has_name_fault([])
