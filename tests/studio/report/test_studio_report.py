"""``labelkit report``: what is on the page, that it loads nothing, and what can go wrong."""

import base64
import hashlib
import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import KMeansConfig
from labelkit.commands.discover.categories import classify_by_logits
from labelkit.commands.discover.options import DiscoverHeadConfig
from labelkit.commands.embed.embed import embed_images
from labelkit.data.registry import load_dataset
from labelkit.options.embed import EmbedConfig
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result, write_result
from labelkit.studio.report import page as page_module
from labelkit.studio.report.build import write_report
from labelkit.studio.report.groups import choose_result, describe_groups, read_all_results
from labelkit.studio.report.images import ShownImages, choose_images
from labelkit.studio.report.options import ReportConfig
from labelkit.studio.report.overview import describe_store, score_groupings
from labelkit.studio.report.thumbnails import PageImages
from PIL import Image
from tests.copies import copy_store

PCA = ("--projection", "pca")


@pytest.fixture(scope="module")
def clustered(tmp_path_factory: pytest.TempPathFactory, pixels: Path) -> Path:
    """A store of the pixels of the photos, with clusters. Tests must not change it."""
    out = copy_store(pixels, tmp_path_factory.mktemp("clustered") / "pixels.h5")
    cluster_store(KMeansConfig(index=out, num_clusters=4))
    return out


@pytest.fixture
def bare(tmp_path: Path, pixels: Path) -> Path:
    """A copy of that store without results."""
    return copy_store(pixels, tmp_path / "pixels.h5")


