"""What a server of ``labelkit label --serve`` does before it answers anybody: its lock, and what others left."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from labelkit.errors import BusyError
from labelkit.store import parts as run_folder
from labelkit.store.commit import temporary_name
from labelkit.studio.label import label as serving


def ended_process() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def left(folder: Path, name: str, seconds: float) -> Path:
    path = folder / name
    path.write_bytes(b"half")
    then = time.time() - seconds
    os.utime(path, (then, then))
    return path


def test_what_killed_servers_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    dead = ended_process()
    gone = left(tmp_path, f".tmp-{dead}-{'0' * 16}", 120)
    kept = [
        left(tmp_path, f".tmp-{dead}-{'1' * 16}", 0),  # of a process elsewhere, perhaps
        left(tmp_path, temporary_name(), 120),  # of this process
        left(tmp_path, ".tmp-mine", 120),
        left(tmp_path, "labels-1.h5", 120),
    ]
    with contextlib.ExitStack() as held:
        serving._hold(held, tmp_path)

    assert not gone.exists()
    assert [path for path in kept if not path.exists()] == []


def test_a_second_server_is_told_to_use_the_link_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "LOCK_SECONDS", 0)
    with contextlib.ExitStack() as held:
        serving._hold(held, tmp_path)
        with pytest.raises(BusyError, match="Use its link, or stop it with Ctrl-C") as caught:
            serving._hold(held, tmp_path)

    assert "--out" not in str(caught.value)
