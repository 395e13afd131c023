"""Work that ``kill -9`` of ``embed`` loses with a network that is slow on a CPU: ``python -m tests.torture.lost_work``.

A line per kill: seconds since the start of the process, and seconds since the last file of the run was committed, but
no more than the process lived, loading of torch included. A run that ends is begun anew. At the end the same command
runs undisturbed, and the bytes of the store are compared with those of one that was never killed.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image


def main() -> int:
    """Parse, kill, compare; the exit code is 1 where bytes differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.lost_work", description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20, metavar="N", help="kills (20)")
    parser.add_argument("--images", type=int, default=300, metavar="N", help="images, of noise (300)")
    parser.add_argument("--backbone", default="vit_small_patch16_224", help="network, with random weights")
    parser.add_argument("--most-seconds", type=float, default=20.0, help="longest life of a process (20)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _photos(folder / "photos", options.images)
        lost = []
        while len(lost) < options.kills:
            found = _killed(folder, options.backbone, chance.uniform(3.0, options.most_seconds))
            if found is None:
                _remove(folder, "killed.h5")
                continue
            lost.append(found[1])
            _say(f"kill {len(lost)}: after {found[0]:.1f} s, lost {found[1]:.1f} s")
        _say(f"lost: median {np.median(lost):.1f} s, largest {max(lost):.1f} s of {len(lost)} kills")
        for out in ("killed.h5", "whole.h5"):
            subprocess.run(_command(options.backbone, out), cwd=folder, check=True)
        same = (folder / "killed.h5").read_bytes() == (folder / "whole.h5").read_bytes()
        _say("same bytes" if same else "OTHER BYTES")
    return 0 if same else 1


def _command(backbone: str, out: str) -> list[str]:
    words = ["embed", "--dataset", "photos", "--backbone", backbone, "--random-weights", "--device", "cpu"]
    return [sys.executable, "-m", "labelkit", *words, "--out", out, "-q"]


def _killed(folder: Path, backbone: str, after: float) -> tuple[float, float] | None:
    """Return how long the process lived, and what it lost; ``None``: it had ended."""
    began = time.time()
    process = subprocess.Popen(
        _command(backbone, "killed.h5"), cwd=folder, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        code = process.wait(after)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        ended = time.time()
        process.wait()
        committed = [path.stat().st_mtime for path in folder.glob("killed.h5*/**/*") if ".tmp-" not in path.name]
        return ended - began, ended - max([began, *committed])
    if code:
        raise SystemExit(f"embed ended with exit code {code}")
    return None


def _remove(folder: Path, name: str) -> None:
    for path in folder.glob(f"{name}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _photos(folder: Path, count: int) -> None:
    chance = np.random.default_rng(0)
    for i in range(count):
        path = folder / ("ant", "bee")[i % 2] / f"{i:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(chance.integers(0, 256, (96, 96, 3), dtype=np.uint8)).save(path)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    raise SystemExit(main())
