"""``labelkit evaluate presence``: trained as a plain loop trains, scored by scikit-learn's average precision."""

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.commands.evaluate import multi_label as presence
from labelkit.commands.evaluate.multi_label import MultiLabelClassifier, evaluate_presence, multi_label_loss
from labelkit.commands.evaluate.options import EvaluatePresenceConfig
from labelkit.data.datasets import ImageDataset
from labelkit.models.backbones.registry import Backbone
from labelkit.models.inference import BackboneNetwork
from sklearn.metrics import average_precision_score
from tests.miniature_sets import write_voc_classes
from tests.textures import dataset_of

NETWORK: dict[str, Any] = {"backbone": "convnet_demo", "random_weights": True, "image_size": 16}
SHORT: dict[str, Any] = {"device": "cpu", "threads": 1, "steps": 40, "batch_size": 8, "lr": 0.05}


@pytest.fixture
def corners(monkeypatch: pytest.MonkeyPatch) -> ImageDataset:
    """Images with a bright spot for each class that they have, in a place of its own; in some, blue does not count."""
    generator = np.random.default_rng(0)
    has = (generator.random((96, 3)) < 0.4).astype(np.int8)
    images = generator.integers(0, 60, (96, 16, 16, 3), dtype=np.uint8)
    for label, (y, x, channel) in enumerate([(2, 2, 0), (2, 10, 1), (10, 6, 2)]):
        images[has[:, label] == 1, y : y + 4, x : x + 4, channel] = 255
    has[[1, 5, 70], 2] = -1
    splits = {"splits": np.repeat([0, 1], [64, 32]), "split_names": ("train", "test")}
    dataset = dataset_of(images, np.full(96, -1), **splits, presence=has, presence_classes=("red", "green", "blue"))
    monkeypatch.setattr(presence, "load_dataset", lambda name, data_root: dataset)
    return dataset


def test_masked_terms_count_nothing_and_others_are_summed_by_class() -> None:
    logits = torch.tensor([[0.3, -1.2, 2.0], [0.0, 0.5, -0.7]], dtype=torch.float64)
    wanted = torch.tensor([[1, 0, -1], [-1, 1, 0]], dtype=torch.int8)
    p = 1 / (1 + np.exp(-logits.numpy()))
    expected = -(np.log(p[0, 0]) + np.log(1 - p[0, 1]) + np.log(p[1, 1]) + np.log(1 - p[1, 2])) / 2
    assert float(multi_label_loss(logits, wanted)) == pytest.approx(expected)


@pytest.mark.slow
def test_what_is_in_the_images_is_learned_and_scored_as_by_others(
    corners: ImageDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "_SCALES", (1.0, 1.0))
    kept: list[Any] = []
    score = presence._score
    monkeypatch.setattr(presence, "_score", lambda *args, **words: kept.append(score(*args, **words)) or kept[-1])

    found = evaluate_presence(
        EvaluatePresenceConfig(**(SHORT | {"steps": 300}), backbone="pixels", image_size=16)
    ).to_json()

    assert (found["train_images"], found["images"]) == (64, 32)
    assert corners.presence is not None
    for label, name in enumerate(corners.presence_classes):
        truth = corners.presence[64:, label]
        counted = truth >= 0
        expected = average_precision_score(truth[counted] == 1, kept[0][counted, label])
        assert found["classes"][label]["class"] == name
        assert found["classes"][label]["with_it"] == int((truth == 1).sum())
        assert found["classes"][label]["ap"] == pytest.approx(expected)
    assert found["mean_ap"] == pytest.approx(np.mean([one["ap"] for one in found["classes"]]))
    assert found["mean_ap_11"] == pytest.approx(np.mean([one["ap_11"] for one in found["classes"]]))
    assert found["mean_ap"] > 0.9


