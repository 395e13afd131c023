"""``labelkit find``: copies, odd images and wrong labels of made-up photos, and what stands in the way."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.embed.embed import embed_images
from labelkit.commands.exchange.importing import import_store
from labelkit.commands.exchange.options import ImportConfig
from labelkit.commands.find import novel, stored_images
from labelkit.commands.find.near_duplicates import find_duplicates
from labelkit.commands.find.novel import find_novel
from labelkit.commands.find.options import FindDuplicatesConfig, FindNovelConfig, FindOddConfig
from labelkit.commands.find.outliers import find_outliers
from labelkit.errors import StoreError
from labelkit.options.embed import EmbedConfig
from PIL import Image, ImageFilter
from tests.running import read_table
from tests.textures import SIZE, photo

Labelkit = Callable[..., Any]

DIFFERENT = 24


def embed(folder: Path) -> Path:
    index = folder.with_suffix(".h5")
    embed_images(EmbedConfig(dataset=str(folder), out=index, backbone="pixels", image_size=16, label_split="none"))
    return index


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 different photos of 160 x 120."""
    folder = tmp_path_factory.mktemp("drawn")
    for seed in range(DIFFERENT):
        photo(seed).save(folder / f"{seed:02d}.png")
    return folder


@pytest.fixture
def photos(drawn: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(drawn, tmp_path / "photos"))


@pytest.fixture
def copied(photos: Path) -> Path:
    """Four of them also as another file, saved again, of half the size, and cropped; two of one scene."""
    shutil.copy(photos / "03.png", photos / "03-again.png")
    photo(5).save(photos / "05-q55.jpg", quality=55)
    photo(7).resize((80, 60), Image.Resampling.LANCZOS).save(photos / "07-half.jpg", quality=85)
    photo(9).crop((8, 3, 160, 117)).save(photos / "09-crop.png")
    moved = photo(11)
    moved.paste(photo(100).crop((0, 0, 50, 50)), (60, 40))
    moved.save(photos / "11-moved.png")
    return photos


COPIES = [
    ("03-again.png", "03.png", "same file"),
    ("05.png", "05-q55.jpg", "edited copy"),
    ("07.png", "07-half.jpg", "edited copy"),
    ("09.png", "09-crop.png", "edited copy"),
]


def test_mirrored_and_turned_copies_and_clusters_of_copies_are_found(photos: Path, tmp_path: Path) -> None:
    photo(10).save(photos / "10-a.jpg", quality=80)
    photo(10).resize((80, 60), Image.Resampling.LANCZOS).save(photos / "10-b.png")
    shutil.copy(photos / "10-b.png", photos / "10-c.png")
    for number in range(30):
        shutil.copy(photos / "11.png", photos / f"copy-{number:02d}.png")
    turns = (Image.Transpose.FLIP_LEFT_RIGHT, Image.Transpose.ROTATE_180, Image.Transpose.ROTATE_90)
    for number, turn in enumerate(turns):
        photo(number).transpose(turn).save(photos / f"{number:02d}-turned.jpg", quality=85)
    out = tmp_path / "duplicates.csv"
    found: Any = find_duplicates(FindDuplicatesConfig(index=embed(photos), out=out)).to_json()

    rows = [(row["image_a"], row["image_b"], row["kind"]) for row in read_table(out)]
    expected = [(f"{number:02d}.png", f"{number:02d}-turned.jpg", "turned copy") for number in range(3)]
    assert sorted(row for row in rows if row[2] == "turned copy") == expected
    # of one file many times, each further image is one pair
    assert [row[0] for row in rows if row[1].startswith("copy-")] == ["11.png"] * 30
    assert found["spare_images"] == 3 + 3 + 30
    clusters = {one["kind"]: sorted(one["images"]) for one in found["clusters"] if "10.png" in one["images"]}
    assert clusters == {"copies": ["10-a.jpg", "10-b.png", "10-c.png", "10.png"]}


def test_symmetric_pictures_and_small_drawings_are_no_turned_copies(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(6):
        half = np.asarray(photo(number))[:, :80]
        Image.fromarray(np.concatenate([half, half[:, ::-1]], axis=1)).save(folder / f"{number}.png")
        drawing = photo(10 + number).resize((12, 12))
        drawing.save(folder / f"small-{number}.png")
        drawing.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / f"small-{number}-mirrored.png")
    out = tmp_path / "duplicates.csv"
    find_duplicates(FindDuplicatesConfig(index=embed(folder), out=out, bursts=False))
    assert [row for row in read_table(out) if row["kind"] == "turned copy"] == []


