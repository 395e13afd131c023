"""Steps of ``start`` in another process: the same tables, the same words, and errors that come as they are."""

import os
import shutil
import signal
from multiprocessing import active_children, parent_process
from pathlib import Path

import pytest
from labelkit.commands.common.results import CommandResult
from labelkit.commands.find.options import FindOddConfig
from labelkit.errors import DatasetError
from labelkit.options.base import BaseConfig
from labelkit.pipelines.start import background
from labelkit.pipelines.start import run as run_module
from labelkit.progress import current_progress, use_progress
from tests.pipelines.squares import run, write_labels
from tests.running import Heard


def step(config: BaseConfig) -> CommandResult:
    """Say something; the name of the file decides what comes of it."""
    assert isinstance(config, FindOddConfig)
    current_progress().message(f"message {os.getpid()}")
    current_progress().warning("warning")
    if config.out.name == "error.csv":
        raise DatasetError("photos", "are odd", "Take others.")
    if config.out.name == "killed.csv" and not config.out.exists() and parent_process():
        config.out.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return CommandResult({"process": os.getpid()}, (config.out,), ())


@pytest.mark.usefixtures("script")
def test_steps_run_in_another_process_and_say_the_same(tmp_path: Path) -> None:
    steps = {name: FindOddConfig(index=tmp_path, out=tmp_path / f"{name}.csv") for name in ("fine", "error", "killed")}
    heard = Heard()

    with use_progress(heard), background.run_in_background(step, steps) as running:
        process = running["fine"]().to_json()["process"]
        with pytest.raises(DatasetError, match="photos: are odd"):
            running["error"]()
        here = running["killed"]().to_json()["process"]

    assert process != os.getpid()
    assert here == os.getpid()  # again, after the other process ended
    assert heard.messages == [f"message {process}", f"message {here}"]
    assert heard.warnings == ["warning", "warning"]


def test_an_error_ends_the_other_process(tmp_path: Path) -> None:
    steps = {"fine": FindOddConfig(index=tmp_path, out=tmp_path / "fine.csv")}
    before = set(active_children())

    def interrupted() -> None:
        with background.run_in_background(step, steps) as running:
            running["fine"]()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert set(active_children()) <= before


def test_without_steps_or_cores_nothing_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "ProcessPoolExecutor", None)
    with background.run_in_background(step, {}) as running:
        assert running == {}
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    with background.run_in_background(
        step, {"odd": FindOddConfig(index=tmp_path, out=tmp_path / "odd.csv")}
    ) as running:
        assert running == {}


@pytest.mark.usefixtures("with_page")
def test_start_writes_the_same_tables(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(photos / "000.png", photos / "copy.png")
    labels = write_labels(tmp_path / "known.csv", range(6))
    run(photos, num_classes=3, labels=labels, out=tmp_path / "here")
    monkeypatch.setattr(run_module, "_MIN_FOR_PROCESS", 1)

    heard = Heard()
    with use_progress(heard):
        run(photos, num_classes=3, labels=labels, out=tmp_path / "apart")

    assert {f"{name}: done in the background" for name in ("duplicates", "odd")} <= set(heard.messages)
    for name in ("labels.csv", "duplicates.csv", "odd.csv", "next.csv", "check.csv"):
        assert (tmp_path / "apart" / name).read_bytes() == (tmp_path / "here" / name).read_bytes()
    assert "copy.png" in (tmp_path / "apart" / "duplicates.csv").read_text()
