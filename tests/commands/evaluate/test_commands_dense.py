"""Commands on patch features, on images whose colors say everything, so that scores are known."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.evaluate.dense import FrozenNetwork
from labelkit.commands.evaluate.options import EvaluateSegmentationConfig
from labelkit.commands.evaluate.patch_clusters import match_clusters_by_iou
from labelkit.commands.evaluate.segmentation import train_segmenter
from labelkit.commands.evaluate.tracking import compute_frame_size
from labelkit.data.registry import load_dataset
from labelkit.models.inference import BackboneNetwork
from PIL import Image
from tests.miniature_sets import write_davis

SIDE, PATCH = 16, 4
COLORS = np.array([[20, 20, 20], [230, 40, 40], [40, 220, 60]], dtype=np.uint8)
PIXELS = ("--backbone", "pixels", "--patch-size", PATCH, "--image-size", SIDE, "--threads", 1)
LINEAR = ("--samples", 600, "--batch-size", 8, "--lr", 0.1, "--seeds", 2, "--no-augment")


@pytest.fixture
def folder(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Eight images to train on and four to score, whose patches are of one class and its color each."""
    root = tmp_path / "blocks"
    for split, count in (("train", 8), ("val", 4)):
        for i in range(count):
            blocks = rng.integers(0, 3, (SIDE // PATCH, SIDE // PATCH))
            mask = np.kron(blocks, np.ones((PATCH, PATCH))).astype(np.uint8)
            for kind, pixels in (("images", COLORS[mask]), ("masks", mask)):
                (root / split / kind).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(root / split / kind / f"{i}.png")
    (root / "classes.txt").write_text("ground\nred\ngreen\n")
    return root


def test_a_linear_head_reads_classes_that_are_colors(labelkit: Any, folder: Path, tmp_path: Path) -> None:
    plot = tmp_path / "masks.png"
    words = ("evaluate", "segmentation", *PIXELS, *LINEAR, "--dataset", folder)
    done = labelkit(*words, "--sheet", plot, "--json")
    assert done.code == 0, done.err
    # logits are stretched bilinearly, so that corners of patches may be wrong
    assert done.json["pixel_accuracy"]["mean"] > 0.85
    assert done.json["mean_iou"]["mean"] > 0.75
    assert len(done.json["mean_iou"]["values"]) == 2
    assert done.json["protocol"]["train_images"] == 8
    assert done.json["network"]["source"] == "pixels of 4 x 4"
    assert len(done.json["network"]["weights_fingerprint"]) > 20
    with Image.open(plot) as sheet:
        assert sheet.size[0] > 300
    # also where the folder of a split ends in images
    for split in ("train", "val"):
        (folder / split).rename(folder / f"{split}_images")
    again = labelkit(*words, "--json")
    assert again.json["mean_iou"] == done.json["mean_iou"]
    refused = labelkit(*words, "--sheet", plot)
    assert (refused.code, "already exists" in refused.err) == (2, True)


def test_the_best_learning_rate_is_chosen_without_the_images_that_are_scored(labelkit: Any, folder: Path) -> None:
    done = labelkit(
        "evaluate", "segmentation", *PIXELS, *LINEAR[:4], "--seeds", 1, "--no-augment", "--lr", "1e-6,0.1",
        "--dataset", folder, "--json",
    )  # fmt: skip
    assert done.code == 0, done.err
    tried = {entry["lr"]: entry["mean_iou"] for entry in done.json["protocol"]["sweep"]}
    assert tried[0.1] > tried[1e-6]
    assert done.json["protocol"]["lr"] == 0.1


def test_tuning_trains_the_backbone_and_not_the_head_alone(labelkit: Any, folder: Path) -> None:
    network = BackboneNetwork("vit_nano_p8_32", seed=0).eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    config = EvaluateSegmentationConfig(
        backbone="vit_nano_p8_32", random_weights=True, tune=True, samples=8, batch_size=8
    )
    dataset = load_dataset(str(folder), data_root=folder)

    frozen = FrozenNetwork(network, 32, 8)
    tuned, _ = train_segmenter(config, frozen, dataset, dataset.rows_in_split("train"), 1e-3, seed=0)

    assert all(value.equal(before[name]) for name, value in network.state_dict().items())
    # a step of AdamW moves every number that has a gradient by the rate, and those of the backbone have one
    name = "backbone.net.blocks.0.mlp.fc1.bias"
    moved = tuned.network.state_dict()[name] - before[name]
    assert moved.abs().max().item() == pytest.approx(1e-3, rel=0.01)
    assert not tuned.network.training


def test_groups_of_colors_are_classes(labelkit: Any, folder: Path) -> None:
    words = ("evaluate", "patch-clusters", *PIXELS, "--dataset", folder, "--seeds", 2, "--json")
    done = labelkit(*words)
    assert done.code == 0, done.err
    assert done.json["mean_iou"] == {"mean": 1.0, "sd": 0.0, "values": [1.0, 1.0]}
    more = labelkit(*words, "--num-clusters", 6)
    assert more.json["pixel_accuracy"]["mean"] > 0.7
    fewer = labelkit(*words, "--num-clusters", 2)
    assert (fewer.code, "2 clusters cannot be matched to 3 classes" in fewer.err) == (2, True)


def test_groups_are_matched_by_iou_one_to_one_or_each_on_its_own() -> None:
    # pixels: group 0 is mostly background, yet group 1 fits it better
    counts = np.array([[50, 30], [45, 0]])
    # one to one: 50/95 + 0/75 = .53 against 30/80 + 45/95 = .85 (unions 125, 80, 95)
    assert match_clusters_by_iou(counts).tolist() == [1, 0]
    assert match_clusters_by_iou(np.array([[50, 30], [45, 0], [0, 9]])).tolist() == [0, 0, 1]
    # a group that shares nothing with its class is background
    assert match_clusters_by_iou(np.array([[9, 0, 0], [9, 0, 0], [0, 0, 0]])).tolist() == [0, 0, 0]


def test_objects_that_keep_their_colors_are_followed(labelkit: Any, tmp_path: Path) -> None:
    write_davis(tmp_path / "DAVIS", num_frames=5)
    words = (
        "evaluate", "tracking", "--backbone", "pixels", "--patch-size", 2, "--dataset", "davis_2017", "--data-root",
        tmp_path, "--threads", 1, "--temperature", 0.01,
    )  # fmt: skip
    done = labelkit(*words, "--json", "--sheet", tmp_path / "films.png")
    assert done.code == 0, done.err
    assert [entry["object"] for entry in done.json["objects"]] == [1, 2]
    assert {entry["frames"] for entry in done.json["objects"]} == {3}
    assert done.json["j"] > 0.85
    assert done.json["f"] > 0.85
    assert done.json["jf"] == pytest.approx((done.json["j"] + done.json["f"]) / 2)
    assert (tmp_path / "films.png").is_file()


@pytest.mark.parametrize(
    ("height", "width", "short_side", "patch", "expected"),
    [
        (480, 854, 480, 16, (480, 832)),
        (1080, 1920, 480, 8, (480, 832)),
        (50, 40, 480, 8, (48, 40)),
    ],
)
def test_frames_are_resized_as_published(
    height: int, width: int, short_side: int, patch: int, expected: tuple[int, int]
) -> None:
    assert compute_frame_size(height, width, short_side, patch) == expected


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (("segmentation", "--split", "val"), 2, "are used for training"),
        (("segmentation", "--split", "probe"), 3, "no split 'probe'"),
        (("segmentation", "--image-size", "18"), 2, "must be multiples of the patch size"),
        (("segmentation", "--lr", "0"), 2, "above 0"),
        (("tracking",), 3, "mark classes, not objects in videos"),
    ],
)
def test_what_cannot_be_judged_is_refused(
    labelkit: Any, folder: Path, words: tuple[str, ...], code: int, problem: str
) -> None:
    command, *options = words
    own = () if command == "tracking" else ("--samples", 8, "--seeds", 1)
    pixels = PIXELS if "--image-size" not in options else PIXELS[:4]
    done = labelkit("evaluate", command, *pixels, *own, "--dataset", folder, *options)
    assert (done.code, problem in " ".join(done.err.split())) == (code, True), done.err


def test_masks_that_do_not_fit_are_named(labelkit: Any, folder: Path) -> None:
    Image.fromarray(np.zeros((8, 8), dtype=np.uint8)).save(folder / "val/masks/1.png")
    words = ("evaluate", "patch-clusters", *PIXELS, "--dataset", folder)
    done = labelkit(*words)
    assert done.code == 3
    assert "the image has 16 x 16 pixels, but its mask has 8 x 8" in " ".join(done.err.split())
    Image.fromarray(np.full((16, 16), 7, dtype=np.uint8)).save(folder / "val/masks/1.png")
    done = labelkit(*words)
    assert done.code == 3
    assert "value 7 in row 0, column 0 is not a class number" in " ".join(done.err.split())
