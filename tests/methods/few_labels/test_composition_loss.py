"""The loss on distances to two centroids, against the worked numbers of the specification (section 7)."""

from __future__ import annotations

import pytest
import torch
from labelkit.methods.few_labels.losses import DiscriminationLoss, SquaredConsistency, nearest_two

CENTROIDS = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
FEATURES = torch.tensor([[1.0, 0.0], [2.0, 0.0], [1.0, 1.0], [3.5, 0.5]])


def loss_of(kind: str, features: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = DiscriminationLoss(kind)(features, CENTROIDS)  # type: ignore[arg-type] # a Literal
    return loss


def test_the_two_nearest_distances() -> None:
    near, far = nearest_two(FEATURES, CENTROIDS)
    torch.testing.assert_close(near.sqrt(), torch.tensor([1, 2, 1.414214, 0.707107]))
    torch.testing.assert_close(far.sqrt(), torch.tensor([3, 2, 3.162278, 3.535534]))


@pytest.mark.parametrize(
    ("kind", "each", "mean"),
    [
        ("literal", (4, 0, 3.055728, 8), 3.763932),
        ("ratio", (0.111111, 1, 0.2, 0.04), 0.337778),
    ],
)
def test_each_form_of_four_features_and_their_mean(kind: str, each: tuple[float, ...], mean: float) -> None:
    for features, expected in zip(FEATURES, each, strict=True):
        assert float(loss_of(kind, features[None])) == pytest.approx(expected, abs=1e-5)
    assert float(loss_of(kind, FEATURES)) == pytest.approx(mean, abs=1e-6)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("literal", [(-2, 0), (0, 0), (-1.447214, -0.341641), (2.4, -0.8)]),
        ("ratio", [(0.074074, 0), (0.5, 0), (0.08, 0.04), (-0.0256, 0.0192)]),
    ],
)
def test_gradients_of_the_means(kind: str, expected: list[tuple[float, float]]) -> None:
    features = FEATURES.clone().requires_grad_()
    loss_of(kind, features).backward()
    assert features.grad is not None
    torch.testing.assert_close(features.grad, torch.tensor(expected), atol=1e-5, rtol=0)


def descend(kind: str, rate: float, steps: int) -> list[float]:
    place, path = torch.tensor([[1.0, 0.0]]), []
    for _ in range(steps):
        place.requires_grad_()
        (gradient,) = torch.autograd.grad(loss_of(kind, place), place)
        place = (place - rate * gradient).detach()
        path.append(float(place[0, 0]))
    return path


def test_descending_the_printed_loss_ends_on_the_boundary_and_the_ratio_at_the_centroid() -> None:
    literal, ratio = descend("literal", 0.05, 100), descend("ratio", 0.5, 50)
    assert literal[:2] == pytest.approx([1.4, 1.64])
    assert literal[-1] == pytest.approx(2.0, abs=1e-4)
    assert [ratio[0], ratio[1], ratio[4], ratio[49]] == pytest.approx(
        [0.851852, 0.742643, 0.527435, 0.019736], abs=1e-6
    )
    share = [near / (4 - near) for near in (literal[0], ratio[0])]
    assert share[0] > 1 / 3 > share[1]


def test_the_ratio_does_not_change_with_the_scale_and_is_flat_on_a_centroid() -> None:
    scaled = DiscriminationLoss("ratio")(1000 * FEATURES, 1000 * CENTROIDS)
    assert float(scaled) == pytest.approx(0.337778, abs=1e-6)
    place = torch.zeros(1, 2, requires_grad=True)
    for kind in ("ratio", "literal"):
        place.grad = None
        loss_of(kind, place).backward()
        assert place.grad is not None
        assert bool(torch.isfinite(place.grad).all())


def test_centroids_get_no_gradient_and_one_is_not_enough() -> None:
    centroids = CENTROIDS.clone().requires_grad_()
    DiscriminationLoss("ratio")(FEATURES.clone().requires_grad_(), centroids).backward()
    assert centroids.grad is None
    with pytest.raises(ValueError, match="at least two"):
        DiscriminationLoss("ratio")(FEATURES, CENTROIDS[:1])
    with pytest.raises(ValueError, match="unknown kind"):
        DiscriminationLoss("none")  # type: ignore[arg-type] # on purpose
    assert float(DiscriminationLoss("ratio")(FEATURES[:0], CENTROIDS)) == 0


def test_agreement_of_master_and_teacher_is_that_of_the_worked_rows() -> None:
    """The specification's J_C."""
    master = torch.tensor([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3]]).log()
    teacher = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1]]).log()
    assert float(SquaredConsistency()(master, teacher).mean()) == pytest.approx(0.026667, abs=1e-6)
