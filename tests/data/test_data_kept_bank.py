"""Which kept views an epoch draws, and that each image gets its own."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.data.image_bank import CachedViewBank, draw_views, number_view_kinds
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.data.workers import BatchPlan

KEYS = np.arange(400, dtype=np.int64)
PLAIN = Normalize((0.0,), (1.0,))


def test_views_that_are_drawn_and_kept_alike_are_of_one_kind() -> None:
    weak, strong = ViewSpec(8, hflip=0.5), ViewSpec(8, gray_prob=0.5)
    assert number_view_kinds((weak, weak), ((3,), (3,))) == (0, 0)
    assert number_view_kinds((weak, strong), ((3,), (3,))) == (0, 1)
    assert number_view_kinds((weak, weak), ((1,), (1, 3))) == (0, 1)


def test_two_views_of_one_kind_differ_and_each_draw_comes_alike_often() -> None:
    drawn = draw_views(KeyedRNG(0, 0, KEYS), (0, 0), 4)
    assert (drawn[:, 0] != drawn[:, 1]).all()
    counts = np.bincount(drawn.ravel(), minlength=4)
    assert counts.sum() == 800
    assert counts.min() > 150
    assert (draw_views(KeyedRNG(0, 0, KEYS), (0, 0), 1) == 0).all()


def test_kinds_are_drawn_apart_and_anew_in_each_epoch() -> None:
    drawn = draw_views(KeyedRNG(0, 0, KEYS), (0, 1), 8)
    assert 0.06 < (drawn[:, 0] == drawn[:, 1]).mean() < 0.2
    assert (drawn != draw_views(KeyedRNG(0, 1, KEYS), (0, 1), 8)).mean() > 0.7
    assert (drawn != draw_views(KeyedRNG(1, 0, KEYS), (0, 1), 8)).mean() > 0.7
    # by key alone: another order of the batch changes nothing
    assert np.array_equal(draw_views(KeyedRNG(0, 0, KEYS[::-1].copy()), (0, 1), 8)[::-1], drawn)


def test_each_image_gets_its_own_values() -> None:
    rows = np.array([1, 2, 5, 7, 8], dtype=np.int64)
    values = rows[:, None, None] * 10.0 + np.arange(3)[None, :, None]
    images: Any = SimpleNamespace(
        dataset=range(9),
        device=torch.device("cpu"),
        rows=rows,
        bad={},
        image_size=None,
    )
    parts = [
        (values[:2], values[:2, :1] + 0.5),
        (values[2:4], values[2:4, :1] + 0.5),
        (values[4:], values[4:, :1] + 0.5),
    ]
    bank = CachedViewBank(images, rows, parts, (0, 0))
    asked = np.array([8, 1, 7, 1], dtype=np.int64)
    keys = np.array([8, 1, 7, 1 + (1 << 40)], dtype=np.int64)

    (first, second), geometry = bank.make_views(BatchPlan(asked, KeyedRNG(0, 3, keys), ()), PLAIN)

    drawn = draw_views(KeyedRNG(0, 3, keys), (0, 0), 3)
    assert first.flatten().tolist() == (asked * 10.0 + drawn[:, 0]).tolist()
    assert second.flatten().tolist() == (asked * 10.0 + drawn[:, 1]).tolist()
    assert geometry == ()
    assert bank.get_unaugmented(asked).flatten().tolist() == [80.5, 10.5, 70.5, 10.5]
    with pytest.raises(ValueError, match="not in memory"):
        bank.gather(asked)


def test_a_view_that_follows_another_is_drawn_with_it() -> None:
    drawn = draw_views(KeyedRNG(0, 0, KEYS), (0, 1), 8, followers=(1,))
    assert (drawn[:, 0] == drawn[:, 1]).all()
