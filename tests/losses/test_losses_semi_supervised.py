"""MixMatch's and FreeMatch's losses against worked numbers, closed forms and scalar loops."""

import math

import numpy as np
import pytest
import torch
from labelkit.data.batch import BlendingPlan, draw_blending_plan
from labelkit.methods.few_labels.freematch import AdaptiveThresholds, FairnessLoss, PseudoLabelLoss
from labelkit.methods.few_labels.losses import MixMatchLoss, sharpen
from labelkit.methods.few_labels.mixmatch import interleave
from labelkit.training.method import TrainState

GUESS = torch.tensor([[0.5, 0.3, 0.2]])


def test_sharpening_at_a_half_squares_and_normalizes() -> None:
    torch.testing.assert_close(sharpen(GUESS, 0.5), torch.tensor([[0.657895, 0.236842, 0.105263]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(sharpen(GUESS, 1.0), GUESS)


def test_sharpening_keeps_the_order_of_probabilities_too_small_to_square() -> None:
    tiny = torch.full((1, 1000), 1e-30)
    tiny[0, 0] = 2e-30
    assert float(sharpen(tiny / tiny.sum(), 0.5)[0, 0]) == pytest.approx(4 / 1003, rel=1e-5)
    with pytest.raises(ValueError, match="temperature"):
        sharpen(GUESS, 0)


@pytest.mark.parametrize(
    ("drawn", "image", "label"),
    [
        (0.3, (3.2, 2.8), (0.897369, 0.071053, 0.031579)),
        (0.9, (2.4, 3.6), (0.965789, 0.023684, 0.010526)),
    ],
)
def test_a_row_keeps_the_larger_share_of_itself(
    drawn: float, image: tuple[float, ...], label: tuple[float, ...]
) -> None:
    shares = BlendingPlan(torch.tensor([max(drawn, 1 - drawn), 1.0]), torch.tensor([1, 0]))
    mixed = shares.blend(torch.tensor([[2.0, 4.0], [6.0, 0.0]]))
    targets = shares.blend(torch.cat([torch.tensor([[1.0, 0.0, 0.0]]), sharpen(GUESS, 0.5)]))
    torch.testing.assert_close(mixed, torch.tensor([image, (6.0, 0.0)]))
    torch.testing.assert_close(targets[0], torch.tensor(label), atol=2e-6, rtol=0)


def test_every_row_has_a_share_and_a_partner_of_its_own(rng: np.random.Generator) -> None:
    shares = draw_blending_plan(600, 0.75, rng, torch.device("cpu"))
    assert sorted(shares.partners.tolist()) == list(range(600))
    assert len(shares.shares.unique()) > 500
    assert 0.5 <= float(shares.shares.min())
    assert float(shares.shares.max()) <= 1
    # E max(x, 1 - x) of Beta(0.75, 0.75) is 0.5 + E|x - 0.5| = 0.778 (mean of 400,000 draws of random.betavariate)
    assert float(shares.shares.mean()) == pytest.approx(0.778, abs=0.02)
    assert shares.blend(torch.rand(600, 3, 2, 2)).shape == (600, 3, 2, 2)


def test_interleaving_swaps_one_part_of_the_first_block_with_each_other_block() -> None:
    blocks = tuple(torch.arange(7) + 10 * block for block in range(3))  # parts of 2, 2 and 3 rows
    mixed = interleave(blocks)
    assert [block.tolist() for block in mixed] == [
        [0, 1, 12, 13, 24, 25, 26],
        [10, 11, 2, 3, 14, 15, 16],
        [20, 21, 22, 23, 4, 5, 6],
    ]
    assert all(torch.equal(a, b) for a, b in zip(interleave(mixed), blocks, strict=True))
    with pytest.raises(ValueError, match="same number of rows"):
        interleave([torch.zeros(3), torch.zeros(4)])


def test_mixmatch_terms_equal_scalar_loops(rng: np.random.Generator) -> None:
    logits = rng.normal(size=(5, 3))
    targets = rng.dirichlet(np.ones(3), size=5)
    fitted, others = MixMatchLoss()(torch.from_numpy(logits), torch.from_numpy(targets), 2)
    labeled = unlabeled = 0.0
    for i in range(5):
        total = sum(math.exp(value) for value in logits[i])
        for k in range(3):
            p = math.exp(logits[i, k]) / total
            if i < 2:
                labeled -= targets[i, k] * math.log(p) / 2
            else:
                unlabeled += (p - targets[i, k]) ** 2 / 9
    assert float(fitted) == pytest.approx(labeled)
    assert float(others) == pytest.approx(unlabeled)


def test_mixmatch_targets_get_no_gradient_and_empty_parts_are_zero() -> None:
    logits, targets = torch.zeros(2, 4, requires_grad=True), torch.full((2, 4), 0.25, requires_grad=True)
    fitted, others = MixMatchLoss()(logits, targets, 2)
    assert float(others.detach()) == 0
    assert float(fitted.detach()) == pytest.approx(math.log(4))
    (fitted + others).backward()
    assert targets.grad is None
    with pytest.raises(ValueError, match="3 labeled rows"):
        MixMatchLoss()(logits, targets, 3)


PROBABILITIES = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.4, 0.35, 0.25]])


