"""TAC-CCL: which losses there are, what a checkpoint has of clusters and memory, matching images, bad input."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.data.batch import Batch, ViewGeometry
from labelkit.methods.metric.matched_images import MatchedPairing, MatchedPairs, PairCorrespondence, compute_crop_box
from labelkit.store.array_files import Matches, build_match, join_matches
from tests.fake_cuda import fake_cuda

Make = Callable[..., Any]
SAME = np.eye(3)
SPOTS = np.array([[[-0.5, -0.5], [-0.5, -0.5]], [[0.5, 0.5], [0.5, 0.5]], [[0.0, 0.2], [0.0, 0.2]]])


def _step(setup: Any) -> dict[str, float]:
    """The logs of the first batch, after the first clustering."""
    setup.method.on_epoch_start(setup.trainer._state(log_now=False))
    setup.method.on_step_start(setup.trainer._state(log_now=False))
    batch = next(setup.batches())
    output = setup.method(batch)
    return {name: float(value) for name, value in output.logs.items()} | {"loss": float(output.loss.detach())}


def _some_matches(pairs: list[tuple[int, int]]) -> Matches:
    return join_matches([build_match(first, second, SAME, SPOTS) for first, second in pairs])


def test_the_loss_is_the_weighted_sum_of_its_parts(make: Make) -> None:
    logs = _step(make("tac-ccl", ccl_start_epoch=0, ccl_weight=0.3, feature_weight=0.2))
    expected = logs["ms"] + 0.3 * logs["ccl"] + 0.2 * logs["features"] + logs["tac"]
    assert logs["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "told"),
    [({"ccl_start_epoch": 2}, True), ({"ccl_start_epoch": 1}, False), ({"ccl_start_epoch": 2, "ccl": False}, False)],
)
def test_centers_that_come_after_the_last_epoch_are_told_once(make: Make, options: dict[str, Any], told: bool) -> None:
    setup = make("tac-ccl", epochs=2, **options)
    heard: list[str] = []
    first = replace(setup.trainer._state(log_now=False), warn=heard.append)
    for epoch in (0, 1):
        setup.method.on_epoch_start(replace(first, epoch=epoch))
    assert sum("clustering loss is never used: it starts after 2 epochs" in text for text in heard) == told


@pytest.mark.slow
def test_clusters_are_renewed_on_time_and_are_the_labels_of_the_sampler(make: Make, tmp_path: Path) -> None:
    setup = make("tac-ccl", tmp_path / "run", epochs=4, refresh_epochs=2)
    setup.trainer.fit()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line.get("kind") == "pseudo-labels"] == [0, 2]
    ids = setup.method.labels.cluster_ids.numpy()
    drawn = ids[setup.trainer.phases[0].sampler.indices(3)].reshape(-1, setup.config.images_per_class)
    assert (drawn == drawn[:, :1]).all()


def setup_batches(setup: Any) -> Any:
    setup.method.on_epoch_start(setup.trainer._state(log_now=False))
    return setup.trainer.batches(setup.trainer.phases[0], 0)


def test_second_views_show_partners_of_the_same_cluster(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelkit.methods.metric.matched_images._SHARE", 1.0)
    setup = make("tac-ccl")
    pairs = [(row, (row + 1) % 64) for row in range(64)]
    matched = MatchedPairs(_some_matches(pairs), np.full((64, 2), 8), "digest")
    clusters = np.arange(64) // 4
    plan = MatchedPairing(matched, lambda: clusters).plan(np.arange(64), np.arange(64), seed=0, epoch=0)

    same = clusters == clusters[(np.arange(64) + 1) % 64]
    assert ((plan.links >= 0) == same).all()
    assert (plan.rows == np.where(same, (np.arange(64) + 1) % 64, np.arange(64))).all()

    setup.method.use_matches(matched)
    setup.trainer.phases = setup.method.phases(setup.bank.rows)
    batch = next(setup_batches(setup))
    assert batch.links is not None
    logs = setup.method(batch).logs
    assert 0 < float(logs["matched"]) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
def test_maps_between_partners_fit_together_under_cuda_autocast(precision: torch.dtype) -> None:
    matched = MatchedPairs(_some_matches([(0, 1)]), np.full((64, 2), 8), "digest")
    with fake_cuda(precision) as cuda:
        matrices = torch.eye(3, device=cuda)[:2].expand(4, 2, 3)
        batch = Batch(
            (), torch.zeros(4), torch.zeros(4), (ViewGeometry(matrices), ViewGeometry(matrices)),
            torch.zeros(4, dtype=torch.int64, device=cuda),
        )  # fmt: skip
        geometry = PairCorrespondence(matched)
        homographies, masks = geometry(batch, (2, 2))
        assert {found.dtype for found in (homographies, *masks)} == {torch.float32}


def test_maps_between_partners_are_as_exact_under_autocast() -> None:
    matched = MatchedPairs(_some_matches([(0, 1)]), np.full((64, 2), 8), "digest")
    matrices = torch.rand(4, 2, 3, generator=torch.Generator().manual_seed(0))
    views = ViewGeometry(torch.eye(3)[:2].expand(4, 2, 3)), ViewGeometry(matrices)
    batch = Batch((), torch.zeros(4), torch.zeros(4), views, torch.zeros(4, dtype=torch.int64))
    geometry = PairCorrespondence(matched)
    expected, expected_masks = geometry(batch, (2, 2))
    with torch.autocast("cpu", torch.bfloat16):
        found, masks = geometry(batch, (2, 2))
    for ours, theirs in zip((found, *masks), (expected, *expected_masks), strict=True):
        assert torch.equal(ours, theirs)


def test_parts_are_squares_around_the_keypoints_inside_of_the_image() -> None:
    middle = np.full(3, 0.5)
    # a box of 20 x 10 pixels in an image of 200 x 100: least side 40
    box = compute_crop_box(np.array([-0.1, -0.1, 0.1, 0.1]), 100, 200, middle)
    np.testing.assert_allclose((box + 1) / 2 * [200, 100, 200, 100], [80, 30, 120, 70])
    # keypoints at the corner: shifted inside
    corner = compute_crop_box(np.array([0.9, 0.9, 1.0, 1.0]), 100, 200, np.array([1.0, 1.0, 1.0]))
    assert corner[2] == pytest.approx(1)
    assert corner[3] == pytest.approx(1)
    # keypoints all over: no more than the shorter side
    whole = compute_crop_box(np.array([-1.0, -1, 1, 1]), 100, 200, middle)
    np.testing.assert_allclose((whole + 1) / 2 * [200, 100, 200, 100], [50, 0, 150, 100])
