"""Labeling in a browser: a store of small pictures in groups, its page, a server of it, and what a page says."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from labelkit.commands.cluster.cluster import cluster_store
from labelkit.commands.cluster.options import KMeansConfig
from labelkit.commands.embed.embed import embed_images
from labelkit.options.embed import EmbedConfig
from labelkit.store.results import results_folder
from labelkit.studio.report.build import write_report
from labelkit.studio.report.options import ReportConfig
from tests.commands.browsing import Opened
from tests.copies import copy_store
from tests.studio.label.serving import Serving

READY = "html[data-ready]"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """A store of small pictures in four clusters, without labels."""
    index = tmp_path_factory.mktemp("label") / "photos.h5"
    embed_images(EmbedConfig(dataset=str(photos), backbone="pixels", image_size=8, label_split="none", out=index))
    cluster_store(KMeansConfig(index=index, num_clusters=4))
    return index


@pytest.fixture(scope="module")
def report(made: Path) -> Path:
    """The page of the store."""
    out = made.with_name("report.html")
    write_report(ReportConfig(index=made, out=out, projection="pca"))
    return out


@pytest.fixture
def grouped(made: Path, tmp_path: Path) -> Path:
    """A copy of the store that a test may add results to."""
    copy = copy_store(made, tmp_path / "photos.h5")
    shutil.copytree(results_folder(made), results_folder(copy))
    return copy


@pytest.fixture
def served(grouped: Path) -> Iterator[Serving]:
    """A server of the store."""
    started = Serving(grouped, "--by", "Ann")
    yield started
    if started.process.poll() is None:
        assert started.stop() == 0


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Return a function that opens a page; afterwards no page has said anything."""
    opened: list[Opened] = []

    def open_one(url: str | Path, **options: Any) -> Any:
        opened.append(Opened(browser, url, READY, **options))
        return opened[-1].page

    yield open_one
    for one in opened:
        one.context.close()
        # a refused action is a line of the console of Chromium
        assert [line for line in one.said if "409" not in line] == []


@pytest.fixture(params=["file", "server"])
def page(request: pytest.FixtureRequest, open_page: Callable[..., Any]) -> Iterator[Any]:
    """The page, once as a file and once from a server."""
    is_file = request.param == "file"
    opened = open_page(request.getfixturevalue("report") if is_file else request.getfixturevalue("served").link)
    yield opened
    opened.context.close()  # before its server stops
