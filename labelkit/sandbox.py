"""Confine the process that meets a foreign file, on Linux: it can read that file and Python, and do nothing else.

Landlock takes the file system (and TCP) from it. A seccomp filter takes the calls that start programs, open sockets,
look into other processes or change files' owners and modes. Both need no privileges; what the kernel lacks is left out.
``labelkit doctor`` says what is in force on this machine.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import struct
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PR_SET_NO_NEW_PRIVS = 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ = 1 << 2 | 1 << 3  # files and folders
_READ_FILE = 1 << 2
_WRITE_BELOW = 1 << 1 | 1 << 2 | 1 << 8 | 1 << 14 | 1 << 5  # write, read, make and cut regular files, remove them
# rights that the versions of Landlock know: of files, of TCP, of what leads to other processes
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
_PACKAGES = ("labelkit", "numpy", "h5py", "torch", "safetensors")

_MACHINES = {
    "x86_64": (
        0xC000003E,
        (
            *(59, 322, 41, 42, 43, 288, 49, 50, 53, 44, 46, 101, 62, 310, 311, 165, 272, 308, 321, 425, 426, 427),
            *(323, 250, 248, 249, 298, 438, 90, 268, 452, 92, 94, 260, 188, 189, 280, 132, 235),
        ),
    ),
    "aarch64": (
        0xC00000B7,
        (
            *(221, 281, 198, 203, 202, 242, 200, 201, 199, 206, 211, 117, 129, 270, 271, 40, 97, 268, 280, 425, 426),
            *(427, 282, 219, 217, 218, 241, 438, 53, 452, 54, 5, 6, 88),
        ),
    ),
}
"""Of each machine: its number, and those of execve, execveat, socket, connect, accept(4), bind, listen, socketpair,
sendto, sendmsg, ptrace, kill, process_vm_*, mount, unshare, setns, bpf, io_uring_*, userfaultfd, keyctl,
(add|request)_key, perf_event_open, pidfd_getfd, chmod, fchmodat(2), (l)chown, fchownat, (l)setxattr, utime*."""


def confine(*, read: Iterable[Path] = (), write: Iterable[Path] = ()) -> dict[str, bool]:
    """Take from this process what reading a file does not need; it cannot be given back.

    Descriptors that are open stay usable. Nothing happens on other systems than Linux.

    Args:
        read: files that may be opened for reading, beside Python and its packages.
        write: folders in which regular files may be made.

    Returns:
        What is in force: ``no new privileges``, ``landlock``, ``seccomp``.
    """
    found = {"no new privileges": False, "landlock": False, "seccomp": False}
    if sys.platform != "linux":
        return found
    system = ctypes.CDLL(None, use_errno=True)
    found["no new privileges"] = system.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    if found["no new privileges"]:
        found["landlock"] = _landlock(system, [*_python(), *read], list(write))
        found["seccomp"] = _seccomp(system)
    return found


def _python() -> list[Path]:
    """Where modules that are imported late lie."""
    folders = {Path(start, name) for start in (sys.prefix, sys.base_prefix, "/", "/usr") for name in ("lib", "lib64")}
    for name in _PACKAGES:
        spec = find_spec(name)
        places = None if spec is None else spec.submodule_search_locations
        folders |= {Path(place) for place in places or ()}
    return [folder for folder in folders if folder.is_dir()]


def _landlock(system: Any, read: list[Path], write: list[Path]) -> bool:
    version = system.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    rights = (1 << _FILE_RIGHTS[min(version, 5)]) - 1
    attributes = struct.pack("=QQQ", rights, 3 if version >= 4 else 0, 3 if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    ruleset = system.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        for path, allowed in [(path, _READ) for path in read] + [(path, _WRITE_BELOW) for path in write]:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
            try:
                granted = allowed & rights & (-1 if path.is_dir() else _READ_FILE)
                rule = struct.pack("=Qi", granted, descriptor)
                if system.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0) != 0:
                    return False
            finally:
                os.close(descriptor)
        return bool(system.syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _seccomp(system: Any) -> bool:
    if platform.machine() not in _MACHINES or sys.maxsize <= 1 << 32:
        return False
    machine, calls = _MACHINES[platform.machine()]
    refuse, allow = 0x00050000 | errno.EPERM, 0x7FFF0000
    count = len(calls)
    # load the machine, load the number, compare it with each, allow; jumps count what lies between
    lines = [(0x20, 0, 0, 4), (0x15, 0, count + 3, machine), (0x20, 0, 0, 0), (0x35, count + 1, 0, 0x40000000)]
    lines += [(0x15, count - number, 0, call) for number, call in enumerate(calls)]
    lines += [(0x06, 0, 0, allow), (0x06, 0, 0, refuse)]
    code = b"".join(struct.pack("=HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("@HP", len(lines), ctypes.addressof(buffer))
    number = {"x86_64": 317, "aarch64": 277}[platform.machine()]
    return bool(system.syscall(number, 1, 1, program) == 0)  # all threads


def in_force() -> dict[str, bool]:
    """Return what ``confine`` can do on this machine, tried in a process of its own.

    Raises:
        OSError: no process can be started.
    """
    command = [
        sys.executable,
        "-P",
        "-c",
        "import json\nfrom labelkit.sandbox import confine\nprint(json.dumps(confine()))",
    ]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(Path(entry).absolute()) for entry in sys.path)}
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {}
