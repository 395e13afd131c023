"""SeLa: when labels are renewed, from what, and what a checkpoint has of it."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.commands.common.training_data import PreparedData
from labelkit.errors import ConfigError
from labelkit.methods.sela.self_labels import compute_optimization_times
from labelkit.training.method import PassSettings
from tests.running import run_in_one_and_two_processes

Make = Callable[..., Any]


def _events(path: Path, kind: str = "labels") -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("kind") == kind]


def _visited(setup: Any, how: PassSettings) -> dict[int, torch.Tensor]:
    features, rows = setup.trainer.local_pass(setup.method.network.embed, None, how)
    return dict(zip(rows.tolist(), features, strict=True))


@pytest.mark.parametrize("clusters", [(20,), (7, 64, 13, 2)])
def test_first_labels_are_balanced_and_differ_between_heads(make: Make, clusters: Any) -> None:
    """T15: each cluster has the floor or the ceiling of n / k images."""
    setup = make("sela", num_clusters=clusters)
    tables = setup.method.labels.pseudo_labels
    for head, k in enumerate(setup.config.clusters_per_head):
        counts = np.bincount(tables[head].numpy(), minlength=k)
        assert set(counts.tolist()) <= {64 // k, math.ceil(64 / k)}
    assert not torch.equal(tables[0], tables[1])


def at_times(monkeypatch: pytest.MonkeyPatch, *times: float) -> None:
    """Optimize labels at these times, in epochs, whatever the schedule says."""
    monkeypatch.setattr("labelkit.methods.sela.sela.compute_optimization_times", lambda *_: times)


@pytest.mark.slow
def test_all_heads_are_renewed_at_times_inside_epochs(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_times(monkeypatch, 0.5, 1.1, 1.2, 99)
    setup = make("sela", tmp_path / "run", num_heads=2)
    setup.trainer.fit()
    # 1.1 is first reached at step 5 (1.25), which also passes 1.2: at most one at a step
    assert [event["step"] for event in _events(tmp_path / "run")] == [2, 2, 5, 5, 8, 8]
    assert int(setup.method.labels.num_optimizations) == 2
    assert _events(tmp_path / "run")[0]["churn"] > 0.5  # the first labels are drawn at random


def test_the_loss_is_the_mean_cross_entropy_of_the_heads(make: Make) -> None:
    setup = make("sela", num_heads=3, num_clusters=(5, 9, 20))
    batch = next(setup.batches())
    setup.method.eval()
    loss = float(setup.method(batch).loss.detach())
    features = setup.method.network.embed(batch.images).double()
    total = 0.0
    for head, layer in enumerate(setup.method.network.heads):
        logits = (features @ layer.weight.double().T + layer.bias.double()).detach()
        for i, row in enumerate(batch.sample_index.tolist()):
            label = int(setup.method.labels.pseudo_labels[head, row])
            total -= float(logits[i, label] - torch.logsumexp(logits[i], 0))
    assert loss == pytest.approx(total / 3 / len(batch.sample_index), rel=1e-6)


def test_rotations_add_their_own_cross_entropy(make: Make) -> None:
    setup = make("sela", rotation=True)
    batch = next(setup.batches())
    output = setup.method(batch)
    assert float(output.loss.detach()) == pytest.approx(float(output.logs["heads"] + output.logs["rotation"]))
    torch.nn.init.zeros_(setup.method.network.rotation.weight)
    torch.nn.init.zeros_(setup.method.network.rotation.bias)
    assert float(setup.method(batch).logs["rotation"]) == pytest.approx(math.log(4))


def test_the_label_pass_with_batch_statistics_leaves_the_running_ones_alone(make: Make) -> None:
    setup = make("sela")
    before = {name: value.clone() for name, value in setup.method.state_dict().items()}
    features = torch.stack(list(_visited(setup, PassSettings("batch-statistics", batch_size=64)).values()))
    for name, value in setup.method.state_dict().items():
        assert torch.equal(before[name], value), name
    # by hand: training mode normalizes by the batch
    setup.method.train()
    images = setup.bank.gather(np.arange(64)).float() / 255
    spec = setup.method.network.input_spec
    by_hand = setup.method.network.embed((images - spec.mean[0]) / spec.std[0])
    torch.testing.assert_close(features, by_hand.detach(), rtol=1e-4, atol=1e-5)


def test_a_last_batch_of_one_joins_the_one_before(make: Make) -> None:
    setup = make("sela")
    whole = _visited(setup, PassSettings("batch-statistics", batch_size=63))
    assert len(whole) == 64
    joined = _visited(setup, PassSettings("batch-statistics", batch_size=64))
    assert all(torch.equal(whole[row], joined[row]) for row in whole)


def test_the_official_label_pass_augments_and_updates_the_running_statistics(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_times(monkeypatch, 0)
    setup, clean = make("sela", label_pass="official"), make("sela")
    before = setup.method.network.backbone.net.stem[1].running_mean.clone()
    for one in (setup, clean):
        state = one.trainer._state(log_now=False)
        one.method.on_step_start(state)
    assert not torch.equal(before, setup.method.network.backbone.net.stem[1].running_mean)
    assert torch.equal(before, clean.method.network.backbone.net.stem[1].running_mean)
    assert not torch.equal(setup.method.labels.pseudo_labels, clean.method.labels.pseudo_labels)


@pytest.mark.slow
def test_labels_are_those_of_the_stored_network_and_balanced(make: Make) -> None:
    setup = make("sela", num_heads=2, num_clusters=(8,), solver_tolerance=1e-9)
    setup.trainer.fit()
    labels = setup.method.labels
    how = PassSettings("batch-statistics", order="fixed", batch_size=16)
    features, rows = setup.trainer.local_pass(setup.method.network.embed, None, how)
    for head, layer in enumerate(setup.method.network.heads):
        logits = layer(features).double() * setup.config.lam + labels.potentials(head)
        assert torch.equal(labels.pseudo_labels[head][torch.from_numpy(rows)].long(), logits.argmax(1))
        shares = logits.softmax(1).mean(0)
        torch.testing.assert_close(shares, torch.full((8,), 1 / 8, dtype=torch.float64), rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_prior_is_kept_in_the_order_of_its_first_solve(make: Make) -> None:
    setup = make("sela", prior="zipf:1", num_heads=2, num_clusters=(4, 6))
    setup.trainer.fit()
    for head, k in enumerate((4, 6)):
        prior = setup.method.labels.prior(head)
        expected = 1 / np.arange(1, k + 1)
        assert prior.sort(descending=True).values.tolist() == pytest.approx((expected / expected.sum()).tolist())
        counts = torch.bincount(setup.method.labels.pseudo_labels[head], minlength=k)
        assert int(counts.argmax()) == int(prior.argmax())


def test_a_prior_is_read_from_a_file(make: Make, tmp_path: Path) -> None:
    (tmp_path / "prior.txt").write_text("0.5, 0.25\n0.125 0.125\n")
    setup = make("sela", prior=str(tmp_path / "prior.txt"), num_clusters=(4,), num_heads=1)
    setup.trainer.fit()
    assert sorted(setup.method.labels.prior(0).tolist()) == [0.125, 0.125, 0.25, 0.5]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("0.5 0.5", "shape"),
        ("0.5 0.25 0.25 0", "positive"),
        ("1 1 1 1", "must sum to 1, got 4"),
        ("0.5 nan 0.25 0.25", "positive"),
        ("a b c d", "could not convert"),
    ],
)
def test_a_bad_prior_is_refused(make: Make, tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "prior.txt").write_text(content)
    setup = make("sela", prior=str(tmp_path / "prior.txt"), num_clusters=(4,))
    with pytest.raises(ConfigError, match=words):
        setup.trainer.fit()


def test_optimization_times_match_the_worked_numbers() -> None:
    """T14 of the SeLa specification."""
    official = compute_optimization_times("official-quadratic", 400, 100)
    assert [round(official[k], 4) for k in (0, 1, 4, 5)] == [0, 0.0409, 0.6546, 1.0229]
    assert compute_optimization_times("uniform", 10, 10) == tuple(range(10))
    assert compute_optimization_times("quadratic", 8, 3) == (0, 2, 8)
    gaps = np.diff(compute_optimization_times("official-uniform", 400, 400))
    assert gaps == pytest.approx(401.0001 / 399)
    assert all(compute_optimization_times(kind, 7, 1) == (0,) for kind in ("uniform", "quadratic", "official-uniform"))


def test_the_heads_are_scored_against_the_truth(make: Make, prepared: PreparedData) -> None:
    setup = make("sela", num_heads=2, num_clusters=(10,), epochs=1)
    truth = prepared.dataset.labels
    setup.method.labels.pseudo_labels[:] = torch.from_numpy(np.stack([truth, np.zeros_like(truth)]).astype(np.int32))
    scores = setup.trainer.monitor(setup.method, setup.trainer._state(log_now=False))
    assert scores["head0/nmi"] == pytest.approx(1)
    assert scores["head1/nmi"] == 0
    assert scores["nmi"] == pytest.approx(0.5)
    assert (scores["head0/ami"], scores["head1/ami"]) == pytest.approx((1, 0))
    assert scores["head1/majority_accuracy"] == np.bincount(truth).max() / 64


def test_unreadable_images_have_no_label_after_a_solve(make: Make) -> None:
    setup = make("sela", num_heads=1)
    setup.trainer.bank = replace_rows(setup.bank, np.arange(0, 64, 2))
    setup.method.on_step_start(setup.trainer._state(log_now=False))
    labels = setup.method.labels.pseudo_labels[0]
    assert (labels[1::2] == -1).all()
    assert (labels[::2] >= 0).all()


def replace_rows(bank: Any, rows: Any) -> Any:
    """Return a bank of which some rows cannot be read."""
    from copy import copy

    other = copy(bank)
    other.rows = rows
    return other


TWO_PROCESSES = """
import sys
from pathlib import Path
import numpy as np
import torch
from labelkit.cli.main import main
from labelkit.options.presets import resolve_config
from labelkit.data.registry import load_dataset
from labelkit.data.image_bank import ImageBank
from labelkit.data.splits import ClassLabels, make_unlabeled_split
from labelkit.training.devices import Runtime
from labelkit.training.trainer import Trainer
from labelkit.methods.registry import METHODS
from labelkit.commands.common.training_data import PreparedData

