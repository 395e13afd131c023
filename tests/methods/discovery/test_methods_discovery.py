"""SimGCD and FlipClass: one code, two methods."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.commands.common.training_data import PreparedData
from labelkit.data.splits import ClassLabels, LabelSplit, make_dataset_label_split
from labelkit.data.views.recipes import strong_view
from labelkit.errors import ConfigError
from labelkit.methods.discovery.losses import DiscoveryLoss
from labelkit.methods.discovery.recipe import teacher_temperature

Make = Callable[..., Any]
BOTH = ["flipclass", "simgcd"]


def _loss_and_gradients(method: Any, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = method(batch).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in method.named_parameters() if p.grad is not None}


@pytest.mark.slow
@pytest.mark.parametrize("off", [{"gamma_update": 0.0}, {"align_mode": "none"}])
def test_flipclass_without_its_update_is_simgcd_on_its_views(make: Make, off: dict[str, Any]) -> None:
    flip = make("flipclass", **off)
    plain = make("simgcd", views="weak-strong", symmetric=False)
    batches = list(zip(flip.batches(), plain.batches(), strict=True))
    assert len(batches) == 4
    for batch, same in batches:
        for view, other in zip(batch.views, same.views, strict=True):
            assert torch.equal(view, other)
        loss, gradients = _loss_and_gradients(flip.method, batch)
        expected, expected_gradients = _loss_and_gradients(plain.method, same)
        torch.testing.assert_close(loss, expected, rtol=1e-6, atol=0)
        assert gradients.keys() == expected_gradients.keys()
        for name, gradient in gradients.items():
            torch.testing.assert_close(gradient, expected_gradients[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "symmetric"), [("simgcd", True), ("flipclass", False)])
def test_the_loss_is_that_of_the_options_on_what_the_network_gives_of_each_view(
    make: Make, name: str, symmetric: bool
) -> None:
    options = {"supervised_weight": 0.3, "entropy_weight": 1.5, "contrastive_temperature": 0.6}
    setup = make(name, **options, **({} if symmetric else {"align_mode": "none"}))
    batch, network = next(setup.batches()), setup.method.network
    with torch.no_grad():
        features = torch.cat([network.embed(view) for view in batch.views])
        projections, logits = network.projector(features), network.classify(features)
    # 0.07 is the temperature of epoch 0
    expected, parts = DiscoveryLoss(**options, symmetric=symmetric)(
        projections, logits, batch.labels, teacher_temperature=0.07
    )

    output = setup.method(batch)

    assert 0 < parts["n_labeled"] < len(batch.labels)
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-5)
    for part, value in parts.items():
        assert float(output.logs[part]) == pytest.approx(float(value), rel=1e-4, abs=1e-6), part


def test_the_student_is_judged_on_the_view_of_its_epoch(make: Make) -> None:
    growing = make("flipclass", align_mode="sda", epochs=8).method
    teacher, start = growing.views(0)
    assert start == strong_view(teacher.size, "digits", chiral=True).with_strength(0)
    assert growing.views(2)[1] == strong_view(teacher.size, "digits", chiral=True).with_strength(0.5)
    assert growing.views(4)[1] == growing.views(7)[1] == strong_view(teacher.size, "digits", chiral=True)


@pytest.mark.parametrize("name", BOTH)
def test_a_trained_stem_below_frozen_blocks_is_refused(make: Make, name: str) -> None:
    with pytest.raises(ConfigError, match="train_stem"):
        make(name, train_stem=True, grad_from_block=2)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"pretrained": True}, "pretrained"),
        ({"train_stem": False, "grad_from_block": 11}, "grad_from_block"),
        ({"align_blocks": (8, 9)}, "--align-blocks"),
    ],
)
def test_options_that_do_not_fit_a_network_are_named(make: Make, options: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make("flipclass", **options)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"align_blocks": "-1"}, "block numbers must be at least 0"),
        ({"beta": 0}, "greater than 0"),
        ({"update_space": "value"}, "input should be 'key', 'token' or 'literal'"),
        ({"num_classes": 1}, "greater than or equal to 2"),
        *(
            ({"align_mode": mode, name: 0.3}, f"{name} has no effect with --align-mode {mode}, only with flip")
            for name in ("alpha", "beta", "gamma_update", "gamma_reg")
            for mode in ("none", "l2")
        ),
    ],
)
def test_impossible_options_are_refused(make: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make("flipclass", **options)


def _with_labels(prepared: PreparedData, labeled: np.ndarray[Any, np.dtype[np.bool_]]) -> PreparedData:
    """Return the digits with the labels of these images in the data, and no other."""
    labels = np.where(labeled, prepared.dataset.labels, -1)
    dataset = replace(prepared.dataset, labels=labels, given=labeled)
    split: LabelSplit = make_dataset_label_split(ClassLabels(labels, labeled, 10))
    return PreparedData(dataset, split, split.to_training_labels(labels))


@pytest.mark.parametrize("name", BOTH)
def test_an_open_number_of_classes_must_be_given(make: Make, prepared: PreparedData, name: str) -> None:
    few = _with_labels(prepared, (prepared.dataset.labels < 3) & (np.arange(64) % 2 == 0))
    with pytest.raises(ConfigError, match=r"--num-classes: the data has 3 labeled classes"):
        make(name, data=few)
    assert make(name, data=few, num_classes=7).method.network.num_outputs == 7


@pytest.mark.parametrize("name", BOTH)
def test_fewer_classes_than_have_labels_are_refused(make: Make, name: str) -> None:
    with pytest.raises(ConfigError, match=r"--num-classes: 4 is less than 5, the number of labeled classes"):
        make(name, num_classes=4)


def warmed_up(epochs: int) -> Any:
    return SimpleNamespace(
        teacher_temperature_start=0.07, teacher_temperature_final=0.04, teacher_warmup_epochs=30, epochs=epochs
    )


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 0.07), (1, 0.068966), (15, 0.054483), (29, 0.04), (30, 0.04), (100, 0.04)]
)
def test_teacher_temperature_matches_the_worked_numbers(epoch: int, expected: float) -> None:
    assert teacher_temperature(warmed_up(epochs=200), epoch) == pytest.approx(expected, abs=5e-7)


def test_teacher_temperature_reaches_its_end_in_a_run_shorter_than_the_warm_up() -> None:
    found = [teacher_temperature(warmed_up(epochs=4), epoch) for epoch in range(4)]
    assert found == pytest.approx([0.07, 0.06, 0.05, 0.04])
