"""DL2PA and its baselines: what is fixed, what moves, what the options mean, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.algorithms.prototypes import uniformity_loss
from labelkit.cli.main import main
from labelkit.commands.common.training_data import PreparedData
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.splits import ClassLabels, make_dataset_label_split
from labelkit.data.views.recipes import classification_view
from labelkit.data.views.transforms import draw_affine_maps, warp_images
from labelkit.errors import ConfigError
from labelkit.methods.prototypes.options import DL2PAConfig
from labelkit.methods.prototypes.source import load_initial_prototypes
from labelkit.options.presets import resolve_config
from labelkit.training.checkpoint import load_checkpoint
from labelkit.training.method import TrainState

Make = Callable[..., Any]


def changes(path: Path) -> list[int]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    return [int(line["assignment/changed"]) for line in lines if "kind" not in line]


def test_prototypes_are_never_trained_and_means_are_unit_rows(make: Make) -> None:
    setup = make("dl2pa", embed_dim=5)
    setup.trainer.fit()
    head = setup.method.network.head
    assert torch.allclose(head.prototypes.norm(dim=1), torch.ones(10), atol=1e-6)
    again = make("dl2pa", embed_dim=5, epochs=1, seed=9)
    again.trainer.fit()
    assert torch.equal(head.prototypes, again.method.network.head.prototypes)  # --prototype-seed alone decides
    seen = head.seen > 0
    assert torch.allclose(head.class_means[seen].norm(dim=1), torch.ones(int(seen.sum())), atol=1e-6)
    assert int(head.seen.sum()) == 2 * 16  # two epochs of the labeled images


def test_classes_without_an_image_keep_their_prototypes_unless_displaced(make: Make, tmp_path: Path) -> None:
    setup = make("dl2pa", tmp_path / "run", embed_dim=10, epochs=3)
    setup.trainer.fit()
    head = setup.method.network.head
    assert sorted(head.assignment.tolist()) == list(range(10))
    assert head.seen[5:].sum() == 0
    assert not head.class_means[5:].any()
    lost = set(head.assignment[:5].tolist())
    for label in range(5, 10):
        assert label in lost or int(head.assignment[label]) == label


def test_a_resumed_run_with_many_assignments_and_mixup_equals_an_uninterrupted_one(make: Make, tmp_path: Path) -> None:
    options = {
        "embed_dim": 3, "updates_per_epoch": 4, "mixup_alpha": 1.0, "class_weights": "batch", "embedding_bn": True,
        "reduction": "half-mean", "lr": 0.1, "epochs": 3,
    }  # fmt: skip
    whole = make("dl2pa", tmp_path / "whole", **options)
    whole.trainer.fit()
    assert not make("dl2pa", tmp_path / "cut", **options, stop_after_steps=6).trainer.fit().finished
    resumed = make("dl2pa", tmp_path / "cut", resume=True, **options)
    resumed.trainer.restore(load_checkpoint(tmp_path / "cut"))
    resumed.trainer.fit()
    for name, value in whole.method.state_dict().items():
        assert torch.equal(value, resumed.method.state_dict()[name]), name
    assert changes(tmp_path / "whole") == changes(tmp_path / "cut")
    assert sum(changes(tmp_path / "whole")) > 0


def made(count: int, dim: int, said: list[str], **options: Any) -> np.ndarray:
    """Return the prototypes that a run starts with."""
    config = resolve_config(DL2PAConfig, preset="digits", overrides={"dataset": "digits", **options}).config
    return load_initial_prototypes(config, count, dim, said.append).double().numpy()


@pytest.mark.slow
@pytest.mark.parametrize(("count", "dim"), [(20, 5), (30, 17)], ids=["no closed form", "one with opposites"])
def test_prototypes_that_are_not_sharpened_minimize_the_paper_s_loss(count: int, dim: int) -> None:
    said: list[str] = []
    least, sharp = made(count, dim, said, sharpest_t=None), made(count, dim, said)

    assert uniformity_loss(least) < uniformity_loss(sharp) - 1e-4
    rows = torch.tensor(least, requires_grad=True)
    others = ~torch.eye(count, dtype=torch.bool)
    torch.logsumexp(4 * (rows @ rows.T)[others], dim=0).backward()
    along = rows.grad - rows * (rows.grad * rows).sum(dim=1, keepdim=True)
    assert along.abs().max() < 1e-5  # at a minimum, to the digits of float32
    largest, of_sharp = ((rows @ rows.T - 2 * np.eye(count)).max() for rows in (least, sharp))
    assert largest > of_sharp + 1e-3
    assert said == []


def test_sharpening_that_could_do_nothing_is_told_or_refused() -> None:
    said: list[str] = []
    assert np.array_equal(made(10, 9, said, sharpest_t=None), made(10, 9, []))
    assert said == ["--sharpest-t has no effect: 10 prototypes in 9 dimensions have a closed form"]
    for other in ({"prototypes": "simplex"}, {"prototypes_from": "x.h5"}):
        with pytest.raises(ConfigError, match="--sharpest-t requires --prototypes uniform"):
            made(10, 9, [], sharpest_t=None, **other)


def test_a_sum_grows_with_processes_where_gradients_are_averaged(make: Make) -> None:
    setup = make("dl2pa")
    state: TrainState = setup.trainer._state(log_now=False)
    state.combine = lambda value, operation: 3 * value
    batch = next(setup.batches())
    alone = make("dl2pa")
    for one in (setup.method, alone.method):
        one.network.head.prototypes.copy_(torch.nn.functional.normalize(torch.ones(10, 8), dim=1))
    plain = alone.method.training_step(batch).loss.detach()
    setup.method.on_epoch_start(state)
    assert float(setup.method.training_step(batch).loss.detach()) == pytest.approx(3 * float(plain), rel=1e-5)


def test_prototypes_come_from_a_learned_classifier(make: Make, tmp_path: Path) -> None:
    learned = make("softmax", tmp_path / "softmax", epochs=1)
    learned.trainer.fit()
    weight = learned.method.network.head.weight.detach()
    setup = make("dl2pa", epochs=1, prototypes_from=tmp_path / "softmax")
    setup.trainer.fit()
    unit = torch.nn.functional.normalize(weight, dim=1)
    assert torch.allclose(setup.method.network.head.prototypes, unit)
    with pytest.raises(ConfigError, match="has 10 prototypes of dimension 8, but 10 of dimension 5 are required"):
        make("dl2pa", prototypes_from=tmp_path / "softmax", embed_dim=5).trainer.fit()
    with pytest.raises(ConfigError, match="12 of dimension 8 are required"):
        make("dl2pa", prototypes_from=tmp_path / "softmax", num_classes=12).trainer.fit()


def test_labels_with_gaps_are_numbered_without_them_and_named_by_their_own_names(
    make: Make, prepared: PreparedData
) -> None:
    labels = prepared.dataset.labels
    split = make_dataset_label_split(ClassLabels(labels, np.isin(labels, [1, 4, 8]), 10))
    gaps = PreparedData(prepared.dataset, split, split.to_training_labels(labels))
    setup = make("dl2pa", data=gaps, epochs=1)
    setup.trainer.fit()
    assert setup.method.data.class_order[:3] == (1, 4, 8)
    assert (setup.method.network.head.seen[:3] > 0).all()
    assert not setup.method.network.head.seen[3:].any()


def one_class(path: Path, *names: str) -> Path:
    from PIL import Image

    for name in names:
        (path / name).mkdir(parents=True)
        for i in range(6):
            Image.new("L", (8, 8), 40 * i).save(path / name / f"{i}.png")
    return path


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--dataset", "ONE"), 3, "has only one class"),
        (("--num-classes", "5"), 2, "5 is less than 10, the number of labeled classes"),
        (("--label-split", "none"), 3, "no image has a label that training may use"),
        (("--prototypes", "simplex"), 2, "require 9 dimensions"),
        (("--loss", "cross-entropy"), 2, "--reduction sum requires --loss inner-product"),
        (("--prototypes-from", "ONE"), 3, "contains no checkpoint"),
        (("--batch-size", "4096"), 2, "exceeds the number of images in an epoch (1437)"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_its_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, message: str
) -> None:
    one = one_class(tmp_path / "photos", "only")
    given = [str(one) if word == "ONE" else word for word in words]
    options = ["--preset", "digits", "--threads", "1", "--device", "cpu", "--out", str(tmp_path / "run")]
    assert main(["train", "dl2pa", *options, *given]) == code
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_a_crop_flip_view_shifts_by_whole_pixels_and_shows_black_beyond() -> None:
    view = classification_view(32, "crop-flip", chiral=True)
    image = torch.randint(0, 256, (1, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    padded = torch.nn.functional.pad(image.float() / 255, (4, 4, 4, 4))
    shifts = set()
    for key in range(60):
        matrices = draw_affine_maps(view, KeyedRNG(0, 0, np.array([key])), 0)
        shown = warp_images(image, matrices, view)[0]
        x, y = (round(float(matrices[0, axis, 2]) * 16) for axis in (0, 1))
        assert torch.allclose(shown, padded[0, :, 4 + y : 36 + y, 4 + x : 36 + x], atol=1e-4)
        shifts.add((x, y))
    assert {x for x, _ in shifts} == set(range(-4, 5))


def test_cross_entropy_takes_cosines_in_single_precision_under_autocast(make: Make) -> None:
    setup = make("dl2pa", embed_dim=5, loss="cross-entropy", reduction="half-mean")
    setup.method.on_train_start(setup.trainer._state(log_now=False))
    embeddings = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).bfloat16()
    losses = []
    for autocast in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            losses.append(setup.method._loss(embeddings, torch.arange(4), None))
    assert torch.equal(*losses)


def test_the_progress_line_tells_how_many_classes_moved(make: Make) -> None:
    method = make("dl2pa", embed_dim=5).method
    assert method.describe({"assignment/changed": 3.0}) == ["classes moved 3"]
    assert method.describe({}) == []
