"""Try to break labelkit, in full: kills, faults of the disk, damaged and hostile files; ``python -m tests.torture``.

One table at the end: row, attempts, failures, seconds. The exit code is 1 when a row has failures. The quick tier
runs a sample of some rows.
"""

import argparse
import signal
from pathlib import Path

import pytest

# The order is that of the acceptance list of the formats.
ROWS = {
    "a": "kills",
    "b": "faults",
    "c": "places",
    "d": "flips",
    "e": "hdf5",
    "g": "images",
    "h": "listings",
    "i": "inputs",
    "j": "stops",
    "k": "systems",
}


def main() -> int:
    """Parse, run pytest over the rows."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description="What is done to break labelkit.")
    names = ", ".join(f"{letter} ({name})" for letter, name in ROWS.items())
    parser.add_argument("--rows", default="".join(ROWS), metavar="abc", help=f"letters of the rows to run: {names}")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="processes side by side (2)")
    options = parser.parse_args()
    if unknown := sorted(set(options.rows) - ROWS.keys()):
        parser.error(f"there is no row {', '.join(unknown)}; rows are {names}")
    # What a shell starts in the background is told to ignore Ctrl-C, and so would be the commands that rows stop by it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    folder = Path(__file__).parent
    files = [str(folder / f"test_torture_{ROWS[letter]}.py") for letter in ROWS if letter in options.rows]
    workers = ["-n", str(options.workers)] if options.workers > 1 else ["-p", "no:xdist"]
    return int(pytest.main([*files, "--torture", "-m", "torture", "-q", "-p", "no:cacheprovider", *workers]))


if __name__ == "__main__":
    raise SystemExit(main())
