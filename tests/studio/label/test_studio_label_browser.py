"""Labeling in a real browser: the file alone and the server, by mouse, by keyboard alone, on a phone, in the dark."""

import csv
import io
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result
from labelkit.studio.label.label import label_images
from labelkit.studio.label.options import LabelConfig
from tests.commands.browsing import Opened
from tests.studio.label.conftest import READY
from tests.studio.label.page_actions import name_group, progress, said, saved, size, tiles
from tests.studio.label.serving import Serving

pytestmark = pytest.mark.slow


def test_a_group_is_named_and_the_next_one_without_a_name_comes(page: Any) -> None:
    first = size(page)
    name_group(page, "umbrella")

    assert f"{first} of 48 images labeled" in progress(page)
    assert "1 of 4 groups named" in progress(page)
    assert "umbrella" not in page.locator("#work-view").inner_text()
    assert page.locator("#work-classes .entry").all_inner_texts() == [f"umbrella\n{first}"]


def test_a_view_is_narrowed_by_path_and_by_what_is_labeled(page: Any) -> None:
    first = size(page)
    name_group(page, "umbrella")
    page.locator("#work-groups .entry", has_text="all images").click()
    page.locator("#work-filter-kind").select_option("labeled")
    assert size(page) == 0  # none by hand
    page.locator("#work-filter-kind").select_option("unlabeled")
    assert size(page) == 48 - first
    page.locator("#work-filter-kind").select_option("")
    page.locator("#work-filter-text").fill("ANT/")
    names = page.locator("#work-grid .work-tile").evaluate_all("all => all.length")
    assert size(page) == names == 12


def test_a_wrong_image_is_taken_out_and_undo_brings_it_back(page: Any) -> None:
    name_group(page, "umbrella")
    page.locator("#work-classes .entry").first.click()
    before = size(page)
    tiles(page).nth(1).click()
    page.locator("[data-work=x]").click()
    said(page, "1 image removed")
    after = size(page)
    page.keyboard.press("u")
    said(page, "Undone: not this")

    assert after == before - 1
    assert size(page) == before


def test_the_keyboard_alone_names_corrects_confirms_and_saves(page: Any) -> None:
    page.keyboard.press("n")
    page.keyboard.type("umbrella")
    page.keyboard.press("Enter")
    said(page, "Group named umbrella")
    page.keyboard.press("Escape")
    page.locator("#work-grid").focus()
    page.keyboard.press("k")  # back to the one with a name
    said(page, "Group umbrella")
    page.locator("#work-grid").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("r")
    said(page, "2 images rejected")
    page.keyboard.press("Control+a")
    page.keyboard.press("c")
    said(page, "confirmed")
    page.keyboard.press("j")
    page.keyboard.press("d")
    said(page, "Group dissolved")
    page.keyboard.press("Control+z")
    said(page, "Undone: dissolve")
    active = page.locator("#work-grid").get_attribute("aria-activedescendant")

    assert "umbrella" in set(saved(page).values())
    assert page.locator(f"#{active}").get_attribute("aria-posinset") is not None


def test_groups_are_merged_and_images_get_a_group_of_their_own(page: Any) -> None:
    before = page.locator("#work-groups .entry").count()
    total = size(page)
    tiles(page).nth(0).click()
    tiles(page).nth(1).click()
    page.keyboard.press("p")
    said(page, "2 images moved to a new group")
    assert size(page) == 2
    page.keyboard.press("g")
    page.locator("#work-pick-group").select_option(index=0)
    page.locator("#work-pick button[value=ok]").click()
    said(page, "2 images merged into")

    assert size(page) >= 2
    assert total > 2
    assert page.locator("#work-groups .entry").count() == before


def test_a_name_that_looks_like_another_is_asked_about(page: Any) -> None:
    name_group(page, "umbrella")
    page.locator("#work-name").fill("umbrela")
    page.keyboard.press("Enter")
    page.locator("#work-like[open]").wait_for()
    assert "resembles the existing class “umbrella”" in page.locator("#work-like-text").inner_text()
    page.locator("#work-like-old").click()
    said(page, "Group named umbrella")

    assert page.locator("#work-classes .entry").count() == 1


def test_suggested_images_come_one_by_one_with_answers_on_the_number_keys(page: Any) -> None:
    name_group(page, "umbrella")
    name_group(page, "dog")
    page.keyboard.press("Escape")
    page.locator("#work-grid").focus()
    page.keyboard.press("o")
    page.locator("#work-one[open]").wait_for()
    first = page.locator("#work-one-title").inner_text()
    answers = page.locator("#work-one-answers bdi").all_inner_texts()
    page.keyboard.press("1")
    page.locator("#work-one-progress", has_text=re.compile("^1 of ")).wait_for()
    skipped = page.locator("#work-one-title").inner_text()
    page.keyboard.press("s")
    page.keyboard.press("0")
    said(page, "is none of these")
    page.keyboard.press("u")
    said(page, "Undone: none of these")
    page.keyboard.press("Escape")
    page.locator("#work-one").wait_for(state="hidden")
    page.locator("#work-grid").focus()
    page.keyboard.press("o")
    page.locator("#work-one[open]").wait_for()

    third = page.locator("#work-one-title").inner_text()
    page.keyboard.press("Escape")
    page.locator("#work-one").wait_for(state="hidden")

    assert third not in (first, skipped)
    assert sorted(answers[:2]) == ["dog", "umbrella"]
    assert saved(page)[first] == answers[0]


