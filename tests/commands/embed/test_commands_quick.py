"""A few images without torch: the same pixels and embeddings, out of a cache that is checked, and exports that fail."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from labelkit.commands.common import onnx_export
from labelkit.commands.common.networks import build_embedding_network
from labelkit.commands.common.onnx_export import OnnxExportError, cache_onnx, export_onnx_bytes
from labelkit.commands.common.onnx_session import DECODER, embed_with_onnx, preprocess_image
from labelkit.commands.embed.embed import embed_images
from labelkit.data.loaders import EvalLoader
from labelkit.data.registry import load_dataset
from labelkit.data.views.spec import Interpolation, Normalize, ViewSpec
from labelkit.models.inference import BackboneNetwork
from labelkit.options.embed import EmbedConfig
from labelkit.store.embeddings import open_store
from PIL import Image
from tests.tiers import quick_every


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of several shapes: wide, high, square, of the network's size, and one pixel high."""
    folder = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for i, (width, height) in enumerate([(90, 61), (33, 77), (64, 64), (36, 36), (40, 1)]):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / f"{i}.png")
    return folder


@pytest.mark.parametrize("channels", quick_every(3, [1, 3]))
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize(("size", "ratio"), [(32, 1.0), (32, 36 / 32), (64, 1.142857)])
def test_images_are_prepared_as_the_loader_does(
    photos: Path, size: int, ratio: float, interpolation: Interpolation, channels: int
) -> None:
    dataset = load_dataset(str(photos), data_root=photos)
    view = ViewSpec(size, ratio, interpolation=interpolation)
    mean, std = (0.4, 0.5, 0.6)[:channels], (0.2, 0.3, 0.25)[:channels]
    loader = EvalLoader(dataset, view, batch_size=8, normalize=Normalize(mean, std), channels=channels)  # type: ignore[arg-type]
    record = {
        "decoder": DECODER, "channels": channels, "size": size, "resize_ratio": ratio, "crop": "center",
        "interpolation": interpolation, "mean": list(mean), "std": list(std),
    }  # fmt: skip

    found = np.stack([preprocess_image(dataset, row, record) for row in range(len(dataset))])

    np.testing.assert_array_equal(found, next(iter(loader)).images.numpy())


def test_pixels_need_neither_torch_nor_a_cache(photos: Path, own_cache: Path, tmp_path: Path) -> None:
    embed_images(EmbedConfig(dataset=str(photos), split="all", backbone="pixels", out=tmp_path / "s.h5"))
    store = open_store(tmp_path / "s.h5")

    found = embed_with_onnx(load_dataset(str(photos), data_root=photos), store.model)

    assert found is not None
    np.testing.assert_array_equal(found[0], store.embeddings)


@pytest.fixture(scope="module")
def kept(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A store of a small untrained network, and a cache with that as ONNX."""
    pytest.importorskip("onnxruntime", reason="needs the extra onnx")
    pytest.importorskip("onnxscript", reason="needs the extra onnx")
    folder = tmp_path_factory.mktemp("kept")
    config = EmbedConfig(
        dataset=str(photos), split="all", backbone="vit_nano_p8_32", random_weights=True, out=folder / "s.h5"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELKIT_CACHE", str(folder / "cache"))
        patch.setenv("LABELKIT_ONNX", "1")
        embed_images(config)
        cache_onnx(build_embedding_network(config, 3).network, open_store(folder / "s.h5").model)
    return folder / "s.h5", folder / "cache"


@pytest.fixture
def use_kept(kept: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.setenv("LABELKIT_CACHE", str(kept[1]))
    monkeypatch.setenv("LABELKIT_ONNX", "1")
    return kept


@pytest.mark.slow
def test_kept_network_gives_the_rows_of_the_store_and_names_what_it_cannot_read(
    use_kept: tuple[Path, Path], photos: Path, tmp_path: Path
) -> None:
    for path in photos.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "2a.png").write_text("no image")
    store = open_store(use_kept[0])

    found = embed_with_onnx(load_dataset(str(tmp_path), data_root=tmp_path), store.model)

    assert found is not None
    rows, kept_rows, bad = found
    cosines = (rows * store.embeddings).sum(1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(store.embeddings, axis=1)
    assert cosines.min() >= 0.99999
    assert kept_rows.tolist() == [0, 1, 2, 4, 5]
    assert [row for row, _ in bad] == [3]


@pytest.mark.slow
def test_a_photo_is_looked_up_without_torch(use_kept: tuple[Path, Path], photos: Path) -> None:
    program = (
        "import sys\nfrom labelkit.cli.main import main\ncode = main(sys.argv[1:])\n"
        "heavy = {'torch', 'torchvision', 'timm', 'sklearn'} & set(sys.modules)\n"
        "print(code, sorted(heavy), file=sys.stderr)"
    )
    words = ["retrieve", "--query", str(photos / "1.png"), "--index", str(use_kept[0]), "-k", "1", "--json"]

    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, env=os.environ, check=False
    )

    assert done.stderr.splitlines()[-1] == "0 []"
    assert json.loads(done.stdout)["queries"][0]["hits"][0]["duplicate"] == "same file"


@pytest.mark.slow
def test_a_file_of_the_cache_that_changed_is_not_used(
    use_kept: tuple[Path, Path], photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnx").mkdir()
    for path in (use_kept[1] / "onnx").iterdir():
        (tmp_path / "onnx" / path.name).write_bytes(path.read_bytes()[: None if path.suffix == ".json" else -1])
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path))

    found = embed_with_onnx(load_dataset(str(photos), data_root=photos), open_store(use_kept[0]).model)

    assert found is None


def test_a_network_that_the_run_time_cannot_run_is_not_exported(monkeypatch: pytest.MonkeyPatch) -> None:
    """A spatial assembly was exported for the number of images of the trial, and ended embed with a traceback."""

    class Refuses:
        def __init__(self, content: bytes) -> None:
            self.content = content

        def embed(self, images: object) -> object:
            raise Exception("INVALID_ARGUMENT : Got: 7 Expected: 2\n Please fix the model.")

    monkeypatch.setattr(torch.onnx, "export", lambda *args, **options: args[2].write_bytes(b"model"))
    monkeypatch.setattr(onnx_export, "OnnxNetwork", Refuses)
    with pytest.raises(
        OnnxExportError, match="cannot run it: INVALID_ARGUMENT : Got: 7 Expected: 2 Please fix the model"
    ):
        export_onnx_bytes(BackboneNetwork("smallcnn", seed=0))
