"""What the tests of the stages share: small pictures, one short run, its store, a command line to listen to."""

import contextlib
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pytest
from labelkit.cli.main import main
from labelkit.commands.embed.embed import embed_images
from labelkit.options.embed import EmbedConfig
from labelkit.progress import Progress
from labelkit.store.embeddings import EmbeddingStore, ModelIdentity, open_store
from labelkit.store.plans import EmbeddingPlan
from labelkit.store.writing import EmbeddingRun
from numpy.typing import ArrayLike
from PIL import Image
from sklearn.datasets import load_digits
from tests.copies import copy_store

CLASSES, PER_CLASS = 4, 12
# the smallest network there is; three steps per epoch
SMALL = """
backbone: vit_nano_p8_32
projector_hidden_dim: 16
projection_dim: 8
epochs: 1
batch_size: 16
teacher_warmup_epochs: 1
augmentation: digits
"""
MODEL = ModelIdentity(
    name="made-up",
    weights_fingerprint="f" * 64,
    weights_file_sha256="",
    source="made-up.safetensors",
    layer="features",
    pooling="mean",
    preprocess={"size": 8, "channels": 1},
    numerics={},
)


@dataclass(frozen=True)
class Answer:
    """What one command line did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one object on stdout."""
        return json.loads(self.out)


Labelkit = Callable[..., Answer]


class Heard(Progress):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.messages: list[str] = []
        self.warnings: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    def warning(self, text: str) -> None:
        self.warnings.append(text)


