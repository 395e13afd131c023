"""A function applied elsewhere: what comes back when processes or nodes die, and when calls raise."""

import importlib.util
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.commands.common import apply as apply_module
from labelkit.commands.common.apply import apply_to_rows, map_parallel
from labelkit.commands.embed import embed
from labelkit.errors import ConfigError, DatasetError, ResourceError
from labelkit.options.embed import EmbedConfig
from labelkit.options.memory import ProcessesConfig
from labelkit.progress import Task, use_progress
from numpy.typing import NDArray
from PIL import Image
from tests.running import Heard


def square(folder: Path, number: int) -> int:
    """Square a number; 3 raises, 4 always ends the process, and one of which a file ``die-N`` lies there once."""
    if number == 3:
        raise DatasetError("three", "is odd", "Take another.")
    if number == 4 or (folder / f"die-{number}").exists():
        (folder / f"die-{number}").unlink(missing_ok=True)
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


@pytest.mark.slow
@pytest.mark.usefixtures("script")
def test_a_process_that_dies_costs_nothing(tmp_path: Path) -> None:
    for number in (1, 2, 5):
        (tmp_path / f"die-{number}").touch()

    found = dict(map_parallel(partial(square, tmp_path), [0, 1, 2, 5, 6], processes=1))

    assert found == {0: 0, 1: 1, 2: 4, 5: 25, 6: 36}
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_faults_come_as_they_are_and_death_again_and_again_is_one(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="three: is odd"):
        list(map_parallel(partial(square, tmp_path), [1, 3], processes=2))
    with pytest.raises(ResourceError, match="died 3 times in a row"):
        list(map_parallel(partial(square, tmp_path), [4], processes=2))


def total(rows: StoredRows) -> float:
    return float(rows[:].sum()) if len(rows) else -1.0


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_parts_of_rows_come_in_order(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_module, "rows_per_block", lambda numbers: 1)
    numbers = np.arange(200, dtype=np.float32).reshape(100, 2)
    config = ProcessesConfig(processes=processes)

    found = list(apply_to_rows(total, StoredRows(numbers, in_blocks=True), config, "parts"))
    none = list(apply_to_rows(total, StoredRows(numbers[:0], in_blocks=True), config, "parts"))

    assert found == [float(numbers[start : start + 32].sum()) for start in range(0, 100, 32)]
    assert none == [-1.0]


def doubled(allowed: Path, rows: StoredRows) -> tuple[NDArray[np.float32], int]:
    """Double rows; the second part fails unless a file is there, the first if it is."""
    if allowed.exists() == (rows[:1][0, 0] == 0):
        raise DatasetError("rows", "must not be read now", "Wait.")
    return 2 * rows[:], len(rows)


def test_a_repeated_command_takes_the_parts_that_were_done(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(apply_module, "rows_per_block", lambda numbers: 1)
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path))
    numbers = np.arange(80, dtype=np.float32).reshape(40, 2)
    call, config = partial(doubled, tmp_path / "allowed"), ProcessesConfig()

    def run(values: NDArray[np.float32]) -> list[tuple[NDArray[np.float32], int]]:
        return list(apply_to_rows(call, StoredRows(values, in_blocks=True), config, "parts", resumable=True))

    with pytest.raises(DatasetError, match="must not be read now"):
        run(numbers)
    (kept,) = (tmp_path / "parts").iterdir()
    (tmp_path / "allowed").touch()
    changed = numbers.copy()
    changed[1] += 1
    with pytest.raises(DatasetError):  # other rows, so that nothing of what is kept fits
        run(changed)
    whole = kept.read_bytes()
    kept.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DatasetError):
        run(numbers)
    kept.write_bytes(whole)

    (first, many), (second, few) = run(numbers)

    np.testing.assert_array_equal(np.concatenate([first, second]), 2 * numbers)
    assert (many, few) == (32, 8)
    assert not list((tmp_path / "parts").iterdir())


