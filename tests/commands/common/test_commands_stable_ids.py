"""Ids and names of groups that go on from an earlier run."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from labelkit.commands.common.stable_ids import StableIds


def test_a_group_whose_name_became_that_of_a_class_gets_another() -> None:
    earlier: Any = SimpleNamespace(names=["cat", "new-1"], is_class=np.array([True, False]))
    now = StableIds(ids=np.array([0, 1, 2]), num_ids=3, earlier=earlier, shared=9, kept=[0, 1])

    # a person labeled a few images of the group by its name, and these are a group of their own now
    assert now.name_ids(np.array([0, -1, 1]), ["cat", "new-1"]) == ["cat", "new-2", "new-1"]
