"""Whatever moment a run ends at, the same command again ends with the same bytes."""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from labelkit.errors import ResourceError
from labelkit.store.embeddings import open_store
from labelkit.store.opening import trust
from labelkit.store.results import list_results, read_result, write_result
from labelkit.store.writing import EmbeddingRun
from store_samples import make_plan, make_store, write_part

CALLS = ("open", "write", "fsync", "replace", "link", "unlink", "rmdir", "mkdir", "posix_fallocate", "lseek")
PLAN = make_plan(part_rows=4)
BAD = {1: "broken"}


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(request, monkeypatch):
    """The order of the calls is what is tested here; the slow test does sync."""
    if "slow" not in request.keywords:
        monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Killed(BaseException):
    """Stands for the end of the process: nothing it does afterwards reaches the disk."""


class Disk:
    """Counts the calls that change the disk and fails one of them, or it and all later ones."""

    def __init__(self, monkeypatch, at=-1, mode="count"):
        self.count = 0
        self.names = []
        self.at, self.mode = at, mode
        for name in CALLS:
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name, real):
        def call(*args, **kwargs):
            if name == "open" and not args[1] & os.O_CREAT:
                return real(*args, **kwargs)
            number = self.count
            self.count += 1
            self.names.append(name)
            if number == self.at and self.mode == "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            if number == self.at and self.mode == "torn" and name == "write":
                real(args[0], args[1][: len(args[1]) // 2])
            if number >= self.at >= 0 and self.mode in ("kill", "torn"):
                raise Killed
            return real(*args, **kwargs)

        return call


def embed(out, overwrite=False):
    run = EmbeddingRun.open(out, PLAN, overwrite)
    for part in run.pending_parts():
        write_part(run, part, BAD)
    run.publish(max_bad=0.5)


def moments_of(action, mode):
    """The calls of an undisturbed run at which a fault of this mode can come; only writes can be torn."""
    with pytest.MonkeyPatch.context() as patch:
        disk = Disk(patch)
        action()
    return [number for number, name in enumerate(disk.names) if mode != "torn" or name == "write"]


def fail(action, at, mode):
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, at, mode)
        try:
            action()
        except (Killed, ResourceError) as error:
            return type(error)
    return None


@pytest.mark.parametrize("mode", ["full", "kill", "torn"])
def test_a_run_that_ends_at_any_call_is_continued_to_the_same_bytes(tmp_path, mode):
    expected = make_store(tmp_path / "whole.h5", PLAN, bad=BAD).path.read_bytes()
    moments = moments_of(lambda: embed(tmp_path / "count.h5"), mode)
    assert len(moments) > (10 if mode == "torn" else 50)
    for at in moments:
        out = tmp_path / f"{mode}{at}.h5"
        ended = fail(lambda out=out: embed(out), at, mode)
        assert ended is not None or mode == "full"
        assert not out.exists() or out.read_bytes() == expected
        done = set(out.with_name(out.name + ".run").glob("parts/*.h5"))
        embed(out)
        assert out.read_bytes() == expected
        assert sorted(path.name for path in tmp_path.glob(f"{out.name}*")) == [out.name]
        assert all(path.stat().st_size for path in done if path.exists())


@pytest.mark.parametrize("mode", ["full", "kill", "torn"])
def test_a_store_is_old_or_new_at_any_call_while_it_is_overwritten(tmp_path, mode):
    new = make_store(tmp_path / "new.h5", PLAN, bad=BAD).path.read_bytes()
    old = make_store(tmp_path / "old.h5", make_plan(metric="l2")).path.read_bytes()
    (tmp_path / "count.h5").write_bytes(old)
    moments = moments_of(lambda: embed(tmp_path / "count.h5", overwrite=True), mode)
    # The second half is where publishing happens.
    for at in moments[len(moments) // 2 :]:
        out = tmp_path / f"{mode}{at}.h5"
        out.write_bytes(old)
        trust(out)
        fail(lambda out=out: embed(out, overwrite=True), at, mode)
        assert out.read_bytes() in (old, new)
        embed(out, overwrite=True)
        assert out.read_bytes() == new


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("mode", ["full", "kill", "torn"])
def test_a_result_is_whole_or_not_there_at_any_call(tmp_path, mode, overwrite):
    store = make_store(tmp_path / "s.h5", PLAN, bad=BAD)

    def write(seed, name="first"):
        arrays = {"cluster_ids": np.arange(7) % 2}
        write_result(store, name, kind="clusters", arrays=arrays, params={"seed": seed}, stage="x", overwrite=overwrite)

    if overwrite:
        write(1)
    for at in moments_of(lambda: write(2, "count"), mode):
        name = "first" if overwrite else "count"
        if not overwrite:
            shutil.rmtree(tmp_path / "s.h5.results")
        ended = fail(lambda name=name: write(2, name), at, mode)
        assert ended is not None or mode == "full"
        if name in list_results(store):
            assert read_result(store, name).params["seed"] in (1, 2)
        write(2, name)
        assert read_result(store, name).params == {"seed": 2}


def test_committed_parts_are_not_made_again(tmp_path):
    out = tmp_path / "s.h5"
    run = EmbeddingRun.open(out, PLAN)
    write_part(run, 0, BAD)
    assert fail(lambda: write_part(run, 1, BAD), 2, "kill") is Killed
    again = EmbeddingRun.open(out, PLAN)
    assert again.pending_parts() == [1]
    assert again.warnings == []


SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from store_samples import make_plan, write_part
from labelkit.store.writing import EmbeddingRun
run = EmbeddingRun.open(Path(sys.argv[1]), make_plan(part_rows=2, dim=5000))
print("begun", flush=True)
for part in run.pending_parts():
    write_part(run, part)
run.publish()
"""


@pytest.mark.slow
def test_a_process_killed_at_random_moments_ends_with_the_same_bytes(tmp_path):
    expected = make_store(tmp_path / "whole.h5", make_plan(part_rows=2, dim=5000)).path.read_bytes()
    moments = random.Random(0)
    command = [sys.executable, "-c", SCRIPT, "", str(Path(__file__).parent)]
    killed = 0
    for number in range(60):
        command[3] = str(tmp_path / f"{number}.h5")
        child = subprocess.Popen(command, stdout=subprocess.PIPE)
        child.stdout.readline()
        time.sleep(moments.uniform(0, 0.03))
        child.send_signal(signal.SIGKILL)
        killed += child.wait() == -signal.SIGKILL
        child.stdout.close()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        assert Path(command[3]).read_bytes() == expected
        assert open_store(command[3]).n == 8
    assert killed > 20