def test_a_cache_that_cannot_be_written_costs_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(apply_module, "rows_per_block", lambda numbers: 1)
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "file"))
    rows = StoredRows(np.ones((100, 2), dtype=np.float32), in_blocks=True)
    heard = Heard()

    with use_progress(heard):
        found = [*apply_to_rows(StoredRows.to_array, rows, ProcessesConfig(), "parts", resumable=True)]

    assert sum(map(len, found)) == 100
    assert [text for text in heard.warnings if "finished parts cannot be cached" in text] == heard.warnings[:1]


def test_processes_begin_without_torch() -> None:
    code = (
        "import queue, sys\n"
        "from labelkit.commands.common import apply\n"
        "apply.exit_with_parent = lambda name: None\n"
        "apply._initialize_process(queue.Queue(), 2, False)\n"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("visible", "seen"), [(None, "1"), ("4,7", "7")])
def test_processes_take_gpus_in_turn(visible: str | None, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply_module, "exit_with_parent", lambda name: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(os, "environ", {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    numbers: Any = queue.Queue()
    numbers.put(3)
    before = signal.getsignal(signal.SIGINT)
    try:
        apply_module._initialize_process(numbers, 4, gpus=True)
    finally:
        signal.signal(signal.SIGINT, before)
    assert os.environ == {"CUDA_VISIBLE_DEVICES": seen, "LOCAL_WORLD_SIZE": "4"}


def test_without_ray_its_absence_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(ConfigError, match=r"labelkit-images\[ray\]"):
        list(map_parallel(abs, [1], processes=1, ray_address="local"))


def test_a_cluster_that_is_not_there_is_told_before_any_work(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())

    with pytest.raises(ConfigError, match=r"no Ray cluster at 127\.0\.0\.1:1 "):
        embed.embed_images(EmbedConfig(dataset=str(photos), ray_address="127.0.0.1:1", out=tmp_path / "x.h5"))
    assert not list(tmp_path.iterdir())


class Listener(Heard):
    """Counts what is done, too."""

    done = 0

    def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
        return nullcontext(self)

    def advance(self, n: int = 1, **info: object) -> None:
        self.done += n

    def skip(self, n: int) -> None:
        self.done += n


def apply_here(function: Any, items: Any, **options: Any) -> Iterator[tuple[Any, Any]]:
    return ((item, function(item)) for item in items)


@pytest.mark.parametrize("applied", [apply_here, pytest.param(map_parallel, marks=pytest.mark.slow)])
def test_processes_embed_the_same_bytes(
    applied: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = Path(shutil.copytree(photos, tmp_path / "images"))
    for number in range(8):
        dark = np.linspace(0, 4095 + number, 64).astype(np.uint16).reshape(8, 8)
        Image.fromarray(dark).save(images / f"dark-{number}.png")  # of it next to nothing is left
    options = {"dataset": str(images), "backbone": "vit_nano_p8_32", "random_weights": True, "part_rows": 8}
    calls: list[dict[str, Any]] = []
    monkeypatch.setattr(embed, "map_parallel", lambda *given, **named: calls.append(named) or applied(*given, **named))
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    said = {}
    for name, more in (("one", {"threads": 1}), ("two", {"processes": 9})):
        with use_progress(said.setdefault(name, Listener())):
            result = embed.embed_images(EmbedConfig(out=tmp_path / f"{name}.h5", batch_size=8, **options, **more))
        assert result.to_json()["images_per_second"] is not None

    assert [call["processes"] for call in calls] == [9]
    told = "only 7 of 9 processes are used, since each part has 8 images; to use more, lower --part-rows"
    assert told in said["two"].messages
    assert (tmp_path / "two.h5").read_bytes() == (tmp_path / "one.h5").read_bytes()
    assert (said["two"].done, said["two"].warnings) == (56, said["one"].warnings)
    assert said["one"].warnings


@pytest.mark.slow
def test_a_node_of_a_ray_cluster_that_dies_costs_nothing() -> None:
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        other = cluster.add_node(num_cpus=1)
        cluster.wait_for_nodes()

        def slow_square(number: int) -> int:
            time.sleep(1)
            return number * number

        found = map_parallel(slow_square, list(range(8)), processes=1, ray_address=cluster.address)
        first = next(found)
        cluster.remove_node(other, allow_graceful=False)
        assert dict([first, *found]) == {number: number * number for number in range(8)}
    finally:
        cluster.shutdown()
