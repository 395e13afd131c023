"""``labelkit show attention``: the picture, its numbers, and what can go wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from labelkit.commands.common.images.plots import panels_size
from PIL import Image
from tests.tiers import quick_every


@pytest.fixture(scope="session")
def simgcd(
    tmp_path_factory: pytest.TempPathFactory, labelkit: Any, photos: Path, small: tuple[str | Path, ...]
) -> Path:
    """A run without an update. Tests must not change it."""
    out = tmp_path_factory.mktemp("runs") / "simgcd-photos"
    answer = labelkit("train", "simgcd", "--dataset", photos, "--label-split", "gcd", *small, "--out", out, "-q")
    assert answer.code == 0, answer.err
    return out


@pytest.mark.slow
def test_the_picture_has_a_row_per_image_and_the_same_command_gives_the_same_bytes(
    labelkit: Any, trained: Path, tmp_path: Path
) -> None:
    command = ("show", "attention", "--checkpoint", trained, "--num-images", 2, "--seed", 5)

    first = labelkit(*command, "--out", tmp_path / "a.png", "--json")
    again = labelkit(*command, "--out", tmp_path / "b.png", "-q")

    assert (first.code, again.code, again.out) == (0, 0, f"{tmp_path / 'b.png'}\n")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as picture:
        # two views, then three maps for block 1, whose keys move, and for block 3, the last
        assert picture.size == panels_size(2, 2 + 2 * 3)
    values = first.json
    assert (values["blocks"], values["aligned_blocks"], values["method"]) == ([1, 3], [1], "flipclass")
    assert len(values["images"]) == 2
    assert labelkit(*command[:-1], 6, "--out", tmp_path / "c.png", "--json").json["images"] != values["images"]


def test_numbers_are_those_of_the_maps(labelkit: Any, trained: Path, tmp_path: Path) -> None:
    answer = labelkit(
        "show", "attention", "--checkpoint", trained, "--rows", "7,0", "--block", "1,2", "--json",
        "--out", tmp_path / "a.png",
    ).json  # fmt: skip

    assert [(image["row"], image["image"], image["label"]) for image in answer["images"]] == [
        (7, "ant/07.png", "ant"),
        (0, "ant/00.png", "ant"),
    ]
    for image in answer["images"]:
        moved, above = image["blocks"]
        assert (moved["block"], moved["aligned"], above["block"], above["aligned"]) == (1, True, 2, False)
        assert moved["energy_align_after"] < moved["energy_align_before"]
        assert moved["update_rel"] > 0
        assert (above["energy_align_after"], above["update_rel"]) == (above["energy_align_before"], 0)
        for block in image["blocks"]:
            assert all(0 < block[f"entropy_{kind}"] <= 1 for kind in ("teacher", "updated", "student"))
            assert -1 <= block["correlation"] <= 1
            assert 0 < block["patch_share_teacher"] < 1
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == panels_size(2, 2 + 2 * 3)


@pytest.mark.parametrize("mode", quick_every(2, ["simgcd", "none"]))
def test_runs_without_an_update_have_two_maps_per_block(
    labelkit: Any, simgcd: Path, photos: Path, small: tuple[str | Path, ...], tmp_path: Path, mode: str
) -> None:
    run = simgcd
    if mode == "none":
        run = tmp_path / "run"
        words = ("--dataset", photos, "--label-split", "gcd", "--align-mode", "none", *small, "--out", run, "-q")
        assert labelkit("train", "flipclass", *words).code == 0

    answer = labelkit(
        "show", "attention", "--checkpoint", run, "--num-images", 2, "--json", "--out", tmp_path / "a.png"
    )

    assert answer.code == 0, answer.err
    assert (answer.json["update"], answer.json["blocks"]) == (None, [3])
    (block,) = answer.json["images"][0]["blocks"]
    assert (block["entropy_updated"], block["correlation_updated"], block["energy_align_after"]) == (None, None, None)
    assert block["energy_align_before"] < 0
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.size == panels_size(2, 2 + 2)


BAD = {
    "block": (("--block", "1,4"), 2, "--block: no block 4 in a backbone of 4 blocks. Blocks count from 0 to 3."),
    "negative block": (("--block", "-1"), 2, "--block: no block -1 in a backbone of 4 blocks"),
    "too many images": (
        ("--num-images", "49"),
        2,
        "--num-images: photos has only 48 images, not 49. Request fewer images.",
    ),
    "row": (("--rows", "3,48"), 2, "--rows: row 48 is out of range: photos has 48 images. Rows count from 0 to 47."),
    "two choices": (
        ("--rows", "3", "--num-images", "2"),
        2,
        "choose images by only one of --num-images, --rows and --image",
    ),
    "image and data root": (("--image", "x.png", "--data-root", "."), 2, "--data-root cannot be combined with --image"),
    "no such image": (("--image", "{tmp}/none.png"), 3, "{tmp}/none.png: does not exist. Pass an image file."),
    "no image": (("--image", "{tmp}/text.png"), 3, "{tmp}/text.png: cannot be read as an image: not an image"),
    "picture exists": (("--out", "{tmp}/text.png"), 2, "{tmp}/text.png exists, but is not a picture"),
    "picture too large": (("--rows", ",".join(["1"] * 200)), 2, "200 x 8 panels make an image of"),
}


@pytest.mark.parametrize(("options", "code", "told"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_told_and_nothing_is_written(
    labelkit: Any, trained: Path, tmp_path: Path, options: tuple[str, ...], code: int, told: str
) -> None:
    (tmp_path / "text.png").write_text("in the way")
    words = [word.replace("{tmp}", str(tmp_path)) for word in options]
    for name, value in (("--checkpoint", trained), ("--out", tmp_path / "a.png")):
        if name not in words:
            words += [name, str(value)]

    answer = labelkit("show", "attention", *words)

    assert (answer.code, answer.out) == (code, "")
    assert told.replace("{tmp}", str(tmp_path)) in answer.err
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"text.png": "in the way"}