def test_the_layer_is_trained_as_a_loop_trains_it(corners: ImageDataset, monkeypatch: pytest.MonkeyPatch) -> None:
    heads: list[MultiLabelClassifier] = []
    seen: list[tuple[Any, Any]] = []

    class Kept(MultiLabelClassifier):
        def __init__(self, *args: Any, **words: Any) -> None:
            super().__init__(*args, **words)
            heads.append(self)
            seen.append((copy.deepcopy(self.layers), []))

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            if self.training and self.layers.training:
                seen[-1][1].append(images)
            return super().forward(images)

    monkeypatch.setattr(presence, "MultiLabelClassifier", Kept)
    batches: list[Any] = []
    endless = presence._repeat_batches
    monkeypatch.setattr(presence, "_repeat_batches", lambda *args: (batches.append(b) or b for b in endless(*args)))
    monkeypatch.setattr(presence, "_HALVING_STEPS", 5)
    monkeypatch.setattr(presence, "_SCALES", (1.0, 1.0))
    monkeypatch.setattr(presence, "_WEIGHT_DECAY", 0.01)
    monkeypatch.setattr(presence, "_MAX_GRAD_NORM", 0.5)
    config = EvaluatePresenceConfig(**(SHORT | {"steps": 12}), **NETWORK)

    evaluate_presence(config)

    layers = seen[0][0]
    top, velocity = layers[1], {name: 0.0 for name in ("weight", "bias")}
    assert corners.presence is not None
    for step, batch in enumerate(itertools.islice(batches, 12)):
        with torch.no_grad():
            features = heads[0]._frozen(batch.images)
        loss = multi_label_loss(top(features), torch.from_numpy(corners.presence[batch.rows]))
        weight, bias = torch.autograd.grad(loss, [top.weight, top.bias])
        length = float((weight**2).sum() + (bias**2).sum()) ** 0.5
        shrink = min(1.0, 0.5 / (length + 1e-6))
        for name, gradient in (("weight", weight), ("bias", bias)):
            value = getattr(top, name)
            velocity[name] = 0.9 * velocity[name] + gradient * shrink + 0.01 * value.detach()
            with torch.no_grad():
                value -= 0.05 * 0.5 ** (step // 5) * velocity[name]
    for mine, theirs in zip(heads[0].layers.parameters(), layers.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_wide_layers_are_drawn_anew_and_the_convolutions_stay() -> None:
    network = BackboneNetwork("alexnet_small_sela", image_size=64).eval()
    backbone: Backbone = network.backbone
    before = {name: value.clone() for name, value in network.state_dict().items()}
    head = MultiLabelClassifier(network, "fully-connected", 5, seed=1)
    images = torch.randn(2, 3, 64, 64)

    head(images).sum().backward()

    linears = [module for module in head.layers.modules() if isinstance(module, torch.nn.Linear)]
    assert [(one.in_features, one.out_features) for one in linears][1:] == [(4096, 4096), (4096, 5)]
    assert all(float(one.weight.detach().std()) == pytest.approx(0.01, rel=0.05) for one in linears[:2])
    assert all(bool((one.bias == 0.1).all()) for one in linears)
    assert all(parameter.grad is not None for parameter in head.layers.parameters())
    assert all(parameter.grad is None for parameter in backbone.parameters())
    torch.testing.assert_close(dict(network.state_dict()), before, rtol=0, atol=0)
    head.layers.eval()
    maps = backbone.forward_features(images).flatten(1)
    for linear in linears[:2]:
        maps = torch.relu(linear(maps))
    torch.testing.assert_close(head(images), linears[2](maps))


def test_a_command_reads_the_official_layout(labelkit: Any, tmp_path: Path) -> None:
    write_voc_classes(tmp_path / "VOCdevkit/VOC2007", train=24, test=24)
    words = ["evaluate", "presence", "--data-root", tmp_path, "--backbone", "pixels", "--image-size", 8, "--steps", 2]

    done = labelkit(*words, "--per-class", "--json")

    assert done.code == 0, done.err
    assert 0 < done.json["mean_ap"] <= 1
    assert len(done.json["classes"]) == 20
    assert done.json["protocol"]["steps"] == 2
    assert labelkit(*words, "--fail-under", "mean_ap=0.999").code == 10


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--dataset", "digits"), 3, "have at most one class"),
        (("--train", "fully-connected"), 2, "no fully connected layers"),
    ],
)
def test_bad_input_is_one_error(labelkit: Any, tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    write_voc_classes(tmp_path / "VOCdevkit/VOC2007", train=8, test=8)
    network = ("--backbone", "convnet_demo", "--random-weights", "--image-size", "16")
    done = labelkit("evaluate", "presence", "--data-root", tmp_path, *network, "--steps", 1, *words)
    assert (done.code, said in done.err) == (code, True), done.err
