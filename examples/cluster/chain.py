"""Check that one process, two processes, and a Ray cluster that loses one of two nodes give the same results.

    python examples/cluster/chain.py --work chain

The script packs the bundled digits into tar files, embeds them three times, and runs `cluster`, `discover answer`,
`retrieve` and `predict` on each store, in the same processes or on the same cluster. The second node of the cluster is
killed as soon as the first part is embedded. The script prints the time of each and whether all files are equal, and
exits with 1 if a file differs. It needs `pip install "labelkit-images[ray]"`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

from ray.cluster_utils import Cluster

TARS = "tars/{0..3}.tar"
EMBED = ("embed", "--dataset", TARS, "--backbone", "vit_micro_p8_64", "--random-weights", "--part-rows", "128")


def labelkit(folder: Path, *words: str) -> subprocess.Popen[bytes]:
    """Start a command in a folder; it prints nothing unless it fails."""
    return subprocess.Popen([sys.executable, "-m", "labelkit", *words, "-q"], cwd=folder, stdout=subprocess.DEVNULL)


def pack(folder: Path) -> None:
    """Write the digits as four tar files, and a list with five labels per class."""
    photos = folder / "digits"
    script = Path(__file__).parents[1] / "digit_photos.py"
    subprocess.run([sys.executable, str(script), str(photos), "--per-class", "120"], check=True)
    (folder / "tars").mkdir(exist_ok=True)
    files = sorted(photos.glob("*/*.png"))
    for number in range(4):
        with tarfile.open(folder / f"tars/{number}.tar", "w") as tar:
            for file in files[number::4]:
                tar.add(file, arcname=f"{file.parent.name}-{file.name}")
    lines = (photos / "few.csv").read_text().splitlines()
    (folder / "few.csv").write_text("\n".join([lines[0], *(line.replace("/", "-", 1) for line in lines[1:])]) + "\n")


def chain(folder: Path, name: str, *where: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start each command when the previous one has ended; exit if a command fails."""
    store = f"{name}.h5"
    of_store = ["--index", store, "--overwrite"]
    for words in (
        [*EMBED, "--out", store, "--overwrite", *(where or ("--threads", "1"))],
        ["cluster", "k-means", *of_store, "--num-clusters", "10", "--max-memory", "1MB", *where],
        [
            "discover",
            "answer",
            *of_store,
            "--labels",
            "few.csv",
            "--num-clusters",
            "10",
            "--csv",
            f"{name}.csv",
            *where,
        ],
        ["retrieve", *of_store, "--query", store, "-k", "5", "--search", "exact", "--csv", f"{name}-hits.csv", *where],
        ["predict", store, "--from", store, "--out", f"{name}-predicted.csv", "--overwrite", *where],
    ):
        yield (command := labelkit(folder, *words))
        if command.wait():
            raise SystemExit(command.returncode)


def run_on_ray(folder: Path, name: str) -> None:
    """Run the chain on two nodes with one core each, and kill the second after the first part is written."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        node = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()
        parts = folder / f"{name}.h5.run" / "parts"
        for command in chain(folder, name, "--ray-address", cluster.address):
            while node is not None and command.poll() is None and not list(parts.glob("*.h5")):
                time.sleep(0.1)
            if node is not None:
                cluster.remove_node(node, allow_graceful=False)
                print(f"killed a node with {len(list(parts.glob('*.h5')))} parts written")
                node = None
    finally:
        cluster.shutdown()


def main() -> int:
    """Run the chain three times; return 1 if a file differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--work", type=Path, required=True, help="folder to work in")
    folder = parser.parse_args().work
    folder.mkdir(parents=True, exist_ok=True)
    pack(folder)
    for name in ("one", "two", "ray"):
        started = time.monotonic()
        if name == "ray":
            run_on_ray(folder, name)
        else:
            for _ in chain(folder, name, *(["--processes", "2"] if name == "two" else [])):
                pass
        print(f"{name}: the chain in {time.monotonic() - started:.0f} s")
    differ = [
        f"{name}{kind}"
        for name in ("two", "ray")
        for kind in (".h5", ".csv", "-hits.csv", ".h5.results/k-means.h5", ".h5.results/answer.h5", "-predicted.csv")
        if (folder / f"{name}{kind}").read_bytes() != (folder / f"one{kind}").read_bytes()
    ]
    print("all files are equal" if not differ else f"these differ: {', '.join(differ)}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
