"""SimGCD and FlipClass: one code, two methods."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.commands.common.training_data import PreparedData
from labelkit.data.splits import Classes, LabelSplit, given_split
from labelkit.data.views.recipes import strong_view
from labelkit.errors import ConfigError, DatasetError
from labelkit.methods.discovery.recipe import TeacherTemperature
from labelkit.training.method import TrainState

Make = Callable[..., Any]
BOTH = ["flipclass", "simgcd"]


def _state(epoch: int = 0, *, log_now: bool = False) -> TrainState:
    return TrainState(epoch, 0, 1, log_now, True, lambda *args: None, lambda purpose: np.random.default_rng(0))  # type: ignore[arg-type] # nobody asks


def _loss_and_gradients(method: Any, batch: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    loss = method(batch).loss
    loss.backward()
    return loss.detach(), {name: p.grad for name, p in method.named_parameters() if p.grad is not None}


# ---------------------------------------------------------------------- one code


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
def test_no_alignment_is_a_step_of_size_zero(make: Make) -> None:
    none, zero = make("flipclass", align_mode="none"), make("flipclass", gamma_update=0.0)
    batch = next(none.batches())
    # two ways to compute attention, equal up to rounding
    torch.testing.assert_close(none.method(batch).loss, zero.method(batch).loss, rtol=1e-6, atol=0)


@pytest.mark.slow
def test_the_update_changes_the_loss_in_its_own_way_in_every_space(make: Make) -> None:
    # A large step: the keys of a network from scratch are tiny, and so is what moves them.
    spaces = [make("flipclass", update_space=space, gamma_update=1000.0) for space in ("key", "token", "literal")]
    batch = next(spaces[0].batches())
    losses = [setup.method(batch).loss.item() for setup in (make("flipclass", align_mode="none"), *spaces)]
    gaps = [abs(a - b) for a, b in itertools.combinations(losses, 2)]
    assert min(gaps) > 1e-4


@pytest.mark.slow
def test_the_update_leaves_evaluation_alone(make: Make) -> None:
    moved, still = make("flipclass", gamma_update=3.0), make("flipclass", align_mode="none")
    moved.method.load_state_dict(still.method.state_dict())
    images = next(moved.batches()).images
    embeddings = [setup.method.eval().network.embed(images) for setup in (moved, still)]
    assert torch.equal(*embeddings)


def test_the_views_of_simgcd_come_from_one_transform_and_differ(make: Make) -> None:
    setup = make("simgcd")
    first, second = setup.trainer.phases[0].views
    assert first == second
    batch = next(setup.batches())
    assert not torch.equal(batch.views[0], batch.views[1])


@pytest.mark.slow
def test_the_student_can_be_given_weak_views(make: Make) -> None:
    first, second = make("flipclass", student_view="weak").trainer.phases[0].views
    assert first == second
    weak, strong = make("flipclass").trainer.phases[0].views
    assert weak == first
    assert strong != weak


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_digits_are_never_mirrored(make: Make, name: str) -> None:
    setup = make(name)
    for geometry in next(setup.batches()).geometry:
        assert (torch.linalg.det(geometry.matrices[:, :, :2]) > 0).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_half_of_a_batch_is_labeled_on_average(make: Make, name: str) -> None:
    setup = make(name)
    labels = torch.cat([batch.labels for epoch in range(8) for batch in setup.batches(epoch)])
    share = float((labels >= 0).float().mean())
    assert abs(share - 0.5) < 3 * math.sqrt(0.25 / len(labels))


# ---------------------------------------------------------------------- the loss


def _softmax(row: list[float], temperature: float) -> list[float]:
    top = max(row)
    powers = [math.exp((value - top) / temperature) for value in row]
    return [power / sum(powers) for power in powers]


def _unit(row: list[float]) -> list[float]:
    length = math.sqrt(sum(value * value for value in row))
    return [value / length for value in row]


def _contrast(
    rows: list[list[float]], anchor: int, positives: list[int], others: list[int], temperature: float
) -> float:
    """Mean over the positives of -log softmax over the others."""
    dots = {b: sum(x * y for x, y in zip(rows[anchor], rows[b], strict=True)) / temperature for b in others}
    normalizer = math.log(sum(math.exp(dot) for dot in dots.values()))
    return sum(normalizer - dots[p] for p in positives) / len(positives)


def _cross_entropy(target: list[float], prediction: list[float]) -> float:
    return -sum(q * math.log(p) for q, p in zip(target, prediction, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "directions"), [("simgcd", [(0, 1), (1, 0)]), ("flipclass", [(0, 1)])], ids=["simgcd", "flipclass"]
)
def test_the_total_loss_is_that_of_plain_loops(make: Make, name: str, directions: list[tuple[int, int]]) -> None:
    """Sections 3.1 to 3.3 of the specification, term by term, in float64 and without a shared line."""
    options = {"align_mode": "none"} if name == "flipclass" else {}
    setup = make(name, **options, supervised_weight=0.3, entropy_weight=1.5, contrastive_temperature=0.6)
    batch = next(setup.batches())
    network = setup.method.network
    with torch.no_grad():
        features = [network.embed(view) for view in batch.views]
        logits = [network.classify(f).double().tolist() for f in features]
        projections = [_unit(row) for f in features for row in network.projector(f).double().tolist()]
    labels = batch.labels.tolist()
    b, c = len(labels), len(logits[0][0])
    teacher_temperature = 0.07  # of epoch 0

    rep_u = sum(
        _contrast(projections, a, [(a + b) % (2 * b)], [o for o in range(2 * b) if o != a], 0.6) for a in range(2 * b)
    ) / (2 * b)
    row_labels = labels + labels
    labeled = [a for a in range(2 * b) if row_labels[a] >= 0]
    rep_s = sum(
        _contrast(
            projections,
            a,
            [p for p in labeled if p != a and row_labels[p] == row_labels[a]],
            [o for o in labeled if o != a],
            0.07,
        )
        for a in labeled
    ) / len(labeled)
    predictions = [_softmax(row, 0.1) for view in logits for row in view]
    distilled = 0.0
    for teacher, student in directions:
        for i in range(b):
            target = _softmax(logits[teacher][i], teacher_temperature)
            distilled += _cross_entropy(target, predictions[student * b + i]) / (b * len(directions))
    mean = [sum(p[k] for p in predictions) / (2 * b) for k in range(c)]
    gap = math.log(c) + sum(p * math.log(p) for p in mean)
    cons_s = sum(-math.log(predictions[a][row_labels[a]]) for a in labeled) / len(labeled)
    expected = 0.7 * (rep_u + distilled + 1.5 * gap) + 0.3 * (rep_s + cons_s)

    output = setup.method(batch)
    assert 0 < len(labeled) < 2 * b
    parts = {key: float(value) for key, value in output.logs.items() if "/" not in key}
    assert parts == pytest.approx(
        {
            "rep_u": rep_u,
            "rep_s": rep_s,
            "cons_u_ce": distilled,
            "mean_entropy_gap": gap,
            "cons_s": cons_s,
            "n_labeled": len(labeled) / 2,
        },
        rel=1e-4,
        abs=1e-6,
    )
    assert output.loss.item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_the_teacher_sharpens_on_schedule(make: Make, name: str) -> None:
    setup = make(name, epochs=10, teacher_warmup_epochs=4)
    batch = next(setup.batches())
    values = []
    for epoch in (0, 3, 9):
        setup.method.on_epoch_start(_state(epoch))
        values.append(float(setup.method(batch).logs["cons_u_ce"]))
    fixed = make(name, epochs=10, teacher_temperature_start=0.04)
    fixed.method.on_epoch_start(_state(0))
    assert values[0] > values[1]
    assert values[1] == values[2] == float(fixed.method(batch).logs["cons_u_ce"])


# ---------------------------------------------------------------------- logs


@pytest.mark.slow
@pytest.mark.parametrize(("log_energy", "blocks"), [("aligned", {1, 2}), ("all", {0, 1, 2, 3}), ("none", set())])
def test_energies_are_logged_for_the_blocks_asked_for(make: Make, log_energy: str, blocks: set[int]) -> None:
    setup = make("flipclass", log_energy=log_energy)
    setup.method.on_step_start(_state(log_now=True))
    logs = setup.method(next(setup.batches())).logs
    assert {int(name.split("/")[1].removeprefix("block")) for name in logs if name.startswith("diag/block")} == blocks
    for block in blocks & {1, 2}:
        assert float(logs[f"diag/block{block}/update_rel"]) > 0
    for block in blocks - {1, 2}:
        assert float(logs[f"diag/block{block}/update_rel"]) == 0


def test_energies_are_not_computed_for_steps_that_are_not_logged(make: Make) -> None:
    setup = make("flipclass")
    setup.method.on_step_start(_state(log_now=False))
    assert not [name for name in setup.method(next(setup.batches())).logs if name.startswith("diag/")]


def test_looking_at_energies_does_not_change_the_loss(make: Make) -> None:
    setup = make("flipclass", log_energy="all")
    batch = next(setup.batches())
    losses = []
    for log_now in (False, True):
        setup.method.on_step_start(_state(log_now=log_now))
        losses.append(setup.method(batch).loss)
    torch.testing.assert_close(losses[0], losses[1], rtol=1e-6, atol=0)


@pytest.mark.slow
def test_energies_reach_the_metrics_of_a_run(tmp_path: Path, make: Make) -> None:
    make("flipclass", tmp_path / "run", epochs=2, log_every_steps=2).trainer.fit()
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line.get("kind") == "step"]
    assert [line["step"] for line in steps] == [2, 4, 6, 8]
    for line in steps:
        # the step goes down the energy that it descends
        assert line["diag/block1/energy_align_after"] < line["diag/block1/energy_align_before"]
    assert [line["diag/teacher_temperature"] for line in steps] == pytest.approx([0.07, 0.07, 0.04, 0.04])


# ---------------------------------------------------------------------- teacher and student on their views


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"student_view": "weak"}, {"align_mode": "sda"}])
def test_the_gap_of_the_views_is_logged_and_changes_no_training(
    tmp_path: Path, make: Make, options: dict[str, Any]
) -> None:
    plain = make("flipclass", tmp_path / "plain", epochs=2, **options)
    plain.trainer.fit()
    looked = make("flipclass", tmp_path / "looked", epochs=2, view_gap=True, **options)
    looked.trainer.fit()

    for name, value in plain.method.state_dict().items():
        assert torch.equal(value, looked.method.state_dict()[name]), name
    without, with_gap = (
        [
            line
            for line in map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
            if "used_clusters" in line
        ]
        for name in ("plain", "looked")
    )
    added = with_gap[0].keys() - without[0].keys()
    judged = {f"{who}_{group}_accuracy" for who in ("teacher", "student") for group in ("all", "old", "new")}
    assert added == judged | {"view_agreement", "view_distance", "view_distance_old", "view_distance_new"}
    # both views are weak, or the student's has not grown yet: apart only by their random numbers
    assert 0 < with_gap[0]["view_distance"] < 2


def test_the_student_is_judged_on_the_view_of_its_epoch(make: Make) -> None:
    growing = make("flipclass", align_mode="sda", epochs=8).method
    teacher, start = growing._views(0)
    assert start == strong_view(teacher.size, "digits", chiral=True).at_strength(0)
    assert growing._views(2)[1] == strong_view(teacher.size, "digits", chiral=True).at_strength(0.5)
    assert growing._views(4)[1] == growing._views(7)[1] == strong_view(teacher.size, "digits", chiral=True)


# ---------------------------------------------------------------------- what is trained


@pytest.mark.slow
def test_frozen_blocks_stay_as_they_were(make: Make) -> None:
    setup = make("flipclass", train_stem=False, grad_from_block=3, align_blocks=(1, 2))
    before = {name: value.clone() for name, value in setup.method.state_dict().items()}
    setup.trainer.fit()
    after = setup.method.state_dict()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    parts = ("network.backbone.net.blocks.3.", "network.projector", "network.classifier")
    trained = {name for name in before if name.startswith(parts)}
    assert changed == trained


@pytest.mark.slow
def test_a_linear_probe_trains_the_heads_alone(make: Make) -> None:
    setup = make("simgcd", linear_probe=True, train_stem=False)
    names = {name for name, p in setup.method.named_parameters() if p.requires_grad}
    assert names
    assert all(name.startswith(("network.projector", "network.classifier")) for name in names)
    setup.trainer.fit()


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
@pytest.mark.parametrize("block", [4, 11])
def test_a_first_trained_block_beyond_the_last_is_refused(make: Make, name: str, block: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"\(4 blocks\): block {block} is not there to train from.*--grad-from-block 0"
    ):
        make(name, train_stem=False, grad_from_block=block)


@pytest.mark.parametrize("name", BOTH)
def test_a_trained_stem_below_frozen_blocks_is_refused(make: Make, name: str) -> None:
    with pytest.raises(ConfigError, match="train_stem"):
        make(name, train_stem=True, grad_from_block=2)


@pytest.mark.parametrize("blocks", ["4", "1,9"])
def test_aligning_a_block_that_is_not_there_is_refused(make: Make, blocks: str) -> None:
    with pytest.raises(ConfigError, match=rf"blocks {blocks} are not there to align.*--align-blocks 2,3"):
        make("flipclass", align_blocks=blocks)


def test_all_options_that_do_not_fit_a_network_are_named_at_once_with_a_preset_that_does(make: Make) -> None:
    with pytest.raises(ConfigError) as caught:
        make("flipclass", pretrained=True, train_stem=False, grad_from_block=11, align_blocks=(8, 9))
    assert caught.value.where == "--backbone vit_nano_p8_32"
    assert caught.value.problem.startswith("3 other options do not fit it (4 blocks): it has no published weights; ")
    assert caught.value.remedy == ("Pass --no-pretrained --grad-from-block 0 --align-blocks 2,3, or --preset digits.")


def test_aligning_the_last_block_is_allowed(make: Make) -> None:
    setup = make("flipclass", align_blocks=(3,))
    assert setup.method(next(setup.batches())).loss.isfinite()


def test_without_alignment_its_blocks_do_not_matter(make: Make) -> None:
    setup = make("flipclass", align_mode="none", align_blocks=(8, 9))
    setup.method.on_step_start(_state(log_now=True))
    assert setup.method(next(setup.batches())).loss.isfinite()


def test_without_alignment_a_network_needs_no_blocks(make: Make) -> None:
    setup = make("flipclass", align_mode="none", backbone="smallcnn", grad_from_block=0, train_stem=True)
    setup.method.on_step_start(_state(log_now=True))
    assert setup.method(next(setup.batches())).loss.isfinite()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"align_blocks": "-1"}, "blocks count from 0"),
        ({"beta": 0}, "greater than 0"),
        ({"beta": "warm"}, "beta"),
        ({"update_space": "value"}, "must be one of key, token, literal"),
        ({"num_classes": 1}, ">= 2"),
        *(
            ({"align_mode": mode, name: 0.3}, f"{name} has no meaning for align_mode {mode}; it goes with flip")
            for name in ("alpha", "beta", "gamma_update", "gamma_reg")
            for mode in ("none", "l2")
        ),
    ],
)
def test_impossible_options_are_refused(make: Make, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make("flipclass", **options)


def test_repeated_blocks_count_once(make: Make) -> None:
    assert make("flipclass", align_blocks="2,1,2").config.align_blocks == (1, 2)


# ---------------------------------------------------------------------- labels


def _with_labels(prepared: PreparedData, labeled: np.ndarray[Any, np.dtype[np.bool_]]) -> PreparedData:
    """Return the digits with the labels of these images in the data, and no other."""
    labels = np.where(labeled, prepared.dataset.labels, -1)
    dataset = replace(prepared.dataset, labels=labels, given=labeled)
    split: LabelSplit = given_split(Classes(labels, labeled, 10))
    return PreparedData(dataset, split, split.training_labels(labels))


@pytest.mark.parametrize("name", BOTH)
def test_all_images_labeled_is_refused(make: Make, prepared: PreparedData, name: str) -> None:
    everything = _with_labels(prepared, np.ones(64, dtype=bool))
    with pytest.raises(DatasetError, match="nothing to discover"):
        make(name, data=everything)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOTH)
def test_no_image_labeled_is_refused_unless_labels_have_no_weight(
    make: Make, prepared: PreparedData, name: str
) -> None:
    nothing = _with_labels(prepared, np.zeros(64, dtype=bool))
    with pytest.raises(DatasetError, match=r"no image has a label.*--supervised-weight 0"):
        make(name, data=nothing, num_classes=10)
    setup = make(name, data=nothing, num_classes=10, supervised_weight=0.0, epochs=1)
    result = setup.trainer.fit()
    assert math.isfinite(result.metrics["loss"])
    assert result.metrics["rep_s"] == result.metrics["cons_s"] == 0


@pytest.mark.parametrize("name", BOTH)
def test_an_open_number_of_classes_must_be_given(make: Make, prepared: PreparedData, name: str) -> None:
    few = _with_labels(prepared, (prepared.dataset.labels < 3) & (np.arange(64) % 2 == 0))
    with pytest.raises(ConfigError, match=r"--num-classes: the data names 3 classes"):
        make(name, data=few)
    assert make(name, data=few, num_classes=7).method.network.num_outputs == 7


@pytest.mark.parametrize("name", BOTH)
def test_fewer_classes_than_have_labels_are_refused(make: Make, name: str) -> None:
    with pytest.raises(ConfigError, match=r"--num-classes: 4 is fewer than the 5 classes"):
        make(name, num_classes=4)


@pytest.mark.parametrize("name", BOTH)
def test_the_classifier_has_a_column_per_class_of_the_data(make: Make, name: str) -> None:
    assert make(name).method.network.num_outputs == 10


# ---------------------------------------------------------------------- the temperature of the teacher


@pytest.mark.parametrize(
    ("epoch", "expected"), [(0, 0.07), (1, 0.068966), (15, 0.054483), (29, 0.04), (30, 0.04), (100, 0.04)]
)
def test_teacher_temperature_matches_the_worked_numbers(epoch: int, expected: float) -> None:
    schedule = TeacherTemperature(0.07, 0.04, warmup_epochs=30, epochs=200)
    assert schedule[epoch] == pytest.approx(expected, abs=5e-7)


@pytest.mark.parametrize("warmup_epochs", [0, 1])
def test_teacher_temperature_without_warm_up_is_the_final_one(warmup_epochs: int) -> None:
    assert TeacherTemperature(0.07, 0.04, warmup_epochs, epochs=10)[0] == 0.04


def test_teacher_temperature_reaches_its_end_in_a_run_shorter_than_the_warm_up() -> None:
    schedule = TeacherTemperature(0.07, 0.04, warmup_epochs=30, epochs=4)
    assert [schedule[epoch] for epoch in range(4)] == pytest.approx([0.07, 0.06, 0.05, 0.04])
