"""Matches and their parts: written, read again exactly, refused when wrong."""

from pathlib import Path

import numpy as np
import pytest
from labelkit.errors import Damaged, NotAStore, OutputExistsError
from labelkit.store.array_files import Matches, MatchFile, build_empty_matches, build_match, read_matches, write_matches

TILT = np.array([[1.0, 0.1, 0.2], [0, 0.9, -0.1], [0.05, 0, 1]])
POINTS = np.random.default_rng(0).uniform(-1, 1, (60, 2, 2))


def some_file(matches: Matches | None = None) -> MatchFile:
    return MatchFile(
        matches if matches is not None else build_match(0, 2, TILT, POINTS),
        ("a.png", "b.png", "ü/c.png"),
        np.arange(96, dtype=np.uint8).reshape(3, 32),
        np.array([[10, 20], [30, 40], [50, 60]], dtype=np.uint32),
        np.array([7, 0, -1]),
        {"ratio": 0.75},
        "",
    )


def assert_equal(first: Matches, second: Matches) -> None:
    for name, value in vars(first).items():
        np.testing.assert_array_equal(value, getattr(second, name))


def test_matches_are_read_as_they_were_written(tmp_path: Path) -> None:
    written = some_file()
    digest = write_matches(tmp_path / "m.h5", written)
    found = read_matches(tmp_path / "m.h5")
    assert_equal(found.matches, written.matches)
    assert found.sample_ids == written.sample_ids
    assert found.recipe == written.recipe
    assert found.content_digest == digest
    np.testing.assert_array_equal(found.sha256, written.sha256)
    np.testing.assert_array_equal(found.image_sizes, written.image_sizes)
    np.testing.assert_array_equal(found.num_keypoints, written.num_keypoints)


def test_a_match_keeps_its_best_keypoints_and_the_box_of_all() -> None:
    match = build_match(0, 2, TILT, POINTS)
    assert match.inliers.tolist() == [60]
    assert match.keypoint_counts.tolist() == [50]
    np.testing.assert_allclose(match.keypoints[0], POINTS[:50], atol=1e-6)
    np.testing.assert_allclose(match.boxes[0, 1], [*POINTS[:, 1].min(axis=0), *POINTS[:, 1].max(axis=0)], atol=1e-6)


def test_a_match_turned_round_leads_back() -> None:
    back = build_match(0, 2, TILT, POINTS).reversed()
    assert back.pairs.tolist() == [[2, 0]]
    np.testing.assert_allclose(back.homographies[0] @ TILT / (back.homographies[0] @ TILT)[2, 2], np.eye(3), atol=1e-12)
    np.testing.assert_allclose(back.keypoints[0], POINTS[:50, ::-1], atol=1e-6)
    assert len(build_empty_matches().reversed()) == 0


def test_the_same_written_twice_is_no_error_and_another_is(tmp_path: Path) -> None:
    write_matches(tmp_path / "m.h5", some_file())
    write_matches(tmp_path / "m.h5", some_file())
    with pytest.raises(OutputExistsError, match="other content"):
        write_matches(tmp_path / "m.h5", some_file(build_empty_matches()))
    write_matches(tmp_path / "m.h5", some_file(build_empty_matches()), overwrite=True)


def test_wrong_bytes_are_found(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    write_matches(path, some_file())
    raw = bytearray(path.read_bytes())
    place = raw.index(some_file().sha256.tobytes())
    raw[place] ^= 1
    path.write_bytes(raw)
    with pytest.raises(Damaged):
        read_matches(path)
    path.write_text("no HDF5")
    with pytest.raises(NotAStore):
        read_matches(path)
