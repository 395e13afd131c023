"""A store of pixels for heads to train on."""

from pathlib import Path

import pytest
from tests.running import run_labelkit


@pytest.fixture(scope="session")
def pixels(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """A store of the photos, 64 pixels each; training may use all labels. Tests must not change it."""
    out = tmp_path_factory.mktemp("rows") / "photos.h5"
    words = ("embed", "--dataset", photos, "--backbone", "pixels", "--image-size", 8, "--label-split", "given")
    answer = run_labelkit(*words, "--out", out, "-q")
    assert answer.code == 0, answer.err
    return out
