"""The total of category discovery: its parts, both directions, batches without labels."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from labelkit.methods.discovery.losses import DiscoveryLoss
from tests.running import run_in_one_and_two_processes
from torch import Tensor

LABELS = torch.tensor([0, -1, 2, 0])


def inputs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    projections = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    logits = torch.rand(8, 5, generator=generator, dtype=torch.float64) * 2 - 1
    return projections.requires_grad_(), logits.requires_grad_()


def simgcd_by_its_code(projections: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
    """The loss as SimGCD's training loop writes it: selection, chunks, both directions."""
    tau_u, tau_c, tau_s, tau_t, eps, weight = 1.0, 0.07, 0.1, 0.05, 2.0, 0.35
    z = F.normalize(projections, dim=1)
    rows = len(z)
    keep = ~torch.eye(rows, dtype=torch.bool)
    ids = torch.arange(rows // 2).repeat(2)
    same = (ids[:, None] == ids)[keep].view(rows, -1)
    others = (z @ z.T)[keep].view(rows, -1)
    arranged = torch.cat([others[same].view(rows, -1), others[~same].view(rows, -1)], dim=1) / tau_u
    rep_u = F.cross_entropy(arranged, torch.zeros(rows, dtype=torch.int64))

    mask = labels >= 0
    picked = torch.stack([view[mask] for view in z.chunk(2)], dim=1)  # (m, 2, d)
    flat = torch.cat(torch.unbind(picked, dim=1))
    contrast = flat @ flat.T / tau_c
    positive = (labels[mask][:, None] == labels[mask]).double().repeat(2, 2)
    not_self = 1 - torch.eye(len(flat), dtype=torch.float64)
    log_prob = contrast - torch.log((torch.exp(contrast) * not_self).sum(1, keepdim=True))
    positive = positive * not_self
    rep_s = -((positive * log_prob).sum(1) / positive.sum(1)).mean()

    student, teacher = (logits / tau_s).chunk(2), (logits.detach() / tau_t).softmax(dim=-1).chunk(2)
    crossed = [(0, 1), (1, 0)]
    cluster = sum((-teacher[t] * student[s].log_softmax(-1)).sum(-1).mean() for t, s in crossed) / 2
    mean = (logits / tau_s).softmax(dim=1).mean(dim=0)
    cluster = cluster + eps * (math.log(logits.shape[1]) + (mean * mean.log()).sum())
    cls_logits = torch.cat([view[mask] for view in student])
    cls = F.cross_entropy(cls_logits, torch.cat([labels[mask]] * 2))
    return (1 - weight) * (rep_u + cluster) + weight * (rep_s + cls)


def test_symmetric_loss_and_its_gradient_are_those_of_simgcd() -> None:
    projections, logits = inputs()
    expected = simgcd_by_its_code(projections, logits, LABELS)
    expected_gradients = torch.autograd.grad(expected, (projections, logits))

    loss, _ = DiscoveryLoss(symmetric=True)(projections, logits, LABELS, teacher_temperature=0.05)

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(torch.autograd.grad(loss, (projections, logits)), expected_gradients)


def test_teacher_gets_no_gradient_from_the_consistency() -> None:
    projections, logits = inputs()
    loss, _ = DiscoveryLoss(supervised_weight=0.0, entropy_weight=0.0)(
        projections, logits, LABELS, teacher_temperature=0.05
    )

    loss.backward()

    assert torch.equal(logits.grad[:4], torch.zeros(4, 5, dtype=torch.float64))
    assert logits.grad[4:].abs().min() > 0


def test_batch_without_labels_has_supervised_parts_of_exactly_zero() -> None:
    projections, logits = inputs()
    none = torch.full((4,), -1)

    loss, parts = DiscoveryLoss()(projections, logits, none, teacher_temperature=0.05)
    loss.backward()

    assert (parts["rep_s"].item(), parts["cons_s"].item(), parts["n_labeled"].item()) == (0.0, 0.0, 0)
    assert torch.isfinite(projections.grad).all()
    assert torch.isfinite(logits.grad).all()


TWO_PROCESSES = """
import sys, torch
from types import SimpleNamespace
from labelkit.losses.contrastive import InfoNCELoss, SupConLoss
from labelkit.methods.discovery.gcd import GCD
from labelkit.methods.discovery.losses import DiscoveryLoss
from labelkit.training.devices import Runtime

runtime = Runtime(device="cpu", threads=1)
torch.manual_seed(0)
images, labels = torch.randn(2, 8, 5), torch.tensor([0, 1, -1, -1, 0, 1, -1, 2])
weight = torch.randn(5, 4, requires_grad=True)
own = slice(runtime.rank, None, runtime.world_size)
outputs = images[:, own].flatten(0, 1) @ weight
projections = torch.nn.functional.normalize(outputs, dim=1)
loss, parts = DiscoveryLoss()(projections, outputs, labels[own], teacher_temperature=0.07)
gcd = SimpleNamespace(
    network=SimpleNamespace(forward_pair=lambda one, other: torch.cat([one, other]) @ weight),
    contrast=InfoNCELoss(0.5),
    label_contrast=SupConLoss(0.1),
    config=SimpleNamespace(supervised_weight=0.35),
)
output = GCD.training_step(gcd, SimpleNamespace(views=images[:, own], labels=labels[own]))
parts |= {f"gcd {name}": value for name, value in output.logs.items()}
(loss + output.loss).backward()
gradient = runtime.combine(weight.grad, "sum") / runtime.world_size
if runtime.is_main:
    torch.save({"loss": loss.detach(), "gradient": gradient, **parts}, sys.argv[1])
runtime.close()
"""


@pytest.mark.slow
def test_two_processes_have_the_loss_and_gradient_of_the_whole_batch(tmp_path: Path) -> None:
    one, two = run_in_one_and_two_processes(TWO_PROCESSES, tmp_path)
    for key, value in one.items():
        torch.testing.assert_close(value, two[key], rtol=0, atol=1e-5)