def test_pixels_find_copies_that_the_embeddings_miss(copied: Path, tmp_path: Path) -> None:
    out = tmp_path / "duplicates.csv"
    index = copied.with_suffix(".h5")
    # four pixels: many embeddings have much the same direction
    embed_images(EmbedConfig(dataset=str(copied), out=index, backbone="pixels", image_size=2, label_split="none"))
    find_duplicates(FindDuplicatesConfig(index=index, out=out, neighbors=1, bursts=False))
    rows = read_table(out)
    assert [(row["image_a"], row["image_b"], row["kind"]) for row in rows] == COPIES
    assert ([row["cluster"] for row in rows], rows[0]["similarity"]) == (["1", "2", "3", "4"], "1.0000")


def test_with_a_cache_only_new_images_are_read_and_nothing_else_is_found(
    copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = tmp_path / "later"
    later.mkdir()
    new = ("05-q55.jpg", "07.png", "11-moved.png", "20.png")
    for name in new:
        (copied / name).rename(later / name)
    out, cache = tmp_path / "duplicates.csv", tmp_path / "cache.npz"
    read: list[str] = []
    pixels = stored_images.read_store_image

    def note(files: Any, there: int, *rest: Any) -> Any:
        read.append(files.sample_ids[there])
        return pixels(files, there, *rest)

    monkeypatch.setattr(stored_images, "read_store_image", note)

    def found(**options: Any) -> bytes:
        read.clear()
        find_duplicates(FindDuplicatesConfig(index=copied.with_suffix(".h5"), out=out, overwrite=True, **options))
        return out.read_bytes()

    embed(copied)
    found(cache=cache)
    for name in new:
        shutil.move(later / name, copied / name)
    # one that was there goes, and one gets another name
    (copied / "15.png").unlink()
    (copied / "16.png").rename(copied / "00-first.png")
    copied.with_suffix(".h5").unlink()
    embed(copied)

    with_cache = found(cache=cache)
    assert sorted(read) == sorted(new)
    assert with_cache == found()
    assert b"11-moved.png" in with_cache
    for damaged in (b"", b"PK\x03\x04", b"something else"):
        cache.write_bytes(damaged)
        assert found(cache=cache) == with_cache
        assert len(read) > len(new)
    assert found(cache=cache) == with_cache
    assert read == []


@pytest.fixture
def with_odd(photos: Path) -> Path:
    """The photos with an image for each reason."""
    Image.new("RGB", SIZE, (120, 130, 110)).save(photos / "blank.png")
    photo(30).point(lambda value: value // 10).save(photos / "dark.png")
    photo(31).point(lambda value: 238 + value // 15).save(photos / "bright.png")
    photo(32).filter(ImageFilter.GaussianBlur(8)).save(photos / "blurred.png")
    photo(33).resize((40, 30), Image.Resampling.LANCZOS).save(photos / "tiny.png")
    photo(34).resize((480, 60), Image.Resampling.LANCZOS).save(photos / "wide.png")
    return photos


def test_odd_images_are_listed_with_their_reasons(with_odd: Path, tmp_path: Path) -> None:
    out, sheet = tmp_path / "odd.csv", tmp_path / "odd.png"
    result = find_outliers(FindOddConfig(index=embed(with_odd), out=out, sheet=sheet))
    rows = {row["path"]: row for row in read_table(out)}
    expected = {f"{reason}.png": reason for reason in ("blank", "dark", "bright", "blurred", "tiny")}
    for name, reason in (expected | {"wide.png": "odd shape"}).items():
        assert reason in rows[name]["reasons"].split("; "), name
    assert [name for name in rows if name[0].isdigit()] == []
    scores = [float(row["times_limit"]) for row in rows.values()]
    assert scores == sorted(scores, reverse=True)
    assert min(scores) >= 1
    assert (rows["wide.png"]["width"], rows["wide.png"]["height"]) == ("480", "60")
    assert result.paths == (out, sheet)


def test_row_far_from_all_others_is_unlike_them(tmp_path: Path) -> None:
    angles = np.linspace(0, 2 * np.pi, 60, endpoint=False)
    circle = np.stack([np.full(60, 10), np.cos(angles), np.sin(angles), np.zeros(60)], axis=1)
    rows = np.append(circle, [[0, 0, 0, -8]], axis=0)
    index = tmp_path / "rows.h5"
    source = tmp_path / "rows.npy"
    np.save(source, rows.astype(np.float32))
    import_store(ImportConfig(source=source, model="other", out=index))
    out = tmp_path / "odd.csv"
    find_outliers(FindOddConfig(index=index, out=out))
    (row,) = read_table(out)
    assert row["reasons"] == "unlike all others"
    assert (row["brightness"], row["width"]) == ("", "")
    assert float(row["unlike"]) >= 4
    with pytest.raises(StoreError, match=r"imported without( their)? images"):
        find_duplicates(FindDuplicatesConfig(index=index, out=tmp_path / "duplicates.csv"))
    with pytest.raises(StoreError, match=r"imported without( their)? images"):
        find_outliers(FindOddConfig(index=index, out=tmp_path / "other.csv", sheet=tmp_path / "odd.png"))


@pytest.fixture
def colors(tmp_path: Path, rng: np.random.Generator) -> Path:
    """Six red, six green and six blue squares in a flat folder."""
    folder = tmp_path / "colors"
    folder.mkdir()
    for i in range(18):
        pixels = np.eye(3)[i % 3] * 180 + rng.normal(30, 12, (16, 16, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i:02d}.png")
    return folder


def color_labels(path: Path, wrong: dict[int, str] | None = None, count: int = 18) -> Path:
    names = [(wrong or {}).get(i, ("red", "green", "blue")[i % 3]) for i in range(count)]
    path.write_text("path,label\n" + "".join(f"{i:02d}.png,{name}\n" for i, name in enumerate(names)))
    return path


def test_wrong_labels_are_listed_with_what_they_seem_to_be(colors: Path, tmp_path: Path, labelkit: Labelkit) -> None:
    labels = color_labels(tmp_path / "known.csv", {4: "blue", 9: "green", 17: "gray"})
    out, sheet = tmp_path / "check.csv", tmp_path / "check.png"

    answer = labelkit(
        "find", "mislabeled", "--index", embed(colors), "--labels", labels, "--out", out, "--sheet", sheet, "--json"
    )

    assert answer.code == 0, answer.err
    rows = read_table(out)
    assert {(row["path"], row["label"], row["suggested"]) for row in rows} == {
        ("04.png", "blue", "green"),
        ("09.png", "green", "red"),
    }
    assert [float(row["doubt"]) for row in rows] == sorted((float(row["doubt"]) for row in rows), reverse=True)
    by_path = {row["path"]: row for row in rows}
    assert int(by_path["04.png"]["nearest_of_label"][:2]) % 3 == 2
    assert int(by_path["04.png"]["nearest_of_suggested"][:2]) % 3 == 1
    assert (answer.json["labels"], answer.json["judged"], answer.json["doubtful_labels"]) == (18, 17, 2)
    assert "1 label cannot be checked, because no other image has the same label" in answer.err
    with Image.open(sheet) as drawn:
        assert drawn.width > 6 * 100


@pytest.fixture
def answered(colors: Path, tmp_path: Path, labelkit: Labelkit) -> Path:
    """Answers for the colors, of which three red and three green squares have labels, and no blue one."""
    index, labels = embed(colors), color_labels(tmp_path / "some.csv", count=9)
    labels.write_text("".join(line for line in labels.read_text().splitlines(keepends=True) if "blue" not in line))
    assert labelkit("discover", "answer", "--index", index, "--labels", labels, "--num-clusters", 3).code == 0
    return index


def test_labels_filled_in_for_novel_images_are_taken_and_other_stores_and_results_refused(
    answered: Path, photos: Path, tmp_path: Path, labelkit: Labelkit
) -> None:
    out = tmp_path / "novel.csv"
    find_novel(FindNovelConfig(index=answered, out=out))
    first = read_table(out)[0]["path"]
    assert "unlikeness" in read_table(out)[0]
    out.write_text(out.read_text().replace(f"{first},,", f"{first},blue,"))

    answer = labelkit("label", "--index", answered, "--from", out, "--json")

    assert answer.code == 0, answer.err
    assert answer.json["added"] == 1
    words = ["find", "novel", "--index", answered, "--out", tmp_path / "other.csv"]
    for more, told in (
        (("--previous", embed(photos)), "contains none of"),
        (("--answer", "categories"), "not predict"),
    ):
        answer = labelkit(*words, *more)
        assert (answer.code, told in answer.err) == (3, True), answer.err


def test_rows_that_were_not_answered_together_are_listed_too(
    tmp_path: Path, rng: np.random.Generator, labelkit: Labelkit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("labelkit.commands.discover.grouping.MAX_TOGETHER", 100)
    classes = np.arange(240) % 3
    np.save(tmp_path / "rows.npy", (3 * np.eye(8)[classes] + rng.normal(0, 0.5, (240, 8))).astype(np.float32))
    index, labels = tmp_path / "rows.h5", tmp_path / "known.csv"
    (tmp_path / "ids.txt").write_text("".join(f"{row:03}\n" for row in range(240)))
    words = ["import", "--source", tmp_path / "rows.npy", "--ids", tmp_path / "ids.txt", "--model", "rows"]
    assert labelkit(*words, "--out", index).code == 0
    labels.write_text("path,label\n" + "".join(f"{row:03},{'ab'[row % 3]}\n" for row in range(12) if row % 3 < 2))
    words = ["discover", "answer", "--index", index, "--labels", labels, "--num-clusters", 3]
    assert labelkit(*words).code == 0

    find_novel(FindNovelConfig(index=index, out=tmp_path / "novel.csv", num_images=240))

    rows = read_table(tmp_path / "novel.csv")
    assert len(rows) == 232
    assert {int(row["path"]) % 3 for row in rows[:70]} == {2}


def test_groups_without_a_label_take_turns(tmp_path: Path, colors: Path, labelkit: Labelkit) -> None:
    index = embed(colors)
    labels = tmp_path / "some.csv"
    labels.write_text("path,label\n00.png,red\n03.png,red\n06.png,red\n")
    assert labelkit("discover", "answer", "--index", index, "--labels", labels, "--num-clusters", 3).code == 0

    find_novel(FindNovelConfig(index=index, out=tmp_path / "novel.csv"))

    colors_of = [int(row["path"][:2]) % 3 for row in read_table(tmp_path / "novel.csv")]
    assert sorted(colors_of[:10]) == [1] * 5 + [2] * 5
    # two known images keep their places, the third group does not wait for all of the first
    order = novel._interleave_groups(np.arange(11), ["", *["a"] * 7, "", *["b"] * 2])
    assert order.tolist() == [0, 1, 2, 3, 4, 5, 9, 10, 8, 6, 7]


def test_later_images_of_a_new_class_come_first(
    colors: Path, tmp_path: Path, rng: np.random.Generator, labelkit: Labelkit
) -> None:
    earlier = embed(colors)
    for i in range(18, 27):  # six of a fourth color and three of the known ones
        pixels = (np.eye(3)[i % 3] if i < 21 else np.array([1, 1, 0])) * 180 + rng.normal(30, 12, (16, 16, 3))
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(colors / f"{i:02d}.png")
    index, out = embed(colors.rename(tmp_path / "more")), tmp_path / "novel.csv"
    labels = color_labels(tmp_path / "some.csv", count=9)
    assert labelkit("discover", "answer", "--index", index, "--labels", labels, "--num-clusters", 3).code == 0

    answer = labelkit("find", "novel", "--index", index, "--previous", earlier, "--out", out, "--json")

    assert answer.code == 0, answer.err
    rows = read_table(out)
    assert {row["path"] for row in rows} == {f"{i}.png" for i in range(18, 27)}
    assert {row["path"] for row in rows[:6]} == {f"{i}.png" for i in range(21, 27)}
    assert (answer.json["images"], answer.json["earlier"], answer.json["nearer_to_each_other"]) == (9, 18, 6)


@pytest.mark.parametrize("command", ["duplicates", "odd"])
def test_images_that_moved_are_an_error_until_their_place_is_named(
    command: str, copied: Path, tmp_path: Path, labelkit: Labelkit
) -> None:
    index, out = embed(copied), tmp_path / "found.csv"
    moved = copied.rename(tmp_path / "elsewhere")
    answer = labelkit("find", command, "--index", index, "--out", out)
    assert answer.code == 3
    assert "Pass --dataset" in answer.err
    assert not out.exists()
    assert labelkit("find", command, "--index", index, "--out", out, "--dataset", moved).code == 0


def test_images_that_changed_or_are_gone_are_left_out_and_said(
    copied: Path, tmp_path: Path, labelkit: Labelkit
) -> None:
    index, out = embed(copied), tmp_path / "duplicates.csv"
    (copied / "05-q55.jpg").unlink()
    photo(200).save(copied / "07.png")
    answer = labelkit("find", "duplicates", "--index", index, "--out", out, "--json")
    assert answer.code == 0
    assert "2 of 28 images" in answer.err
    assert answer.json["left_out"] == [
        {"reason": reason, "images": 1} for reason in ("not in the dataset", "not the image that was embedded")
    ]
    assert answer.json["pairs"] == {"same_file": 1, "edited_copy": 1, "turned_copy": 0, "same_scene": 1}
    clusters = [(found["cluster"], found["kind"]) for found in answer.json["clusters"]]
    assert (clusters, answer.json["spare_images"]) == ([(1, "copies"), (2, "copies"), (3, "same scene")], 2)


def test_images_all_of_one_color_are_neither_copies_nor_odd(tmp_path: Path) -> None:
    folder, copies, odd = tmp_path / "flat", tmp_path / "duplicates.csv", tmp_path / "odd.csv"
    folder.mkdir()
    for shade in range(100, 112):
        Image.new("RGB", SIZE, (shade, shade, shade)).save(folder / f"{shade}.png")
    index = embed(folder)
    find_duplicates(FindDuplicatesConfig(index=index, out=copies))
    find_outliers(FindOddConfig(index=index, out=odd))
    assert read_table(copies) == read_table(odd) == []
