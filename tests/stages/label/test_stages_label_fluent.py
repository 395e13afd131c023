"""Ten thousand thumbnails in a real browser: what a frame costs while the grid scrolls, from a file and from a server.

Processor time of the page's thread is counted, since other programs on the machine do not change it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.config.cluster import KMeansConfig
from labelkit.config.embed import EmbedConfig
from labelkit.config.report import ReportConfig
from labelkit.stages.embed.images import embed_images
from labelkit.stages.group.cluster import cluster_store
from labelkit.stages.report.build import write_report
from PIL import Image
from tests.stages.browsing import Opened, chromium
from tests.stages.label.serving import Serving

pytestmark = pytest.mark.slow

IMAGES, CLASSES = 10_000, 200
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium of this machine, without a window."""
    yield from chromium()


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10,000 images of 200 colors."""
    folder = tmp_path_factory.mktemp("many")
    generator = np.random.default_rng(0)
    (folder / "images").mkdir()
    colors = generator.integers(0, 256, (CLASSES, 3))
    for number in range(IMAGES):
        noise = generator.integers(-20, 21, (32, 32, 3))
        pixels = np.clip(colors[number % CLASSES] + noise, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{number:05}.png", compress_level=1)
    made = folder / "many.h5"
    embed_images(EmbedConfig(dataset=str(folder / "images"), backbone="pixels", image_size=4, out=made))
    cluster_store(KMeansConfig(index=made, num_clusters=CLASSES))
    return made


@pytest.fixture(params=["file", "server"])
def page(request: pytest.FixtureRequest, browser: Any, index: Path) -> Iterator[Any]:
    """The page with all images in its grid."""
    if request.param == "file":
        out = index.with_name("report.html")
        write_report(ReportConfig(index=index, out=out, projection="pca", overwrite=True))
        yield from shown(browser, out)
        return
    served = Serving(index)
    try:
        yield from shown(browser, served.link)
    finally:
        served.stop()


def shown(browser: Any, url: str | Path) -> Iterator[Any]:
    opened = Opened(browser, url, "html[data-ready]")
    opened.page.locator("#work-groups .entry", has_text="all images").click()
    yield opened.page
    opened.context.close()
    assert opened.said == []


@pytest.mark.timeout(600)
def test_ten_thousand_images_scroll_fluently(page: Any) -> None:
    assert "10,000" in page.locator("#work-view").inner_text()
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable", {"timeDomain": "threadTicks"})
    before = seconds(devtools)
    page.evaluate(SCROLL)
    milliseconds = 1000 * (seconds(devtools) - before) / FRAMES
    made = page.locator("#work-grid .work-tile").count()
    print(f"{page.url[:4]}: {milliseconds:.1f} ms of processor time per frame, {made} tiles made")  # noqa: T201 - for -s

    assert made < 200


def seconds(devtools: Any) -> float:
    """Processor time of the page's thread so far."""
    metrics = devtools.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


def test_an_action_on_all_images_is_quick(page: Any) -> None:
    page.locator("#work-grid").focus()
    page.keyboard.press("Control+a")
    page.keyboard.press("r")
    page.locator("#work-say", has_text="10,000 images rejected").wait_for()
    page.keyboard.press("u")
    page.locator("#work-say", has_text="Taken back: reject").wait_for()
