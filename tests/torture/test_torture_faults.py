"""Every single call that changes the disk fails once, or the process stops there; the same again ends the same."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from labelkit.errors import CheckpointError, ResourceError
from labelkit.store import writer
from labelkit.store.array_files import read_matches
from labelkit.store.commit import commit_file
from labelkit.store.embeddings import open_store
from labelkit.store.parts import open_verified_part
from labelkit.store.patches import open_patches
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.results import list_results, read_result, write_result
from labelkit.store.writing import EmbeddingRun
from labelkit.training.checkpoint import CheckpointWriter, load_checkpoint
from patch_samples import make_both, make_patch_plan
from store_samples import make_plan, make_store, write_part
from torture_faults import MODES, Disk, Killed, fail, moments_of
from torture_samples import save_step, some_matches
from torture_tally import Tally, sized, tree

ROW = "b  each write, fsync, link, rename, mkdir, unlink, truncate fails or stops there"

PLAN = make_plan(part_rows=2)
BAD = {1: "broken"}
QUICK = ("ENOSPC", "kill")  # modes; the writers in place of others are slow


@dataclass
class Subject:
    """Something that is written.

    Attributes:
        prepare: makes what has to be there before, in a folder.
        act: writes; gives no less when called again after a fault.
        check: raises if what is there after a fault cannot be read, or if something is lost.
        final: what is to be equal in the end.
    """

    act: Callable[[Path], object]
    check: Callable[[Path], object]
    prepare: Callable[[Path], object] = lambda folder: None
    final: Callable[[Path], dict[str, Any]] = tree


def _embed(folder: Path, *, overwrite: bool = False, shards: int | None = None, plan: EmbeddingPlan = PLAN) -> None:
    run = EmbeddingRun.open(folder / "s.h5", plan, overwrite)
    for part in run.pending_parts():
        write_part(run, part, BAD)
    run.publish(max_bad=0.5, shards=shards)


def _parts_and_store_are_whole(folder: Path) -> None:
    for path in folder.glob("*.run/parts/[0-9]*.h5"):
        open_verified_part(path).close()
    path = folder / "s.h5"
    if path.exists():
        store = open_store(path)
        assert len(store.embeddings) == store.n


def _old_shards(folder: Path) -> None:
    _embed(folder, shards=2, plan=make_plan(metric="l2"))


def _old_store(folder: Path) -> None:
    make_store(folder / "s.h5", make_plan(metric="l2"))


def _some_store_is_there(folder: Path) -> None:
    assert (folder / "s.h5").exists()
    _parts_and_store_are_whole(folder)


def _store(folder: Path) -> None:
    make_store(folder / "s.h5", PLAN, bad=BAD)


def _write_result(folder: Path, seed: int, *, overwrite: bool) -> None:
    store = open_store(folder / "s.h5")
    arrays = {"cluster_ids": np.arange(7) % 2}
    write_result(store, "r", kind="clusters", arrays=arrays, params={"seed": seed}, stage="x", overwrite=overwrite)


def _old_result(folder: Path) -> None:
    _store(folder)
    _write_result(folder, 1, overwrite=False)


def _result_is_whole(folder: Path) -> None:
    store = open_store(folder / "s.h5")
    for name in list_results(store):
        assert read_result(store, name).params["seed"] in (1, 2)


def _result_is_there(folder: Path) -> None:
    assert (folder / "s.h5.results" / "r.h5").exists()
    _result_is_whole(folder)


def _patches(folder: Path) -> None:
    make_both(folder / "s.h5", make_patch_plan())


def _patches_are_whole(folder: Path) -> None:
    _parts_and_store_are_whole(folder)
    if (folder / "s.h5.patches" / "SET.json").exists():
        assert sum(len(block.features) for block in open_patches(open_store(folder / "s.h5")).iterate_blocks())


def _matches_are_whole(folder: Path) -> None:
    if (folder / "m.h5").exists():
        assert len(read_matches(folder / "m.h5").matches) == 1


SHARDS = 2
STEPS = 4


def _train(folder: Path) -> None:
    """Save a checkpoint per step, from the last one on, as a training does."""
    loaded = load_checkpoint(folder)
    first = 0 if loaded is None else loaded.state["step"]
    writer = CheckpointWriter(folder / "checkpoints")
    for step in range(first + 1, STEPS + 1):
        save_step(writer, step)
        # what the disk kept beyond a fault is not in memory: noted beside it, by a call that is not counted
        folder.joinpath("saved").write_text(str(step))


def _no_step_is_lost(folder: Path) -> None:
    note = folder / "saved"
    saved = int(note.read_text() or 0) if note.exists() else 0
    loaded = load_checkpoint(folder)
    assert saved == 0 if loaded is None else loaded.state["step"] >= saved
    if loaded is not None:
        for name in loaded.state["files"]:
            loaded.tensors(name)
        assert not loaded.warnings


def _kept_checkpoints(folder: Path) -> dict[str, Any]:
    try:
        loaded = load_checkpoint(folder)
    except CheckpointError as error:
        raise AssertionError(str(error)) from error
    assert loaded is not None
    return {path.name: path.read_bytes() for path in loaded.folder.iterdir()}


SUBJECTS = {
    "embed": Subject(_embed, _parts_and_store_are_whole),
    "embed over another store": Subject(
        lambda folder: _embed(folder, overwrite=True), _some_store_is_there, prepare=_old_store
    ),
    "embed in shards": Subject(lambda folder: _embed(folder, shards=SHARDS), _parts_and_store_are_whole),
    "embed in shards over others": Subject(
        lambda folder: _embed(folder, overwrite=True, shards=SHARDS), _some_store_is_there, prepare=_old_shards
    ),
    "embed over shards": Subject(
        lambda folder: _embed(folder, overwrite=True), _some_store_is_there, prepare=_old_shards
    ),
    "result": Subject(lambda folder: _write_result(folder, 2, overwrite=False), _result_is_whole, prepare=_store),
    "result over another": Subject(
        lambda folder: _write_result(folder, 2, overwrite=True), _result_is_there, prepare=_old_result
    ),
    "patches": Subject(_patches, _patches_are_whole),
    "matches": Subject(lambda folder: some_matches(folder / "m.h5"), _matches_are_whole),
    "checkpoints": Subject(_train, _no_step_is_lost, final=_kept_checkpoints),
}


@sized(sample=1, full=100_000)
@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=() if mode in QUICK else pytest.mark.torture) for mode in MODES]
)
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if " over " in name else ()) for name in SUBJECTS]
)
def test_a_fault_at_any_call_loses_nothing_and_the_same_again_ends_the_same(
    tmp_path: Path, tally: Tally, name: str, mode: str, count: int
) -> None:
    subject = SUBJECTS[name]
    for folder in ("whole", "counted"):
        (tmp_path / folder).mkdir()
        subject.prepare(tmp_path / folder)
    subject.act(tmp_path / "whole")
    expected = subject.final(tmp_path / "whole")
    moments = moments_of(lambda: subject.act(tmp_path / "counted"), mode)
    assert len(moments) >= (1 if mode == "torn" else 4)
    step = -(-len(moments) // count)
    for at in moments[MODES.index(mode) % step :: step]:
        folder = tmp_path / f"{at}"
        folder.mkdir()
        subject.prepare(folder)
        with tally.attempt(f"{name}, {mode} at call {at}"):
            ended = fail(lambda folder=folder: subject.act(folder), at, mode)
            assert ended is Killed or mode in ("ENOSPC", "EIO")
            subject.check(folder)
            subject.act(folder)
            found = subject.final(folder)
            if mode not in ("ENOSPC", "EIO"):
                # a process that is stopped cannot remove what it was writing to
                found = {path: data for path, data in found.items() if not Path(path).name.startswith(".tmp-")}
            assert found == expected
            subject.check(folder)


def test_committed_parts_are_not_made_again(tmp_path: Path) -> None:
    run = EmbeddingRun.open(tmp_path / "s.h5", PLAN)
    write_part(run, 0, BAD)
    assert fail(lambda: write_part(run, 1, BAD), 2, "kill") is Killed
    again = EmbeddingRun.open(tmp_path / "s.h5", PLAN)
    assert again.pending_parts() == [1, 2, 3]
    assert again.warnings == []


def test_what_follows_a_full_disk_is_written_in_the_same_process(tmp_path: Path) -> None:
    sealed = writer.FileContents({"rows": np.arange(12.0).reshape(4, 3)}, {"": {"kind": "numbers"}}).sealed()

    def act() -> None:
        commit_file(tmp_path / "rows.h5", sealed.write)

    ends = [fail(act, at, "ENOSPC") for at in moments_of(act, "ENOSPC")]  # HDF5 must not keep any of them open
    assert ends.count(ResourceError) > len(ends) // 2
    assert (tmp_path / "rows.h5").read_bytes() == sealed.to_bytes()


@dataclass
class _Written:
    """What h5py was given to write to."""

    targets: list[object] = field(default_factory=list)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system does not count what a process writes")
@pytest.mark.parametrize("name", ["embed", "result", "patches", "matches"])
def test_hdf5_itself_writes_nothing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = SUBJECTS[name]
    subject.prepare(tmp_path)
    seen = _Written()
    real = h5py.File

    def opened(target: Any, mode: str = "r", **options: Any) -> Any:
        seen.targets.extend([target] if mode != "r" else [])
        return real(target, mode, **options)

    def written() -> int:
        lines = Path("/proc/self/io").read_text().splitlines()
        return int(dict(line.split(": ") for line in lines)["wchar"])

    monkeypatch.setattr(h5py, "File", opened)
    disk = Disk(monkeypatch)
    before = written()
    subject.act(tmp_path)
    # All bytes that the process gave to the system went through our own calls.
    assert written() - before == disk.bytes_written > 0
    assert seen.targets
    assert all(isinstance(target, writer._FirstError) for target in seen.targets)
