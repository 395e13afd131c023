"""The loss on distances to two centroids, against the worked numbers of the specification (section 7)."""

import pytest
import torch
from labelkit.methods.few_labels.composition import DiscriminationLoss
from labelkit.methods.few_labels.losses import SquaredConsistencyLoss

CENTROIDS = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
FEATURES = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 1.0], [3.5, 0.5]])


def loss_of(features: torch.Tensor) -> torch.Tensor:
    return DiscriminationLoss()(features, CENTROIDS)


def test_the_ratio_of_four_features_their_mean_and_its_gradients() -> None:
    for features, expected in zip(FEATURES, (0.111111, 1, 0.2, 0.04), strict=True):
        assert float(loss_of(features[None])) == pytest.approx(expected, abs=1e-5)
    features = FEATURES.clone().requires_grad_()
    loss = loss_of(features)
    assert float(loss.detach()) == pytest.approx(0.337778, abs=1e-6)
    loss.backward()
    expected = torch.tensor([(0.074074, 0), (0.5, 0), (0.08, 0.04), (-0.0256, 0.0192)])
    torch.testing.assert_close(features.grad, expected, atol=1e-5, rtol=0)


def test_descending_ends_at_the_centroid() -> None:
    place, path = torch.tensor([[1.0, 0.0]]), []
    for _ in range(50):
        place.requires_grad_()
        (gradient,) = torch.autograd.grad(loss_of(place), place)
        place = (place - 0.5 * gradient).detach()
        path.append(float(place[0, 0]))
    assert [path[0], path[1], path[4], path[49]] == pytest.approx([0.851852, 0.742643, 0.527435, 0.019736], abs=1e-6)


def test_the_ratio_does_not_change_with_the_scale_and_is_flat_on_a_centroid() -> None:
    scaled = DiscriminationLoss()(1000 * FEATURES, 1000 * CENTROIDS)
    assert float(scaled) == pytest.approx(0.337778, abs=1e-6)
    place = torch.zeros(1, 2, requires_grad=True)
    loss_of(place).backward()
    assert bool(torch.isfinite(place.grad).all())


def test_centroids_get_no_gradient_and_one_is_not_enough() -> None:
    centroids = CENTROIDS.clone().requires_grad_()
    DiscriminationLoss()(FEATURES.clone().requires_grad_(), centroids).backward()
    assert centroids.grad is None
    with pytest.raises(ValueError, match="k >= 2"):
        DiscriminationLoss()(FEATURES, CENTROIDS[:1])
    assert float(DiscriminationLoss()(FEATURES[:0], CENTROIDS)) == 0


def test_agreement_of_master_and_teacher_is_that_of_the_worked_rows() -> None:
    """The specification's J_C."""
    master = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]]).log()
    teacher = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]]).log()
    assert float(SquaredConsistencyLoss()(master, teacher).mean()) == pytest.approx(0.026667, abs=1e-6)
