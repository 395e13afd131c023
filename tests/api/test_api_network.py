"""``labelkit.load_network``: the rows of a store, a module to train on, and what is refused."""

from pathlib import Path

import labelkit
import numpy as np
import pytest
import torch
from labelkit.errors import CheckpointError, ConfigError, DatasetError
from PIL import Image


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("network") / "photos"
    rng = np.random.default_rng(0)
    for number in range(12):
        (folder / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (40 + number, 60 - number, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "ab"[number % 2] / f"{number:02d}.png")
    return folder


def files(photos: Path, store: Path) -> tuple[list[Path], np.ndarray]:
    with labelkit.open_store(store) as opened:
        return [photos / key for key in opened.ids], np.array(opened.embeddings)


def test_a_run_embeds_as_the_command_does(photos: Path, tmp_path: Path) -> None:
    options = {"backbone": "smallcnn", "image_size": 32, "epochs": 1, "batch_size": 4, "preset": "none"}
    labelkit.train.softmax(dataset=str(photos), out=tmp_path / "run", **options)
    labelkit.embed(
        dataset=str(photos), checkpoint=tmp_path / "run", split="all", out=tmp_path / "rows.h5", batch_size=5
    )
    paths, rows = files(photos, tmp_path / "rows.h5")

    network = labelkit.load_network(tmp_path / "run")

    assert (network.size, network.channels, network.training) == (32, 3, False)
    found = network.embed(paths, batch_size=5)
    assert found.shape == (12, network.dim)
    torch.testing.assert_close(found, torch.from_numpy(rows), rtol=1e-5, atol=1e-6)
    pixels = np.asarray(Image.open(paths[0]).convert("RGB"))
    assert torch.equal(network.prepare(pixels), network.prepare(paths[0]))
    assert torch.equal(network.embed([pixels]), network.embed([str(paths[0])]))


def test_it_is_a_module_that_trains_on(photos: Path) -> None:
    network = labelkit.load_network(backbone="smallcnn", random_weights=True, image_size=32, seed=3)
    images = torch.stack([network.prepare(path) for path in sorted(photos.glob("a/*.png"))])
    network.train()
    network.embed([sorted(photos.glob("a/*.png"))[0]])
    assert network.training  # as before
    network(images).square().mean().backward()
    gradients = [parameter.grad for parameter in network.parameters() if parameter.requires_grad]
    assert any(gradient is not None and gradient.abs().max() > 0 for gradient in gradients)
    again = labelkit.load_network(backbone="smallcnn", random_weights=True, image_size=32, seed=3)
    other = labelkit.load_network(backbone="smallcnn", random_weights=True, image_size=32, seed=4)
    first, same, changed = (next(iter(one.parameters())) for one in (network, again, other))
    assert torch.equal(first, same)
    assert not torch.equal(first, changed)


def test_pixels_are_a_network_too(photos: Path, tmp_path: Path) -> None:
    labelkit.embed(dataset=str(photos), backbone="pixels", image_size=8, split="all", out=tmp_path / "rows.h5")
    paths, rows = files(photos, tmp_path / "rows.h5")
    found = labelkit.load_network(backbone="pixels", image_size=8).embed(paths)
    torch.testing.assert_close(found, torch.from_numpy(rows), rtol=1e-6, atol=1e-6)
    assert labelkit.load_network(backbone="pixels", image_size=8).embed([]).shape == (0, 192)


def test_what_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nosuch"):
        labelkit.load_network(tmp_path / "nosuch")
    with pytest.raises(ConfigError, match="checkpoint"):
        labelkit.load_network(tmp_path / "run", backbone="smallcnn")
    with pytest.raises(ConfigError, match="image_size"):
        labelkit.load_network(backbone="smallcnn", random_weights=True, image_size=0)


def test_images_that_are_none_are_refused(tmp_path: Path) -> None:
    network = labelkit.load_network(backbone="pixels", image_size=8)
    (tmp_path / "text.png").write_text("text")
    with pytest.raises(DatasetError, match=r"text.png.*cannot be read as an image"):
        network.prepare(tmp_path / "text.png")
    for pixels in (np.zeros((4, 4), np.uint8), np.zeros((4, 4, 3), np.float32), np.zeros((0, 4, 3), np.uint8)):
        with pytest.raises(DatasetError, match="uint8"):
            network.prepare(pixels)
