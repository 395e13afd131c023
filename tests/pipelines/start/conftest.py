"""Photos for ``labelkit start``, noisy squares of three colors, and first calls that many tests go on from."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from labelkit.cli.main import main
from labelkit.commands.common.results import CommandResult
from labelkit.options.base import BaseConfig
from labelkit.pipelines.start import run as run_module
from labelkit.studio.label.actions import EditStep
from labelkit.studio.report.options import ReportConfig
from tests.pipelines.squares import add_photos, run, write_labels

Begin = Callable[..., Path]
Browse = Callable[[Callable[[Any], object]], None]


def act(server: Any, do: str = "label", **step: Any) -> int:
    """Act as a person in the browser; return the round."""
    done = server.session.plan_and_commit("act", lambda _: [EditStep(do, **step)], user="", client="")
    return int(done.round)


@pytest.fixture
def browse(monkeypatch: pytest.MonkeyPatch) -> Browse:
    """Have a person do something in the browser in the place of the server; what they ask is done in this process."""

    def browse(person: Callable[[Any], object]) -> None:
        monkeypatch.setattr("labelkit.studio.label.server.serve", lambda server, *_, **__: person(server))

    asking = "labelkit.studio.label.asking.BackgroundPredictor.run_command"
    monkeypatch.setattr(asking, lambda self, *words: main([*words]))
    return browse


@pytest.fixture
def with_page() -> None:
    """Asked for by tests of the page and of sheets."""


@pytest.fixture(autouse=True)
def no_page(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw no page and no sheet, which take half of the time of a call, unless a test is about them."""
    step = run_module._run

    def run_step(config: BaseConfig) -> CommandResult:
        if not isinstance(config, ReportConfig):
            return step(config.model_copy(update={"sheet": None}) if "sheet" in type(config).model_fields else config)
        config.out.write_bytes(b"a page")
        return CommandResult({}, (config.out,), ())

    if "with_page" not in request.fixturenames:
        monkeypatch.setattr(run_module, "_run", run_step)


@pytest.fixture(scope="session")
def finished() -> dict[object, Path]:
    """What first calls left, by their labels."""
    return {}


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("start") / "here"


@pytest.fixture
def tmp_path(place: Path) -> Iterator[Path]:
    """The same path for each test, so that what a first call left is as good as new there."""
    place.mkdir()
    yield place
    shutil.rmtree(place)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    add_photos(folder, range(30), seed=0)
    return folder


@pytest.fixture
def begin(photos: Path, finished: dict[object, Path]) -> Begin:
    """A first call with labels of some photos, some of them wrong, and three classes; each is made once for all."""

    def begin(*labeled: int, wrong: dict[int, str] | None = None) -> Path:
        here, key = photos.parent, (labeled, str(wrong))
        known = here / "known.csv"
        if key not in finished:
            labels = {"labels": write_labels(known, labeled, wrong)} if labeled else {}
            run(photos, num_classes=3, **labels)
            finished[key] = here.with_name(f"finished-{len(finished)}")
            shutil.copytree(here, finished[key])
        else:
            shutil.copytree(finished[key], here, dirs_exist_ok=True)
        return known

    return begin


@pytest.fixture
def doubted(begin: Begin) -> Path:
    """The fifteen labels of a first call, two of them wrong: 004.png is green, 008.png is blue."""
    return begin(*range(15), wrong={4: "blue", 8: "red"})
