"""``evaluate detection`` on squares that a detector can learn in a few steps, and what it refuses."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from labelkit.commands.evaluate.detection import UpdateSchedule, train_detector
from labelkit.commands.evaluate.options import EvaluateDetectionConfig
from labelkit.data.registry import load_dataset
from labelkit.models.inference import BackboneNetwork
from labelkit.training.devices import Runtime
from PIL import Image
from tests.miniature_sets import put, write_coco
from tests.tiers import quick_every

SMALL = (
    "--backbone", "vit_micro_p8_64", "--random-weights", "--image-size", 64, "--threads", 1,
    "--proposals", 16, "--samples-per-image", 8, "--batch-size", 2,
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_coco(tmp_path / "coco")
    return tmp_path


@pytest.mark.slow
def test_a_square_is_found_after_a_few_steps(labelkit: Any, root: Path) -> None:
    words = ("evaluate", "detection", *SMALL, "--data-root", root, "--detector", "mask-rcnn", "--lr", 1e-3, "--json")
    before = labelkit(*words, "--steps", 1)
    assert before.code == 0, before.err
    done = labelkit(*words, "--steps", 30)
    assert done.code == 0, done.err
    assert done.json["box"]["ap50"]["mean"] > before.json["box"]["ap50"]["mean"] + 0.1
    assert done.json["mask"]["ap50"]["mean"] > before.json["mask"]["ap50"]["mean"] + 0.1
    assert done.json["box"]["ap_large"]["mean"] > 0.1
    assert [entry["class"] for entry in done.json["per_class"]] == ["person", "bicycle", "car"]
    protocol = done.json["protocol"]
    assert (protocol["lr_drop_steps"], protocol["warmup_steps"], protocol["longer_side"]) == ([22, 28], 3, 106)
    assert (protocol["train_images"], protocol["eval_images"]) == (4, 2)


def test_pycocotools_is_asked_for(labelkit: Any, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools", None)
    monkeypatch.setitem(sys.modules, "pycocotools.mask", None)
    lacking = labelkit("evaluate", "detection", *SMALL, "--data-root", root, "--steps", 1)
    assert lacking.code == 2
    assert "requires pycocotools. Run `pip install pycocotools`" in lacking.err


def test_the_learning_rate_rises_and_drops_as_published() -> None:
    updates = UpdateSchedule.for_images(EvaluateDetectionConfig(batch_size=16, epochs=12), 16_000)
    assert updates == (12_000, 500, (9000, 11_000))
    assert updates.lr_factor(0) == pytest.approx(1 / 500)
    assert [updates.lr_factor(step) for step in (499, 8999, 9000, 11_000)] == pytest.approx([1, 1, 0.1, 0.01])


def _plan(**options: Any) -> EvaluateDetectionConfig:
    plan = {
        "detector": "faster-rcnn", "image_size": 64, "proposals": 8, "samples_per_image": 8,
        "steps": 1, "batch_size": 2, "lr": 1e-3, "weight_decay": 0.0,
    }  # fmt: skip
    return EvaluateDetectionConfig(**{**plan, **options})


@pytest.mark.parametrize("tune", quick_every(2, [True, False]))
def test_tuning_moves_the_backbone_and_else_it_stays(root: Path, tune: bool) -> None:
    network = BackboneNetwork("vit_micro_p8_64", seed=0).eval()
    before = {name: value.clone() for name, value in network.backbone.state_dict().items()}
    dataset = load_dataset("coco_2017", data_root=root)
    rows = dataset.rows_in_split("train")

    trained: Any = train_detector(_plan(tune=tune), network, dataset, rows, Runtime(device="cpu"), seed=0)

    # a step of AdamW moves every number that has a gradient by the rate
    after = trained.backbone.backbone.state_dict()
    moved = {
        name: (after[name] - value).abs().max().item() for name, value in before.items() if value.is_floating_point()
    }
    name = "net.blocks.0.mlp.fc1.bias"
    assert moved[name] == pytest.approx(1e-3 if tune else 0, rel=0.01)
    assert tune or not any(moved.values())
    assert all(value.equal(before[name]) for name, value in network.backbone.state_dict().items())
    assert not trained.training


@pytest.mark.slow
def test_training_leaves_the_statistics_of_batch_normalization_as_they_are(root: Path) -> None:
    network = BackboneNetwork("resnet18", seed=0).eval()
    dataset = load_dataset("coco_2017", data_root=root)
    trained: Any = train_detector(
        _plan(), network, dataset, dataset.rows_in_split("train"), Runtime(device="cpu"), seed=0
    )
    before, after = network.backbone.state_dict(), trained.backbone.backbone.state_dict()
    statistics = [name for name in before if "running" in name]
    assert len(statistics) == 40
    assert all(after[name].equal(before[name]) for name in statistics)
    assert not after["net.bn1.weight"].equal(before["net.bn1.weight"])


def test_a_set_without_boxes_is_refused(labelkit: Any, root: Path) -> None:
    answer = labelkit("evaluate", "detection", *SMALL, "--data-root", root, "--dataset", "scenes")
    assert (answer.code, "scenes: has no boxes. Choose a dataset with boxes" in answer.err) == (3, True), answer.err


def test_missing_and_broken_images_and_outlines_and_other_sizes_are_named(labelkit: Any, root: Path) -> None:
    words = ("evaluate", "detection", *SMALL, "--data-root", root, "--steps", 1)
    other = root / "coco/val2017/000000000005.jpg"
    whole = other.read_bytes()
    with Image.open(other) as image:
        image.resize((80, 64)).save(other)
    answer = labelkit(*words, "--detector", "faster-rcnn")
    assert answer.code == 3
    assert "000000000005.jpg: the image has 80 x 64 pixels, but its annotation says 160 x 128" in answer.err
    other.write_bytes(whole)
    path = root / "coco/annotations/instances_val2017.json"
    table = json.loads(path.read_text())
    table["annotations"][0]["segmentation"] = [[1, 2]]
    path.write_text(json.dumps(table))
    answer = labelkit(*words)
    assert answer.code == 3
    assert "000000000005.jpg: segmentation must be a list of polygons" in answer.err
    put(root / "coco/train2017/000000000001.jpg", b"no image")
    answer = labelkit(*words, "--detector", "faster-rcnn")
    assert (answer.code, "000000000001.jpg: not an image" in answer.err) == (3, True), answer.err
    (root / "coco/train2017/000000000001.jpg").unlink()
    answer = labelkit(*words)
    assert (answer.code, "missing: train2017/000000000001.jpg" in answer.err) == (3, True), answer.err
