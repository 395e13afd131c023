"""``--max-memory`` holds: the peak of a process of its own stays below the bound, and the result is the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from labelkit.cli.main import main
from labelkit.config.memory import size_bytes
from labelkit.store.embeddings import ModelIdentity, open_store
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.writing import EmbeddingRun

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
ROWS, DIM, CLASSES = 60_000, 256, 20
ROWS_MIB = ROWS * DIM * 4 / 2**20  # 59
CHILD = """
import json, sys
from pathlib import Path
from labelkit.cli.main import main
code = main(sys.argv[1:])
# not getrusage: its peak begins with that of the parent
(line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
print(json.dumps({"code": code, "mib": int(line.split()[1]) / 1024}))
"""


def write_store(out: Path, rows: int, dim: int) -> None:
    """Rows around so many centers, a fifth of them in a split test."""
    generator = np.random.default_rng(0)
    labels = np.arange(rows) % CLASSES
    centers = generator.standard_normal((CLASSES, dim), dtype=np.float32)
    plan = EmbeddingPlan(
        sample_ids=[f"{row:07}.png" for row in range(rows)],
        model=ModelIdentity("random rows", "0" * 64, "", "generated", "features", "mean", {}, {}),
        dim=dim,
        batch_size=1024,
        part_rows=1 << 16,
        normalized=False,
        metric="cosine",
        created_by="labelkit 0",
        labels=labels,
        labeled=(np.arange(rows) % 50 == 0) & (labels < CLASSES // 2),
        class_names=[f"c{label:02}" for label in range(CLASSES)],
        old_classes=np.arange(CLASSES) < CLASSES // 2,
        splits=(np.arange(rows) % 5 == 4).astype(np.int16),
        split_names=("train", "test"),
    )
    run = EmbeddingRun.open(out, plan)
    for part in run.pending_parts():
        start, stop = run.part_range(part)
        number = stop - start
        run.write_part(
            part,
            embeddings=centers[labels[start:stop]] + generator.standard_normal((number, dim), dtype=np.float32),
            sha256=generator.integers(0, 256, (number, 32), dtype=np.uint8),
            file_sizes=np.full(number, 100),
            image_sizes=np.full((number, 2), 8),
            extras={},
            skipped=[],
        )
    run.publish(max_bad=0.0)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("large") / "large.h5"
    write_store(out, ROWS, DIM)
    return out


@pytest.fixture
def small(tmp_path: Path) -> Path:
    write_store(tmp_path / "small.h5", 400, 8)
    return tmp_path / "small.h5"


def words(command: str, store: Path) -> list[str]:
    return [*command.split(), "--index", str(store), "-q"]


def peak(arguments: list[str]) -> float:
    """MiB of a process that runs a command."""
    done = subprocess.run([sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, env=os.environ)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["code"] == 0, done.stderr
    return float(found["mib"])


def least(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The bound that the refusal of a tiny one names."""
    assert main([*arguments, "--max-memory", "1MiB"]) == 2
    return capsys.readouterr().err.split("Allow ")[1].split()[0].rstrip(".,")


QUICK = {
    "cluster k-means --num-clusters 5": "small.h5.results/k-means.h5",
    "cluster spherical-k-means --num-clusters 5": "small.h5.results/spherical-k-means.h5",
    "cluster ss-kmeans --num-clusters 20": "small.h5.results/ss-kmeans.h5",
    "cluster sinkhorn --num-clusters 5": "small.h5.results/sinkhorn.h5",
    "retrieve --query-rows 3,4 --result hits": "small.h5.results/hits.h5",
    "evaluate knn --result votes": "small.h5.results/votes.h5",
    "evaluate linear --gallery all --epochs 2 --result line": "small.h5.results/line.h5",
    "discover categories --max-classes 22": "small.h5.results/categories.h5",
    "suggest -n 3 --out next.csv": "next.csv",
}


@pytest.mark.parametrize("command", QUICK)
def test_a_bound_that_is_too_small_is_refused_with_the_least_one_and_that_gives_the_same_result(
    command: str, small: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = words(command, small)
    made = small.parent / QUICK[command]
    monkeypatch.chdir(small.parent)
    # The same process at every size of it: what it holds meanwhile is not to decide.
    monkeypatch.setattr("labelkit.stages.memory.resident_bytes", lambda: 100 << 20)
    bound = least(arguments, capsys)
    assert not made.exists()
    assert main(arguments) == 0
    unbounded = made.read_bytes()
    assert main([*arguments, "--max-memory", bound, "--overwrite"]) == 0
    assert made.read_bytes() == unbounded


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "mib"),
    [
        ("retrieve --query-rows 3,4", 185),
        ("evaluate retrieval --nmi-seeds 1", 520),
        ("evaluate clustering", 250),
    ],
)
def test_the_peak_stays_below_the_bound(command: str, mib: int, large: Path) -> None:
    if command == "evaluate clustering":
        assert main(words("cluster k-means --num-clusters 20 --num-inits 1 --max-iterations 3", large)) == 0
    more = [] if command.startswith("evaluate") else ["--result", "bounded", "--overwrite"]
    assert peak([*words(command, large), *more, "--max-memory", f"{mib}MiB"]) <= mib


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        "cluster k-means --num-clusters 20 --num-inits 1 --max-iterations 3",
        "cluster spherical-k-means --num-clusters 20 --num-inits 1 --max-iterations 3",
        "cluster ss-kmeans --num-clusters 20 --num-inits 1 --max-iterations 3",
        "cluster sinkhorn --num-clusters 20 --max-iterations 3",
        "evaluate knn",
        "evaluate linear --gallery all --solver lbfgs --l2 1",
        "evaluate linear --gallery all --solver sgd --epochs 2",
        "discover categories",
        "discover answer",
        "suggest -n 20 --out next.csv --overwrite",
        "suggest -n 200 --strategy k-center --out next.csv --overwrite",
        "suggest -n 20 --strategy typical --out next.csv --overwrite",
        "retrieve --query-rows 3,4 --search hnsw",
        "retrieve --query-rows 3,4 --search ivfpq",
    ],
)
def test_the_peak_stays_below_the_least_bound_that_a_refusal_names(
    command: str, large: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(large.parent)
    arguments = words(command, large)
    done = subprocess.run(
        [sys.executable, "-m", "labelkit", *arguments, "--max-memory", "1MiB"], capture_output=True, text=True
    )
    size = done.stderr.split("Allow ")[1].split("iB")[0]
    mebibytes = 1024 * float(size[:-1]) if size.endswith("G") else float(size[:-1])
    assert peak([*arguments, "--max-memory", f"{size}iB"]) <= mebibytes


@needs_proc
@pytest.mark.slow
def test_two_copies_of_the_rows_are_all_that_k_means_makes_without_a_bound(large: Path) -> None:
    words_of = words("cluster k-means --num-clusters 20 --num-inits 1 --max-iterations 3 --result free", large)
    assert peak(words_of) < 280 + 2 * ROWS_MIB


@pytest.mark.parametrize("bound", ["1MiB", "100GiB"])
def test_embed_is_refused_before_the_first_image_or_is_not(
    bound: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "digits.h5"
    base = ["embed", "--dataset", "digits", "--backbone", "pixels", "--image-size", "8", "--max-images", "40", "-q"]
    code = main([*base, "--out", str(out), "--max-memory", bound])
    if bound == "1MiB":
        assert code == 2
        assert "embedding 40 images" in capsys.readouterr().err
        assert not out.exists()
    else:
        assert code == 0
        assert open_store(out).n == 40


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("backbone", ["vit_small_patch16_224", "resnet50", "tf_efficientnet_lite0"])
def test_the_peak_of_embed_stays_below_the_least_bound(backbone: str, tmp_path: Path) -> None:
    network = ["--backbone", backbone, "--random-weights", "--threads", "1", "--device", "cpu"]
    base = ["embed", "--dataset", "digits", "--max-images", "96", *network, "--out", str(tmp_path / "digits.h5"), "-q"]
    command = [sys.executable, "-m", "labelkit", *base, "--max-memory", "1MiB"]
    bound = subprocess.run(command, capture_output=True, text=True).stderr.split("Allow ")[1].split(",")[0]
    most = size_bytes(bound) / 2**20
    assert peak([*base, "--max-memory", bound]) <= most
    if backbone == "vit_small_patch16_224":
        assert peak([*base, "--overwrite"]) <= 1.2 * 1024
