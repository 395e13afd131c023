"""``labelkit embed --views``: what the views are, that their bytes follow from image and seed, and what is refused."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from labelkit.commands.embed.embed import embed_images
from labelkit.errors import Mismatch
from labelkit.options.embed import EmbedConfig
from labelkit.store.embeddings import EmbeddingStore, open_store
from PIL import Image
from tests.running import Labelkit, embed_folder

PIXELS = {"backbone": "pixels", "image_size": 8, "batch_size": 8, "part_rows": 16, "threads": 1}
embed = partial(embed_folder, **PIXELS)
WORDS = ("--backbone", "pixels", "--image-size", 8, "--batch-size", 8, "--part-rows", 16, "--threads", 1)


def views_of(store: EmbeddingStore, name: str) -> np.ndarray:
    assert store.view_embeddings is not None
    return np.asarray(store.view_embeddings[store.sample_ids.index(name)])


@pytest.fixture(scope="module")
def once(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> EmbeddingStore:
    """The 48 photos with three views each, made in a single run."""
    return embed(tmp_path_factory.mktemp("views") / "photos.h5", photos, views=3)


@pytest.mark.slow
def test_views_of_recipe_crop_are_squares_of_the_picture_or_their_mirror_images(photos: Path, tmp_path: Path) -> None:
    store = embed(tmp_path / "crop.h5", photos, views=4, view_augmentation="crop")
    mean, std = (np.array(store.model.preprocess[key])[:, None, None] for key in ("mean", "std"))

    # 8 pixels are resized to 9, of which 8 in a row are taken: four places
    boxes = [(x, y, x + 64 / 9, y + 64 / 9) for x in (0, 8 / 9) for y in (0, 8 / 9)]
    seen = set()
    for name in ("ant/00.png", "cat/07.png"):
        picture = Image.open(photos / name).convert("RGB")
        cut = [np.asarray(picture.resize((8, 8), Image.Resampling.BICUBIC, box)) for box in boxes]
        made = np.stack([*cut, *(one[:, ::-1] for one in cut)]).transpose(0, 3, 1, 2) / 255
        expected = ((made - mean) / std).reshape(8, -1)
        distances = np.abs(views_of(store, name)[:, None] - expected).max(axis=2)
        assert distances.min(axis=1).max() < 1e-5
        seen |= set(distances.argmin(axis=1).tolist())
    assert len(seen) > 2


def test_digits_are_turned_and_not_mirrored_by_default(tmp_path: Path) -> None:
    options = {**PIXELS, "views": 3, "max_images": 20, "batch_size": 20}
    embed_images(EmbedConfig(out=tmp_path / "x.h5", dataset="digits", **options))

    store = open_store(tmp_path / "x.h5")
    assert store.view_recipe["augmentation"] == "digits"
    assert "hflip" not in store.view_recipe["view"]
    # each view is turned by an angle of its own
    assert store.view_embeddings is not None
    first, second, third = np.moveaxis(store.view_embeddings, 1, 0)
    assert (np.abs(first - second).max(axis=1) > 0.1).all()
    assert (np.abs(second - third).max(axis=1) > 0.1).all()


def test_the_first_views_are_those_of_a_store_with_fewer(once: EmbeddingStore, photos: Path, tmp_path: Path) -> None:
    fewer = embed(tmp_path / "x.h5", photos, views=2)
    assert once.view_embeddings is not None
    assert np.array_equal(fewer.view_embeddings, once.view_embeddings[:, :2])


def test_copied_rows_have_their_views(once: EmbeddingStore, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    Image.linear_gradient("L").save(folder / "ant" / "new.png")
    copied = embed(tmp_path / "x.h5", folder, views=3, reuse=once.path)
    scratch = embed(tmp_path / "y.h5", folder, views=3)

    assert copied.sample_ids == scratch.sample_ids
    assert np.array_equal(copied.view_embeddings, scratch.view_embeddings)


@pytest.mark.parametrize(
    ("options", "key"),
    [({"view_seed": 1}, "views.seed"), ({"views": 2}, "views.count"), ({"view_augmentation": "crop"}, "views.view")],
)
def test_views_that_are_drawn_otherwise_are_not_copied(
    once: EmbeddingStore, photos: Path, tmp_path: Path, options: dict[str, Any], key: str
) -> None:
    with pytest.raises(Mismatch, match=key):
        embed(tmp_path / "x.h5", photos, **{"views": 3, **options}, reuse=once.path)


@pytest.mark.slow
def test_shards_hold_the_views_and_pack_puts_them_together(
    once: EmbeddingStore, photos: Path, tmp_path: Path, labelkit: Labelkit
) -> None:
    words = ("embed", "--dataset", photos, *WORDS, "--views", 3, "--shards", 3, "--out", tmp_path / "x.h5")
    assert labelkit(*words).code == 0
    store = open_store(tmp_path / "x.h5")
    assert store.num_shards == 3
    assert store.content_digest == once.content_digest
    assert np.array_equal(store.view_embeddings, once.view_embeddings)
    with h5py.File(store.path) as index:
        assert "view_embeddings" not in index

    assert labelkit("pack", "--index", store.path, "--out", tmp_path / "y.h5").code == 0
    assert np.array_equal(open_store(tmp_path / "y.h5").view_embeddings, once.view_embeddings)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--view-seed", 1), "--view-seed requires --views"),
        (("--view-augmentation", "box"), "--view-augmentation requires --views"),
        (("--views", 2, "--fast-decode"), "cannot be combined with --views"),
        (("--views", 0), "views"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    photos: Path, tmp_path: Path, labelkit: Labelkit, words: tuple[object, ...], problem: str
) -> None:
    answer = labelkit("embed", "--dataset", photos, *WORDS, *words, "--out", tmp_path / "x.h5")
    assert answer.code == 2
    assert problem in answer.err
    assert not (tmp_path / "x.h5.run").exists()
