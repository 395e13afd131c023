"""Safetensors files whose headers were changed: refused, or loaded whole."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import torch
from labelkit.errors import CheckpointError
from labelkit.models.weights import load_weights_file
from safetensors.torch import save_file
from torture_tally import Tally, sized

ROW = "f  mutated safetensors: refused or whole"


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
