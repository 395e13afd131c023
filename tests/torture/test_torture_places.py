"""Full disks, read-only and vanished folders, two writers of one output: an error with its code, and nothing is lost.

Full and read-only are real file systems in memory, since permissions and ``chmod`` do not stop root; where mounting is
not allowed, these tests are skipped, and row b has the same errors from a layer over the system's calls.
"""

import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.cli.main import main
from labelkit.errors import LabelkitError, ResourceError
from labelkit.store.embeddings import open_store
from labelkit.store.parts import open_verified_part
from labelkit.store.reader import open_checked_file
from labelkit.store.results import write_result
from labelkit.store.writing import EmbeddingRun
from labelkit.training.checkpoint import CheckpointWriter, load_checkpoint
from patch_samples import make_both, make_patch_plan
from PIL import Image
from store_samples import make_plan, make_store, write_part
from torture_samples import some_matches
from torture_systems import mounted
from torture_tally import Tally, sized, tree

ROW = "c  full disk, read-only folder, vanished folder, two writers"

PAGE = 4096
PLAN = make_plan(part_rows=2, dim=300)
BAD = {1: "broken"}


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[SimpleNamespace]:
    folder = tmp_path / "disk"
    with mounted(folder, "64m") as change:
        yield SimpleNamespace(folder=folder, change=change)


def _embed(folder: Path) -> None:
    run = EmbeddingRun.open(folder / "s.h5", PLAN)
    for part in run.pending_parts():
        write_part(run, part, BAD)
    run.publish(max_bad=0.5)


def _patches(folder: Path) -> None:
    make_both(folder / "s.h5", make_patch_plan())


def _result(folder: Path) -> None:
    store = make_store(folder / "s.h5", bad=BAD)
    for name in ("r", "s", "t"):
        arrays = {"cluster_ids": np.arange(7) % 2}
        write_result(store, name, kind="clusters", arrays=arrays, params={}, stage="x")


def _checkpoints(folder: Path) -> None:
    loaded = load_checkpoint(folder) if (folder / "checkpoints").exists() else None
    writer = CheckpointWriter(folder / "checkpoints")
    for step in range(1 if loaded is None else loaded.state["step"] + 1, 5):
        weights = torch.arange(600.0) + step
        tensors = {"model": {"w": weights}, "training": {"w": weights}, "per_rank": {"g": weights[:2]}}
        writer.save(step, **tensors, state={"epoch": 0}, metadata={})


def _matches(folder: Path) -> None:
    some_matches(folder / "m.h5", overwrite=True)


ACTIONS: dict[str, Callable[[Path], None]] = {
    "embed": _embed,
    "patches": _patches,
    "result": _result,
    "checkpoints": _checkpoints,
    "matches": _matches,
}


def _readable(folder: Path) -> None:
    """Open whatever has its final name."""
    for path in folder.glob("*.h5.run/parts/*.h5"):
        open_verified_part(path).close()
    for path in folder.glob("*.patches.run/parts/*.h5"):
        open_checked_file(path, None).close()
    if (folder / "s.h5").exists():
        assert open_store(folder / "s.h5").n == 7
    if any(folder.glob("checkpoints/step-*")):
        loaded = load_checkpoint(folder)
        assert loaded is not None
        assert not loaded.warnings


def _without_hidden(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if not Path(name).name.startswith(".")}


def _problem_of(action: Callable[[Path], None], folder: Path) -> str | None:
    try:
        action(folder)
    except ResourceError as error:
        return error.problem
    return None