def test_everything_has_a_name_for_screen_readers(page: Any) -> None:
    unnamed = page.eval_on_selector_all(
        "#work button, #work input, dialog input, dialog select, dialog button",
        """all => all.filter((one) => !(one.ariaLabel || one.textContent || one.labels?.length
            || one.hasAttribute('aria-labelledby'))).length""",
    )

    assert unnamed == 0
    assert tiles(page).first.get_attribute("aria-label").endswith("png, no label, group 0")
    assert tiles(page).first.get_attribute("aria-setsize") == str(size(page))


def test_the_file_keeps_work_until_it_is_opened_again_and_its_table_is_taken_in(
    browser: Any, report: Path, grouped: Path, tmp_path: Path
) -> None:
    opened = Opened(browser, report, READY)
    page = opened.page
    name_group(page, "umbrella")
    name_group(page, 'two, "words"')
    page.reload()
    said(page, "2 earlier actions restored")
    table = tmp_path / "labels.csv"
    with page.expect_download() as download:
        page.keyboard.press("s")
    download.value.save_as(table)
    opened.context.close()
    told = label_images(LabelConfig(index=grouped, from_=table)).values
    rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))

    assert opened.said == []
    assert {url for url in opened.asked if not url.startswith(("data:", "blob:"))} == {report.as_uri()}
    assert told["added"] == len(rows) > 2
    assert {row["label"] for row in rows} == {"umbrella", 'two, "words"'}
    assert {row["how"] for row in rows} == {"group"}


def test_the_server_keeps_every_action_and_goes_on_after_a_kill(
    served: Serving, grouped: Path, open_page: Callable[..., Any]
) -> None:
    page = open_page(served.link)
    name_group(page, "umbrella")
    labels = read_result(open_store(grouped), "labels-1")
    before = progress(page)
    page.close()
    assert served.stop(signal.SIGKILL) == -signal.SIGKILL
    again = Serving(grouped)
    page = open_page(again.link)

    assert progress(page) == before
    assert labels.params["actions"][0]["by"] == "Ann"
    page.close()
    assert again.stop() == 0


def test_a_conflict_between_two_tabs_is_shown(served: Serving, open_page: Callable[..., Any]) -> None:
    one, other = open_page(served.link), open_page(served.link)
    for page in (one, other):
        page.evaluate("setInterval = () => 0")
    name_group(one, "umbrella")
    other.locator("#work-name").fill("parasol")
    other.locator("#work-name").press("Enter")
    if other.locator("#work-conflict[open]").count() == 0:
        other.locator("#work-conflict[open]").wait_for(timeout=4000)
    assert "Ann changed group umbrella since this page was updated" in other.locator("#work-conflict-text").inner_text()
    other.locator("#work-conflict button[value=mine]").click()
    said(other, "Group named parasol")

    one.locator("#work-classes bdi", has_text="parasol").wait_for(timeout=6000)


def test_asking_again_learns_from_the_labels_and_leaves_what_was_decided(
    served: Serving, grouped: Path, open_page: Callable[..., Any]
) -> None:
    page = open_page(served.link)
    name_group(page, "umbrella")
    decided = page.locator("#work-classes .count").first.inner_text()
    page.locator("#work-name").fill("dog")
    page.keyboard.press("Enter")
    said(page, "Group named dog")
    page.keyboard.press("Escape")
    page.locator("[data-work=f]").click()
    page.locator("#work-asked[open]").wait_for(timeout=60_000)
    page.keyboard.press("Escape")
    kinds = [one["kind"] for one in read_result(open_store(grouped), "labels-1").params["actions"]]

    assert page.locator("#work-classes .entry", has_text="umbrella").locator(".count").inner_text() == decided
    assert kinds == ["name", "name", "predict again"]
    arrays = read_result(open_store(grouped), "answer").arrays
    right = float(100 * arrays["expected"].mean())
    assert 0 < right < 100
    assert f"expected correct: about {right:.0f}%" in progress(page)
    page.keyboard.press("u")
    said(page, "Undone: predict again")


def test_a_page_whose_server_is_gone_says_so_and_shows_nothing_as_done(served: Serving, browser: Any) -> None:
    opened = Opened(browser, served.link, READY)
    served.stop(signal.SIGKILL)
    opened.page.locator("#work-name").fill("umbrella")
    opened.page.keyboard.press("Enter")
    opened.page.locator("#work-warning", has_text="The server is not responding").wait_for()

    assert "0 of 48 images labeled" in progress(opened.page)
    opened.context.close()
