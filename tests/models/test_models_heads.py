"""Heads, averaged copies and seeded initialization."""

import copy
import math

import pytest
import torch
from labelkit.models import batch_norm
from labelkit.models.batch_norm import SharedBatchNorm2d, share_statistics
from labelkit.models.ema import EMAChain, EMATeacher
from labelkit.models.heads import CosineClassifier, Projector
from labelkit.models.seeding import seeded_init
from torch import nn


def test_logits_are_the_cosines_to_the_prototypes() -> None:
    classifier = CosineClassifier(2, 3)
    classifier.prototypes.data = torch.tensor([[2.0, 0.0], [0.0, 0.5], [-3.0, -3.0]])

    logits = classifier(torch.tensor([[3.0, 4.0], [-1.0, 0.0]]))

    expected = torch.tensor([[0.6, 0.8, -1.4 * math.sqrt(0.5)], [-1.0, 0.0, math.sqrt(0.5)]])
    torch.testing.assert_close(logits, expected)


def test_logits_stay_in_single_precision_under_autocast() -> None:
    with seeded_init(0):
        classifier, features = CosineClassifier(64, 10), torch.randn(6, 64)
    expected = classifier(features)

    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = classifier(features)

    assert torch.equal(logits, expected)
    assert classifier(features.bfloat16()).dtype == torch.float32


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


def test_teacher_stays_in_evaluation_mode_without_gradients() -> None:
    student = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    teacher = EMATeacher(student, decay=0.9)
    teacher.train()

    assert not any(module.training for module in teacher.modules())
    assert not any(parameter.requires_grad for parameter in teacher.parameters())
    assert not teacher(torch.ones(1, 2)).requires_grad
    assert student.training


class Number(nn.Module):
    """One parameter, one running statistic, one counter."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.tensor(value))
        self.statistic: torch.Tensor = nn.Buffer(torch.tensor(value))
        self.counter: torch.Tensor = nn.Buffer(torch.tensor(int(value)))


def chained(teacher_decays: list[float], master_decay: float, values: list[float]) -> tuple[list[float], list[float]]:
    chain = EMAChain(Number(0.0), with_master=True)
    chain.create_master_network()
    teacher, master = [], []
    for decay, value in zip(teacher_decays, values, strict=True):
        chain.update(Number(value), decay, master_decay, teacher_in_training=True, master_in_training=True)
        teacher.append(chain.teacher.value.item())
        master.append(chain.master.value.item())
    return teacher, master


def test_a_master_follows_a_teacher_that_follows_a_student() -> None:
    guarded = [min(1 - 1 / (step + 1), 0.9) for step in (1, 2, 3, 4)]
    teacher, master = chained(guarded, 0.9, [1.0, 2.0, 4.0, 8.0])
    assert teacher == pytest.approx([0.5, 1.0, 1.75, 3.0])
    assert master == pytest.approx([0.05, 0.145, 0.3055, 0.57495])
    teacher, master = chained([0.9] * 4, 0.8, [1.0, 2.0, 4.0, 8.0])
    assert teacher == pytest.approx([0.1, 0.29, 0.661, 1.3949])
    assert master == pytest.approx([0.02, 0.074, 0.1914, 0.4321])


@pytest.mark.parametrize(("runs", "statistic"), [(True, 1.0), (False, 5.0)])
def test_a_teacher_that_runs_keeps_its_statistics_and_any_other_takes_the_students(
    runs: bool, statistic: float
) -> None:
    chain = EMAChain(Number(1.0), with_master=False)
    chain.update(Number(5.0), 0.5, teacher_in_training=runs)
    assert chain.teacher.value.item() == 3.0
    assert chain.teacher.statistic.item() == statistic
    assert chain.teacher.counter.item() == 5


def test_a_master_is_formed_from_the_teacher_and_survives_a_checkpoint() -> None:
    chain = EMAChain(Number(1.0), with_master=True)
    assert chain.master is None
    chain.update(Number(3.0), 0.5, 0.9, teacher_in_training=True)
    chain.create_master_network()
    assert chain.master.value.item() == chain.teacher.value.item() == 2.0
    restored = EMAChain(Number(0.0), with_master=True)
    restored.load_state_dict(chain.state_dict())
    assert restored.master is not None


def test_shared_statistics_are_the_usual_ones_in_a_single_process() -> None:
    plain = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Sequential(nn.BatchNorm2d(3)), nn.BatchNorm1d(4))
    shared = copy.deepcopy(plain)
    share_statistics(shared)
    assert isinstance(shared[1][0], SharedBatchNorm2d)
    assert type(shared[2]) is nn.BatchNorm1d
    assert shared.state_dict().keys() == plain.state_dict().keys()
    images = torch.randn(5, 1, 6, 6)
    assert torch.equal(plain[:2](images), shared[:2](images))
    assert torch.equal(plain[1][0].running_var, shared[1][0].running_var)


def test_statistics_of_two_halves_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both halves are computed here, side by side; a sum over processes is that of the two."""
    images = torch.randn(8, 3, 4, 4, dtype=torch.float64).float().requires_grad_()
    layer = SharedBatchNorm2d(3)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([1.0, 2.0, 0.5]))
    plain = nn.BatchNorm2d(3)
    plain.load_state_dict(layer.state_dict())
    weights = torch.randn(8, 3, 4, 4)
    (plain(images) * weights).sum().backward()
    wanted, images.grad = images.grad, None

    monkeypatch.setattr(batch_norm.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(batch_norm.dist, "get_world_size", lambda: 2)
    # one process that holds everything, and another that holds nothing
    monkeypatch.setattr(batch_norm.dist, "all_reduce", lambda value: value)
    monkeypatch.setattr(batch_norm, "_sum_over_processes", lambda value: value)
    output = layer(images)
    assert torch.allclose(output, plain(images), atol=1e-5)
    (output * weights).sum().backward()
    assert torch.allclose(images.grad, wanted, atol=1e-5)
    assert int(layer.num_batches_tracked) == 1


def test_sums_over_processes_have_gradients_from_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_norm.dist, "all_reduce", lambda value: value.mul_(2))  # an equal process beside this one
    values = torch.tensor([1.0, 3.0], requires_grad=True)
    total = batch_norm._sum_over_processes(values)
    (total * torch.tensor([1.0, 5.0])).sum().backward()
    assert total.tolist() == [2.0, 6.0]
    assert values.tolist() == [1.0, 3.0]
    assert values.grad.tolist() == [2.0, 10.0]
