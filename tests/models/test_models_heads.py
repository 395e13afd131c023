"""Heads, averaged copies and seeded initialization."""

from __future__ import annotations

import math

import pytest
import torch
from labelkit.models.ema import EMATeacher
from labelkit.models.heads import CosineClassifier, Projector
from labelkit.models.seeding import seeded_init
from torch import nn


def test_logits_are_the_cosines_to_the_prototypes() -> None:
    classifier = CosineClassifier(2, 3)
    classifier.prototypes.data = torch.tensor([[2.0, 0.0], [0.0, 0.5], [-3.0, -3.0]])

    logits = classifier(torch.tensor([[3.0, 4.0], [-1.0, 0.0]]))

    expected = torch.tensor([[0.6, 0.8, -1.4 * math.sqrt(0.5)], [-1.0, 0.0, math.sqrt(0.5)]])
    torch.testing.assert_close(logits, expected)


def test_logits_ignore_the_length_of_features_and_prototypes() -> None:
    with seeded_init(0):
        classifier, features = CosineClassifier(5, 4), torch.randn(6, 5)
    before = classifier(features)
    classifier.prototypes.data *= torch.tensor([[0.1], [2.0], [30.0], [1e-3]])

    torch.testing.assert_close(classifier(features * 7), before)
    assert before.abs().max() <= 1 + 1e-6


def test_logits_stay_in_single_precision_under_autocast() -> None:
    with seeded_init(0):
        classifier, features = CosineClassifier(64, 10), torch.randn(6, 64)
    expected = classifier(features)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = classifier(features)

    assert torch.equal(logits, expected)
    assert classifier(features.bfloat16()).dtype == torch.float32


def test_logits_of_a_zero_feature_are_zero_with_a_finite_gradient() -> None:
    features = torch.zeros(1, 5, requires_grad=True)

    logits = CosineClassifier(5, 4)(features)
    logits.sum().backward()

    assert torch.equal(logits, torch.zeros(1, 4))
    assert torch.isfinite(features.grad).all()


def test_projector_is_three_linear_layers_with_gelu() -> None:
    with seeded_init(0):
        projector, features = Projector(3, 8, 2), torch.randn(4, 3)
    gelu = nn.GELU()
    weights = {name: value for name, value in projector.named_parameters()}

    hidden = gelu(features @ weights["hidden1.weight"].T + weights["hidden1.bias"])
    hidden = gelu(hidden @ weights["hidden2.weight"].T + weights["hidden2.bias"])

    torch.testing.assert_close(projector(features), hidden @ weights["output.weight"].T + weights["output.bias"])
    assert list(weights) == [
        f"{layer}.{kind}" for layer in ("hidden1", "hidden2", "output") for kind in ("weight", "bias")
    ]


def test_projector_starts_with_small_normal_weights_and_no_bias() -> None:
    with seeded_init(0):
        projector = Projector(256, 512, 64)

    assert projector.hidden2.weight.std().item() == pytest.approx(0.02, rel=0.02)
    assert not projector.output.bias.any()


def test_teacher_follows_by_the_decay_and_copies_buffers() -> None:
    student = nn.BatchNorm1d(2)
    teacher = EMATeacher(student, decay=0.75)
    student.weight.data.fill_(5.0)
    student(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))

    teacher.update(student)

    torch.testing.assert_close(teacher.module.weight, torch.full((2,), 0.75 * 1 + 0.25 * 5), check_dtype=False)
    assert torch.equal(teacher.module.running_mean, student.running_mean)
    assert teacher.module.num_batches_tracked == 1


def test_teacher_reaches_the_student_geometrically() -> None:
    student = nn.Linear(1, 1, bias=False)
    student.weight.data.fill_(0.0)
    teacher = EMATeacher(student, decay=0.9)
    student.weight.data.fill_(1.0)

    for _ in range(20):
        teacher.update(student)

    assert teacher.module.weight.item() == pytest.approx(1 - 0.9**20, rel=1e-5)


def test_teacher_with_zero_decay_equals_the_student() -> None:
    student = nn.Linear(3, 2)
    teacher = EMATeacher(student, decay=0.0)
    student.weight.data.normal_(generator=torch.Generator().manual_seed(0))

    teacher.update(student)

    assert torch.equal(teacher.module.weight, student.weight)
    assert not torch.equal(teacher(torch.ones(1, 3)), torch.zeros(1, 2))


def test_teacher_stays_in_evaluation_mode_without_gradients() -> None:
    student = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    teacher = EMATeacher(student, decay=0.9)
    teacher.train()

    assert not any(module.training for module in teacher.modules())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert not teacher(torch.ones(1, 2)).requires_grad
    assert student.training


def test_teacher_state_can_be_saved_and_restored() -> None:
    teacher, other = EMATeacher(nn.Linear(2, 2), 0.9), EMATeacher(nn.Linear(2, 2), 0.9)

    other.load_state_dict(teacher.state_dict())

    assert torch.equal(other.module.weight, teacher.module.weight)


def test_teacher_of_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match="other parameters"):
        EMATeacher(nn.Linear(2, 2), 0.9).update(nn.Linear(2, 2, bias=False))
    with pytest.raises(ValueError, match=r"decay must be in \[0, 1\), got 1"):
        EMATeacher(nn.Linear(2, 2), 1.0)


def test_seeded_initialization_repeats_and_leaves_the_global_generator() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)

    with seeded_init(7):
        first = nn.Linear(4, 4).weight
    with seeded_init(7):
        second = nn.Linear(4, 4).weight

    assert torch.equal(first, second)
    assert torch.equal(torch.rand(1), expected)
    with pytest.raises(ValueError, match="got -1"), seeded_init(-1):
        pass


def test_sizes_below_one_are_refused() -> None:
    with pytest.raises(ValueError, match="got 3 and 0"):
        CosineClassifier(3, 0)
    with pytest.raises(ValueError, match="got 3, 0, 2"):
        Projector(3, 0, 2)