@pytest.fixture(scope="module")
def page(clustered: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of the store with clusters."""
    out = tmp_path_factory.mktemp("page") / "report.html"
    write_report(ReportConfig(index=clustered, out=out))
    return out.read_text(encoding="utf-8")


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def column(page: str, name: str, kind: str) -> Any:
    return np.frombuffer(base64.b64decode(data_of(page)["columns"][name]), dtype=kind)


def shown(features: Any, labels: list[int] | None = None, directed: list[bool] | None = None) -> ShownImages:
    rows = np.asarray(features, dtype=np.float32)
    count = len(rows)
    return ShownImages(
        np.arange(count),
        [f"{i}.png" for i in range(count)],
        rows,
        np.ones(count, dtype=bool) if directed is None else np.asarray(directed),
        np.full(count, -1, dtype=np.int64) if labels is None else np.asarray(labels, dtype=np.int64),
    )


@pytest.mark.slow
def test_policy_allows_this_style_and_this_script_alone(page: str) -> None:
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    rules = dict(rule.split(" ", 1) for rule in html.unescape(policy[1]).split("; "))
    scripts = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    styles = re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL)

    def digest(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert rules["default-src"] == "'none'"
    assert [rules["script-src"]] == [digest(text) for text in scripts]
    assert [rules["style-src"]] == [digest(text) for text in styles]
    assert rules["img-src"] == "data:"


def test_every_image_has_a_tile_of_its_size_with_its_pixels(page: str, photos: Path) -> None:
    import io

    names, tiles = data_of(page)["names"], column(page, "tile", "<i4")
    (sheet,) = re.findall(r'<script type="text/plain" id="sheet-\d+">(.*?)</script>', page, flags=re.DOTALL)
    assert sorted(tiles.tolist()) == list(range(48))
    assert (column(page, "tileSize", "|u1") == 8).all()
    with Image.open(io.BytesIO(base64.b64decode(sheet))) as picture:
        assert picture.format == "WEBP"
        drawn = np.asarray(picture.convert("L"))
    for image in (0, 17, 47):
        left, top = 8 * (tiles[image] % 8), 8 * (tiles[image] // 8)
        with Image.open(photos / names[image]) as original:
            np.testing.assert_array_equal(drawn[top : top + 8, left : left + 8], np.asarray(original))


def test_neighbors_in_the_page_are_the_nearest_by_plain_loops(page: str, clustered: Path) -> None:
    rows = np.asarray(open_store(clustered).embeddings, dtype=np.float64)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    data = data_of(page)
    found = column(page, "neighbor", "<u2").reshape(48, data["neighbors"])
    low, high = data["scoreRange"]
    scores = low + column(page, "score", "<u2").reshape(found.shape) / 65535 * (high - low)
    for image in range(48):
        cosines = rows @ rows[image]
        cosines[image] = -np.inf
        best = sorted(range(48), key=lambda other: (-cosines[other], other))[: data["neighbors"]]
        np.testing.assert_allclose(cosines[found[image]], cosines[best], atol=1e-6)
        np.testing.assert_allclose(scores[image], cosines[best], atol=(high - low) / 65535 + 1e-6)


@pytest.mark.slow
def test_hostile_names_are_shown_as_they_are(labelkit: Any, pictures: list[Image.Image], tmp_path: Path) -> None:
    root = tmp_path / "photos"
    # the path below the root begins with the end of a script
    evil = root / "<" / "script><img src=x onerror=alert(1)>.png"
    evil.parent.mkdir(parents=True)
    raw = root / os.fsdecode(b"not \xff utf-8.png")
    turned = root / "turned \u202egnp.png"
    names = [evil, raw, turned, root / "plain.png"]
    for row, path in enumerate(names):
        try:
            pictures[13 * row].save(path)
        except OSError:
            pytest.skip("this file system takes no such names")
    index, out = tmp_path / "<_title><img src=x>.h5", tmp_path / "report.html"
    embed_images(EmbedConfig(dataset=str(root), backbone="pixels", image_size=8, out=index))
    cluster_store(KMeansConfig(index=index, num_clusters=2))
    answer = labelkit("report", "--index", index, "--out", out, *PCA, "--json")

    assert answer.code == 0, answer.err
    text = out.read_text(encoding="utf-8")
    body = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert "<img" not in text
    assert text.count("</script>") == len(re.findall(r"<script[ >]", text))
    assert "&lt;_title&gt;&lt;img src=x&gt;.h5" in body
    assert "\u202e" not in text
    data = data_of(text)
    assert set(data["names"]) == {
        "</script><img src=x onerror=alert(1)>.png",
        "not \\xff utf-8.png",
        "turned \\u202egnp.png",
        "plain.png",
    }


def test_representative_images_are_nearest_to_the_mean_and_borderline_ones_between_two(make_store: Any) -> None:
    # a line: one group around 0, one around 10; lengths do not matter to l2
    places = [-1.0, 0.0, 1.0, 4.0, 9.0, 10.0, 11.0]
    store = make_store([[place, 1.0] for place in places])
    write_result(
        store, "made", kind="clusters", arrays={"cluster_ids": np.array([0, 0, 0, 0, 1, 1, 1])}, params={}, stage="test"
    )
    result = read_result(store, "made")
    images = shown([[place, 1.0] for place in places])
    found = describe_groups(store, images, result, "", 2)
    assert found is not None

    first, second = found.groups
    assert (first.size, second.size) == (4, 3)
    # means 1 and 10
    assert first.typical == (2, 1)
    assert second.typical == (5, 4)
    # margins (b - a) / max(a, b): image 3 has a = 3, b = 6; image 4 has a = 1, b = 8
    assert first.doubtful[0] == 3
    assert found.confidence[3] == pytest.approx(0.5)
    assert found.confidence[4] == pytest.approx(7 / 8)
    assert found.runner_up.tolist() == [1, 1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(
    ("used", "own", "known", "purities"),
    [
        (None, [0, 0, 0, 0], True, [2 / 3, 1.0]),
        ([1, 1, 0, 1], [0, 0, 0, 0], True, [1.0, None]),
        ([1, 0, 1, 0], [0, 0, 0, 0], True, [0.0, 1.0]),  # of the class that stands there, the most frequent of all
        (None, [1, 1, 0, 1], True, [1.0, None]),
        (None, [1, 1, 0, 1], False, [2 / 3, 1.0]),  # k-means uses no labels
    ],
)
def test_labels_that_a_result_used_do_not_make_its_groups_pure(
    make_store: Any, used: list[int] | None, own: list[int], known: bool, purities: list[float | None]
) -> None:
    store = make_store(np.eye(4), labels=[0, 1, 0, 1], labeled=own)
    arrays = {
        "cluster_ids": np.array([0, 0, 0, 1]),
        **({} if used is None else {"labeled": np.array(used, dtype=np.uint8)}),
        **({"names": ["a", "b"], "new_classes": np.zeros(2, dtype=np.uint8)} if known else {}),
    }
    write_result(store, "made", kind="clusters", arrays=arrays, params={}, stage="test")
    found = describe_groups(store, choose_images(store, 10, 0), read_result(store, "made"), "", 1)
    assert found is not None
    assert [group.purity for group in found.groups] == purities


@pytest.mark.parametrize(("labeled", "hidden"), [([1, 1, 0, 1], False), ([1, 0, 0, 1], True)])
def test_labels_are_hidden_if_training_cannot_use_all(make_store: Any, labeled: list[int], hidden: bool) -> None:
    store = make_store(np.eye(4), labels=[0, 1, -1, 1], labeled=labeled)

    assert describe_store(store)["has_hidden_labels"] is hidden


def test_an_unsure_answer_stands_in_the_group_of_its_best_guess(make_store: Any) -> None:
    store = make_store(np.eye(4))
    arrays = {
        "pseudo_labels": np.array([0, 0, -1, -1]),
        "group_ids": np.array([0, 0, 1, 1]),
        "names": ["a", "new-1"],
        "new_classes": np.array([0, 1], dtype=np.uint8),
        "confidence": np.array([0.9, 0.8, 0.4, 0.3], dtype=np.float32),
        "decisions": np.array([1, 1, 3, 3]),
        "decision_names": ["given", "known", "new", "unsure"],
    }
    write_result(store, "made", kind="answers", arrays=arrays, params={"min_confidence": 0.8}, stage="test")
    found = describe_groups(store, choose_images(store, 10, 0), read_result(store, "made"), "", 1)
    assert found is not None

    assert [(group.name, group.size) for group in found.groups] == [("a", 2), ("new-1", 2)]
    assert found.ungrouped == 0
    assert found.decided is not None
    assert found.decided["unsure"] == 2


def test_classes_come_before_clusters_and_the_name_that_was_asked_for_before_all(index: Path) -> None:
    cluster_store(KMeansConfig(index=index, num_clusters=3))
    classify_by_logits(DiscoverHeadConfig(index=index))
    store = open_store(index)
    found = read_all_results(store)

    chosen = choose_result(store, None, found)
    asked = choose_result(store, "k-means", found)

    assert chosen is not None
    assert chosen[0].name == "head"
    assert "from 2" in chosen[1]
    assert asked is not None
    assert asked[0].name == "k-means"


def test_the_page_shows_what_find_found(labelkit: Any, photos: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(photos, tmp_path / "photos"))
    shutil.copy2(copy / "ant" / "00.png", copy / "bee" / "<b>00.png")
    index, tables, out = tmp_path / "s.h5", tmp_path / "tables", tmp_path / "report.html"
    tables.mkdir()
    embed_images(EmbedConfig(dataset=str(copy), backbone="pixels", image_size=8, out=index))
    found = labelkit("find", "duplicates", "--index", index, "--out", tables / "duplicates.csv", "--json").json
    doubtful = labelkit("find", "mislabeled", "--index", index, "--out", tables / "check.csv", "--json").json
    (tables / "next.csv").write_text("path,label,reason\ncat/03.png,,because\nnobody.png,,gone\nant/01.png,,too\n")
    answer = labelkit("report", "--index", index, "--tables", tables, "--out", out, *PCA, "--json")

    assert answer.code == 0, answer.err
    data = data_of(out.read_text(encoding="utf-8"))
    suggested = [(data["names"][image], reason) for image, reason in data["work"]["suggested"]]
    assert suggested == [("cat/03.png", "because"), ("ant/01.png", "too")]
    assert answer.json["findings"] == {
        "check.csv": doubtful["doubtful_labels"],
        "novel.csv": None,
        "odd.csv": None,
        "duplicates.csv": found["spare_images"],
    }
    assert found["spare_images"] >= 1
    text = out.read_text(encoding="utf-8")
    assert f"<strong>{found['spare_images']}</strong> redundant copies" in text
    assert "bee/&lt;b&gt;00.png" in text
    assert "labelkit find odd --index s.h5 --out odd.csv" in text


def test_scores_are_against_the_labels_that_were_passed(make_store: Any, tmp_path: Path) -> None:
    store = make_store(np.eye(4), labels=[0, 0, 1, 1])
    write_result(
        store, "made", kind="clusters", arrays={"cluster_ids": np.array([0, 1, 0, 1])}, params={}, stage="test"
    )
    labels = tmp_path / "labels.csv"
    labels.write_text("path,label\n" + "".join(f"{name},{i % 2}\n" for i, name in enumerate(store.sample_ids)))
    result = read_result(store, "made")

    def information(**options: Any) -> float:
        config = ReportConfig(index=store.path, out=tmp_path / "x.html", **options)
        scored = score_groupings(store, {"made": result}, result, config)
        assert not isinstance(scored, str), scored
        return float(scored["scores"][0]["nmi"])

    assert (information(), information(labels=labels)) == pytest.approx((0.0, 1.0))


def test_commands_for_groups_name_the_store_where_the_title_is_that_of_the_photos(
    bare: Path, photos: Path, tmp_path: Path
) -> None:
    write_report(
        ReportConfig(index=bare, dataset=str(photos), tables=tmp_path, out=tmp_path / "r.html", projection="pca")
    )

    assert "discover categories --index pixels.h5<" in (tmp_path / "r.html").read_text(encoding="utf-8")


def test_a_table_of_another_kind_is_named(labelkit: Any, pixels: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("path,label\na.png,ant\n")
    answer = labelkit("report", "--index", pixels, "--tables", tmp_path, "--out", tmp_path / "report.html", *PCA)

    assert labelkit("report", "--index", pixels, "--tables", tmp_path / "none", "--out", tmp_path / "r.html").code == 3
    assert answer.code == 3
    assert "odd.csv: line 1 has no column 'reasons'. Run `labelkit find odd --out " in answer.err
    assert not (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_a_store_without_results_says_how_to_get_some(labelkit: Any, bare: Path, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    answer = labelkit("report", "--index", bare, "--out", out, *PCA, "--json")

    assert answer.code == 0, answer.err
    assert answer.json["result"] is None
    text = out.read_text(encoding="utf-8")
    assert "labelkit cluster k-means --index pixels.h5" in text
    assert 'id="scores"' not in text
    assert not (tmp_path / "pixels.h5.results").exists()


def test_images_that_are_gone_or_other_ones_become_placeholders(labelkit: Any, photos: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(photos, tmp_path / "photos"))
    index, out = tmp_path / "s.h5", tmp_path / "report.html"
    embed_images(EmbedConfig(dataset=str(copy), backbone="pixels", image_size=8, out=index))
    (copy / "ant" / "00.png").unlink()
    shutil.copy2(copy / "cat" / "00.png", copy / "bee" / "00.png")
    answer = labelkit("report", "--index", index, "--out", out, *PCA, "--json")

    assert answer.code == 0, answer.err
    assert answer.json["thumbnails"]["placeholders"] == {
        "not in the dataset": 1,
        "not the image that was embedded": 1,
    }
    assert answer.json["thumbnails"]["count"] == 46
    assert "2 images are shown as placeholders" in answer.err
    assert (column(out.read_text(encoding="utf-8"), "tile", "<i4") < 0).sum() == 2


@pytest.mark.parametrize("all_cases", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_page_takes_over_the_sheets_whose_images_it_still_shows(
    all_cases: bool, tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    images, out = tmp_path / "images", tmp_path / "report.html"
    images.mkdir()

    def add(first: int, last: int) -> None:
        for number in range(first, last):
            pixels = rng.integers(0, 256, (8, 5 + number % 4), dtype=np.uint8)
            Image.fromarray(pixels).save(images / f"{number:03}.png")

    read: list[int] = []
    plain = PageImages.read
    monkeypatch.setattr(PageImages, "read", lambda self, image, side: read.append(image) or plain(self, image, side))

    def page_of(store: str, max_size: str = "2MB") -> tuple[set[str], list[str]]:
        embed_images(EmbedConfig(dataset=str(images), backbone="pixels", image_size=8, out=tmp_path / store))
        read.clear()
        write_report(ReportConfig(index=tmp_path / store, out=out, overwrite=True, projection="pca", max_size=max_size))
        text = out.read_text(encoding="utf-8")
        names = data_of(text)["names"]
        sheets = re.findall(r'id="sheet-\d+">(.*?)</script>', text, flags=re.DOTALL)
        if data_of(text)["quality"] < 100:
            return {names[image] for image in read}, sheets
        drawn = [np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet))).convert("L")) for sheet in sheets]
        shapes = column(text, "tileSize", "|u1").reshape(-1, 2)
        for name, tile, (height, width) in zip(names, column(text, "tile", "<i4"), shapes, strict=True):
            left, top = 8 * (tile % 64 % 8), 8 * (tile % 64 // 8)
            shown = drawn[tile // 64][top : top + height, left : left + width]
            with Image.open(images / name) as original:
                np.testing.assert_array_equal(shown, np.asarray(original))
        return {names[image] for image in read}, sheets

    count = 600 if all_cases else 340  # of which a sheet of 64 is less than a fifth
    add(0, count)
    shutil.copy2(images / "003.png", images / "copy.png")
    assert len(page_of("first.h5")[0]) == count + 1

    add(count, count + 10)
    made, sheets = page_of("more.h5")
    assert made == {f"{number}.png" for number in range(count, count + 10)}

    gone = data_of(out.read_text(encoding="utf-8"))["names"].index("100.png")
    sheet = sheets[column(out.read_text(encoding="utf-8"), "tile", "<i4")[gone] // 64]
    (images / "100.png").unlink()
    made, sheets = page_of("fewer.h5")
    assert (len(made), sheet in sheets) == (63, False)
    if not all_cases:
        return

    text = out.read_text(encoding="utf-8")
    for damaged in (text.replace("maxSize", "other"), text.replace('"image":"', '"image":"' + "A" * 32)):
        out.write_text(damaged, encoding="utf-8")
        assert len(page_of("fewer.h5")[0]) == 610

    tight = f"{out.stat().st_size // 1000 + 2}kB"
    assert len(page_of("fewer.h5", tight)[0]) == 610
    add(610, 700)
    assert len(page_of("too-many.h5", tight)[0]) > 90  # of another size, so all again

    page_of("too-many.h5")
    add(700, 900)
    assert len(page_of("many.h5")[0]) == 900


def test_a_tile_is_made_from_what_the_jpeg_decoder_shrinks_to_twice_its_side(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    noise = Image.fromarray(rng.integers(0, 256, (30, 40, 3), dtype=np.uint8)).resize((800, 600))
    noise.save(tmp_path / "large.jpg")
    source = load_dataset(str(tmp_path), data_root=tmp_path)
    digest = np.frombuffer(hashlib.sha256((tmp_path / "large.jpg").read_bytes()).digest(), np.uint8)[None]
    made = PageImages(source, np.array([0]), digest).read(0, 64)

    # 600 is four times 128, the twofold side, and 22 more
    with Image.open(tmp_path / "large.jpg") as image:
        image.draft(None, (128, 128))
        expected = Image.fromarray(np.array(image))
    assert expected.size == (200, 150)
    expected.thumbnail((64, 64), Image.Resampling.LANCZOS)
    assert isinstance(made, Image.Image)
    assert made.size == (64, 48)
    assert np.array_equal(np.array(made), np.array(expected))


@pytest.mark.slow
def test_thumbnails_shrink_until_the_page_fits(labelkit: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    folder, index = tmp_path / "noise", tmp_path / "noise.h5"
    folder.mkdir()
    for row in range(40):
        Image.fromarray(rng.integers(0, 256, (160, 120, 3), dtype=np.uint8)).save(folder / f"{row:02d}.png")
    embed_images(EmbedConfig(dataset=str(folder), backbone="pixels", image_size=8, out=index))
    sides = []
    for number, size in enumerate(("2MB", "300kB", "150kB")):
        out = tmp_path / f"{number}.html"
        answer = labelkit("report", "--index", index, "--out", out, *PCA, "--max-size", size, "--json")
        assert answer.code == 0, answer.err
        assert answer.json["thumbnails"]["count"] == 40
        sides.append(answer.json["thumbnails"]["side"])
        assert out.stat().st_size <= {"2MB": 2e6, "300kB": 3e5, "150kB": 1.5e5}[size]

    assert sides[0] == 160
    assert sides[0] > sides[1] > sides[2]


@pytest.mark.slow
def test_of_many_images_some_are_drawn_and_sizes_count_all(labelkit: Any, clustered: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    answer = labelkit("report", "--index", clustered, "--out", out, *PCA, "--max-images", 10, "--json")

    assert answer.code == 0, answer.err
    assert answer.json["shown"] == 10
    data = data_of(out.read_text(encoding="utf-8"))
    assert data["n"] == 10
    assert sum(group["size"] for group in data["groups"]) == 48
    assert sum(group["shown"] for group in data["groups"]) == 10


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--result", "no-such"), 3),
        (("--max-size", "60"), 2),
        (("--max-size", "60MiB"), 2),
        (("--out", "no-such-folder/report.html"), 2),
    ],
)
def test_bad_options_are_told(labelkit: Any, pixels: Path, tmp_path: Path, options: tuple[str, str], code: int) -> None:
    answer = labelkit("report", "--index", pixels, "--out", tmp_path / "report.html", *PCA, *options)

    assert answer.code == code
    assert answer.err.startswith("error: ")
    assert not (tmp_path / "report.html").exists()


def test_a_store_that_was_imported_without_images_gets_a_page_without_pictures(
    labelkit: Any, tmp_path: Path, rng: np.random.Generator
) -> None:
    np.save(tmp_path / "x.npy", rng.normal(size=(30, 6)).astype(np.float32))
    store, out = tmp_path / "s.h5", tmp_path / "page.html"
    assert labelkit("import", "--source", tmp_path / "x.npy", "--out", store).code == 0
    answer = labelkit("report", "--index", store, "--out", out, *PCA)
    assert answer.code == 0, answer.err
    assert "imported without images" in out.read_text()
    answer = labelkit("report", "--index", store, "--out", out, "--dataset", tmp_path, "--overwrite", *PCA)
    assert answer.code == 3
    assert "Remove --dataset" in answer.err


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_doubtful_images_of_the_same_guess_stand_together_the_surest_first() -> None:
    data = {"n": 6, "groups": [{"name": "pear"}, {"name": "apple"}], "work": {"doubtful": 0.8}, "classes": []}
    columns = {"group": [0, 1, 0, 1, 1, 0], "label": [-1] * 6, "confidence": [0.5, 0.6, 0.7, 0.3, 0.9, 0.2]}
    state = Path(page_module.__file__).with_name("page") / "work_state.js"
    script = f"const data = {json.dumps(data)}, columns = {json.dumps(columns)};{state.read_text()};startWork();"

    shown = subprocess.run(
        ["node", "-e", f"{script}console.log(JSON.stringify(membersOfView({{ kind: 'guessed' }})))"],
        capture_output=True,
        text=True,
        check=True,
    )

    # apples first; 4 is sure
    assert json.loads(shown.stdout) == [1, 3, 2, 0, 5]