torch.set_num_threads(1)
digits = load_dataset("digits", data_root=Path("data")).select(np.arange(101))
split = make_unlabeled_split(ClassLabels(digits.labels, digits.given, 10))
data = PreparedData(digits, split, split.to_training_labels(digits.labels))
options = {"dataset": "digits", "batch_size": 16, "epochs": 1, "device": "cpu", "num_clusters": (8,)}
config = resolve_config(METHODS["sela"].config, preset="digits", overrides=options).config
method = METHODS["sela"].load()(config, data.build_data_info(0))
runtime = Runtime(device="cpu")
trainer = Trainer(method, ImageBank(digits, base_size=32), data.labels, config, runtime)
method.on_step_start(trainer._state(log_now=False))
result = {name: value.clone() for name, value in method.state_dict().items() if name.startswith("labels.")}
assert torch.isfinite(torch.tensor(trainer.fit().metrics["loss"]))
equal = runtime.combine(method.labels.pseudo_labels.double(), "max")
assert torch.equal(equal.int(), method.labels.pseudo_labels)
if runtime.is_main:
    torch.save(result, sys.argv[1])
runtime.close()
"""


@pytest.mark.slow
def test_two_processes_give_the_labels_of_one(tmp_path: Path) -> None:
    """Batches of the label pass do not depend on processes; float32 sums of the solver differ in their last bits."""
    one, two = run_in_one_and_two_processes(TWO_PROCESSES, tmp_path)
    assert torch.equal(one["labels.pseudo_labels"], two["labels.pseudo_labels"])
    for head in range(4):
        torch.testing.assert_close(
            one[f"labels.potentials_{head}"], two[f"labels.potentials_{head}"], rtol=0, atol=1e-5
        )
