"""What a user can get wrong, through the command line: exit code, place, value and remedy, and nothing is lost."""

import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from full_disk import full_disk
from labelkit.commands.common.networks import load_run_network
from labelkit.store.embeddings import open_store
from labelkit.store.results import list_results

TRAIN = "train flipclass --align-blocks 1 {small} --out {out}"
EMBED = "embed --checkpoint {trained} --out {out}.h5"
QUERY = "--query {photos}/ant/00.png -k 2"


@dataclass(frozen=True)
class Place:
    """Where one test works: photos, a run and a store that are fine, and options of a short training."""

    folder: Path
    out: Path  # what is to be made, without a suffix
    photos: Path
    trained: Path
    index: Path
    small: str

    @property
    def bad(self) -> Path:
        """The input that cannot be used."""
        return self.folder / "bad"

    @property
    def table(self) -> Path:
        """A CSV file that cannot be used, beside images that can."""
        return self.folder / "tables" / "bad.csv"

    def fill(self, text: str) -> str:
        names = ("out", "photos", "trained", "index", "small", "bad", "table")
        return text.format(**{name: getattr(self, name) for name in names})


@pytest.fixture
def place(tmp_path: Path, photos: Path, trained: Path, index: Path, small: tuple[str | Path, ...]) -> Place:
    return Place(tmp_path, tmp_path / "out", photos, trained, index, " ".join(map(str, small)))


def words(command: str, place: Place) -> list[str]:
    return [word for part in command.split() for word in place.fill(part).split()]


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def empty_folder(place: Place) -> None:
    place.bad.mkdir()
    (place.bad / "readme.txt").write_text("no picture")


def csv(*lines: str) -> Callable[[Place], None]:
    def make(place: Place) -> None:
        shutil.copytree(place.photos, place.table.parent)
        place.table.write_text("\n".join(lines) + "\n")

    return make


def unlabeled_store(place: Place) -> None:
    from labelkit.commands.embed.embed import embed_images
    from labelkit.options.embed import EmbedConfig

    embed_images(
        EmbedConfig(dataset=str(place.photos / "ant"), backbone="pixels", image_size=8, out=place.folder / "plain.h5")
    )
    (place.folder / "plain.h5").rename(place.bad)


def text(content: str) -> Callable[[Place], None]:
    def make(place: Place) -> None:
        place.bad.write_text(content)

    return make


@dataclass(frozen=True)
class Case:
    """One thing that goes wrong: how, what the user types, the exit code, and what the message must say."""

    make: Callable[[Place], None]
    command: str
    code: int
    told: tuple[str, ...]


