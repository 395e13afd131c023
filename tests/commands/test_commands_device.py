"""Which device rows are compared on."""

import pytest
import torch
from labelkit.commands.retrieve.retrieve import choose_similarity_device


@pytest.mark.parametrize(
    ("asked", "gpus", "expected"),
    [("cpu", 2, None), ("auto", 0, None), ("auto", 2, "cuda"), ("cuda:1", 2, "cuda:1"), ("cuda", 2, "cuda")],
)
def test_a_gpu_is_taken_where_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, asked: str, gpus: int, expected: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)

    assert choose_similarity_device(asked) == expected
