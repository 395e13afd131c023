"""The four losses of siamese learning: what each trains on, remembers and resumes; and its views."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from labelkit.data.views.recipes import siamese_views
from labelkit.methods.siamese.siamese import Siamese
from torch import nn

Make = Callable[..., Any]
LOSSES = ("simclr", "barlow-twins", "moco", "simsiam")


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_falls_and_moves_every_parameter(make: Make, loss: str) -> None:
    setup = make("siamese", loss=loss, epochs=6, queue_size=64, lr=0.05)
    before = {name: value.clone() for name, value in setup.method.network.named_parameters()}

    history = setup.trainer.fit().history

    # a queue of random directions is easy until keys have taken their places, after an epoch
    assert history[-1]["loss"] < history[loss == "moco"]["loss"]
    still = [name for name, value in setup.method.network.named_parameters() if torch.equal(value, before[name])]
    assert still == []


@torch.no_grad()
@pytest.mark.parametrize("loss", LOSSES)
def test_a_step_gives_the_loss_of_the_projections(make: Make, loss: str) -> None:
    method: Siamese = make("siamese", loss=loss, queue_size=8, temperature=0.3, loss_scale=0.5).method
    batch = next(make("siamese", loss=loss).batches())
    network = method.network
    first, second = (network.project(view) for view in batch.views[:2])
    unit = [F.normalize(rows, dim=1) for rows in (first, second)]

    found = method.training_step(batch).loss.item()

    if loss == "simclr":
        rows = torch.cat(unit)
        scores = (rows @ rows.T / 0.3).exp() * (1 - torch.eye(32))
        expected = -(scores[range(32), [*range(16, 32), *range(16)]] / scores.sum(1)).log().mean()
    elif loss == "barlow-twins":
        correlations = torch.corrcoef(torch.cat([first, second], dim=1).T)[:64, 64:]
        near = torch.diagonal(correlations)
        expected = 0.5 * (((1 - near) ** 2).sum() + 0.005 * ((correlations**2).sum() - (near**2).sum()))
    elif loss == "simsiam":
        expected = -sum(
            F.cosine_similarity(network.predict(one), other).mean() / 2
            for one, other in ((first, second), (second, first))
        )
    else:
        # the slow network starts equal
        losses = []
        for queries, keys in (unit, unit[::-1]):
            scores = torch.cat([(queries * keys).sum(1, keepdim=True), queries @ method.queue.T], 1) / 0.3
            losses.append(-scores.log_softmax(1)[:, 0].mean())
        expected = sum(losses) / 2
    assert found == pytest.approx(float(expected), rel=1e-2 if loss == "barlow-twins" else 1e-4)


def test_the_queue_takes_the_keys_of_a_step_in_place_of_the_oldest(make: Make) -> None:
    setup = make("siamese", loss="moco", queue_size=40, ema_decay=0.5)
    method: Siamese = setup.method
    batches = list(setup.batches())
    seen = []
    start = method.queue.clone()
    for batch in batches[:2]:
        with torch.no_grad():
            seen += [F.normalize(method.slow.project(view), dim=1) for view in batch.views[:2]]
        method.training_step(batch)
        before = method.slow.backbone.net.state_dict()
        before = {name: value.clone() for name, value in before.items()}
        with torch.no_grad():
            for parameter in method.network.parameters():
                parameter.add_(1.0)
        method.on_step_end(None)  # type: ignore[arg-type] # it looks at nothing of the run
        name, value = next((n, v) for n, v in method.slow.backbone.net.named_parameters() if n in before)
        other = dict(method.network.backbone.net.named_parameters())[name]
        torch.testing.assert_close(value, (before[name] + other) / 2)

    keys = torch.cat(seen)  # 2 batches of 16 images, each seen twice
    torch.testing.assert_close(method.queue[:24], keys[40:])
    torch.testing.assert_close(method.queue[24:32], keys[24:32])
    assert int(method.oldest) == 64 % 40
    assert start.norm(dim=1).tolist() == pytest.approx([1.0] * 40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "widths", "normalized", "plain"), [
        ("simclr", [512, 128], 0, 0), ("moco", [512, 128], 0, 0),
        ("barlow-twins", [2048] * 3, 2, 0), ("simsiam", [2048] * 2, 2, 1),
    ],
)  # fmt: skip
def test_projections_are_those_of_the_papers(
    make: Make, loss: str, widths: list[int], normalized: int, plain: int
) -> None:
    network = make("siamese", loss=loss, projector_dims=None).method.network
    layers = list(network.projector)
    assert [layer.out_features for layer in layers if isinstance(layer, nn.Linear)] == widths
    norms = [layer for layer in layers if isinstance(layer, nn.BatchNorm1d)]
    assert (len(norms), sum(not layer.affine for layer in norms)) == (normalized, plain)
    if loss == "simsiam":
        assert [layer.out_features for layer in network.predictor if isinstance(layer, nn.Linear)] == [512, 2048]
    else:
        assert network.predictor is None


def test_views_leave_out_what_is_not_asked_for() -> None:
    whole = siamese_views(32, crop="independent", scale=(0.08, 1), flip=0.5, jitter=0.8, gray=0.2, blur=0.5)
    assert whole[0] == whole[1]
    assert (whole[0].jitter, whole[0].blur_kernel, whole[0].area_range) == ((0.4, 0.4, 0.4, 0.1), 3, (0.08, 1))
    same = siamese_views(32, crop="same", scale=(0.08, 1), flip=0, jitter=0, gray=0, blur=0)
    assert (same[0].box_as, same[1].box_as, same[1].blur_prob) == (None, 0, 0)
    none = siamese_views(32, crop="none", scale=(0.08, 1), flip=0, jitter=0, gray=0, blur=1)
    assert none[0].area_range is None
