"""LMCS: who learns which labels when, what the master is trained on, what must not change."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.methods.few_labels import composition, lmcs
from labelkit.methods.few_labels.composition import MasterTrainer
from torch import Tensor, nn

Make = Callable[..., Any]


@pytest.fixture
def undisputed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no dispute end the growth."""
    monkeypatch.setattr(lmcs, "DISAGREE_STOP", 1.0)


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def training(setup: Any, labels: Any = None, **options: Any) -> MasterTrainer:
    """Of the master of a finished run, by options like its own."""
    method, bank = setup.method, setup.bank
    given = {"master_steps": 4, "unlabeled_weight": 30.0, "discrimination": "ratio", **options}
    config = setup.config.model_copy(update=given)
    used, state = method.growth.labels() if labels is None else labels, setup.trainer._state(log_now=False)
    return MasterTrainer(method.guide.master, config, used, bank.rows, method.eval_view(), state)


def test_the_pretext_is_a_classification_of_the_four_turns_of_each_image(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup, seen = make("lmcs", pretext_steps=1), []
    embed = setup.method.network.embed
    monkeypatch.setattr(setup.method.network, "embed", lambda images: seen.append(images) or embed(images))
    setup.method.on_train_start(setup.trainer._state(log_now=False))
    (images,) = seen
    count = len(images) // 4
    assert count == setup.config.batch_size
    for turn in range(4):
        # a quarter turn moves row i, column j of an image with n columns to row n - 1 - j, column i
        expected = images[:count]
        for _ in range(turn):
            expected = expected.transpose(2, 3).flip(2)
        assert torch.equal(images[turn * count : (turn + 1) * count], expected)


@pytest.mark.slow
@pytest.mark.usefixtures("undisputed")
def test_the_student_learns_one_discovery_later_and_everything_in_the_last_phase(make: Make) -> None:
    setup = make("lmcs", epochs=6, growth_limit=1.5, churn=0.0)
    setup.trainer.fit()
    method, found = setup.method, int(setup.method.growth.iteration)
    assert found >= 1
    learned = [generation for generation, _, _ in method._later]
    assert learned == [*range(found), found]
    assert setup.trainer.clock.step == 24
    last = method.phase(len(learned), setup.bank.rows).labels
    assert (last >= 0).sum() == 20 + len(method.growth.table()[0])


def test_training_a_master_changes_the_composition_and_nothing_else(make: Make) -> None:
    setup = make("lmcs", epochs=1)
    method = setup.method
    setup.trainer.fit()
    master = method.guide.master
    before, student, teacher = weights(master), weights(method.network), weights(method.chain.teacher)
    record = training(setup).run(method.network, method.chain.teacher, is_first=False)
    after = weights(master)
    assert equal(weights(method.network), student)
    assert equal(weights(method.chain.teacher), teacher)
    for name, now in (("current", student), ("averaged", teacher)):
        assert all(torch.equal(after[f"{name}.{key}"], value) for key, value in now.items())
    # the one of the block before is the one that was current
    assert all(torch.equal(after[f"previous.{key}"], before[f"current.{key}"]) for key in student)
    assert not any(parameter.requires_grad for parameter in master.parameters())
    assert not torch.equal(after["composition.head.heads.0.weight"], teacher["head.heads.0.weight"])
    assert 1e-4 <= record["eta"] <= 1e-1
    assert record["discrimination"] > 0


def test_one_process_clusters_the_masters_features_for_all(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = make("lmcs", epochs=1)
    sent: list[Tensor] = []

    def places(*, is_main: bool) -> Tensor:
        master = training(setup)
        state = master.state

        def combine(value: Tensor, operation: str) -> Tensor:
            sent.append(value)
            return value if is_main else value + sent[0]

        state.is_main, state.combine = is_main, combine
        master._recompute_centroids(np.random.default_rng(0))
        return master._centroids

    main = places(is_main=True)
    assert len(main) == 10
    monkeypatch.setattr(composition, "kmeans", None)
    assert torch.equal(places(is_main=False), main)
    assert not sent[1].any()


@pytest.mark.slow
def test_without_guidance_and_growth_it_is_mixmatch_bit_for_bit(make: Make) -> None:
    plain = make("mixmatch", epochs=3)
    plain.trainer.fit()
    expected, teacher = weights(plain.method.network), weights(plain.method.chain.teacher)
    composed = make("lmcs", epochs=3, growth_limit=1.0, guidance_weight=0.0)
    composed.trainer.fit()
    assert equal(weights(composed.method.network), expected)
    assert equal(weights(composed.method.chain.teacher), teacher)


def test_the_guide_adds_its_weighted_difference_to_the_loss(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmcs, "DISAGREE_STOP", 1.0)
    setup, batches, losses = make("lmcs", epochs=2), [], {}
    method, step = setup.method, setup.method.training_step
    monkeypatch.setattr(method, "training_step", lambda batch: batches.append(batch) or step(batch))
    setup.trainer.fit()
    assert method.guide.is_ready
    for weight in (0.0, 2.0):
        monkeypatch.setattr(method, "_guidance", lambda step, weight=weight: weight)
        torch.manual_seed(0)
        losses[weight] = step(batches[-1])
    added = (losses[2.0].loss - losses[0.0].loss).item()
    assert added == pytest.approx(2 * losses[2.0].logs["guidance"].item(), rel=1e-3)


def test_disputed_samples_end_the_growth(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    monkeypatch.setattr(lmcs, "DISAGREE_STOP", 0.0)
    setup = make("lmcs", epochs=3)
    setup.trainer.message = messages.append
    setup.trainer.fit()
    assert int(setup.method.growth.iteration) == 0
    assert any("no more labels are added" in message for message in messages)
    assert setup.trainer.clock.step == 12  # the last phase has the rest
