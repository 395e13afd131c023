"""Metric learning from the command line: classes and images held out, refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.store.embeddings import open_store
from PIL import Image

SMALL = (
    *("--preset", "folder", "--backbone", "smallcnn_pool", "--embed-dim", "8", "--batch-size", "8"),
    *("--images-per-class", "4", "--epochs", "1", "--san-width", "4", "--threads", "1"),
)


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return six classes of two alphabets, eight gray pictures each."""
    root = tmp_path_factory.mktemp("letters")
    generator = np.random.default_rng(0)
    for name in ("Greek_1", "Greek_2", "Greek_3", "Latin_1", "Latin_2", "Latin_3"):
        (root / name).mkdir()
        base = generator.integers(0, 256, (8, 8))
        for i in range(8):
            pixels = np.clip(base + generator.integers(-20, 20, (8, 8)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).resize((32, 32)).save(root / name / f"{i}.png")
    return root


def test_images_of_held_out_classes_are_retrieved(labelkit: Any, letters: Path, tmp_path: Path) -> None:
    done = labelkit(
        *("train", "san", "--dataset", letters, *SMALL, "--holdout-classes", "Latin_*", "--out", tmp_path / "run"),
        "--json",
    )
    assert done.code == 0, done.err
    assert done.json["samples"]["images"] == 24
    assert {"recall_at_1", "recall_at_8", "map_at_r"} <= done.json["metrics"].keys()


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("--holdout-classes", "Korean_*"), 2, "no class 'Korean_*'"),
        (("--holdout-classes", "half", "--holdout", "0.5"), 2, "cannot be combined"),
        (("--holdout", "1.5"), 2, "must be > 0 and < 1"),
        (("--san-before", "block6"), 2, "no stage 'block6'"),
        (("--batch-size", "16"), 2, "3 classes have labels"),
        (("--mode", "unsupervised", "--num-clusters", "25"), 2, "25 exceeds the number of images (24)"),
        (("--label-split", "none"), 3, "no image has a label"),
        (("--pretrained",), 2, "no published weights"),
        (("--backbone", "vit_nano_p8_32"), 2, "no feature maps"),
    ],
)
def test_what_cannot_be_trained_is_refused(
    labelkit: Any, letters: Path, tmp_path: Path, words: tuple[str, ...], code: int, problem: str
) -> None:
    kept = [word for pair in zip(SMALL[::2], SMALL[1::2], strict=True) if pair[0] not in words for word in pair]
    done = labelkit("train", "san", "--dataset", letters, *kept, *words, "--out", tmp_path / "refused")
    assert done.code == code, done.err
    assert problem in " ".join(done.err.split())
    assert not (tmp_path / "refused").exists()


def test_every_second_image_is_held_out(labelkit: Any, letters: Path, tmp_path: Path) -> None:
    store = tmp_path / "pixels.h5"
    words = ("--backbone", "pixels", "--image-size", "8", "--label-split", "given", "--split", "all")
    done = labelkit("embed", *words, "--dataset", letters, "--holdout", "odd", "--out", store)
    assert done.code == 0, done.err
    assert list(open_store(store).rows("test")) == list(range(1, 48, 2))
