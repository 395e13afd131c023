"""Patches through the commands: embed --dense, retrieve of a patch."""

from pathlib import Path

import numpy as np
import pytest
import torch
from labelkit.commands.common.patch_embeddings import compute_view_regions
from labelkit.data.views.spec import ViewSpec
from labelkit.models.inference import BackboneNetwork
from labelkit.store.embeddings import open_store
from labelkit.store.patches import open_patches, patches_folder
from PIL import Image
from tests.copies import copy_store
from tests.running import Labelkit

NETWORK = ("--backbone", "vit_nano_p8_32", "--random-weights", "--batch-size", 8, "--part-rows", 16)


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory, photos: Path, labelkit: Labelkit) -> Path:
    """The photos with patches. Tests must not change it; results go beside a copy."""
    out = tmp_path_factory.mktemp("dense") / "photos.h5"
    answer = labelkit("embed", "--dataset", photos, *NETWORK, "--dense", "--out", out, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["patches"]["patches"] == 48 * 16
    return out


@pytest.fixture
def copied(tmp_path: Path, dense: Path) -> Path:
    return copy_store(dense, tmp_path / "photos.h5")


def all_bytes(out: Path) -> list[bytes]:
    return [path.read_bytes() for path in [out, *sorted(patches_folder(out).iterdir())]]


def all_patches(index: Path) -> np.ndarray:
    blocks = open_patches(open_store(index)).iterate_blocks()
    return np.concatenate([block.features for block in blocks]).astype(np.float32)


@pytest.mark.slow
def test_stored_patches_are_the_networks_own_in_half_precision(dense: Path, photos: Path) -> None:
    network = BackboneNetwork("vit_nano_p8_32", seed=0).eval()
    pixels = [Image.open(photos / "ant" / f"{i:02d}.png").convert("RGB").resize((32, 32), 3) for i in range(8)]
    images = (torch.from_numpy(np.stack([np.asarray(p) for p in pixels])).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    with torch.inference_mode():
        embeddings, maps = network.embed(images).numpy(), network.patch_features(images).numpy()

    store = open_store(dense)
    patches = open_patches(store)
    assert patches.dtype == "float16"
    assert patches.layer == "backbone"
    for row in range(8):
        image = patches.get_image(row)
        assert image.grid == (4, 4)
        assert image.region == (0, 0, 8, 8)
        np.testing.assert_allclose(image.features.reshape(4, 4, 48), maps[row], atol=2e-3)
    np.testing.assert_allclose(store.embeddings[:8], embeddings, atol=1e-4)


def test_the_store_is_the_same_with_and_without_patches(
    dense: Path, photos: Path, tmp_path: Path, labelkit: Labelkit
) -> None:
    out = tmp_path / "photos.h5"
    assert labelkit("embed", "--dataset", photos, *NETWORK, "--out", out).code == 0
    assert out.read_bytes() == dense.read_bytes()
    # and patches can be added later
    assert labelkit("embed", "--dataset", photos, *NETWORK, "--dense", "--out", out).code == 0
    assert all_bytes(out) == all_bytes(dense)


def test_regions_are_what_a_center_crop_keeps() -> None:
    view = ViewSpec(224, resize_ratio=256 / 224)
    sizes = np.array([[512, 1024], [256, 256]], dtype=np.uint32)
    np.testing.assert_allclose(compute_view_regions(sizes, view), [[288, 32, 736, 480], [16, 16, 240, 240]])


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--backbone", "pixels", "--image-size", 8, "--dense"), 2, "pixels: has no feature map"),
        ((*NETWORK, "--dense", "--image-size", 4), 2, "patch"),
    ],
)
def test_what_cannot_be_made_is_told_and_leaves_nothing(
    photos: Path, tmp_path: Path, labelkit: Labelkit, options: tuple[object, ...], code: int, message: str
) -> None:
    answer = labelkit("embed", "--dataset", photos, *options, "--out", tmp_path / "x.h5")
    assert (answer.code, message in answer.err) == (code, True), answer.err
    assert list(tmp_path.iterdir()) == []