def _expected(action: Callable[[Path], None], folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    action(folder)
    return tree(folder)


@sized(sample=2, full=60)
@pytest.mark.parametrize("name", ACTIONS)
def test_a_full_disk_is_an_error_and_with_room_the_same_again_ends_the_same(
    tmp_path: Path, mount: Any, tally: Tally, name: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # so that the disk fills while something is written, not before anything is
    for module in ("writing", "patch_writing"):
        monkeypatch.setattr(f"labelkit.store.{module}.check_disk_space", lambda *args: None)
    action = ACTIONS[name]
    expected = _expected(action, tmp_path / "whole")
    pages = 2 + 2 * sum(-(-len(data) // PAGE) for data in expected.values())
    failed = 0
    for free in sorted({round(share) for share in np.linspace(1, pages, count + 1)[:-1]}):
        folder = mount.folder / f"{free}"
        folder.mkdir()
        mount.change(f"size={free * PAGE}")
        with tally.attempt(f"{name}, {free} pages free"):
            problem = _problem_of(action, folder)
            failed += problem is not None
            assert problem is None or "full" in problem
            _readable(folder)
            mount.change("size=64m")
            action(folder)
            assert tree(folder) == expected
        mount.change("size=64m")
        shutil.rmtree(folder)
    assert failed > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ACTIONS)
def test_a_read_only_disk_is_an_error_and_nothing_changes(tmp_path: Path, mount: Any, tally: Tally, name: str) -> None:
    action = ACTIONS[name]
    expected = _expected(action, tmp_path / "whole")
    mount.change("ro")
    with tally.attempt(name):
        with pytest.raises(ResourceError, match="read-only"):
            action(mount.folder)
        assert tree(mount.folder) == {}
        mount.change("rw")
        action(mount.folder)
        assert tree(mount.folder) == expected


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(12):
        Image.fromarray(np.full((8, 8), 20 * i, np.uint8)).save(folder / f"{i}.png")
    return folder


def test_the_command_line_says_so_with_exit_code_5(
    mount: Any, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["embed", "--dataset", str(photos), "--backbone", "pixels", "--image-size", "8", "--threads", "1", "-q"]
    out = mount.folder / "s.h5"
    mount.change("ro")
    assert main([*words, "--out", str(out)]) == 5
    assert "read-only" in capsys.readouterr().err
    mount.change("rw,size=20k")
    assert main([*words, "--out", str(out)]) == 5
    assert "MB are free, but this run needs" in capsys.readouterr().err
    mount.change("size=64m")
    assert main([*words, "--out", str(out)]) == 0


@sized(sample=1, full=4)
def test_a_folder_that_vanishes_is_an_error_and_the_same_again_ends_the_same(
    tmp_path: Path, tally: Tally, count: int
) -> None:
    expected = make_store(tmp_path / "whole.h5", PLAN, bad=BAD).path.read_bytes()
    for parts in range(count):
        out = tmp_path / f"{parts}" / "s.h5"
        with tally.attempt(f"after {parts} parts"):
            run = EmbeddingRun.open(out, PLAN)
            for part in range(parts):
                write_part(run, part, BAD)
            shutil.rmtree(out.parent)
            with pytest.raises(ResourceError, match="disappeared"):
                write_part(run, parts, BAD)
            _embed(out.parent)
            assert out.read_bytes() == expected


def _in_threads(actions: list[Callable[[], object]]) -> list[object]:
    """Run all at the same time; return what each ended with."""
    together = threading.Barrier(len(actions))
    ended: list[object] = [None] * len(actions)

    def run(number: int) -> None:
        together.wait()
        try:
            actions[number]()
        except Exception as error:
            ended[number] = error

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return ended


@sized(sample=2, full=40)
@pytest.mark.parametrize("name", ["embed", "patches", "result", "matches"])
def test_two_writers_of_one_output_end_with_the_same_bytes_or_one_is_told(
    tmp_path: Path, tally: Tally, name: str, count: int
) -> None:
    action = ACTIONS[name]
    expected = _expected(action, tmp_path / "whole")
    for number in range(count):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        with tally.attempt(f"{name}, pair {number}"):
            ended = _in_threads([lambda folder=folder: action(folder)] * 2)
            for error in ended:
                assert error is None or isinstance(error, LabelkitError), repr(error)
            _readable(folder)
            if any(ended):
                action(folder)
            assert _without_hidden(tree(folder)) == expected


@pytest.mark.torture
def test_two_trainings_into_one_folder_leave_one_of_them(tmp_path: Path, photos: Path) -> None:
    # processes, since a training holds its folder by a lock of the process
    words: list[Any] = [sys.executable, "-m", "labelkit", "train", "softmax", "--dataset", "digits", "--epochs", "3"]
    words += ["--max-per-class", "6", "--batch-size", "16", "--lr-drop-epochs", "2", "--threads", "1", "-q", "--out"]
    started = [subprocess.Popen([*words, str(tmp_path / "run")], stderr=subprocess.DEVNULL) for _ in range(2)]
    codes = sorted(process.wait() for process in started)
    assert codes[0] == 0
    # busy while the other one trains, a usage error once it has ended
    assert codes[1] in (2, 6)
    loaded = load_checkpoint(tmp_path / "run")
    assert loaded is not None
    assert not loaded.warnings
