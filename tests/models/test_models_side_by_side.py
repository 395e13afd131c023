"""Two networks side by side: each sees images as it was trained, and a store finds both again."""

from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from labelkit.cli.main import main
from labelkit.models.inference import BackboneNetwork
from labelkit.models.side_by_side import ConcatenatedNetworks
from labelkit.store.embeddings import open_store
from tests.models.test_models_published import cache
from tests.textures import write_noise

PAIR = "vit_nano_p8_32+resnet20_cifar"


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_noise(tmp_path_factory.mktemp("pictures"), 4)


def test_each_network_gets_its_own_size_mean_and_deviation() -> None:
    small = BackboneNetwork("vit_nano_p8_32", seed=0).eval()
    large = BackboneNetwork("resnet20_cifar", image_size=48, seed=1, mean=(0.4, 0.5, 0.6), std=(0.2,)).eval()
    both = ConcatenatedNetworks([small, large]).eval()
    images = torch.rand(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))

    with torch.no_grad():
        found = both.embed(images)
        fitted = torch.nn.functional.interpolate(images, size=(32, 32), mode="bilinear", align_corners=False)
        first = small.embed((fitted - 0.5) / 0.5)
        mean = torch.tensor([0.4, 0.5, 0.6]).reshape(1, 3, 1, 1)
        second = large.embed((images - mean) / 0.2)

    assert both.input_spec.size == 48
    assert both.embed_dim == found.shape[1] == small.embed_dim + large.embed_dim
    torch.testing.assert_close(found[:, : small.embed_dim], first / first.norm(dim=1, keepdim=True))
    torch.testing.assert_close(found[:, small.embed_dim :], second / second.norm(dim=1, keepdim=True))


def test_a_store_of_two_networks_is_asked_by_an_image(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "both.h5"
    assert main(["embed", "--dataset", str(pictures), "--backbone", PAIR, "--random-weights", "--out", str(out)]) == 0
    store = open_store(out)
    assert store.model.name == PAIR
    np.testing.assert_allclose(np.square(store.embeddings[:]).sum(axis=1), 2, rtol=1e-5)
    capsys.readouterr()

    code = main(["retrieve", "--query", str(pictures / "2.png"), "--index", str(out), "-k", "1"])

    assert code == 0
    assert "2.png" in capsys.readouterr().out


def test_published_weights_of_both_are_found_by_their_addresses(
    pictures: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("resnet10t.c3_in1k", "mobilenetv3_small_050.lamb_in1k"):
        cache(tmp_path / "hub", name)
    pair = "resnet10t.c3_in1k+mobilenetv3_small_050.lamb_in1k"
    monkeypatch.setattr("labelkit.models.weights.published.PREFERRED_BACKBONES", (pair, "resnet10t.c3_in1k"))
    out = tmp_path / "both.h5"

    assert main(["embed", "--dataset", str(pictures), "--out", str(out), "-q"]) == 0

    model = open_store(out).model
    assert model.name == pair
    assert model.source.count("hf://") == 2
    assert main(["retrieve", "--query", str(pictures / "1.png"), "--index", str(out), "-k", "1", "-q"]) == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--backbone", "vit_nano_p8_32+auto", "--random-weights"], "requires backbone names"),
        (["--backbone", "vit_nano_p8_32+", "--random-weights"], "requires backbone names"),
        (["--backbone", PAIR, "--weights", "w.pth"], "apply to a single backbone"),
        (["--backbone", PAIR, "--random-weights", "--image-size", "64"], "apply to a single backbone"),
    ],
)
def test_what_two_networks_cannot_take_is_refused(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    assert main(["embed", "--dataset", str(pictures), "--out", str(tmp_path / "s.h5"), *options]) == 2
    assert problem in capsys.readouterr().err
