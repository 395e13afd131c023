"""LMCS: who learns which labels when, what the master is trained on, what must not change."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.commands.discover.tables import read_found_table
from labelkit.errors import ConfigError
from labelkit.methods.few_labels import composition
from labelkit.methods.few_labels.composition import MasterTraining
from labelkit.methods.few_labels.growth import GrowthRules
from labelkit.models.ema import follow
from labelkit.training.checkpoint import load_checkpoint
from labelkit.training.inputs import MonitorInputs
from torch import Tensor, nn

Make = Callable[..., Any]
#: A network that has hardly learned anything must not end the growth.
GROWS = {"churn": 0.0, "disagree_stop": 1.0}


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def equal(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(value, second[name]) for name, value in first.items())


def training(setup: Any, labels: Any = None, **options: Any) -> MasterTraining:
    """Of the master of a finished run, by options like its own."""
    method, bank = setup.method, setup.bank
    given = {"master_steps": 4, "unlabeled_weight": 30.0, "discrimination": "ratio", **options}
    config = setup.config.model_copy(update=given)
    used, state = method.growth.labels() if labels is None else labels, setup.trainer._state(log_now=False)
    return MasterTraining(method.guide.master, config, used, bank.rows, method.eval_view(), state)


@pytest.mark.parametrize(
    ("given", "sizes"), [(80, [160, 320, 640, 800]), (250, [500, 1000, 2000, 2500]), (100, [200, 400, 800, 1000])]
)
def test_labels_double_up_to_ten_times_the_given_ones(given: int, sizes: list[int]) -> None:
    assert GrowthRules(2.0, 10.0, 1).sizes(given, 50_000) == sizes


# ---------------------------------------------------------------------- the pretext


@pytest.mark.slow
def test_turns_are_learned_before_the_first_step_and_without_labels(make: Make) -> None:
    options = {"steps": 2, "eval_every_steps": 2, "growth_limit": 1.0, "guidance_weight": 0.0}
    plain, turned = make("lmcs", **options), make("lmcs", pretext_steps=60, **options)
    start = weights(turned.method.network)
    assert equal(start, weights(plain.method.network))
    logged = []
    state = replace(turned.trainer._state(log_now=False), log=lambda kind, values: logged.append((kind, values)))
    turned.method.on_train_start(state)
    moved = weights(turned.method.network)
    assert any(not torch.equal(moved[name], value) for name, value in start.items() if name.startswith("backbone"))
    assert all(torch.equal(moved[name], value) for name, value in start.items() if name.startswith("head"))
    assert equal(weights(turned.method.chain.teacher), moved)
    ((kind, values),) = logged
    assert kind == "pretext"
    assert values["rotation_accuracy"] > 0.5  # of four turns; chance is a quarter


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


# ---------------------------------------------------------------------- the streams


@pytest.mark.slow
def test_the_student_learns_what_was_discovered_one_generation_after_the_master(make: Make) -> None:
    setup = make("lmcs", epochs=4, **GROWS)
    method, seen = setup.method, []
    given = set(np.flatnonzero(method.growth.given >= 0))
    step, batches = method.training_step, setup.trainer.batches

    def training_step(batch: Any) -> Any:
        seen.append(("student", int(method.growth.iteration), set(batch.sample_index[batch.labels >= 0].tolist())))
        return step(batch)

    def master_batches(phase: Any, epoch: int) -> Any:
        for batch in batches(phase, epoch):
            labeled = set(batch.sample_index[batch.labels >= 0].tolist())
            seen.append(("master", int(method.growth.iteration), labeled))
            yield batch

    method.training_step = training_step
    setup.trainer.batches = master_batches
    setup.trainer.fit()

    found = {
        iteration: {s.sample_index for s in method.growth.samples() if s.iteration == iteration}
        for iteration in range(1, int(method.growth.iteration) + 1)
    }
    assert len(found) >= 2
    up_to = lambda iteration: given.union(*(found[i] for i in range(1, iteration + 1)))  # noqa: E731 - a formula
    for who, iteration, labeled in seen:
        if who == "master":
            assert labeled <= up_to(iteration)
        else:
            assert labeled <= up_to(max(0, iteration - 1)) or (iteration == len(found) and labeled <= up_to(iteration))
    masters = [labeled for who, iteration, labeled in seen if who == "master" and iteration == 1]
    students = [labeled for who, iteration, labeled in seen if who == "student" and iteration == 1]
    assert any(labeled & found[1] for labeled in masters)
    assert not any(labeled & found[1] for labeled in students)


@pytest.mark.slow
def test_a_last_phase_teaches_the_student_everything_or_there_is_none(make: Make) -> None:
    options = {"epochs": 6, "growth_limit": 1.5, "label_rule": "vote", **GROWS}
    for last_phase in (True, False):
        setup = make("lmcs", final_phase=last_phase, **options)
        setup.trainer.fit()
        method, found = setup.method, int(setup.method.growth.iteration)
        assert 1 <= found < 4  # 10 samples; a class may lack a candidate at first
        learned = [generation for generation, _, _ in method._later]
        assert learned == [*range(found), found] if last_phase else [*range(found)]
        assert setup.trainer.clock.step == 24 if last_phase else 4 * (1 + found)
        last = method.phase(len(learned), setup.bank.rows).labels
        assert (last >= 0).sum() == (
            30 if last_phase else 20 + sum(s.iteration < found for s in method.growth.samples())
        )


@pytest.mark.slow
def test_the_learning_rate_falls_over_all_phases_together(make: Make) -> None:
    setup = make("lmcs", epochs=3, lr_schedule="cosine", lr=0.01, **GROWS)
    setup.trainer.fit()
    phases = [setup.method.phase(index, setup.bank.rows) for index in range(3)]
    rates = [phase.lr(step) for phase in phases for step in range(4)]
    expected = [0.005 * (1 + np.cos(np.pi * step / 12)) for step in range(12)]
    np.testing.assert_allclose(rates, expected)


# ---------------------------------------------------------------------- the master


def test_training_a_master_changes_the_composition_and_nothing_else(make: Make) -> None:
    setup = make("lmcs", epochs=1)
    method = setup.method
    setup.trainer.fit()
    master = method.guide.master
    before, student, teacher = weights(master), weights(method.network), weights(method.chain.teacher)
    record = training(setup).run(method.network, method.chain.teacher, first=False)
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
    assert record["centroids"] == 10
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
        master._place_centroids(np.random.default_rng(0))
        found = master._centroids
        assert found is not None
        return found

    main = places(is_main=True)
    assert len(main) == 10
    monkeypatch.setattr(composition, "kmeans", None)
    assert torch.equal(places(is_main=False), main)
    assert not sent[1].any()


@pytest.mark.slow
def test_a_master_is_the_same_when_it_is_trained_again_and_its_draws_are_its_own(make: Make) -> None:
    results = []
    for _ in range(2):
        setup = make("lmcs", epochs=1, growth_limit=1.0)
        torch.manual_seed(len(results))  # what the global generator says must not matter
        setup.trainer.fit()
        results.append(weights(setup.method.guide.master))
    assert equal(*results)


@pytest.mark.slow
def test_labels_reach_the_master_through_the_cross_entropy_alone(make: Make) -> None:
    def trained(labels_of_half: int, supervised: bool) -> dict[str, Tensor]:
        setup = make("lmcs", epochs=1)
        method = setup.method
        labels = method.growth.labels()
        labels[np.flatnonzero(labels >= 0)[::2]] = labels_of_half
        master = training(setup, labels, master_supervised=supervised, discrimination="none")
        master.run(method.network, method.chain.teacher, first=True)
        return weights(method.guide.master.composition)

    assert equal(trained(0, False), trained(1, False))
    assert not equal(trained(0, True), trained(1, True))


def test_the_kept_weights_are_the_average_of_the_trained_ones(make: Make) -> None:
    class One(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.tensor(value))

    average = One(1.0)
    for value, expected in ((3.0, 1.02), (2.0, 1.0298)):
        follow(average, One(value), 0.99, buffers="copy")
        assert float(average.value.detach()) == pytest.approx(expected)
    setup = make("lmcs", epochs=1)
    decay = training(setup, master_steps=1000).decay
    assert [decay(1), decay(9), decay(99), decay(500)] == pytest.approx([0.5, 0.9, 0.99, 0.99])
    assert training(setup, master_steps=20).decay(15) == pytest.approx(0.5)
    assert training(setup, master_steps=8).decay(5) == 0


# ---------------------------------------------------------------------- guidance


@pytest.mark.slow
def test_without_guidance_and_growth_it_is_mixmatch_bit_for_bit(make: Make) -> None:
    plain = make("mixmatch", epochs=3)
    plain.trainer.fit()
    expected, teacher = weights(plain.method.network), weights(plain.method.chain.teacher)
    composed = make("lmcs", epochs=3, growth_limit=1.0, guidance_weight=0.0)
    composed.trainer.fit()
    assert equal(weights(composed.method.network), expected)
    assert equal(weights(composed.method.chain.teacher), teacher)


@pytest.mark.slow
@pytest.mark.parametrize("guide", ["composed", "average"])
def test_a_guide_changes_the_student_after_the_first_block(make: Make, guide: str) -> None:
    def trained(epochs: int, **extra: Any) -> dict[str, Tensor]:
        setup = make("lmcs", epochs=epochs, growth_limit=1.0, unlabeled_ramp=0.0, guide=guide, **extra)
        setup.trainer.fit()
        return weights(setup.method.network)

    for epochs in (1, 2):
        assert equal(trained(epochs), trained(epochs, guidance_weight=0.0)) == (epochs == 1)


# ---------------------------------------------------------------------- growth


def test_disputed_samples_end_the_growth(make: Make) -> None:
    messages: list[str] = []
    setup = make("lmcs", epochs=3, disagree_stop=0.0)
    setup.trainer.message = messages.append
    setup.trainer.fit()
    assert int(setup.method.growth.iteration) == 0
    assert any("labels stop growing" in message for message in messages)
    assert setup.trainer.clock.step == 12  # the last phase has the rest


@pytest.mark.slow
def test_growth_ends_when_predictions_no_longer_change(make: Make) -> None:
    setup = make("lmcs", epochs=4, lr=1e-9, disagree_stop=1.0)
    setup.trainer.fit()
    assert int(setup.method.growth.iteration) == 1


@pytest.mark.slow
def test_the_table_says_what_was_discovered_by_entropy_and_can_be_shown(make: Make, tmp_path: Path) -> None:
    setup = make("lmcs", epochs=2, **GROWS)
    dataset = setup.prepared.dataset
    written: dict[str, str] = {}
    known = MonitorInputs(setup.bank.rows, dataset.labels, dataset.sample_ids, write_text=written.__setitem__)
    setup.trainer.monitor = setup.method.monitor(known)
    setup.trainer.fit()
    lines = list(csv.DictReader(io.StringIO(written["discovered.csv"])))
    assert list(lines[0]) == [
        "sample_index", "path", "label", "score", "rank", "generation", "iteration", "network", "truth",
    ]  # fmt: skip
    assert len(lines) == setup.method.growth.num_found > 0
    assert {line["network"] for line in lines} == {"student"}
    scores = {line["label"]: [] for line in lines}  # type: ignore[var-annotated] # lists of numbers
    for line in sorted(lines, key=lambda line: int(line["rank"])):
        scores[line["label"]].append(float(line["score"]))
    assert all(values == sorted(values, reverse=True) for values in scores.values())
    assert max(max(values) for values in scores.values()) <= np.log2(10)
    table = tmp_path / "discovered.csv"
    table.write_text(written["discovered.csv"])
    assert sorted(image.sample_id for image in read_found_table(table)) == sorted(line["path"] for line in lines)


def test_features_that_are_not_finite_stop_the_run(make: Make) -> None:
    setup = make("lmcs", epochs=1)
    method = setup.method
    with torch.no_grad():
        method.network.backbone.net.stages[0].weight.fill_(float("nan"))
    state = setup.trainer._state(log_now=False)
    with pytest.raises(Exception, match="not finite"):
        method._discover(state)


@pytest.mark.slow
def test_a_kill_after_the_second_discovery_changes_nothing(make: Make, tmp_path: Path) -> None:
    options = {"epochs": 5, "log_every_steps": 3, **GROWS}
    whole = make("lmcs", tmp_path / "whole", **options)
    whole.trainer.fit()
    cut = make("lmcs", tmp_path / "cut", stop_after_steps=4 + 4 + 2, **options)
    assert not cut.trainer.fit().finished
    assert int(cut.method.growth.iteration) == 2
    resumed = make("lmcs", tmp_path / "cut", resume=True, **options)
    checkpoint = load_checkpoint(tmp_path / "cut")
    assert checkpoint is not None
    resumed.trainer.restore(checkpoint)
    assert resumed.trainer.fit().finished
    assert equal(weights(whole.method), weights(resumed.method))
    assert whole.method.growth.samples() == resumed.method.growth.samples()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"growth_limit": 0.5}, "growth-limit: must be >= 1"),
        ({"backbone": "convnet_demo", "image_size": 32}, "cannot be cut"),
    ],
)
def test_options_that_cannot_be_are_refused(make: Make, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make("lmcs", **options)


# ---------------------------------------------------------------------- processes


@pytest.mark.slow
def test_two_processes_grow_labels_as_one_does(tmp_path: Path) -> None:
    """Equal to one process: the images of each batch, and how many of each class may be discovered.

    Not equal to one process: blends, and the statistics of what is guessed, are those of a process's half of the batch,
    so that weights, and what is discovered by them, differ. Full passes, discovery and tables are equal on both.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [
        "-m", "labelkit", "train", "lmcs", "--dataset", "digits", "--num-labels", "40", "--steps", "12",
        "--eval-every-steps", "4", "--first-blocks", "1", "--generation-blocks", "1", "--master-steps", "2",
        "--growth-limit", "2", "--discrimination", "ratio", "--churn", "0", "--disagree-stop", "1", "--device", "cpu",
    ]  # fmt: skip
    tables = []
    for name, prefix in (("one", [sys.executable]), ("two", launcher)):
        run = tmp_path / name
        done = subprocess.run(
            [*prefix, *command, "--out", str(run)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=140,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        tables.append(list(csv.DictReader(io.StringIO((run / "discovered.csv").read_text()))))
    for table in tables:
        first = [line for line in table if line["iteration"] == "1"]
        assert 30 <= len(first) <= len(table) <= 40
        assert max(Counter(line["label"] for line in first).values()) <= 4
        assert len({line["path"] for line in table}) == len(table)
