"""The page in a real browser, further: labels of a file, splitting, what a reload keeps, dark, print, touch."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result
from tests.commands.browsing import NARROW
from tests.studio.label.page_actions import name_group, progress, said, saved, size, tiles
from tests.studio.label.serving import Serving

pytestmark = pytest.mark.slow


def take(page: Any, tmp_path: Path, text: str) -> None:
    """Choose a file of labels."""
    table = tmp_path / "mine.csv"
    table.write_bytes(text.encode())
    with page.expect_file_chooser() as chooser:
        page.locator("[data-work=i]").click()
    chooser.value.set_files(table)


def names(page: Any) -> list[str]:
    """Images in the order of the view, as far as they are drawn."""
    found = tiles(page).evaluate_all(
        "all => all.sort((a, b) => a.dataset.place - b.dataset.place).map(one => one.title)"
    )
    return [str(name) for name in found]


def test_labels_of_a_file_are_taken_in_as_one_action(page: Any, tmp_path: Path) -> None:
    page.locator("#work-groups .entry", has_text="all images").click()
    first, second, third, fourth = names(page)[:4]
    text = f'\ufeffFile Name;Class\r\n".\\{first}";"dog; ""big"""\r\n{second};cat\r\n{third};\r\nnowhere.png;cat\r\n'
    text += f"{fourth};None\r\n"
    take(page, tmp_path, text)
    page.locator("#work-take[open]").wait_for()
    told = page.locator("#work-take-text").inner_text()
    assert not page.locator("#work-take-all").is_visible()
    page.locator("#work-take-new").click()
    said(page, "2 images labeled by mine.csv")

    assert "Lines without a label: 2." in told
    assert "Paths that match no image, or several: 1, first: nowhere.png." in told
    assert saved(page) == {first: 'dog; "big"', second: "cat"}
    page.keyboard.press("u")
    said(page, "Undone: import")
    assert saved(page) == {}


def test_labels_that_are_there_are_replaced_only_when_that_is_said(page: Any, tmp_path: Path) -> None:
    page.locator("#work-groups .entry", has_text="all images").click()
    first, second = names(page)[:2]
    take(page, tmp_path, f"path,label\n{first},dog\n")
    page.locator("#work-take-new").click()
    said(page, "1 image labeled by mine.csv")
    take(page, tmp_path, f"path,label\n{first},cat\n{second},dogg\n")
    page.locator("#work-take[open]").wait_for()
    assert "Different label, or rejected: 1 image." in page.locator("#work-take-text").inner_text()
    page.locator("#work-take-new").click()
    said(page, "1 image labeled by mine.csv")
    assert saved(page) == {first: "dog", second: "dogg"}
    take(page, tmp_path, f"path,label\n{first},cat\n{second},dogg\n")
    page.locator("#work-take-all").click()
    said(page, "1 image labeled by mine.csv")

    assert saved(page) == {first: "cat", second: "dogg"}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a,b\n1,2\n", "has no path column"),
        ("path,what\nx.png,cat\n", "no label column"),
        ("path,class,category\nx.png,cat,dog\n", "several label columns"),
        ("", "has no path column"),
    ],
)
def test_a_file_that_is_no_table_of_labels_is_refused(page: Any, tmp_path: Path, text: str, problem: str) -> None:
    take(page, tmp_path, text)
    page.locator("#work-warning", has_text=problem).wait_for()

    assert "Nothing was changed" in page.locator("#work-warning").inner_text()
    assert "0 of 48 images labeled" in progress(page)


def test_a_name_that_stands_for_no_label_is_refused(page: Any) -> None:
    page.locator("#work-name").fill("None")
    page.keyboard.press("Enter")
    page.locator("#work-warning", has_text="means unlabeled").wait_for()

    assert "0 of 48 images labeled" in progress(page)


def test_what_was_done_before_a_reload_is_taken_back(page: Any) -> None:
    name_group(page, "umbrella")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    page.locator("#work-classes .entry", has_text="umbrella").wait_for()
    page.keyboard.press("Escape")
    page.locator("#work-grid").focus()
    page.keyboard.press("u")
    said(page, "Undone: name")

    assert "0 of 48 images labeled" in progress(page)


def test_a_group_is_split_by_the_tree(served: Serving, grouped: Path, open_page: Callable[..., Any]) -> None:
    page = open_page(served.link)
    before, groups = size(page), page.locator("#work-groups .entry").count()
    page.locator("#work-grid").focus()
    page.keyboard.press("t")
    heard = said(page, "Split:")
    large, small = map(int, re.findall(r"(\d+) images?", heard))
    kinds = [one["kind"] for one in read_result(open_store(grouped), "labels-1").params["actions"]]

    assert large + small == before
    assert size(page) == large
    assert page.locator("#work-groups .entry").count() == groups + 1
    assert kinds == ["split"]
    page.keyboard.press("u")
    said(page, "Undone: split")
    assert size(page) == before


def test_fingers_choose_label_and_go_one_by_one(
    request: pytest.FixtureRequest, served: Serving, open_page: Callable[..., Any]
) -> None:
    page = open_page(served.link, has_touch=True, is_mobile=True, viewport=NARROW)
    tiles(page).nth(0).tap()
    tiles(page).nth(1).tap()
    assert page.locator("#work-chosen").inner_text() == "2 images selected"
    page.locator("[data-work=l]").tap()
    page.locator("#work-ask-name").fill("dog")
    page.locator("#work-ask button[value=ok]").tap()
    said(page, "2 images labeled dog")
    page.locator("[data-work=o]").tap()
    page.locator("#work-one[open]").wait_for()
    page.locator("#work-one-answers button").first.tap()
    page.locator("#work-one-progress", has_text=re.compile("^1 of ")).wait_for()
    sizes = page.eval_on_selector_all(
        "#work-one button",
        "all => all.map(one => one.getBoundingClientRect()).map(one => Math.min(one.width, one.height))",
    )

    assert min(sizes) >= 24  # what WCAG 2.2 asks of a target
    assert page.evaluate("document.documentElement.scrollWidth") <= NARROW["width"]
