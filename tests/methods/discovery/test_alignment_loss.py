import math

import pytest
import torch
from labelkit.losses.consistency import DistillationLoss
from labelkit.methods.discovery.losses import (
    AttentionAlignmentLoss,
    ConfidentPseudoLabelLoss,
    DistributionAlignmentLoss,
)

# Cosines of the specification's worked example (T10, T15).
STUDENT = torch.tensor([[0.9, 0.1, -0.2], [0.2, 0.7, 0.0]], dtype=torch.float64)
TEACHER = torch.tensor([[0.8, 0.2, -0.1], [0.1, 0.6, 0.3]], dtype=torch.float64)


def as_heads(rows: list[list[float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)[None, None]


@pytest.fixture
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(3, 2, 5, 4, generator=generator, dtype=torch.float64)
    queries = torch.randn(3, 2, 5, 4, generator=generator, dtype=torch.float64)
    return keys, queries


def test_coral_of_the_worked_example_is_22_5_over_16() -> None:
    student, teacher = as_heads([[1, 2], [3, 4], [5, 0]]), as_heads([[2, 0], [0, 1], [1, 5]])

    assert AttentionAlignmentLoss("coral")(teacher, student).item() == pytest.approx(22.5 / 16)


@pytest.mark.parametrize("kind", ["l2", "kld"])
def test_pull_equals_plain_loops(kind: str, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    keys, queries = pair
    values = []
    for b in range(3):
        for h in range(2):
            for i in range(5):
                k, q = keys[b, h, i].tolist(), queries[b, h, i].tolist()
                if kind == "l2":
                    values.append(sum((x - y) ** 2 for x, y in zip(k, q, strict=True)))
                else:
                    p_q = [math.exp(x) / sum(math.exp(y) for y in q) for x in q]
                    p_k = [math.exp(x) / sum(math.exp(y) for y in k) for x in k]
                    values.append(sum(a * math.log(a / c) for a, c in zip(p_q, p_k, strict=True)))

    assert AttentionAlignmentLoss(kind)(keys, queries).item() == pytest.approx(sum(values) / len(values))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["l2", "kld", "coral"])
def test_pull_moves_the_keys_and_leaves_the_queries(kind: str, pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    keys, queries = (tensor.clone().requires_grad_() for tensor in pair)

    AttentionAlignmentLoss(kind)(keys, queries).backward()  # type: ignore[arg-type]

    assert keys.grad.abs().sum() > 0
    assert queries.grad is None


def test_alignment_with_given_shares_gives_the_worked_targets() -> None:
    loss = DistributionAlignmentLoss(3, student_temperature=1.0)
    loss.shares = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)

    # at equal temperatures the targets are not sharpened; tau_s = 0.1 is in the logits
    before = loss.targets(TEACHER / 0.1, 1.0)
    after = loss.targets(TEACHER / 0.1, 0.4)

    expected_before = [[0.995580, 0.004113, 0.000307], [0.003748, 0.927022, 0.069231]]
    expected_after = [[0.999999, 0.000001, 0.0], [0.000001, 0.998477, 0.001522]]
    torch.testing.assert_close(before, torch.tensor(expected_before, dtype=torch.float64), atol=1e-6, rtol=0)
    torch.testing.assert_close(after, torch.tensor(expected_after, dtype=torch.float64), atol=1e-6, rtol=0)


def test_alignment_with_even_shares_is_plain_distillation() -> None:
    labels = torch.tensor([-1, -1])

    aligned = DistributionAlignmentLoss(3, student_temperature=0.1)(STUDENT, TEACHER, 0.04, labels)

    assert aligned.item() == pytest.approx(DistillationLoss(0.1)(STUDENT, TEACHER, 0.04).item(), rel=1e-6)


def test_alignment_follows_unlabeled_rows_only_and_after_the_targets() -> None:
    loss = DistributionAlignmentLoss(3, student_temperature=0.1)
    loss(STUDENT, TEACHER, 0.04, torch.tensor([0, 0]))
    unchanged = loss.shares.clone()

    loss(STUDENT, TEACHER, 0.04, torch.tensor([0, -1]))

    u = torch.softmax(TEACHER[1] / 0.1, dim=0)
    torch.testing.assert_close(unchanged, torch.full((3,), 1 / 3))
    torch.testing.assert_close(loss.shares, (0.99 / 3 + 0.01 * u).float())


def test_fixmatch_keeps_the_sure_row_of_the_worked_example() -> None:
    loss, kept = ConfidentPseudoLabelLoss(0.1, threshold=0.99)(STUDENT, TEACHER, 0.07)

    assert kept.item() == 0.5
    assert loss.item() == pytest.approx(0.000176, abs=1e-6)


def test_fixmatch_is_zero_and_differentiable_when_nothing_is_sure() -> None:
    student = torch.zeros(4, 3, requires_grad=True)

    loss, kept = ConfidentPseudoLabelLoss(0.1)(student, torch.zeros(4, 3), 0.07)
    loss.backward()  # type: ignore[no-untyped-call]

    assert loss.item() == 0
    assert kept.item() == 0
    assert student.grad is not None


def test_the_running_mean_is_as_exact_under_autocast() -> None:
    generator = torch.Generator().manual_seed(0)
    teacher, labels = torch.randn(8, 3, generator=generator), torch.full((8,), -1)
    shares = {}
    for autocast in (False, True):
        loss = DistributionAlignmentLoss(3, student_temperature=0.1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss(teacher, teacher, 0.05, labels)
        shares[autocast] = loss.shares
    assert torch.equal(shares[True], shares[False])
