"""Fingerprint of weights."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from labelkit.store.digests import weights_fingerprint

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.array(3, dtype=np.int64)


def test_fingerprint_is_the_digest_of_name_type_shape_and_bytes():
    text = b"a\0float32\x002,3\0" + A.tobytes() + b"b\0int64\0\0" + B.tobytes()
    found = weights_fingerprint([("b", "int64", (), B), ("a", "float32", (2, 3), A)])
    assert found == hashlib.sha256(text).hexdigest()


@pytest.mark.parametrize("data", [A.tobytes(), A.astype(">f4"), np.asfortranarray(A), memoryview(A.tobytes())])
def test_layout_and_container_do_not_matter(data):
    assert weights_fingerprint([("a", "float32", (2, 3), data)]) == weights_fingerprint([("a", "float32", (2, 3), A)])


@pytest.mark.parametrize(
    "other",
    [
        ("x", "float32", (2, 3), A),
        ("a", "float64", (2, 3), A),
        ("a", "float32", (3, 2), A),
        ("a", "float32", (2, 3), A + 1),
    ],
)
def test_name_type_shape_and_values_matter(other):
    assert weights_fingerprint([other]) != weights_fingerprint([("a", "float32", (2, 3), A)])
