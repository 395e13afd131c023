"""What is kept of views: parts that survive damage and kills, and that several processes share."""

from pathlib import Path

import numpy as np
import pytest
from labelkit.errors import StoreError
from labelkit.store.kept_views import CachedViewPlan, CachedViews

ROWS = np.array([0, 1, 2, 5, 6, 9, *range(20, 200)], dtype=np.int64)


def plan(**changes: object) -> CachedViewPlan:
    options: dict[str, object] = {
        "recipe": {"seed": 0, "views": [{"area": (0.2, 1.0)}]},
        "rows": ROWS,
        "counts": (4, 1),
        "shapes": ((2, 3), (3,)),
        "dtypes": ("float16", "float16"),
    }
    return CachedViewPlan(**{**options, **changes})  # type: ignore[arg-type] # as annotated


def values(made: CachedViewPlan, number: int) -> list[np.ndarray]:
    rows = made.rows_of_part(number).astype(np.float32)
    first = rows[:, None, None, None] + np.arange(4, dtype=np.float32)[None, :, None, None] / 8 + np.zeros((1, 1, 2, 3))
    return [first, rows[:, None, None] + np.zeros((1, 1, 3)) + 0.5]


def fill(kept: CachedViews) -> None:
    for number in kept.pending_parts():
        kept.write_part(number, values(kept.plan, number))


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    made = plan()
    # 5 views of an image: at most 512 passes of the network are lost by a kill
    assert (made.images_per_part, made.num_parts) == (102, 2)
    assert made.bytes_per_image == (4 * 6 + 3) * 2
    kept = CachedViews(tmp_path, made)
    kept.begin()
    assert kept.pending_parts() == [0, 1]
    fill(kept)
    assert kept.pending_parts() == []
    parts = kept.open_cached_parts()
    assert [tuple(one.shape) for one in parts[0]] == [(102, 4, 2, 3), (102, 1, 3)]
    assert [len(part[0]) for part in parts] == [102, 84]
    for number, part in enumerate(parts):
        for found, expected in zip(part, values(made, number), strict=True):
            assert np.array_equal(found, expected.astype(np.float16))


def test_equal_plans_share_a_folder_and_others_do_not(tmp_path: Path) -> None:
    folder = CachedViews(tmp_path, plan()).folder
    assert CachedViews(tmp_path, plan()).folder == folder
    for changes in (
        {"counts": (5, 1)},
        {"dtypes": ("float32", "float16")},
        {"rows": ROWS[:-1]},
        {"recipe": {"seed": 1}},
    ):
        assert CachedViews(tmp_path, plan(**changes)).folder != folder


def test_a_damaged_part_is_put_aside_and_made_again(tmp_path: Path) -> None:
    kept = CachedViews(tmp_path, plan())
    kept.begin()
    fill(kept)
    path = kept.folder / "parts" / "000001.h5"
    whole = path.read_bytes()
    path.write_bytes(whole[:3000] + bytes([whole[3000] ^ 1]) + whole[3001:])

    again = CachedViews(tmp_path, plan())
    again.begin()
    assert again.pending_parts() == [1]
    assert "digest differs" in again.warnings[0]
    with pytest.raises(StoreError, match="000001"):
        CachedViews(tmp_path, plan()).open_cached_parts()
    fill(again)
    assert path.read_bytes() == whole
    assert again.pending_parts() == []


def test_values_that_cannot_be_kept_are_refused(tmp_path: Path) -> None:
    kept = CachedViews(tmp_path, plan())
    kept.begin()
    large = values(kept.plan, 0)
    large[0][3, 1] = 1e6
    with pytest.raises(StoreError, match=r"too large for float16.*--reuse-dtype float32"):
        kept.write_part(0, large)
    large[0][3, 1] = np.nan
    with pytest.raises(StoreError, match="not finite"):
        kept.write_part(0, large)
    with pytest.raises(ValueError, match="shape"):
        kept.write_part(0, values(kept.plan, 1))
    assert not kept.part_path(0).exists()
