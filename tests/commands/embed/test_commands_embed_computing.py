"""What ``embed`` chooses to compute with: ONNX Runtime by the network; recorded, and kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.embed import embed as computing
from labelkit.commands.embed.embed import _is_depthwise, embed_images
from labelkit.errors import ConfigError
from labelkit.models.inference import BackboneNetwork
from labelkit.options.embed import EmbedConfig
from labelkit.store.embeddings import EmbeddingStore, open_store
from PIL import Image

NANO: dict[str, Any] = {"backbone": "vit_nano_p8_32", "random_weights": True, "device": "cpu", "threads": 1}


def embed(out: Path, photos: Path, **options: Any) -> EmbeddingStore:
    embed_images(EmbedConfig.model_validate({"out": out, "dataset": str(photos), **NANO, **options}))
    return open_store(out)


@pytest.mark.parametrize(
    ("options", "needs"),
    [({"precision": "bf16"}, "a CPU and float32"), ({"dense": True}, "--no-logits")],
)
def test_onnx_that_cannot_be_is_refused(options: dict[str, Any], needs: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--runtime onnx") as caught:
        embed(tmp_path / "x.h5", photos, runtime="onnx", **options)

    assert needs in caught.value.problem
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "depthwise"),
    [("tf_efficientnet_lite0", True), ("mobilenetv2_100", True), ("resnet18", False), ("vit_nano_p8_32", False)],
)
def test_networks_of_single_channel_convolutions_are_told_apart(name: str, depthwise: bool) -> None:
    assert _is_depthwise(BackboneNetwork(name)) is depthwise


@pytest.mark.slow
def test_many_images_of_a_depthwise_network_are_computed_by_onnx_alike_and_resumed_so(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("LABELKIT_ONNX", "1")
    lite0 = {"backbone": "auto", "random_weights": False, "image_size": 64}
    by_torch = embed(tmp_path / "torch.h5", photos, **lite0)
    monkeypatch.setattr(computing, "_WORTH_AN_EXPORT", 48)
    plan = embed_images(
        EmbedConfig.model_validate(
            {"out": tmp_path / "onnx.h5", "dataset": str(photos), **NANO, **lite0, "dry_run": True}
        )
    ).to_json()
    by_onnx = embed(tmp_path / "onnx.h5", photos, **lite0)

    assert "onnxruntime" not in by_torch.model.numerics
    assert by_onnx.model.numerics["onnxruntime"]
    assert plan["runtime"] == "onnx"
    a, b = (np.asarray(store.embeddings, dtype=np.float64) for store in (by_torch, by_onnx))
    cosine = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert cosine.min() > 0.99999
    before = by_onnx.path.read_bytes(), by_torch.path.read_bytes()
    monkeypatch.setattr(computing, "_WORTH_AN_EXPORT", 1000)
    embed(tmp_path / "onnx.h5", photos, **lite0)
    monkeypatch.setattr(computing, "_WORTH_AN_EXPORT", 1)
    embed(tmp_path / "torch.h5", photos, **lite0)
    assert (by_onnx.path.read_bytes(), by_torch.path.read_bytes()) == before
    copied = embed(tmp_path / "copied.h5", photos, **lite0, reuse=by_torch.path)
    assert np.asarray(copied.embeddings).tobytes() == np.asarray(by_torch.embeddings).tobytes()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small and two large photos; the network needs 32 pixels."""
    folder = tmp_path_factory.mktemp("mixed")
    rng = np.random.default_rng(0)
    for i, side in enumerate((100, 120, 400, 900)):
        coarse = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
        coarse.resize((side * 4 // 3, side), Image.Resampling.BICUBIC).save(folder / f"{i}.jpg", quality=95)
    return folder


def test_fast_decoding_is_near_the_whole_one_and_keeps_sizes_and_small_photos(mixed: Path, tmp_path: Path) -> None:
    whole, fast = embed(tmp_path / "whole.h5", mixed), embed(tmp_path / "fast.h5", mixed, fast_decode=True)

    a, b = (np.asarray(store.embeddings, dtype=np.float64) for store in (whole, fast))
    cosine = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert (a[:2] == b[:2]).all()
    assert (a[2:] != b[2:]).any(axis=1).all()
    assert cosine.min() > 0.999
    assert fast.image_sizes.tolist() == whole.image_sizes.tolist()
    assert fast.model.numerics["fast_decode"] is True
    assert "fast_decode" not in whole.model.numerics
    assert fast.model.differences(whole.model) == []
