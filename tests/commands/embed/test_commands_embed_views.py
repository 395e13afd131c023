"""``labelkit embed --views``: what the views are, that their bytes follow from image and seed, and what is refused."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from labelkit.commands.embed.embed import embed_images
from labelkit.errors import Damaged, Mismatch
from labelkit.options.embed import EmbedConfig
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.writing import EmbeddingRun
from PIL import Image
from tests.copies import copy_store
from tests.running import Labelkit

PIXELS = {"backbone": "pixels", "image_size": 8, "batch_size": 8, "part_rows": 16, "threads": 1}
WORDS = ("--backbone", "pixels", "--image-size", 8, "--batch-size", 8, "--part-rows", 16, "--threads", 1)


def embed(out: Path, folder: Path, **options: Any) -> EmbeddingStore:
    texts = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    embed_images(EmbedConfig(out=out, dataset=str(folder), **{**PIXELS, **texts}))
    return open_store(out)


def views_of(store: EmbeddingStore, name: str) -> np.ndarray:
    assert store.view_embeddings is not None
    return np.asarray(store.view_embeddings[store.sample_ids.index(name)])


@pytest.fixture(scope="module")
def once(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> EmbeddingStore:
    """The 48 photos with three views each, made in a single run."""
    return embed(tmp_path_factory.mktemp("views") / "photos.h5", photos, views=3)


# ---- what is stored


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


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["crop", "box"])
def test_boxes_of_one_color_are_the_picture_itself(tmp_path: Path, recipe: str) -> None:
    for number in range(9):
        (tmp_path / "plain").mkdir(exist_ok=True)
        Image.new("RGB", (20, 30), (20 * number, 90, 255 - 25 * number)).save(tmp_path / "plain" / f"{number}.png")
    store = embed(tmp_path / "x.h5", tmp_path / "plain", views=2, view_augmentation=recipe, dtype="float16")

    assert store.view_embeddings is not None
    assert store.view_embeddings.shape == (9, 2, 192)
    assert store.view_embeddings.dtype == np.float16
    assert np.array_equal(store.view_embeddings, np.repeat(store.embeddings[:, None], 2, axis=1))


@pytest.mark.slow
def test_rows_are_those_of_a_store_without_views(once: EmbeddingStore, photos: Path, tmp_path: Path) -> None:
    plain = embed(tmp_path / "plain.h5", photos)

    assert np.array_equal(plain.embeddings, once.embeddings)
    assert once.differences(plain) == []
    assert plain.view_embeddings is None
    assert plain.view_recipe == {}
    assert once.view_recipe["count"] == 3
    assert once.view_recipe["augmentation"] == "box"
    assert once.view_recipe["view"]["area_range"] == [0.16, 1.0]


def test_without_labelkit_views_are_rows_of_the_dataset_one_behind_the_other(once: EmbeddingStore) -> None:
    with h5py.File(once.path) as file:
        found = file["view_embeddings"][:].reshape(48, 3, 192)

    assert np.array_equal(found, once.view_embeddings)


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


@pytest.mark.slow
def test_logits_stand_beside_views(photos: Path, trained: Path, tmp_path: Path) -> None:
    embed_images(EmbedConfig(out=tmp_path / "x.h5", dataset=str(photos), checkpoint=trained, views=2, threads=1))
    store = open_store(tmp_path / "x.h5")

    assert store.view_embeddings is not None
    assert store.view_embeddings.shape == (48, 2, store.dim)
    assert set(store.extras) == {"logits"}


@pytest.mark.slow
def test_an_image_that_cannot_be_read_has_no_views(once: EmbeddingStore, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    (folder / "bee" / "bad.png").write_bytes(b"")
    store = embed(tmp_path / "x.h5", folder, views=3, max_bad=0.1)

    assert store.n == 48
    assert np.array_equal(store.view_embeddings, once.view_embeddings)


# ---- what decides about the bytes


def test_the_first_views_are_those_of_a_store_with_fewer(once: EmbeddingStore, photos: Path, tmp_path: Path) -> None:
    fewer = embed(tmp_path / "x.h5", photos, views=2)
    assert once.view_embeddings is not None
    assert np.array_equal(fewer.view_embeddings, once.view_embeddings[:, :2])


@pytest.mark.slow
def test_views_of_an_image_differ_and_follow_from_the_seed(once: EmbeddingStore, photos: Path, tmp_path: Path) -> None:
    other = embed(tmp_path / "x.h5", photos, views=3, view_seed=1)
    first, second, third = views_of(once, "ant/00.png")
    assert not np.array_equal(first, second)
    assert not np.array_equal(second, third)
    assert not np.array_equal(views_of(other, "ant/00.png"), views_of(once, "ant/00.png"))


@pytest.mark.slow
def test_an_image_keeps_its_views_in_another_listing(once: EmbeddingStore, photos: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(photos, folder)
    shutil.copy(folder / "cat" / "00.png", folder / "ant" / "0.png")
    more = embed(tmp_path / "x.h5", folder, views=3)

    for name in ("ant/00.png", "dog/11.png"):
        assert np.array_equal(views_of(more, name), views_of(once, name))


@pytest.mark.slow
def test_workers_change_no_byte(once: EmbeddingStore, photos: Path, tmp_path: Path) -> None:
    store = embed(tmp_path / "x.h5", photos, views=3, num_workers=1)
    assert store.path.read_bytes() == once.path.read_bytes()


@pytest.mark.slow
def test_a_run_that_is_stopped_and_resumed_gives_the_bytes_of_one_run(
    once: EmbeddingStore, photos: Path, tmp_path: Path, labelkit: Labelkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_part = EmbeddingRun.write_part

    def write_then_stop(self: EmbeddingRun, part: int, **values: Any) -> None:
        write_part(self, part, **values)
        os.kill(os.getpid(), signal.SIGTERM)

    words = ("embed", "--dataset", photos, *WORDS, "--views", 3, "--out", tmp_path / "x.h5")
    monkeypatch.setattr(EmbeddingRun, "write_part", write_then_stop)
    codes = [labelkit(*words).code for _ in range(3)]
    monkeypatch.undo()
    assert labelkit(*words).code == 0

    assert codes == [143, 143, 143]
    assert (tmp_path / "x.h5").read_bytes() == once.path.read_bytes()


def test_an_unfinished_run_goes_on_with_its_own_views_alone(
    photos: Path, tmp_path: Path, labelkit: Labelkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_part = EmbeddingRun.write_part

    def write_then_stop(self: EmbeddingRun, part: int, **values: Any) -> None:
        write_part(self, part, **values)
        os.kill(os.getpid(), signal.SIGTERM)

    words = ("embed", "--dataset", photos, *WORDS, "--out", tmp_path / "x.h5")
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddingRun, "write_part", write_then_stop)
        assert labelkit(*words, "--views", 3).code == 143
    answer = labelkit(*words, "--views", 3, "--view-seed", 1)

    assert answer.code == 3
    assert "views.seed" in answer.err


# ---- copies and shards


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


def test_rows_without_views_are_copied_from_a_store_with_views(
    once: EmbeddingStore, photos: Path, tmp_path: Path
) -> None:
    store = embed(tmp_path / "x.h5", photos, reuse=once.path)
    assert np.array_equal(store.embeddings, once.embeddings)
    assert store.view_embeddings is None


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


@pytest.mark.slow
def test_the_same_command_finds_a_store_in_shards_done(photos: Path, tmp_path: Path, labelkit: Labelkit) -> None:
    words = ("embed", "--dataset", photos, *WORDS, "--views", 2, "--shards", 2, "--out", tmp_path / "x.h5", "--json")
    assert labelkit(*words).json["already_done"] is False
    again = labelkit(*words)
    assert again.json["already_done"] is True
    assert "stays" not in again.err


# ---- what is said and refused


def test_a_flipped_bit_in_a_view_is_found(once: EmbeddingStore, tmp_path: Path, labelkit: Labelkit) -> None:
    path = copy_store(once.path, tmp_path / "x.h5")
    with h5py.File(path) as file:
        place = file["view_embeddings"].id.get_offset() + 4 * 5
    raw = bytearray(path.read_bytes())
    raw[place] ^= 1
    path.write_bytes(bytes(raw))

    assert labelkit("verify", "--index", path).code == 3
    with pytest.raises(Damaged):
        _ = open_store(path).view_embeddings


def test_the_plan_tells_of_views_and_what_they_take(photos: Path, tmp_path: Path, labelkit: Labelkit) -> None:
    words = ("embed", "--dataset", photos, *WORDS, "--out", tmp_path / "x.h5", "--dry-run", "--json")
    plain, views = labelkit(*words).json, labelkit(*words, "--views", 8).json

    assert views["views"] == "8, box"
    # 48 rows of 192 float32, nine times
    assert views["store_mib"] - plain["store_mib"] == pytest.approx(8 * 48 * 192 * 4 / 2**20, abs=0.02)
    assert not (tmp_path / "x.h5.run").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--view-seed", 1), "--view-seed goes with --views"),
        (("--view-augmentation", "box"), "--view-augmentation goes with --views"),
        (("--views", 2, "--fast-decode"), "--views cut boxes"),
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


def test_rows_of_a_store_have_no_views_to_draw(once: EmbeddingStore, trained: Path, labelkit: Labelkit) -> None:
    answer = labelkit("embed", "--index", once.path, "--checkpoint", trained, "--views", 2, "--out", "x.h5")
    assert answer.code == 2
    assert "--views has no meaning with --index" in answer.err
