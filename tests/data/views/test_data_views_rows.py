"""Views of rows: how far each change moves a row, and what decides about its random numbers."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from labelkit.data.image_bank import EmbeddingBank, augment_embeddings
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views.spec import EmbeddingView, Normalize, ViewSpec
from labelkit.data.workers import BatchPlan
from tests.textures import dataset_of

KEYS = np.arange(500)
PLAIN = Normalize((0.0,), (1.0,))


def unit_rows(count: int, dim: int) -> torch.Tensor:
    return F.normalize(torch.randn(count, dim, generator=torch.Generator().manual_seed(0)), dim=1)


def changed(
    rows: torch.Tensor, how: EmbeddingView, neighbors: torch.Tensor | None = None, view: int = 0
) -> torch.Tensor:
    return augment_embeddings(rows, neighbors, how, KeyedRNG(1, 2, KEYS[: len(rows)]), view)


@pytest.mark.parametrize("how", [EmbeddingView(), EmbeddingView(noise=0.5), EmbeddingView(dropout=0.5)])
def test_rows_keep_length_1(how: EmbeddingView) -> None:
    assert torch.allclose(changed(unit_rows(500, 32), how).norm(dim=1), torch.ones(500), atol=1e-5)


def test_noise_of_length_s_turns_a_row_by_the_angle_whose_tangent_is_s() -> None:
    # in many dimensions noise is orthogonal to the row, so that the cosine is 1 / sqrt(1 + s^2)
    rows = unit_rows(500, 2000)
    cosines = (changed(rows, EmbeddingView(noise=0.75)) * rows).sum(dim=1)
    assert cosines.mean().item() == pytest.approx(0.8, abs=0.005)


def test_dropout_sets_its_share_of_the_numbers_to_0() -> None:
    dropped = changed(unit_rows(500, 400), EmbeddingView(dropout=0.3)) == 0
    assert dropped.float().mean().item() == pytest.approx(0.3, abs=0.005)


def test_mixing_stays_between_the_row_and_one_of_its_neighbors() -> None:
    rows = torch.eye(3)[[0, 0, 0, 0]].repeat(50, 1)
    neighbors = torch.eye(3)[[1, 2]].expand(200, 2, 3)
    mixed = augment_embeddings(rows, neighbors, EmbeddingView(mix=0.5), KeyedRNG(1, 2, KEYS[:200]), 0)

    first, second = mixed[:, 1] > 0, mixed[:, 2] > 0
    assert (first ^ second).all()
    assert 60 < int(first.sum()) < 140
    share = (mixed[:, 1] + mixed[:, 2]) / mixed.sum(dim=1)
    assert share.max().item() <= 0.5
    assert share.mean().item() == pytest.approx(0.25, abs=0.03)


@pytest.mark.parametrize("how", [EmbeddingView(noise=0.5), EmbeddingView(dropout=0.5), EmbeddingView(mix=0.5)])
def test_numbers_follow_from_sample_and_view_and_not_from_the_company(how: EmbeddingView) -> None:
    rows, neighbors = unit_rows(6, 16), unit_rows(18, 16).reshape(6, 3, 16)
    together = augment_embeddings(rows, neighbors, how, KeyedRNG(1, 2, KEYS[:6]), 0)
    alone = augment_embeddings(rows[4:5], neighbors[4:5], how, KeyedRNG(1, 2, KEYS[4:5]), 0)
    assert torch.equal(together[4:5], alone)
    assert not torch.equal(changed(rows, how, neighbors), changed(rows, how, neighbors, view=1))


def bank(
    rows: torch.Tensor, num_neighbors: int, stored: np.ndarray | None = None, stored_rows: np.ndarray | None = None
) -> EmbeddingBank:
    dataset = dataset_of(np.zeros((len(rows), 1, 1, 1), dtype=np.uint8), np.full(len(rows), -1))
    return EmbeddingBank(dataset, rows.numpy(), num_neighbors=num_neighbors, stored=stored, stored_rows=stored_rows)


def test_a_bank_mixes_in_the_nearest_rows_alone() -> None:
    # two pairs of close rows on orthogonal axes
    rows = F.normalize(torch.tensor([[1, 0.1, 0, 0], [1, -0.1, 0, 0], [0, 0, 1, 0.1], [0, 0, 1, -0.1]]), dim=1)
    views = (ViewSpec(1, row=EmbeddingView(mix=1.0)), ViewSpec(1))
    places = np.array([0, 2])
    (mixed, plain), geometry = bank(rows, 1).make_views(BatchPlan(places, KeyedRNG(0, 0, places), views), PLAIN)

    assert geometry == ()
    assert torch.equal(plain, rows[[0, 2]])
    assert mixed[0, 2:].abs().max().item() == 0
    assert mixed[1, :2].abs().max().item() == 0


STORED = ViewSpec(1, row=EmbeddingView(stored=True))


def numbered(images: int, views: int) -> np.ndarray:
    """Of image i, view v: a row of length 2 along axis i * views + v."""
    return 2 * np.eye(images * views, dtype=np.float16).reshape(images, views, -1)


def axes(made: torch.Tensor) -> list[int]:
    """The axis of each row, which has length 1."""
    assert torch.equal(made.sort(dim=1).values[:, -1], torch.ones(len(made)))
    assert torch.equal(made.sum(dim=1), torch.ones(len(made)))
    return made.argmax(dim=1).tolist()


def test_a_view_that_is_stored_stands_for_its_own_row() -> None:
    # rows of the bank are images 4, 1 and 3 of the store
    made = bank(unit_rows(3, 10), 0, numbered(5, 2), np.array([4, 1, 3]))
    places = np.array([0, 1, 2, 0])
    (found,), _ = made.make_views(BatchPlan(places, KeyedRNG(0, 0, np.arange(4)), (STORED,)), PLAIN)

    assert [axis // 2 for axis in axes(found)] == [4, 1, 3, 4]


def test_stored_views_of_a_step_differ_and_all_are_drawn_alike() -> None:
    made = bank(unit_rows(1, 3), 0, numbered(1, 3), np.array([0]))
    keys = np.arange(3000)
    views = (STORED, ViewSpec(1), STORED)
    (first, plain, second), _ = made.make_views(BatchPlan(0 * keys, KeyedRNG(0, 0, keys), views), PLAIN)

    pairs = list(zip(axes(first), axes(second), strict=True))
    counts = [pairs.count((i, j)) for i in range(3) for j in range(3)]
    assert counts[0] == counts[4] == counts[8] == 0
    assert all(400 < count < 600 for count in counts if count)
    assert torch.equal(plain, unit_rows(1, 3).expand(3000, 3))


def test_stored_views_change_with_epoch_and_seed_and_not_with_the_company() -> None:
    made = bank(unit_rows(20, 80), 0, numbered(20, 4), np.arange(20))
    rows = np.arange(20)

    def drawn(some: np.ndarray, seed: int, epoch: int) -> list[int]:
        (found,), _ = made.make_views(BatchPlan(some, KeyedRNG(seed, epoch, some), (STORED,)), PLAIN)
        return axes(found)

    assert drawn(rows[7:9], 0, 0) == drawn(rows, 0, 0)[7:9]
    assert len({tuple(drawn(rows, seed, epoch)) for seed, epoch in ((0, 0), (0, 1), (1, 0))}) == 3