def brute_force(rows: np.ndarray, query: np.ndarray) -> np.ndarray:
    exact = rows.astype(np.float64)
    return exact @ query / np.linalg.norm(exact, axis=1) / np.linalg.norm(query)


def test_the_nearest_patches_are_those_of_brute_force_without_the_own_image(copied: Path, labelkit: Labelkit) -> None:
    rows = all_patches(copied)
    query = 5 * 16 + 1 * 4 + 2
    cosines = brute_force(rows, rows[query].astype(np.float64))
    cosines[5 * 16 : 6 * 16] = -2
    expected = np.argsort(-cosines, kind="stable")[:7]

    answer = labelkit("retrieve", "--index", copied, "--query-rows", 5, "--patch", "1,2", "-k", 7, "--json")

    assert answer.code == 0, answer.err
    hits = answer.json["hits"]
    assert [hit["row"] * 16 + hit["patch"][0] * 4 + hit["patch"][1] for hit in hits] == expected.tolist()
    np.testing.assert_allclose([hit["score"] for hit in hits], cosines[expected], atol=1e-6)
    first = hits[0]
    row, column = first["patch"]
    assert first["box"] == [2 * column, 2 * row, 2 * column + 2, 2 * row + 2]
    own = labelkit("retrieve", "--index", copied, "--query-rows", 5, "--patch", "1,2", "-k", 1, "--own-image", "--json")
    assert (own.json["hits"][0]["row"], own.json["hits"][0]["patch"]) == (5, [1, 2])


def test_a_place_in_pixels_of_an_image_file_is_its_patch(
    copied: Path, photos: Path, tmp_path: Path, labelkit: Labelkit
) -> None:
    place = ("--index", copied, "-k", 3, "--json")
    by_row = labelkit("retrieve", *place, "--query-rows", 14, "--patch", "3,1").json
    sheet, table = tmp_path / "hits.png", tmp_path / "hits.csv"
    query = photos / "bee" / "02.png"
    by_file = labelkit(
        "retrieve", *place, "--query", query, "--pixel", "2.5,7.9", "--sheet", sheet, "--csv", table
    ).json
    assert by_file["query"]["patch"] == [3, 1]
    assert by_file["query"]["box"] == [2, 6, 4, 8]
    by_file_hits, by_row_hits = ([(hit["row"], hit["patch"]) for hit in found["hits"]] for found in (by_file, by_row))
    assert by_file_hits == by_row_hits
    assert 14 not in [hit["row"] for hit in by_file["hits"]]
    assert len(table.read_text().splitlines()) == 4
    with Image.open(sheet) as picture:
        assert picture.size[0] > 4 * 112


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--query-rows", 1, "--patch", "4,0"), 2, "patch 4,0 is outside the 4 x 4 patch grid of ant/01.png"),
        (("--query-rows", 1, "--pixel", "8,1"), 2, "pixel 8,1 is outside"),
        (("--query-rows", "1,2", "--patch", "0,0"), 2, "a single query"),
        (("--query-rows", 48, "--patch", "0,0"), 2, "has no row 48"),
        (("--query-rows", 1, "--patch", "0"), 2, "two numbers"),
        (("--query-rows", 1, "--patch", "0,0", "--search", "hnsw"), 2, "patch search is always exact"),
        (("--query-rows", 1, "--own-image"), 2, "requires --patch"),
        (("--query-rows", 1, "--patch", "0,0", "--path-pattern", "ant/01.png"), 2, "own-image"),
    ],
)
def test_places_that_are_none_are_told(
    dense: Path, labelkit: Labelkit, options: tuple[object, ...], code: int, message: str
) -> None:
    answer = labelkit("retrieve", "--index", dense, *options)
    assert (answer.code, message in answer.err) == (code, True), answer.err
