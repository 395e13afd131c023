"""Which device rows are compared on."""

from __future__ import annotations

import pytest
import torch
from labelkit.stages.device import products_device


@pytest.mark.parametrize(
    ("asked", "gpus", "local_rank", "expected"),
    [
        ("cpu", 2, None, None),
        ("auto", 0, None, None),
        ("auto", 2, None, "cuda"),
        ("cuda:1", 2, "0", "cuda:1"),
        ("cuda", 2, None, "cuda"),
        ("cuda", 2, "3", "cuda:1"),  # four processes share two GPUs
        ("auto", 2, "0", "cuda:0"),
    ],
)
def test_a_gpu_is_taken_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: str, gpus: int, local_rank: str | None, expected: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)

    assert products_device(asked) == expected
