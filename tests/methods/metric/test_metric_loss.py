"""Metric losses against the worked numbers of the TAC-CCL and SAN specifications and the library's own pipeline."""

import math

import pytest
import torch
from labelkit.methods.metric.losses import (
    ContrastiveBayesianLoss,
    MemoryContrastiveLoss,
    MultiSimilarityLoss,
    ProxyAnchorLoss,
    hard_pair_masks,
    pair_masks,
)
from torch import Tensor
from torch.nn import functional

LABELS = torch.tensor([0, 0, 0, 1, 1, 1])


def six() -> Tensor:
    angles = torch.deg2rad(torch.tensor([0, 20, 60, 75, 50, 170], dtype=torch.float64))
    return torch.stack([angles.cos(), angles.sin()], 1)


@pytest.mark.parametrize(
    ("beta", "epsilon", "expected"),
    [(50, None, 1.050295), (50, 0.1, 1.007395), (40, None, 1.050843), (40, 0.1, 1.007943)],
)
def test_multi_similarity_of_six_vectors(beta: float, epsilon: float | None, expected: float) -> None:
    """T§8.1."""
    loss = MultiSimilarityLoss(beta=beta, epsilon=epsilon)(six(), LABELS)
    assert float(loss) == pytest.approx(expected, abs=5e-7)


def test_mining_keeps_the_pairs_of_the_worked_example() -> None:
    """T§8.1: pairs kept, anchor by anchor."""
    positive, negative = pair_masks(LABELS, LABELS, torch.arange(6))
    positive, negative = hard_pair_masks(six() @ six().T, positive, negative, 0.1)
    assert [tuple(pair) for pair in positive.nonzero().tolist()] == [
        (0, 2), (1, 0), (1, 2), (2, 0), (2, 1), (3, 4), (3, 5), (4, 3), (4, 5), (5, 4),
    ]  # fmt: skip
    assert [tuple(pair) for pair in negative.nonzero().tolist()] == [
        (0, 4), (1, 4), (2, 3), (2, 4), (3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (4, 2), (5, 2),
    ]  # fmt: skip


def test_unlabeled_images_change_nothing_but_the_divisor() -> None:
    embeddings = torch.cat([six(), six()[:2]])
    labels = torch.cat([LABELS, torch.tensor([-1, -1])])
    assert float(MultiSimilarityLoss()(embeddings, labels)) == pytest.approx(1.007395 * 6 / 8, abs=5e-7)


def test_contrastive_bayesian_is_the_sum_over_plain_loops() -> None:
    generator = torch.Generator().manual_seed(3)
    embeddings = torch.nn.functional.normalize(torch.randn(9, 4, generator=generator, dtype=torch.float64), dim=1)
    memory = torch.nn.functional.normalize(torch.randn(14, 4, generator=generator, dtype=torch.float64), dim=1)
    memory[:9] = embeddings
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, -1, 3])  # an anchor without positives, one without a label
    of_memory = torch.tensor([*labels.tolist(), 0, 1, 2, 2, -1])
    total = 0.0
    for i in range(9):
        pairs = [(float(embeddings[i] @ memory[j]), int(of_memory[j])) for j in range(14) if j != i]
        near = [s for s, label in pairs if label == int(labels[i]) >= 0]
        far = [s for s, label in pairs if 0 <= label != int(labels[i]) >= 0]
        if not near or not far:
            continue
        hard_near = [s for s in near if s - 0.1 < max(far)]
        hard_far = [s for s in far if s + 0.1 > min(near)]
        if not hard_near or not hard_far:
            continue
        total += math.log(1 + sum(math.exp(-(s - 0.5) / 0.5) for s in hard_near))
        total += math.log(1 + sum(math.exp((s - 1) / 0.01) for s in hard_far))
        middle = 0.2 * sum(near) / len(near) + 0.8 * sum(far) / len(far)
        total += 75 * sum((s - middle) ** 2 for s in far) / len(far)
    loss = ContrastiveBayesianLoss()(embeddings, labels, memory, of_memory, torch.arange(9))
    assert float(loss) == pytest.approx(total / 9, rel=1e-12)


def test_contrastive_bayesian_without_hard_pairs_is_zero_with_a_gradient() -> None:
    apart = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]], requires_grad=True)
    loss = ContrastiveBayesianLoss()(apart, torch.tensor([0, 0, 1, 1]))
    loss.backward()
    assert float(loss.detach()) == 0
    assert (apart.grad == 0).all()


def test_proxy_anchor_is_the_sum_of_its_paper() -> None:
    loss = ProxyAnchorLoss(3, 2).double()
    with torch.no_grad():
        loss.loss.proxies.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]))
    labels = torch.tensor([0, 0, 1, -1])
    embeddings = six()[[0, 2, 3, 5]]
    value = loss(embeddings, labels)
    expected_positive, expected_negative = 0.0, 0.0
    proxies = torch.nn.functional.normalize(loss.loss.proxies.detach(), dim=1)
    for c in range(3):
        own = sum(
            math.exp(-32 * (float((embeddings[i] @ proxies[c]).detach()) - 0.1)) for i in range(3) if labels[i] == c
        )
        other = sum(
            math.exp(32 * (float((embeddings[i] @ proxies[c]).detach()) + 0.1)) for i in range(3) if labels[i] != c
        )
        expected_positive += math.log(1 + own) / 2
        expected_negative += math.log(1 + other) / 3
    assert float(value.detach()) == pytest.approx(expected_positive + expected_negative, rel=1e-9)


@pytest.mark.parametrize("kind", ["mined", "all pairs", "contrastive"])
@pytest.mark.parametrize("memory", [False, True])
def test_losses_of_pairs_are_those_of_the_library(kind: str, memory: bool) -> None:
    from pytorch_metric_learning import losses
    from pytorch_metric_learning.distances import CosineSimilarity

    generator = torch.Generator().manual_seed(0)
    embeddings = torch.randn(12, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(-1, 3, (12,), generator=generator)
    reference, reference_labels, own = None, None, None
    if memory:
        reference = torch.randn(30, 5, generator=generator, dtype=torch.float64)
        reference_labels, own = torch.randint(-1, 3, (30,), generator=generator), torch.arange(12)
    loss = MultiSimilarityLoss(epsilon=None) if kind == "all pairs" else MultiSimilarityLoss()
    library = losses.MultiSimilarityLoss()
    if kind == "contrastive":
        loss = MemoryContrastiveLoss(0.2)
        library = losses.ContrastiveLoss(pos_margin=1, neg_margin=0.2, distance=CosineSimilarity())
    ours = loss(embeddings, labels, reference, reference_labels, own)
    anchors = functional.normalize(embeddings, dim=1)
    others = anchors if reference is None else functional.normalize(reference, dim=1)
    of_others = labels if reference_labels is None else reference_labels
    positive, negative = pair_masks(labels, of_others, torch.arange(12))
    if loss.epsilon is not None:
        positive, negative = hard_pair_masks(anchors @ others.T, positive, negative, 0.1)
    theirs = library(anchors, labels, (*torch.where(positive), *torch.where(negative)), others, of_others)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(value, embeddings, retain_graph=True)[0] for value in (ours, theirs)]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("loss", [MultiSimilarityLoss(), MultiSimilarityLoss(epsilon=None), MemoryContrastiveLoss()])
def test_without_pairs_the_loss_is_zero_with_a_gradient(loss: torch.nn.Module) -> None:
    embeddings = torch.randn(12, 5, requires_grad=True)
    value = loss(embeddings, torch.full((12,), -1))
    value.backward()
    assert float(value.detach()) == 0
    assert (embeddings.grad == 0).all()
