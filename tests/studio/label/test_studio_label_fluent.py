"""Ten and a hundred thousand thumbnails in a real browser: what a frame costs while the grid scrolls.

Processor time of the page's thread is counted, since other programs on the machine do not change it.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import KMeansConfig
from labelkit.commands.embed.embed import embed_images
from labelkit.options.embed import EmbedConfig
from labelkit.studio.report.build import write_report
from labelkit.studio.report.options import ReportConfig
from PIL import Image
from tests.commands.browsing import Opened
from tests.studio.label.serving import Serving

pytestmark = pytest.mark.slow

IMAGES, MAX_IMAGES, CLASSES = 10_000, 100_000, 200
FRAMES = 240
# 40 pixels a frame, and to another place from time to time
SCROLL = """async () => {
  const box = document.getElementById('work-grid'), deepest = box.scrollHeight;
  for (let i = 0; i < 240; i++) {
    if (i % 60 === 0) box.scrollTop = deepest * i / 240;
    box.scrollTop += 40;
    await new Promise(requestAnimationFrame);
  }
}"""


def grouped_colors(folder: Path, count: int, side: int) -> Path:
    """A store of images of 200 colors, a thousand in a folder."""
    generator = np.random.default_rng(0)
    colors = generator.integers(0, 256, (CLASSES, 3))
    for number in range(count):
        place = folder / "images" / f"{number // 1000:03}"
        if number % 1000 == 0:
            place.mkdir(parents=True)
        noise = generator.integers(-20, 21, (side, side, 3))
        pixels = np.clip(colors[number % CLASSES] + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(place / f"{number:06}.png", compress_level=1)
    made = folder / "many.h5"
    config = EmbedConfig(dataset=str(folder / "images"), backbone="pixels", image_size=4, label_split="none", out=made)
    embed_images(config)
    cluster_store(KMeansConfig(index=made, num_clusters=CLASSES))
    return made


def shown(browser: Any, url: str | Path) -> Iterator[Any]:
    opened = Opened(browser, url, "html[data-ready]")
    opened.page.locator("#work-groups .entry", has_text="all images").click()
    yield opened.page
    opened.context.close()
    assert opened.said == []


@pytest.mark.timeout(600)
def test_ten_thousand_images_of_a_file_scroll_and_are_rejected_and_taken_back(browser: Any, tmp_path: Path) -> None:
    index, out = grouped_colors(tmp_path, IMAGES, 32), tmp_path / "report.html"
    write_report(ReportConfig(index=index, out=out, projection="pca"))
    for page in shown(browser, out):
        assert "10,000" in page.locator("#work-view").inner_text()
        assert scrolled(page) < 200
        reject_all_and_undo(page, "10,000")


@pytest.mark.timeout(600)
def test_a_hundred_thousand_images_scroll_and_are_rejected_and_taken_back(browser: Any, tmp_path: Path) -> None:
    index = grouped_colors(tmp_path, MAX_IMAGES, 16)
    served = Serving(index)
    try:
        for page in shown(browser, served.link):
            assert "100,000" in page.locator("#work-view").inner_text()
            assert scrolled(page) < 200
            reject_all_and_undo(page, "100,000")
            page.locator("#work-groups .entry").first.click()
            page.locator("#work-name").fill("red")
            page.keyboard.press("Enter")
            page.locator("#work-say", has_text="Group named red").wait_for()
            page.locator("#work-grid").focus()
            page.keyboard.press("Escape")
            started = time.perf_counter()
            page.keyboard.press("o")
            page.locator("#work-one[open]").wait_for(timeout=120_000)
            print(f"one by one opened after {time.perf_counter() - started:.0f} s")  # noqa: T201 - for -s
    finally:
        assert served.stop() == 0


def scrolled(page: Any) -> int:
    """Scroll, say what a frame costs, and return how many tiles are there afterwards."""
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = metric(devtools, "TaskDuration")
    page.evaluate(SCROLL)
    milliseconds = 1000 * (metric(devtools, "TaskDuration") - before) / FRAMES
    heap = metric(devtools, "JSHeapUsedSize") / 2**20
    made = int(page.locator("#work-grid .work-tile").count())
    told = f"{milliseconds:.1f} ms of processor time per frame, {made} tiles made, {heap:.0f} MiB of objects"
    print(f"{page.url[:4]}, {page.locator('#work-view').inner_text()}: {told}")  # noqa: T201 - for -s
    return made


def reject_all_and_undo(page: Any, count: str) -> None:
    page.locator("#work-grid").focus()
    page.keyboard.press("Control+a")
    page.keyboard.press("r")
    page.locator("#work-say", has_text=f"{count} images rejected").wait_for()
    page.keyboard.press("u")
    page.locator("#work-say", has_text="Undone: reject").wait_for()


def metric(devtools: Any, name: str) -> float:
    """What Chromium counts: TaskDuration is the processor time of the page's thread so far."""
    metrics = devtools.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == name))
