"""Systems that lack what Linux has, and other locales: the tour still runs, and digests are the same."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torture_systems import TOUR, TRAIN, prepare

HIDE = """
import os, pathlib, sys
import portalocker, psutil  # which have a part for each system
for name in ("fcntl", "resource", "termios", "pwd", "grp", "syslog"):
    sys.modules[name] = None
for name in ("posix_fallocate", "link", "getuid", "mkfifo", "wait4"):
    if hasattr(os, name):
        delattr(os, name)
real = pathlib.Path.read_text
def read_text(self, *given, **named):
    if str(self).startswith("/proc"):
        raise FileNotFoundError(2, "hidden", str(self))
    return real(self, *given, **named)
pathlib.Path.read_text = read_text
from labelkit.cli.main import main
for line in filter(None, sys.stdin.read().splitlines()):
    code = main(line.split())
    assert code == 0, (line, code)
"""


@pytest.mark.slow
def test_the_tour_runs_without_what_only_posix_has(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "here")
    lines = f"{TOUR}{TRAIN}compare --dataset digits --methods simgcd --budget 5s --max-per-class 10 -q\n"
    command = [sys.executable, "-c", HIDE]
    done = subprocess.run(command, input=lines, cwd=folder, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


LOCALES = (
    {"LC_ALL": "C.UTF-8"},
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"LC_ALL": "en_US.ISO-8859-1", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="other systems take no such names, or have no such locales")
def test_a_store_does_not_depend_on_the_locale(tmp_path: Path) -> None:
    for folder in (b"ant", "k\u00e4fer".encode(), b"b\xff", b"kz"):
        (tmp_path / "photos" / os.fsdecode(folder)).mkdir(parents=True)
        for i in range(2):
            picture = Image.fromarray(np.full((8, 8), 40 * i, np.uint8))
            picture.save(tmp_path / "photos" / os.fsdecode(folder) / f"{i}.png")
    words = ["embed", "--dataset", "photos", "--backbone", "pixels", "--image-size", "4", "-q", "--out"]
    for number, locale in enumerate(LOCALES):
        command = [sys.executable, "-m", "labelkit", *words, f"{number}.h5"]
        subprocess.run(command, cwd=tmp_path, env={**os.environ, **locale}, check=True, capture_output=True)
    assert len({(tmp_path / f"{number}.h5").read_bytes() for number in range(len(LOCALES))}) == 1
