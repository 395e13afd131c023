"""Profile the slowest code paths of the benchmarks, and write where each spends its time, as text.

    python -m benchmarks.profiles --out examples/results/profiles

The file for each path lists functions by their own time on one thread, from ``cProfile``. Times include the overhead of
the profiler, above all for small functions, so compare fractions and call counts.
"""

import argparse
import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import faiss
import torch
from threadpoolctl import threadpool_limits

from benchmarks import bench_class_number, bench_index, bench_photos, bench_retrieval, photo_sides
from benchmarks.profile_table import profiled, table

PHOTOS, SCORED_ROWS = 120, 15_000
TRAINING = ("train", "simgcd", "--dataset", "digits", "--epochs", "2", "--max-per-class", "40", "--device", "cpu", "-q")

Work = Callable[[], object]


def embed_photos(folder: Path) -> Work:
    """Run ``labelkit embed`` on the demo photographs with the demo's network."""
    options = {
        "dataset": str(bench_photos.PHOTOS),
        "max_images": PHOTOS,
        "backbone": "tf_efficientnet_lite0.in1k",
        "pretrained": True,
        "seed": 0,
        "device": "cpu",
    }
    return photo_sides.embed({**options, "threads": torch.get_num_threads(), "rows": str(folder / "rows.npy")})


def train(folder: Path) -> Work:
    """Run ``labelkit train simgcd`` on the bundled digits."""
    return command(*TRAINING, "--out", str(folder / "run"), "--overwrite")


def retrieval(folder: Path) -> Work:
    """Compute Recall@1, R-precision and MAP@R."""
    rows, labels = bench_retrieval.make_rows(SCORED_ROWS, bench_retrieval.DIM, bench_retrieval.PER_CLASS)
    return lambda: bench_retrieval.scores_of_ours(rows, labels)


def class_number(folder: Path) -> Work:
    """Run ``labelkit discover categories`` on 20,000 rows with labels."""
    size = bench_class_number.SIZES[0]
    bench_class_number.write_store(folder / "rows.h5", size)
    return command("discover", "categories", "--index", str(folder / "rows.h5"), "--max-classes", str(size.most), "-q")


def index_query(folder: Path) -> Work:
    """Run 500 separate queries on an IVF-PQ index of 20,000 rows."""
    from labelkit.algorithms.indexes import ApproximateSearch, build_index

    gallery, queries = bench_index.make_rows()
    gallery = gallery[:20_000]
    search = ApproximateSearch(build_index(gallery, "ivfpq"), gallery)
    return lambda: [search.search(query[None], bench_index.K) for query in queries]


PATHS = (embed_photos, train, retrieval, class_number, index_query)


def command(*words: str) -> Work:
    """Run a command line in this process."""
    from labelkit.cli.main import main as labelkit

    def work() -> None:
        code = labelkit(list(words))
        assert code == 0, words

    return work


def main() -> None:
    """Profile each path."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profiles", description="Profile the slowest paths.")
    names = [path.__name__ for path in PATHS]
    parser.add_argument("--only", choices=names, metavar="NAME", help=f"one of: {', '.join(names)}")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder for the text files")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    called = shlex.join([Path(sys.executable).name, "-m", "benchmarks.profiles", "--out", str(options.out)])
    for path in PATHS:
        if options.only not in (None, path.__name__):
            continue
        with tempfile.TemporaryDirectory() as folder, threadpool_limits(1):
            os.environ["LABELKIT_CACHE"] = str(Path(folder) / "cache")
            took, stats = profiled(path(Path(folder)))
        told = f"{path.__doc__}\n{called} --only {path.__name__}\n{took:.2f} s of one processor, with the profiler\n"
        (options.out / f"{path.__name__}.txt").write_text(f"{told}\n{table(stats)}\n")


if __name__ == "__main__":
    main()
