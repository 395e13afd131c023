"""The scripts of ``examples/cluster``, run by processes of this machine in the place of a cluster."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from sklearn.datasets import load_digits
from tests.pages import ROOT

FOLDER = ROOT / "examples" / "cluster"
NETWORK = ("--backbone", "pixels", "--image-size", "8", "--label-split", "none")
STARTED = 180.0

pytestmark = pytest.mark.slow


def environment(**more: str) -> dict[str, str]:
    """That of a user in the repository, whose commands are those of this Python."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {"PATH": places, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | more


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two hundred digits in four tar archives, as webdataset has them."""
    folder = tmp_path_factory.mktemp("shards")
    digits = load_digits()
    for shard in range(4):
        with tarfile.open(folder / f"{shard:02d}.tar", "w") as archive:
            for i in range(shard, 200, 4):
                picture = io.BytesIO()
                Image.fromarray((digits.images[i] * 15).astype(np.uint8)).save(picture, "png")
                for suffix, content in (("png", picture.getvalue()), ("cls", str(digits.target[i]).encode())):
                    member = tarfile.TarInfo(f"{i:04d}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return f"{folder}/{{00..03}}.tar"


def run(words: Sequence[str | Path], **more: str) -> None:
    done = subprocess.run(
        [*map(str, words)], env=environment(**more), capture_output=True, text=True, timeout=STARTED, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def written(folder: Path) -> dict[str, str]:
    """Digest of everything that a chain wrote; results say when they were made, so that their groups are compared."""
    from labelkit.store.embeddings import open_store
    from labelkit.store.results import read_result

    tables = [folder / "answers.csv", folder / "neighbors.csv"]
    files = [folder / "rows.h5", *tables, *(folder / "rows.h5.shards").iterdir()]
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    for result, array in (("ss-kmeans", "cluster_ids"), ("answer", "group_ids"), ("answer", "confidence")):
        values = read_result(open_store(folder / "rows.h5"), result).arrays[array]
        found[f"{result} {array}"] = hashlib.sha256(values.tobytes()).hexdigest()
    return found


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Labels of thirty of the digits, six to a class of the first five; 120 images are answered together."""
    table = tmp_path_factory.mktemp("labels") / "known.csv"
    target = load_digits().target[:200]
    rows = [row for label in range(5) for row in np.flatnonzero(target == label)[:6]]
    lines = [f"{row:04d}.png,{target[row]}" for row in rows]
    table.write_text("\n".join(["path,label", *lines]) + "\n")
    return {"LABELS": str(table), "TOGETHER": "120"}


@pytest.fixture(scope="module")
def whole(shards: str, names: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What one process writes."""
    out = tmp_path_factory.mktemp("whole") / "out"
    run([FOLDER / "chain.sh", shards, out, "10", *NETWORK], PROCESSES="1", **names)
    return written(out)


@pytest.mark.parametrize("there", ["rows.h5.run", "rows.h5", "rows.h5.results/ss-kmeans.h5", "answers.csv"])
def test_a_chain_that_is_killed_goes_on(
    shards: str, names: dict[str, str], whole: dict[str, str], tmp_path: Path, there: str
) -> None:
    """Two processes, killed while a step runs: the same bytes as of one that was left alone."""
    out = tmp_path / "out"
    words = [str(FOLDER / "chain.sh"), shards, str(out), "10", *NETWORK]
    with subprocess.Popen(
        words, env=environment(**names), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as chain:
        end = time.monotonic() + STARTED
        while not (out / there).exists() and chain.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        assert (out / there).exists()
        # torchrun puts its processes into sessions of their own
        killed = subprocess.run(["pkill", "-KILL", "-f", str(out)], check=False)
        assert killed.returncode in (0, -signal.SIGKILL)
        assert chain.wait(STARTED) != 0
    assert not (out / "neighbors.csv").exists()
    run(words, **names)
    assert written(out) == whole


def test_slurm_starts_the_chain_on_every_machine(
    shards: str, names: dict[str, str], whole: dict[str, str], tmp_path: Path
) -> None:
    """``srun`` is stood in for by two processes of this machine."""
    stand_ins = {"scontrol": "echo localhost", "srun": '"$@" & first=$!; "$@"; code=$?; wait $first && exit $code'}
    for name, line in stand_ins.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "a,b", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7", "SLURM_SUBMIT_DIR": str(ROOT)}
    path = os.pathsep.join([str(tmp_path), environment()["PATH"]])
    words = ["bash", FOLDER / "slurm.sh", shards, tmp_path / "out", "10", *NETWORK]
    run(words, PATH=path, PORT=str(free_port()), **slurm, **names)
    assert written(tmp_path / "out") == whole


def test_kubernetes_starts_the_chain_in_every_pod(
    shards: str, names: dict[str, str], whole: dict[str, str], tmp_path: Path
) -> None:
    """Pods are stood in for by two processes of this machine."""
    job = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))[1]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    told = {one["name"]: one["value"] for one in container["env"]}
    assert told["NODES"] == str(job["spec"]["completions"]) == str(job["spec"]["parallelism"]) == "2"
    told |= {"FIRST": "localhost", "IMAGES": shards, "FOLDER": str(tmp_path / "out"), "GROUP_COUNT": "10"}
    told |= names
    told |= {"NETWORK": " ".join(NETWORK), "PORT": str(free_port())}
    pods = [
        subprocess.Popen(
            container["command"], env=environment(**told, JOB_COMPLETION_INDEX=str(pod)), cwd=ROOT,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for pod in range(2)
    ]  # fmt: skip
    errors = [pod.communicate(timeout=STARTED)[1] for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0], errors
    assert written(tmp_path / "out") == whole
