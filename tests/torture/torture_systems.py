"""A tour of commands in one process, under a layer between it and the system: ``clock.c``, ``delay.c``."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from torture_samples import write_photos

# each line is a command, and the code it ends with follows on standard output
RUNNER = """
import sys
from labelkit.cli.main import main
for line in filter(None, sys.stdin.read().splitlines()):
    print("code", main(line.split()), line, flush=True)
"""
TOUR = """
embed --dataset photos --backbone pixels --image-size 8 --part-rows 8 --out s.h5 -q
embed --dataset photos --backbone vit_nano_p8_32 --random-weights --dense --out d.h5 -q
cluster k-means --index s.h5 --num-clusters 4 -q
discover categories --index s.h5 --max-classes 4 -q
evaluate clustering --index s.h5 --rows all -q
retrieve --index s.h5 --query-rows 0 --search hnsw --csv hits.csv -q
status --index s.h5 -q
verify --index s.h5 -q
pack --index s.h5 --out packed.h5 -q
verify --index packed.h5 -q
export --index s.h5 --out s.csv -q
import --source x.npz --out x.h5 -q
report --index s.h5 --out page.html -q
match --index s.h5 --num-clusters 4 --out m.h5 -q
"""
TRAIN = """
train flipclass --dataset photos --label-split gcd --backbone vit_nano_p8_32 --align-blocks 1 --teacher-warmup-epochs 1 --batch-size 16 --projector-hidden-dim 16 --projection-dim 8 --epochs 2 --augmentation digits --out run -q
status --run run -q
embed --dataset photos --checkpoint run --out r.h5 -q
start photos --backbone pixels --labels few.csv --out made -q
"""  # noqa: E501


def layer(source: str, folder: Path) -> Path | None:
    """Compile a layer; ``None``: there is no compiler."""
    out = folder / f"{Path(source).stem}.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(out), str(Path(__file__).with_name(source)), "-ldl"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    assert done.returncode == 0, done.stderr
    return out


def prepare(folder: Path) -> Path:
    """Put into a new folder what the tour reads."""
    write_photos(folder / "photos", ("ant", "bee", "cat", "dog"), side=16)
    rows_of_others = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32)
    np.savez(folder / "x.npz", embeddings=rows_of_others)
    rows = [f"{name}/{i:02d}.png,{name}" for name in ("ant", "bee", "cat") for i in range(3)]
    (folder / "few.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    return folder


def begin_tour(folder: Path, lines: str, environment: dict[str, str], cache: Path) -> subprocess.Popen[str]:
    """Start the commands in one process; it reads them from its standard input, which is given at once."""
    kept = {key: value for key, value in os.environ.items() if key != "LABELKIT_CACHE"}
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER],
        cwd=folder,
        env={**kept, "LABELKIT_CACHE": str(cache), "TQDM_DISABLE": "1", **environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    process.stdin.write(lines)
    process.stdin.close()
    process.stdin = None
    return process


def tour(folder: Path, lines: str, environment: dict[str, str], cache: Path) -> tuple[list[str], str]:
    """Run the commands; return ``code line`` of each, and all messages."""
    out, err = begin_tour(folder, lines, environment, cache).communicate(timeout=1200)
    return [line.removeprefix("code ") for line in out.splitlines() if line.startswith("code ")], err


@contextmanager
def mounted(folder: Path, size: str) -> Iterator[Callable[[str], object]]:
    """Mount a small file system in memory; give what mounts it again with other options, files kept.

    The test is skipped where mounting is not allowed.
    """

    def mount(options: str) -> object:
        words = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        return subprocess.run(words, check=True, capture_output=True)

    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("mounting a file system needs root on Linux")
    folder.mkdir()
    try:
        mount(f"size={size}")
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"mounting is not allowed here: {error}")
    try:
        yield lambda options: mount(f"remount,{options}")
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True, capture_output=True)
