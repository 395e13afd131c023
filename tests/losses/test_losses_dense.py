"""Soft assignments, similarities of patches, ranking variants and prototype entropy, against worked numbers."""

import math

import numpy as np
import pytest
import torch
from labelkit.algorithms.sinkhorn import Reduce, solve_assignment
from labelkit.methods.dense.losses import (
    DenseRankingLoss,
    PrototypeEntropyLoss,
    SoftAssignmentLoss,
    batch_assignments,
    patch_similarity,
)
from labelkit.methods.dense.ranking_loss import cotap_loss
from tests.reducing_threads import run_in_threads
from torch import Tensor

P = torch.tensor([[0.9, 0.7, 0.7, 0.4, 0.6, 0.2]], dtype=torch.float64)
Q = torch.tensor([[0.8, 0.9, 0.6, 0.6, 0.3, 0.1]], dtype=torch.float64)
LOGITS = torch.tensor([[0.9, 0.1, 0], [0.8, 0.3, 0.1], [0.7, 0.2, 0.6], [0.1, 0.9, 0.2]], dtype=torch.float64)


def test_similarity_is_half_the_cosine_plus_a_half() -> None:
    first = torch.tensor([[[1.0, 0], [0.6, 0.8]]])
    second = torch.tensor([[[0.0, 1], [-1, 0]]])
    expected = torch.tensor([[[0.5, 0], [0.9, 0.2]]])
    assert torch.allclose(patch_similarity(first, second), expected, atol=1e-7)


def test_similarity_is_single_precision_under_autocast() -> None:
    vectors = torch.nn.functional.normalize(torch.randn(1, 50, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = patch_similarity(vectors, vectors)
    assert found.dtype == torch.float32
    assert torch.equal(found, patch_similarity(vectors, vectors))


def test_assignment_loss_of_sinkhorn_targets_is_that_of_the_specification() -> None:
    targets = batch_assignments(LOGITS, epsilon=0.05, num_iterations=3)
    assert targets[0].tolist() == pytest.approx([0.999970, 0.000001, 0.000029], abs=1e-6)
    assert targets.sum(dim=0).tolist() == pytest.approx([2.001992, 0.999870, 0.998138], abs=1e-6)
    assert float(SoftAssignmentLoss(0.1)(LOGITS, targets)) == pytest.approx(0.334642, abs=1e-6)
    rows = [float(SoftAssignmentLoss(0.1)(LOGITS[i : i + 1], targets[i : i + 1])) for i in range(4)]
    assert rows == pytest.approx([0.000726, 0.019849, 1.314350, 0.003643], abs=1e-6)


def test_assignment_loss_is_log_k_for_equal_logits_and_zero_without_rows() -> None:
    logits = torch.zeros(3, 5, requires_grad=True)
    assert float(SoftAssignmentLoss(0.1)(logits.detach(), torch.full((3, 5), 0.2))) == pytest.approx(math.log(5))
    nothing = SoftAssignmentLoss(0.1)(logits[:0], torch.zeros(0, 5))
    nothing.backward()
    assert float(nothing.detach()) == 0
    assert torch.equal(logits.grad, torch.zeros(3, 5))


def test_ranking_by_value_is_that_of_the_specification() -> None:
    loss = DenseRankingLoss("bce")
    assert float(loss(P, Q)) == pytest.approx(0.598722, abs=1e-6)
    items = [0.544805, 0.441405, 0.695594, 0.754105, 0.794651, 0.361773]
    found = [float(loss(P[:, i : i + 1], Q[:, i : i + 1])) for i in range(6)]
    assert found == pytest.approx(items, abs=1e-6)


def test_ranking_by_value_is_finite_at_the_ends() -> None:
    p = torch.tensor([[0.0, 1.0, 0.0]], requires_grad=True)
    loss = DenseRankingLoss("bce")(p, torch.tensor([[0.0, 1.0, 1.0]]))
    loss.backward()
    assert float(loss.detach()) == pytest.approx(-math.log(1e-6) / 3, rel=1e-3)
    assert p.grad.isfinite().all()


def test_ranking_by_order_is_the_mean_of_the_ranking_loss() -> None:
    assert float(DenseRankingLoss()(P, Q)) == pytest.approx(0.271517, abs=1e-6)
    both = torch.cat((P, Q)), torch.cat((Q, P))
    assert float(DenseRankingLoss()(*both)) == pytest.approx(float(cotap_loss(*both).mean()))


def test_ranking_is_zero_for_equal_targets_and_without_pairs() -> None:
    scores = P.clone().requires_grad_()
    loss = DenseRankingLoss()(scores, torch.full_like(Q, 0.7))
    nothing = DenseRankingLoss()(scores[:0], Q[:0])
    (loss + nothing).backward()
    assert float(loss.detach()) == 0
    assert float(nothing.detach()) == 0
    assert torch.equal(scores.grad, torch.zeros_like(P))


def test_prototype_entropy_is_that_of_the_specification() -> None:
    prototypes = torch.tensor([[1.0, 0], [0.6, 0.8]], dtype=torch.float64, requires_grad=True)
    images = torch.tensor([[1.0, 0], [0, 1], [0.8, 0.6]], dtype=torch.float64, requires_grad=True)
    loss = PrototypeEntropyLoss(0.1)(prototypes, images)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.152494, abs=1e-6)
    assert images.grad is None
    assert prototypes.grad is not None
    scaled = PrototypeEntropyLoss(0.1)(3 * prototypes, images)
    assert float(scaled.detach()) == pytest.approx(0.152494, abs=1e-6)


BATCH = torch.tensor([[0.9, 0.1, 0], [0.8, 0.3, 0.1], [0.7, 0.6, -0.2], [0.2, 0.1, 0.15]], dtype=torch.float64)


def test_one_iteration_gives_the_worked_assignments() -> None:
    expected = [
        [0.961038, 0.000050, 0.038912],
        [0.309434, 0.006522, 0.684044],
        [0.015658, 0.983708, 0.000634],
        [0.000001, 0.000064, 0.999935],
    ]

    np.testing.assert_allclose(batch_assignments(BATCH, num_iterations=1).numpy(), expected, atol=1e-6)


def test_many_iterations_of_a_batch_reach_the_plan_of_the_solver() -> None:
    ours = batch_assignments(BATCH, num_iterations=4_000)

    potentials = solve_assignment(BATCH, 20.0, dtype=torch.float64, tol=1e-12).potentials
    expected = (20.0 * BATCH + potentials).softmax(dim=1)
    np.testing.assert_allclose(ours.numpy(), expected.numpy(), atol=1e-3)
    np.testing.assert_allclose(ours[0].numpy(), [0.981225, 0.002245, 0.016530], atol=1e-3)


def test_batches_of_several_processes_may_differ_in_size() -> None:
    scores = torch.rand(12, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def one(number: int, reduce: Reduce) -> Tensor:
        part = scores[:3] if number == 0 else scores[3:]
        return batch_assignments(part, reduce=reduce)

    parts = run_in_threads(2, one)

    np.testing.assert_allclose(torch.cat(parts).numpy(), batch_assignments(scores).numpy(), atol=1e-12)


def test_logarithms_bear_scores_without_bounds() -> None:
    ours = batch_assignments(1000 * torch.randn(16, 4, generator=torch.Generator().manual_seed(0)), epsilon=0.01)

    assert ours.dtype == torch.float32
    np.testing.assert_allclose(ours.sum(dim=1).numpy(), 1, atol=1e-6)


def test_batches_have_no_gradient() -> None:
    assert not batch_assignments(BATCH.clone().requires_grad_()).requires_grad