def read_table(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def flip_bit(path: Path, place: int | str, byte: int = 0) -> None:
    """Change one bit of a file: at a place of its own, or of an array in HDF5."""
    data = bytearray(path.read_bytes())
    if isinstance(place, str):
        with h5py.File(path) as file:
            place = int(file[place].id.get_offset())
    data[place + byte] ^= 1
    path.write_bytes(data)


def embed_folder(out: Path, folder: Path, **options: Any) -> EmbeddingStore:
    """Embed the images of a folder; returns the open store."""
    texts = {name: str(value) if isinstance(value, Path) else value for name, value in options.items()}
    embed_images(EmbedConfig(out=out, dataset=str(folder), **texts))
    return open_store(out)


def run_labelkit(*words: object) -> Answer:
    """Run one command line in this process, with streams that encode as a terminal does."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([os.fspath(word) if isinstance(word, Path) else str(word) for word in words])
    for stream in (out, err):
        stream.flush()
    return Answer(code, out.buffer.getvalue().decode("utf-8", "surrogateescape"), err.buffer.getvalue().decode())


@pytest.fixture(scope="session")
def labelkit() -> Labelkit:
    """Return a function: words after ``labelkit`` to what it did."""
    return run_labelkit


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[str | Path, ...]:
    """Options of a training that takes a fraction of a second."""
    path = tmp_path_factory.mktemp("options") / "small.yaml"
    path.write_text(SMALL)
    return ("--config", path)


@pytest.fixture(scope="session", autouse=True)
def cache_apart(own_cache: Path) -> None:
    """Every test here keeps away from the user's cache."""


@pytest.fixture(scope="session")
def pictures() -> list[Image.Image]:
    """Digits as pictures, twelve of each of four classes, class by class."""
    bundle = load_digits()
    rows = [row for label in range(CLASSES) for row in np.flatnonzero(bundle.target == label)[:PER_CLASS]]
    return [Image.fromarray(np.rint(bundle.images[row] * 255 / 16).astype(np.uint8)) for row in rows]


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory, pictures: list[Image.Image]) -> Path:
    """A folder of four class folders, ant, bee, cat and dog, with twelve pictures each."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    for row, picture in enumerate(pictures):
        path = folder / ("ant", "bee", "cat", "dog")[row // PER_CLASS] / f"{row % PER_CLASS:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)
    return folder


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory, photos: Path, small: tuple[str | Path, ...]) -> Path:
    """A run folder: FlipClass on the photos for one epoch. Tests must not change it."""
    out = tmp_path_factory.mktemp("runs") / "flipclass-photos"
    words = ("train", "flipclass", "--dataset", photos, "--label-split", "gcd", "--align-blocks", "1")
    answer = run_labelkit(*words, *small, "--out", out, "-q")
    assert answer.code == 0, answer.err
    return out


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory, photos: Path, trained: Path) -> Path:
    """The store of the photos, embedded with that run. Tests must not change it; see ``index``."""
    out = tmp_path_factory.mktemp("stores") / "photos.h5"
    embed_images(EmbedConfig(dataset=str(photos), checkpoint=trained, out=out))
    return out


@pytest.fixture(scope="session")
def pixels(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """A store of the photos, 64 pixels each; training may use all labels. Tests must not change it."""
    out = tmp_path_factory.mktemp("pixels") / "pixels.h5"
    return embed_folder(out, photos, backbone="pixels", image_size=8, label_split="given").path


@pytest.fixture
def index(tmp_path: Path, embedded: Path) -> Path:
    """A copy of that store, for results of its own."""
    return copy_store(embedded, tmp_path / "photos.h5")


MakeStore = Callable[..., EmbeddingStore]


@pytest.fixture
def make_store(tmp_path: Path) -> MakeStore:
    """Return a function: embeddings and columns to an open store."""

    def make(
        embeddings: ArrayLike,
        *,
        name: str = "made.h5",
        labels: Sequence[int] | None = None,
        labeled: Sequence[int] | None = None,
        old_classes: Sequence[int] | None = None,
        splits: Sequence[int] | None = None,
        split_names: Sequence[str] = (),
        logits: ArrayLike | None = None,
        first_file: int = 0,
        sample_ids: Sequence[str] = (),
        contents: Sequence[str] = (),
        class_names: Sequence[str] = (),
    ) -> EmbeddingStore:
        rows = np.asarray(embeddings, dtype=np.float32)
        n, dim = rows.shape
        classes = 0 if labels is None else max(labels) + 1
        plan = EmbeddingPlan(
            sample_ids=sample_ids or [f"{row:04d}.png" for row in range(n)],
            model=MODEL,
            dim=dim,
            batch_size=n,
            part_rows=n,
            metric="cosine",
            created_by="labelkit test",
            extras={} if logits is None else {"logits": np.asarray(logits).shape[1]},
            labels=None if labels is None else np.asarray(labels, dtype=np.int64),
            labeled=None if labeled is None else np.asarray(labeled, dtype=bool),
            class_names=class_names or [f"class-{label}" for label in range(classes)],
            old_classes=None if old_classes is None else np.asarray(old_classes, dtype=bool),
            splits=None if splits is None else np.asarray(splits, dtype=np.int16),
            split_names=split_names,
        )
        run = EmbeddingRun.open(tmp_path / name, plan, overwrite=True)
        digests = np.zeros((n, 32), dtype=np.uint8)
        files = np.arange(n) + first_file
        digests[:, 0], digests[:, 1] = files % 256, files // 256
        for row, content in enumerate(contents):
            digests[row] = np.frombuffer(hashlib.sha256(content.encode()).digest(), np.uint8)
        run.write_part(
            0,
            embeddings=rows,
            sha256=digests,
            file_sizes=np.ones(n, dtype=np.uint64),
            image_sizes=np.ones((n, 2), dtype=np.uint32),
            **({} if logits is None else {"logits": np.asarray(logits, dtype=np.float32)}),
        )
        run.publish()
        return open_store(tmp_path / name)

    return make


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script of the user that no process can run again, since its file is not there."""
    monkeypatch.setitem(sys.modules, "__main__", main_module := ModuleType("__main__"))
    main_module.__file__ = str(tmp_path / "script.py")


def run_in_one_and_two_processes(script: str, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a script that saves tensors to ``sys.argv[1]``, alone and by torchrun in two processes; return both."""
    import torch

    (folder / "script.py").write_text(script)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for name, command in (("one", [sys.executable]), ("two", launcher)):
        words = [*command, str(folder / "script.py"), str(folder / name)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    return torch.load(folder / "one"), torch.load(folder / "two")