def test_thresholds_follow_the_mean_confidence_and_the_mix_of_classes() -> None:
    threshold = AdaptiveThresholds(3, decay=0.5)
    threshold.update(PROBABILITIES, TrainState())
    confidence = 0.5 / 3 + 0.5 * (0.7 + 0.5 + 0.6 + 0.4) / 4
    shares = [0.5 / 3 + 0.5 * column / 4 for column in (1.7, 1.45, 0.85)]
    assert float(threshold.confidence) == pytest.approx(confidence)
    torch.testing.assert_close(threshold.class_shares, torch.tensor(shares))
    torch.testing.assert_close(threshold.predicted_shares, torch.tensor([0.5 / 3 + 0.375, 0.5 / 3 + 0.125, 0.5 / 3]))
    limits = [confidence * share / max(shares) for share in shares]  # 0.4417, 0.4069, 0.3136
    expected = [0.7 >= limits[0], 0.5 >= limits[0], 0.6 >= limits[1], 0.4 >= limits[0]]
    assert threshold(PROBABILITIES).tolist() == expected == [True, True, True, False]


def test_a_class_that_is_predicted_less_has_a_lower_threshold() -> None:
    threshold = AdaptiveThresholds(2, decay=0.0)
    threshold.update(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.7, 0.3], [0.3, 0.7]]), TrainState())
    # confidence 0.775; shares 0.675 and 0.325
    assert threshold(torch.tensor([[0.7, 0.3], [0.3, 0.7], [0.65, 0.35], [0.35, 0.65]])).tolist() == [
        False, True, False, True,
    ]  # fmt: skip


def test_a_fixed_threshold_is_that_of_fixmatch() -> None:
    threshold = AdaptiveThresholds(3, fixed=0.6)
    threshold.update(PROBABILITIES, TrainState())
    assert threshold(PROBABILITIES).tolist() == [True, False, True, False]


def test_two_halves_with_exchanged_sums_equal_the_whole() -> None:
    whole, half = AdaptiveThresholds(3, decay=0.9), AdaptiveThresholds(3, decay=0.9)
    whole.update(PROBABILITIES, TrainState())
    sums: list[torch.Tensor] = []
    told = TrainState(combine=lambda value, how: sums.append(value) or value)  # type: ignore[func-returns-value] # append gives None
    AdaptiveThresholds(3).update(PROBABILITIES[2:], told)
    half.update(PROBABILITIES[:2], TrainState(combine=lambda value, how: value + sums[0]))
    for name, value in whole.named_buffers():
        torch.testing.assert_close(half.get_buffer(name), value)


def test_pseudo_label_loss_counts_rows_that_are_left_out_in_its_mean() -> None:
    logits = torch.zeros(4, 5, requires_grad=True)
    labels, kept = torch.tensor([0, 1, 2, 3]), torch.tensor([True, False, True, False])
    loss = PseudoLabelLoss()(logits, labels, kept)
    assert float(loss.detach()) == pytest.approx(math.log(5) / 2)
    loss.backward()
    assert (logits.grad.abs().sum(1) > 0).tolist() == kept.tolist()
    assert float(PseudoLabelLoss()(logits.detach(), labels, torch.zeros(4, dtype=torch.bool))) == 0


def test_fairness_of_even_mixes_is_minus_log_of_the_classes() -> None:
    logits = torch.eye(4) * 3
    shares = torch.full((4,), 0.25)
    loss = FairnessLoss()(logits, torch.ones(4, dtype=torch.bool), shares, shares)
    assert float(loss) == pytest.approx(-math.log(4), abs=1e-5)


def test_fairness_equals_a_plain_computation_and_sees_kept_rows_only() -> None:
    logits = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0], [9.0, 9.0, 0.0]], requires_grad=True)
    kept = torch.tensor([True, True, False])
    shares, predicted = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.6, 0.4, 0.0])
    loss = FairnessLoss()(logits, kept, shares, predicted)
    p = np.exp(logits.detach().numpy()[:2])
    p /= p.sum(1, keepdims=True)
    found = p.mean(0) / np.array([0.5, 0.5, np.inf])
    expected = np.array([0.5 / 0.6, 0.3 / 0.4, 0.0])
    found, expected = found / found.sum(), expected / expected.sum()
    assert float(loss.detach()) == pytest.approx(float((expected * np.log(found + 1e-12)).sum()), abs=1e-5)
    loss.backward()
    assert logits.grad[2].tolist() == [0, 0, 0]
    nothing = FairnessLoss()(logits, torch.zeros(3, dtype=torch.bool), shares, predicted)
    assert float(nothing.detach()) == 0
    assert nothing.requires_grad
