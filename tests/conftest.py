"""Shared by all tests: the slow, torture and gpu marks, and a seeded generator."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

os.environ.setdefault("TQDM_DISABLE", "1")
# an export takes seconds; the tests of it ask for it
os.environ.setdefault("LABELKIT_ONNX", "0")
# tests run side by side; threads that wait for each other would make them many times slower
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.pop("LABELKIT_METHODS", None)

# an example may take long on a busy machine; fuzzing has a deadline of its own
settings.register_profile("shared", deadline=None)
settings.load_profile("shared")

pytest_plugins = ["tests.running"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run tests marked slow")
    parser.addoption("--torture", action="store_true", help="also run tests marked torture (see `make torture`)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # a test's own mark, not a keyword: a folder is called torture, too. Left out, not skipped, which costs less
    absent = [mark for mark in ("slow", "torture") if not config.getoption(f"--{mark}")]
    others = {item for item in items if any(item.get_closest_marker(mark) for mark in absent)}
    config.hook.pytest_deselected(items=list(others))
    items[:] = [item for item in items if item not in others]
    for item in items:
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


@pytest.fixture(scope="session", autouse=True)
def built_once() -> Iterator[None]:
    """Build the options of each command once, as most of the tests' command lines take longer to build than to run."""
    from labelkit.cli import main
    from typer.main import get_command

    build = main.build_app

    @cache
    def built(words: tuple[str, ...] | None) -> Callable[..., Any]:
        return get_command(build(words))

    def build_app(arguments: Sequence[str]) -> Callable[..., Any]:
        words = [argument for argument in arguments if not argument.startswith("-")]
        named = tuple(takewhile(re.compile("[a-z0-9-]+").fullmatch, words[:3]))  # no path is a part of a command
        return built(None if "_LABELKIT_COMPLETE" in os.environ else named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(main, "build_app", build_app)
        yield
