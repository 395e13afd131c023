"""Make the pictures of the guide "Label in the browser": a person labels the 240 photos of ``examples/photos``.

    python -m tests.studio.label.pictures --out docs/guides

The person answers by ``truth.csv``: labels the suggested images, asks again, names groups, and takes out what is wrong.
"""

import argparse
import csv
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from labelkit.pipelines.start.options import StartConfig
from labelkit.pipelines.start.run import start
from labelkit.store.embeddings import open_store
from labelkit.store.results import find_newest_name, list_results, read_result
from labelkit.studio.label.label import label_images
from labelkit.studio.label.options import LabelConfig
from tests.commands.browsing import Opened, chromium
from tests.studio.label.serving import Serving

PHOTOS = Path(__file__).parents[3] / "examples" / "photos"
SIZE = {"width": 1180, "height": 800}


def session(page: Any, truth: dict[str, str], out: Path) -> int:
    """Label, and take pictures; returns the number of actions."""
    page.locator("[data-work=o]").click()
    page.locator("#work-one[open]").wait_for()
    page.wait_for_timeout(1500)
    page.screenshot(path=out / "label-one.jpg", type="jpeg", quality=60)
    actions = 0
    while page.locator("#work-one[open]").count():
        name = page.locator("#work-one-title").inner_text()
        answers = page.locator("#work-one-answers bdi").all_inner_texts()
        if truth[name] in answers:
            page.keyboard.press(str(1 + answers.index(truth[name])))
        else:
            page.keyboard.press("l")
            page.locator("#work-ask-name").fill(truth[name])
            page.keyboard.press("Enter")
        page.wait_for_function(
            "name => document.getElementById('work-one-title').textContent !== name || "
            "!document.getElementById('work-one').open",
            arg=name,
        )
        actions += 1
    page.locator("[data-work=f]").click()
    page.locator("#work-asked[open]").wait_for(timeout=120_000)
    page.wait_for_timeout(500)
    page.screenshot(path=out / "label-asked.jpg", type="jpeg", quality=60)
    page.keyboard.press("Escape")
    actions += 1
    shown = False
    for _ in range(40):
        title = page.locator("#work-view").inner_text()
        left = page.locator("#work-groups .dot.none").count()
        tiles = page.locator("#work-grid .work-tile")
        names = tiles.evaluate_all("all => all.sort((a, b) => a.dataset.place - b.dataset.place).map(one => one.title)")
        if not title.startswith("Group ") or not left:
            break
        name, _ = Counter(truth[one] for one in names).most_common(1)[0]
        wrong = [place for place, one in enumerate(names) if truth[one] != name]
        for place in wrong:
            page.locator(f"#work-grid [data-place='{place}']").click()
            actions += 1
        if wrong and not shown:
            shown = True
            page.screenshot(path=out / "label-groups.jpg", type="jpeg", quality=60)
        if wrong:
            page.keyboard.press("x")
            page.locator("#work-say", has_text="removed").wait_for(timeout=30_000)
            actions += 1
        page.locator("#work-name").fill(name)
        page.keyboard.press("Enter")
        page.wait_for_function(
            "left => document.querySelectorAll('#work-groups .dot.none').length < left", arg=left, timeout=30_000
        )
        actions += 1
    return actions


def main() -> None:
    """Start, label, take pictures, and say how many labels of the table are right."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    with (PHOTOS / "truth.csv").open(newline="") as file:
        truth = {row["path"]: row["label"] for row in csv.DictReader(file)}
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "demo"
        start(StartConfig(photos=PHOTOS, labels=PHOTOS / "labels.csv", out=made))
        served = Serving(made / "photos.h5", "--from", str(made / "given.csv"), "--by", "Ann")
        for browser in chromium():
            opened = Opened(browser, served.link, "html[data-ready]", viewport=SIZE)
            actions = session(opened.page, truth, options.out)
            opened.context.close()
        served.stop()
        store = open_store(made / "photos.h5")
        result = read_result(store, find_newest_name(list_results(store), "labels"))
        labels = {
            store.sample_ids[row]: result.arrays["class_names"][label]
            for row, label in enumerate(result.arrays["labels"].tolist())
            if label >= 0
        }
        right = sum(truth[name] == label for name, label in labels.items())
        table = made / "table.csv"
        label_images(LabelConfig(index=store.path, labels=result.name, csv=table))
        lines = table.read_text().splitlines()
        sys.stdout.write(
            f"{actions} actions; {len(labels)} of {store.n} photos labeled, {right} right; {len(lines) - 1} lines\n"
        )
        sys.stdout.write("\n".join(lines[:4]) + "\n")


if __name__ == "__main__":
    main()
