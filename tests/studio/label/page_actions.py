"""What a person does on the page of labeling, and reads there."""

import csv
import io
import re
from pathlib import Path
from typing import Any


def said(page: Any, text: str) -> str:
    """Wait for what screen readers hear, and return it."""
    page.locator("#work-say", has_text=text).wait_for()
    return str(page.locator("#work-say").inner_text())


def progress(page: Any) -> str:
    return str(page.locator("#work-progress").inner_text())


def saved(page: Any) -> dict[str, str]:
    with page.expect_download() as download:
        page.locator("[data-work=s]").click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    return {row["path"]: row["label"] for row in csv.DictReader(io.StringIO(text))}


def name_group(page: Any, name: str) -> None:
    page.locator("#work-name").fill(name)
    page.keyboard.press("Enter")
    said(page, f"Group named {name}")


def tiles(page: Any) -> Any:
    return page.locator("#work-grid .work-tile")


def size(page: Any) -> int:
    """Images of the view, as its heading says."""
    found = re.search(r"\((\d+)\)$", page.locator("#work-view").inner_text())
    assert found is not None
    return int(found[1])
