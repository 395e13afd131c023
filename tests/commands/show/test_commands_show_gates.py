"""``labelkit show attention`` of a run of tac-ccl: the picture, the number, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

SMALL = (
    *("--preset", "digits", "--holdout", "none", "--batch-size", "8", "--images-per-class", "2"),
    *("--num-clusters", "4", "--epochs", "4", "--no-ccl"),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, photos: Path, labelkit: Any) -> Path:
    """A run of tac-ccl on the photos. Tests must not change it."""
    out = tmp_path_factory.mktemp("runs") / "tac"
    answer = labelkit("train", "tac-ccl", "--dataset", photos, *SMALL, "--out", out, "-q")
    assert answer.code == 0, answer.err
    return out


def test_attention_is_drawn_and_its_agreement_told(run: Path, labelkit: Any, tmp_path: Path) -> None:
    answer = labelkit(
        "show", "attention", "--checkpoint", run, "--num-images", "2", "--out", tmp_path / "a.png", "--json"
    )
    assert answer.code == 0, answer.err
    assert len(answer.json["images"]) == 2
    # undefined where the two views share fewer than three places
    found = [image["correlation"] for image in answer.json["images"] if image["correlation"] is not None]
    assert all(-1 <= correlation <= 1 for correlation in found)
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size[0] > picture.size[1] / 2