CSV = TRAIN + " --dataset {table} --num-classes 4"
BALANCED = "cluster sinkhorn --index {index} --num-clusters 3 --prior {bad}"
CASES = {
    "no images, train": Case(
        empty_folder, TRAIN + " --dataset {bad}", 3, ("{bad}: contains no images", "1 ", "Add images (.avif")
    ),
    "CSV row with a missing file": Case(
        csv("path,label", "ant/00.png,ant", "ant/xx.png,ant"), CSV, 3, ("line 3", "'ant/xx.png'", "another folder")
    ),
    "nothing to discover": Case(
        lambda place: None,
        "train flipclass --dataset {photos} {small} --out {out}",
        3,
        ("every image is labeled, so there is nothing to discover", "--label-split gcd", "labelkit train supervised"),
    ),
    "nothing unlabeled to learn from": Case(
        lambda place: None,
        "train mixmatch --dataset {photos} --out {out}",
        3,
        ("all images are labeled, so mixmatch has no unlabeled", "--num-labels N", "labelkit train supervised"),
    ),
    "label column missing": Case(
        csv("path,kind", "ant/00.png,ant", "ant/01.png,ant"), CSV, 3, ("no image has a label", "--supervised-weight 0")
    ),
    "labels by a name in several folders": Case(
        csv("path,label", "00.png,ant"),
        "suggest --index {index} --labels {table} --out {out}.csv",
        3,
        ("1 of 1 paths match several images", "00.png: ant/00.png, bee/00.png, cat/00.png, dog/00.png"),
    ),
    "fewer images than clusters": Case(
        lambda place: None,
        "cluster ss-kmeans --index {index} --num-clusters 49",
        2,
        ("--num-clusters: 49 clusters are too many for 48 images", "{index}", "Lower --num-clusters"),
    ),
    "prior that is not there": Case(
        lambda place: None, BALANCED, 2, ("--prior", "neither a known prior nor a file", "zipf:1")
    ),
    "prior that does not sum to one": Case(
        text("0.5 0.2 0.2"), BALANCED, 3, ("{bad}: must sum to 1, got 0.9", "3 positive numbers", "sum to 48")
    ),
    "prior of words": Case(text("0.5 half 0"), BALANCED, 3, ("{bad}: could not convert string to float: 'half'",)),
    "resume with another method": Case(
        lambda place: None,
        "train simgcd --dataset {photos} --label-split gcd {small} --out {trained} --resume",
        3,
        ("{trained}: is a run of flipclass, not of simgcd", "labelkit train flipclass --resume"),
    ),
    "a store where a run is expected": Case(
        lambda place: None,
        "embed --dataset {photos} --checkpoint {index} --out {out}.h5",
        3,
        ("{index}: is a file", "Pass the run"),
    ),
    "store without labels, ss-kmeans": Case(
        unlabeled_store,
        "cluster ss-kmeans --index {bad} --num-clusters 2",
        3,
        ("{bad}", "has no usable labels", "labelkit cluster k-means"),
    ),
    "store without labels, evaluate": Case(
        unlabeled_store, "evaluate clustering --index {bad}", 3, ("{bad}:/labels", "no labels", "Embed a dataset")
    ),
    "run below a file": Case(
        text("in the way"),
        "train flipclass --dataset {photos} --label-split gcd {small} --out {bad}/run",
        5,
        ("{bad}/run", "is a file, not a folder"),
    ),
    "a folder where a store is to be made": Case(
        empty_folder, "embed --dataset {photos} --checkpoint {trained} --out {bad}", 2, ("--out: {bad} is a folder",)
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_bad_input_is_told_and_nothing_is_lost(labelkit: Any, place: Place, case: Case) -> None:
    case.make(place)
    before, run_before = snapshot(place.folder), snapshot(place.trained)

    answer = labelkit(*words(case.command, place))

    assert answer.code == case.code, answer.err
    assert answer.out == ""
    assert "Traceback" not in answer.err
    for text in case.told:
        assert place.fill(text) in answer.err
    after = snapshot(place.folder)
    assert {name: after.get(name) for name in before} == before
    assert {name: data for name, data in snapshot(place.trained).items() if name != ".lock"} == {
        name: data for name, data in run_before.items() if name != ".lock"
    }
    assert not (place.folder / "out.h5").exists()
    assert list_results(open_store(place.index)) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
@pytest.mark.parametrize(
    "command", [TRAIN + " --dataset {photos}", EMBED + " --dataset {photos}", "retrieve --index {index} " + QUERY]
)
def test_a_gpu_that_is_not_there_is_told(labelkit: Any, place: Place, command: str) -> None:
    answer = labelkit(*words(command, place), "--device", "cuda")

    assert answer.code == 5
    assert "--device cuda: no CUDA device is visible to torch. Use --device cpu" in answer.err
    assert {path.name for path in place.folder.iterdir()} == {"photos.h5"}


@pytest.mark.parametrize("command", ["train flipclass {small} --out {out}", "embed --checkpoint {trained} --out {out}"])
def test_half_precision_on_a_cpu_is_told(labelkit: Any, place: Place, command: str) -> None:
    answer = labelkit(*words(command, place), "--device", "cpu", "--precision", "fp16", "--dataset", place.photos)

    assert answer.code == 5
    assert "--precision fp16: requires a GPU. On a CPU, use --precision bf16 or float32" in answer.err


@contextmanager
def full_when(monkeypatch: pytest.MonkeyPatch, is_full: Callable[[], bool]) -> Iterator[None]:
    """Let the disk be full while ``is_full`` says so, when a file is synced."""
    refused: list[int] = []
    fsync = os.fsync

    def sync(descriptor: int) -> None:
        if is_full() and stat.S_ISREG(os.fstat(descriptor).st_mode):
            refused.append(descriptor)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sync)
        yield
    assert refused


def test_a_full_disk_stops_embed_and_its_parts_serve_the_next_attempt(
    labelkit: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = words(EMBED + " --dataset {photos} --batch-size 16 --part-rows 16", place)
    parts = place.folder / "out.h5.run" / "parts"
    with full_when(monkeypatch, lambda: (parts / "000000.h5").exists()):
        answer = labelkit(*command)

    assert answer.code == 5
    assert "the disk is full. Free some space" in answer.err
    assert not (place.folder / "out.h5").exists()
    assert [path.name for path in parts.iterdir()] == ["000000.h5"]
    assert labelkit(*command, "--json").json["rows"] == 48


def test_a_full_disk_stops_training_and_the_last_checkpoint_serves_resume(labelkit: Any, place: Place) -> None:
    command = words(TRAIN + " --dataset {photos} --label-split gcd --epochs 2", place)
    assert labelkit(*command, "--stop-after-steps", 3, "-q").code == 0
    first = {name: tensor.clone() for name, tensor in load_run_network(place.out).network.state_dict().items()}
    checkpoints = snapshot(place.out / "checkpoints")
    with full_disk(100_000):
        answer = labelkit(*command, "--resume")

    assert answer.code == 5
    assert "Traceback" not in answer.err
    assert "Free some disk space, and run the same command with --resume; earlier checkpoints are kept." in answer.err
    assert snapshot(place.out / "checkpoints") == checkpoints
    for name, tensor in load_run_network(place.out).network.state_dict().items():
        assert torch.equal(tensor, first[name]), name

    assert labelkit(*command, "--resume", "-q").code == 0
    assert labelkit(*[str(place.out / "whole") if word == str(place.out) else word for word in command], "-q").code == 0
    whole = load_run_network(place.out / "whole").network.state_dict()
    for name, tensor in load_run_network(place.out).network.state_dict().items():
        assert torch.equal(tensor, whole[name]), name


@pytest.mark.parametrize(
    ("command", "made"),
    [
        ("cluster k-means --index {index} --num-clusters 2", "photos.h5.results/k-means.h5"),
        ("discover head --index {index}", "photos.h5.results/head.h5"),
        ("retrieve --index {index} " + QUERY + " --sheet {out}.png", "out.png"),
    ],
)
def test_a_full_disk_leaves_no_half_result(
    labelkit: Any, place: Place, monkeypatch: pytest.MonkeyPatch, command: str, made: str
) -> None:
    with full_when(monkeypatch, lambda: True):
        answer = labelkit(*words(command, place))

    assert answer.code == 5
    assert f"{place.folder / made}: the disk is full" in answer.err
    assert snapshot(place.folder).keys() == {"photos.h5"}
    assert labelkit(*words(command, place), "-q").out == f"{place.folder / made}\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_told(labelkit: Any, place: Place) -> None:
    place.bad.mkdir(mode=0o500)

    answer = labelkit(*words("embed --dataset {photos} --checkpoint {trained} --out {bad}/x.h5", place))

    assert answer.code == 5
    assert "no permission to write here" in answer.err
