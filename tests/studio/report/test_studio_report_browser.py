"""The page of ``labelkit report`` in a real browser: it opens from disk, is used by mouse and by keyboard alone."""

import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import KMeansConfig
from labelkit.commands.embed.embed import embed_images
from labelkit.options.embed import EmbedConfig
from labelkit.studio.report.build import write_report
from labelkit.studio.report.options import ReportConfig
from tests.commands.browsing import Opened

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """The page of a store with clusters, labels, one label that is wrong and one file that comes twice."""
    folder = tmp_path_factory.mktemp("report")
    copy = Path(shutil.copytree(photos, folder / "photos"))
    shutil.copy2(copy / "ant" / "00.png", copy / "dog" / "ant.png")
    index, out = folder / "photos.h5", folder / "report.html"
    embed_images(EmbedConfig(dataset=str(copy), backbone="pixels", image_size=8, out=index))
    cluster_store(KMeansConfig(index=index, num_clusters=4))
    write_report(ReportConfig(index=index, out=out, projection="pca"))
    return out


@pytest.fixture
def open_page(browser: Any, report: Path) -> Iterator[Any]:
    """Return a function that opens the page; afterwards nothing was said or asked for, whatever was done."""
    opened: list[Opened] = []

    def make(**options: Any) -> Any:
        opened.append(Opened(browser, report, **options))
        return opened[-1].page

    yield make
    for one in opened:
        one.context.close()
        assert one.said == []
        # the file itself, and the pictures in it
        assert {url for url in one.asked if not url.startswith("data:image/webp")} == {report.as_uri()}


def lazy_getattr(page: Any, where: str) -> list[str]:
    return [str(name) for name in page.eval_on_selector_all(f"{where} .tile", "all => all.map(one => one.title)")]


def test_every_picture_is_drawn(open_page: Any) -> None:
    page = open_page()

    blank = page.evaluate(
        """() => [...document.querySelectorAll('canvas[data-draw]')].filter((one) => {
            const pixels = one.getContext('2d').getImageData(0, 0, one.width, one.height).data;
            return !pixels.some((value, place) => place % 4 === 3 && value > 0);
        }).length"""
    )
    assert page.locator("canvas[data-draw]").count() >= 4 * 8
    assert blank == 0


def test_a_click_opens_a_group_and_a_tile_changes_the_neighbors(open_page: Any) -> None:
    page = open_page()
    group = page.locator("details.group").first
    group.locator("summary").click()
    group.locator(".tile").nth(0).click()
    first = lazy_getattr(page, "#panel")
    group.locator(".tile").nth(1).click()
    second = lazy_getattr(page, "#panel")

    assert len(first) == len(second) == 12
    assert first != second
    assert group.locator(".tile").nth(1).get_attribute("aria-pressed") == "true"
    # a neighbor is chosen in turn, and back again
    page.locator("#panel .tile").first.click()
    assert page.locator("#panel-name").inner_text() == second[0]
    page.get_by_role("button", name="Back").click()
    assert lazy_getattr(page, "#panel") == second


def test_keys_open_a_group_walk_its_tiles_choose_and_close(open_page: Any) -> None:
    page = open_page()
    page.locator("details.group summary").first.focus()
    page.keyboard.press("Enter")
    tiles = page.locator("details.group").first.locator(".tiles").first.locator(".tile")
    tiles.first.wait_for()  # a group is filled when it opens, a moment after the key
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")

    assert tiles.nth(1).evaluate("one => one === document.activeElement")
    assert tiles.nth(1).evaluate("one => getComputedStyle(one).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    assert page.locator("#panel-name").inner_text() == tiles.nth(1).get_attribute("title")
    assert "12 neighbors shown" in page.locator("#panel-say").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#panel-body").is_hidden()
    assert tiles.nth(1).evaluate("one => one === document.activeElement")


def test_the_map_is_walked_with_arrows_and_pointed_at(open_page: Any) -> None:
    page = open_page()
    canvas = page.locator("#map-canvas")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    first = page.locator("#map-status").inner_text()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    second = page.locator("#map-status").inner_text()
    page.keyboard.press("Enter")

    assert first
    assert second not in ("", first)
    assert second.startswith(page.locator("#panel-name").inner_text())
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowLeft")
    assert page.locator("#map-tip").is_visible()
    page.locator("#map-by").select_option("label")
    assert page.locator("#map-legend button").count() == 4


def test_a_name_is_found(open_page: Any) -> None:
    page = open_page()
    page.get_by_label("Find images by name").fill("ANT/0")
    page.locator("#find-count", has_text="10 found").wait_for()

    assert lazy_getattr(page, "#find-tiles") == [f"ant/0{number}.png" for number in range(10)]


def test_parts_have_headings_names_and_captions(open_page: Any) -> None:
    page = open_page()

    assert page.get_by_role("main").count() == 1
    assert page.get_by_role("navigation").count() == 1
    assert page.get_by_role("complementary").count() == 1
    assert page.get_by_role("heading", level=1).count() == 1
    assert page.locator("section:not([aria-labelledby])").count() == 0
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("button.tile:not([aria-label])").count() == 0
    levels = page.eval_on_selector_all("main h2, main h3, main h4", "all => all.map(one => Number(one.tagName[1]))")
    assert all(after - before <= 1 for before, after in pairwise(levels))
    unnamed = page.eval_on_selector_all(
        "button, select, input",
        """all => all.filter(one => !(one.ariaLabel || one.textContent || one.labels?.length
            || one.hasAttribute('aria-labelledby'))).length""",
    )
    assert unnamed == 0
