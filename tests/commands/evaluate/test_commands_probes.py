"""``labelkit evaluate probes``: trained as a plain loop trains them, scored on the crops of torchvision."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision.transforms.functional as vision
from labelkit.commands.common.networks import load_run
from labelkit.commands.common.training_data import choose_eval_images, prepare_data
from labelkit.commands.evaluate.probes import EvalImages, compute_resize_side, crop_images
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.views.spec import ViewSpec
from labelkit.models.seeding import seeded_init

SHORT = "--epochs 2 --lr-drop-epochs 1 --lr 0.1 --batch-size 50 --device cpu --threads 1".split()
PLAIN = ("--augmentation", "none", "--crops", "center", "--at", "features")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, labelkit: Any) -> Path:
    """A network that learned nothing, on 200 digits of which a quarter is held out."""
    out = tmp_path_factory.mktemp("runs") / "run"
    words = "--dataset digits --preset digits --max-per-class 20 --epochs 1 --num-optimizations 1 --lr-drop-epochs 1"
    done = labelkit("train", "sela", *words.split(), *"--num-heads 1 --device cpu --threads 1 -q --out".split(), out)
    assert done.code == 0, done.err
    return out


def test_features_get_a_linear_layer_as_a_loop_trains_it(labelkit: Any, run: Path) -> None:
    done = labelkit("evaluate", "probes", "--checkpoint", run, *SHORT, *PLAIN, "--json")
    assert done.code == 0, done.err

    trained = load_run(run)
    network = trained.method.main_network().eval()
    options = trained.config.model_copy(update={"eval_split": "auto"})
    prepared = prepare_data(options)
    judged = choose_eval_images(options, prepared)
    assert judged is not None
    of_run = {"num_workers": 0, "max_bad": 0.0}
    train, test = (
        EvalImages.for_network(images, network, torch.device("cpu"), **of_run).select_labeled()
        for images in (prepared.dataset, judged)
    )
    with seeded_init(0):
        linear = torch.nn.Linear(128, 10)
    optimizer = torch.optim.SGD(linear.parameters(), 0.1, momentum=0.9, weight_decay=1e-5)
    for epoch, lr in enumerate((0.1, 0.01)):
        optimizer.param_groups[0]["lr"] = lr
        order = keyed_generator(0, "probes", epoch).permutation(train.rows)
        for batch in train.load_batches(ViewSpec(32), order, 50, seed=0, epoch=epoch):
            with torch.no_grad():
                features = network.embed(batch.images)
            loss = torch.nn.functional.cross_entropy(linear(features), train.get_labels(batch.rows))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    right = 0
    for batch in test.load_batches(ViewSpec(37, resize_ratio=1.0), test.rows, 50):
        with torch.no_grad():
            named = linear(network.embed(vision.center_crop(batch.images, [32, 32]))).argmax(dim=1)
        right += int((named == test.get_labels(batch.rows)).sum())

    (score,) = done.json["probes"]
    assert (score["layer"], score["channels"], score["side"], score["values"]) == ("embedding", 128, 1, 128)
    assert score["accuracy"] == pytest.approx(right / len(test.rows))


@pytest.mark.parametrize("side", [36, 37])
def test_ten_crops_are_those_of_torchvision(side: int) -> None:
    images = torch.rand(2, 3, side, side)
    found = crop_images(images, 32, multi_crop=True, mirror=True)
    expected = vision.ten_crop(images, [32, 32])
    assert len(found) == 10
    for one in expected:
        assert sum(torch.equal(one, crop) for crop in found) == 1
    assert len(crop_images(images, 32, multi_crop=True, mirror=False)) == 5
    (center,) = crop_images(images, 32, multi_crop=False, mirror=True)
    assert torch.equal(center, vision.center_crop(images, [32, 32]))
    assert compute_resize_side(224) == 256


def test_what_has_no_probes_is_refused(labelkit: Any, run: Path, trained: Path) -> None:
    done = labelkit("evaluate", "probes", "--checkpoint", trained, *SHORT)
    assert done.code == 3
    assert "has no held-out images" in done.err
