"""A Chromium of this machine for tests, and pages that remember what they said and asked for."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WIDE, NARROW = {"width": 1300, "height": 900}, {"width": 400, "height": 800}


def chromium() -> Iterator[Any]:
    """Give a browser without a window; skips the test where there is none."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser here: none of {', '.join(names)}")
    with driver.sync_playwright() as playwright:
        # inside a container Chromium cannot make its sandbox; the page is our own
        opened = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield opened
        opened.close()


class Opened:
    """A page and what it said and asked for."""

    def __init__(self, browser: Any, url: str | Path, wait: str = "html[data-painted]", **options: Any) -> None:
        self.context = browser.new_context(**({"viewport": WIDE, "accept_downloads": True} | options))
        self.context.set_default_timeout(10_000)
        self.page = self.context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(url.as_uri() if isinstance(url, Path) else url)
        self.page.wait_for_selector(wait, timeout=30_000)
