"""Shared by all tests: the slow, torture and gpu marks, and a seeded generator."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("TQDM_DISABLE", "1")
# tests run side by side; threads that wait for each other would make them many times slower
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests marked slow")
    parser.addoption("--torture", action="store_true", help="also run tests marked torture (see `make torture`)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        for mark in ("slow", "torture"):
            # its own mark, not a keyword: a folder is called torture, too
            if item.get_closest_marker(mark) and not config.getoption(f"--{mark}"):
                item.add_marker(pytest.mark.skip(reason=f"{mark}: run with --{mark}"))
        if "gpu" in item.keywords:
            import torch

            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="gpu: no CUDA device here"))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture(scope="session")
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep what stages note about this machine away from the user's cache; one for all tests of a session."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABELKIT_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def no_fsync() -> Iterator[None]:
    """Let fsync only look at its descriptor: no test can see what it does to a disk, and it takes long."""

    def fsync(descriptor: int) -> None:
        os.fstat(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield
