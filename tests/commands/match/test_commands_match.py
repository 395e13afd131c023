"""``labelkit match``: pairs of warped photographs, the cache of keypoints, images without keypoints."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.embed.embed import embed_images
from labelkit.commands.match.options import MatchConfig
from labelkit.commands.match.pairs import choose_candidate_pairs, keep_best_partners
from labelkit.options.embed import EmbedConfig
from labelkit.store.array_files import build_match, join_matches, read_matches
from PIL import Image
from sklearn.datasets import load_sample_image
from tests.running import Answer, Labelkit

cv2 = pytest.importorskip("cv2", reason="OpenCV is an extra")


@pytest.fixture(scope="module")
def warped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: two photographs, each in two views, a blank image, and a store of their pixels beside it."""
    root = tmp_path_factory.mktemp("warped")
    (root / "images").mkdir()
    for name in ("china", "flower"):
        image = cv2.resize(load_sample_image(f"{name}.jpg"), (192, 128), interpolation=cv2.INTER_AREA)
        turn = cv2.getRotationMatrix2D((96, 64), 8, 1.05)
        Image.fromarray(image).save(root / "images" / f"{name}-0.png")
        Image.fromarray(cv2.warpAffine(image, turn, (192, 128))).save(root / "images" / f"{name}-1.png")
    Image.new("RGB", (192, 128), "gray").save(root / "images" / "blank.png")
    embed_images(EmbedConfig(dataset=str(root / "images"), backbone="pixels", out=root / "images.h5"))
    return root


@pytest.fixture(scope="module")
def first(warped: Path, labelkit: Labelkit) -> Answer:
    """What the first run said, which filled the cache in the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELKIT_CACHE", str(warped / "cache"))
        return labelkit(*words(warped, "--json", "--sheet", warped / "sheet.png"))


@pytest.fixture
def own(warped: Path, first: Answer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, with the matches and a cache of its own."""
    shutil.copytree(warped, tmp_path / "own")
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "own" / "cache"))
    return tmp_path / "own"


def words(root: Path, *more: object) -> tuple[Any, ...]:
    return ("match", "--index", root / "images.h5", "--dataset", root / "images", *more)


def test_views_of_one_photograph_match_and_nothing_else(warped: Path, first: Answer) -> None:
    answer = first
    assert answer.code == 0, answer.err
    assert answer.json["compared"] == 10
    assert answer.json["matched"] == 2
    assert answer.json["covered"] == 4
    assert answer.json["without_keypoints"] == 1
    found = read_matches(warped / "images-matches.h5")
    names = [tuple(found.sample_ids[row] for row in pair) for pair in found.matches.pairs]
    assert names == [
        ("china-0.png", "china-1.png"),
        ("china-1.png", "china-0.png"),
        ("flower-0.png", "flower-1.png"),
        ("flower-1.png", "flower-0.png"),
    ]
    assert found.matches.inliers.min() >= 15
    with Image.open(warped / "sheet.png") as sheet:
        assert sheet.size[0] > 300


def test_the_second_run_takes_keypoints_from_the_cache_and_says_so(own: Path, first: Answer, labelkit: Any) -> None:
    again = labelkit(*words(own, "--json", "--overwrite"))
    assert again.code == 0, again.err
    assert "keypoints of 5 of 5 images were read from the cache" in again.err
    assert again.json["keypoints_from_cache"] == 5
    assert again.json["content_digest"] == first.json["content_digest"]


def test_an_image_that_changed_is_refused(own: Path, labelkit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABELKIT_CACHE", str(own / "new"))
    Image.new("RGB", (192, 128), "white").save(own / "images" / "china-1.png")
    answer = labelkit(*words(own, "--overwrite"))
    assert answer.code == 3
    assert "china-1.png: has changed since it was embedded" in answer.err


def test_candidates_are_the_nearest_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    features = np.array([[0.0], [1.0], [3.0], [100.0], [101.0]], dtype=np.float32)
    both = choose_candidate_pairs(MatchConfig(index=Path("x.h5"), num_clusters=2), features)
    assert both.tolist() == [[0, 1], [0, 2], [1, 2], [3, 4]]
    monkeypatch.setattr("labelkit.commands.match.pairs._CANDIDATES", 1)
    assert choose_candidate_pairs(MatchConfig(index=Path("x.h5")), features).tolist() == [[0, 1], [1, 2], [3, 4]]


def test_partners_are_those_with_most_inliers() -> None:
    def match(first: int, second: int, inliers: int) -> Any:
        return build_match(first, second, np.eye(3), np.random.default_rng(0).uniform(-1, 1, (inliers, 2, 2)))

    kept = keep_best_partners(join_matches([match(0, 1, 20), match(0, 2, 40), match(0, 3, 30)]), 2)
    assert kept.pairs.tolist() == [[0, 2], [0, 3], [1, 0], [2, 0], [3, 0]]


@pytest.mark.slow
def test_a_killed_run_goes_on_where_it_was(own: Path, labelkit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(40):
        image = np.random.default_rng(i).integers(0, 255, (12, 18, 3), dtype=np.uint8)
        Image.fromarray(image).resize((192, 128)).save(own / "images" / f"noise-{i:02d}.png")
    assert labelkit("embed", "--dataset", own / "images", "--backbone", "pixels", "--out", own / "all.h5").code == 0
    command = ["match", "--index", own / "all.h5", "--dataset", own / "images"]
    process = subprocess.Popen([sys.executable, "-m", "labelkit", *map(str, command)], env={**os.environ})
    parts = own / "cache" / "matches" / "keypoints"
    deadline = time.monotonic() + 200
    while not (parts.exists() and list(parts.glob("*.npz"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (own / "all-matches.h5").exists()
    answer = labelkit(*command, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["keypoints_from_cache"] >= 1
    monkeypatch.setenv("LABELKIT_CACHE", str(own / "new"))
    fresh = labelkit(*command, "--json", "--out", own / "fresh.h5")
    assert fresh.json["content_digest"] == answer.json["content_digest"]


def test_training_shows_partners_and_refuses_matches_of_another_set(
    own: Path, photos: Path, labelkit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("train", "tac-ccl", "--dataset", photos, "--preset", "digits", "--holdout", "none", "--batch-size", "10")
    small = ("--num-clusters", "4", "--epochs", "4", "--matches", own / "images-matches.h5", "--out", tmp_path / "run")
    answer = labelkit(*run, *small)
    assert answer.code == 3
    assert "no pairs of training images (0 of its 5 images" in answer.err
    monkeypatch.setattr("labelkit.methods.metric.matched_images._SHARE", 1.0)
    run = ("train", "tac-ccl", "--dataset", own / "images", *"--preset digits --holdout none --no-ccl".split())
    short = "--num-clusters 2 --batch-size 4 --images-per-class 2 --epochs 4 --json".split()
    answer = labelkit(*run, *short, "--matches", own / "images-matches.h5", "--out", tmp_path / "r")
    assert answer.code == 0, answer.err
    assert "4 matches; 80.0% of the images have a partner" in answer.err
    assert answer.json["metrics"]["matched"] > 0
