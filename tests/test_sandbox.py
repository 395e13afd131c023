"""A confined process reads what it was given and does nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from labelkit.sandbox import in_force

pytestmark = pytest.mark.skipif(not all(in_force().values()), reason="the kernel has no Landlock or no seccomp")

CHILD = """
import os, socket, subprocess, sys, threading
from pathlib import Path
from labelkit.sandbox import confine
given, secret, folder = map(Path, sys.argv[1:4])
handle = given.open("rb")
pipe = socket.socketpair()
found = confine(read=[given], write=[folder])
assert all(found.values()), found
"""
REFUSED = {
    "read another file": "secret.read_bytes()",
    "list a folder": "os.listdir(secret.parent)",
    "read the passwords": "Path('/etc/passwd').read_bytes()",
    "write beside": "(secret.parent / 'new').write_bytes(b'x')",
    "write to what is given": "given.open('ab')",
    "remove": "secret.unlink()",
    "rename": "secret.rename(folder / 'taken')",
    "make a folder": "(folder / 'sub').mkdir()",
    "link": "os.symlink(secret, folder / 'link')",
    "connect": "socket.create_connection(('127.0.0.1', 9), timeout=1)",
    "a socket": "socket.socket(socket.AF_UNIX)",
    "start a program": "subprocess.run(['/bin/true'])",
    "become a program": "os.execv('/bin/true', ['true'])",
    "change the mode": "given.chmod(0o777)",
    "change the time": "os.utime(given, (0, 0))",
    "signal its parent": "os.kill(os.getppid(), 0)",
    "a thread that reads": "threading.Thread(target=lambda: [secret.read_bytes(), os._exit(0)]).start() or [][0]",
}
ALLOWED = {
    "read what is given": "given.read_bytes()",
    "go on reading": "handle.read()",
    "write where it may": "(folder / 'out').write_bytes(b'x')",
    "import": "__import__('xml.dom.minidom')",
    "threads": "threading.Thread(target=lambda: None).start()",
}


def _run(tmp_path: Path, line: str) -> subprocess.CompletedProcess[str]:
    for name in ("given", "secret/key"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "folder").mkdir()
    paths = [str(tmp_path / name) for name in ("given", "secret/key", "folder")]
    command = [sys.executable, "-c", f"{CHILD}{line}\n", *paths]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("line", REFUSED.values(), ids=REFUSED.keys())
def test_it_can_do_nothing_else(tmp_path: Path, line: str) -> None:
    done = _run(tmp_path, line)
    assert done.returncode == 1, done.stderr
    assert "PermissionError" in done.stderr
    assert (tmp_path / "secret" / "key").read_bytes() == b"x"


@pytest.mark.parametrize("line", ALLOWED.values(), ids=ALLOWED.keys())
def test_it_can_do_its_work(tmp_path: Path, line: str) -> None:
    done = _run(tmp_path, line)
    assert done.returncode == 0, done.stderr
