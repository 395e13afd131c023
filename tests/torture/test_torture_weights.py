"""Weights files that would run code, fill the memory or lie about their sizes: refused, and nothing was run."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from labelkit.errors import CheckpointError
from labelkit.models.weights import load_weights_file
from safetensors.torch import save_file
from torture_pickles import hostile_pickles, hostile_safetensors
from torture_processes import Worker
from torture_tally import Tally, sized

ROW = "f  malicious .pt and .pth files, mutated safetensors: executions"

SWITCH = {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with Worker("load", tmp_path_factory.mktemp("empty")) as worker:
        yield worker


@pytest.mark.parametrize("environment", [{}, SWITCH], ids=["", "switch"])
@sized(sample=4, full=1_000)
def test_a_malicious_file_is_refused_and_runs_nothing(
    tmp_path: Path, loader: Worker, tally: Tally, environment: dict[str, str], count: int
) -> None:
    canary = tmp_path / "executed"
    (tmp_path / "script.py").write_text(f"open({str(canary)!r}, 'w')")
    files = list(hostile_pickles(canary))
    assert len(files) > 100
    for name, data in files[:: -(-len(files) // count)]:
        path = tmp_path / name
        path.write_bytes(data)
        with tally.attempt(name):
            answer = loader.begin(path=str(path), environment=environment)
            assert str(answer["error"]).startswith("Checkpoint"), answer
            assert not canary.exists()
        path.unlink()


def test_the_same_through_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    canary = tmp_path / "executed"
    monkeypatch.setenv(*next(iter(SWITCH.items())))
    name, data = next(hostile_pickles(canary))
    (tmp_path / name).write_bytes(data)
    with pytest.raises(CheckpointError, match=r"posix\.system"):
        load_weights_file(tmp_path / name)
    assert not canary.exists()


def test_these_files_do_run_code_where_nobody_is_careful(tmp_path: Path) -> None:
    canary = tmp_path / "executed"
    name, data = next(hostile_pickles(canary))
    (tmp_path / name).write_bytes(data)
    torch.load(tmp_path / name, weights_only=False)
    assert canary.exists()


def test_honest_files_are_read_by_the_same_process(tmp_path: Path, loader: Worker) -> None:
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        torch.save({"state_dict": {"w": torch.ones(3), "b": torch.ones(2)}}, tmp_path / "w.pth", **options)
        answer = loader.begin(path=str(tmp_path / "w.pth"), environment=SWITCH)
        assert answer == {"error": None, "tensors": 2}


@sized(sample=4, full=1_000)
def test_a_crafted_safetensors_file_is_refused(tmp_path: Path, tally: Tally, count: int) -> None:
    files = list(hostile_safetensors())
    for name, data in files[:: -(-len(files) // count)]:
        path = tmp_path / "w.safetensors"
        path.write_bytes(data)
        with tally.attempt(name), pytest.raises(CheckpointError):
            load_weights_file(path)


@sized(sample=100, full=3_000)
def test_a_mutated_safetensors_header_is_refused_or_loads_whole(tmp_path: Path, tally: Tally, count: int) -> None:
    path, chance = tmp_path / "w.safetensors", np.random.default_rng(0)
    state = {"w": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.int64), "h": torch.ones(2).half()}
    save_file(state, path)
    content = path.read_bytes()
    stop = 8 + struct.unpack("<Q", content[:8])[0]
    sizes = sorted(value.numel() * value.element_size() for value in state.values())
    for number in range(count):
        changed = bytearray(content)
        for position in chance.integers(0, stop, size=chance.integers(1, 4)):
            changed[position] = chance.integers(256)
        path.write_bytes(changed)
        with tally.attempt(f"change {number}"):
            try:
                loaded = load_weights_file(path)
            except CheckpointError:
                continue
            assert sorted(value.numel() * value.element_size() for value in loaded.values()) == sizes
