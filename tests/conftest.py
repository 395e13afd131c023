"""Shared by all tests: the slow and gpu marks, and a seeded generator."""

from __future__ import annotations

import os

import numpy as np
import pytest

os.environ.setdefault("TQDM_DISABLE", "1")
# tests run side by side; threads that wait for each other would make them many times slower
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    run_slow = config.getoption("--slow")
    skip_slow = pytest.mark.skip(reason="slow: run with --slow")
    for item in items:
        if "slow" in item.keywords and not run_slow:
            item.add_marker(skip_slow)
        if "gpu" in item.keywords:
            import torch

            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="gpu: no CUDA device here"))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
