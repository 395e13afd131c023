"""Commands killed at random moments, whole process groups: nothing committed is lost, the same again ends the same."""

import json
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
from labelkit.methods.registry import METHODS
from labelkit.store.parts import open_verified_part
from labelkit.training.checkpoint import load_checkpoint, verify_checkpoint
from tests.short_runs import short_run
from torture_processes import Worker
from torture_samples import write_photos
from torture_tally import FULL_SECONDS, Tally, tree

ROW = "a  kill -9 of embed, train, cluster, discover, start at random moments"

KILLED = -9
# of each output, before it is left to end
KILLS_IN_A_ROW = 3
CLASSES = ("ant", "bee", "cat", "dog")

EMBED = ("embed", "--dataset", "{photos}", "--batch-size", "4", "--part-rows", "4", "--out", "s.h5", "--threads", "1")
STORE = ("--index", "s.h5")
COMMANDS: dict[str, tuple[str, ...]] = {
    "embed": (*EMBED, "--backbone", "pixels", "--image-size", "8"),
    "embed --shards": (*EMBED, "--backbone", "pixels", "--image-size", "8", "--shards", "3"),
    "embed --dense": (*EMBED, "--backbone", "vit_nano_p8_32", "--random-weights", "--dense"),
    "cluster": ("cluster", "ss-kmeans", *STORE, "--num-clusters", "4"),
    "discover head": ("discover", "head", *STORE),
    "discover categories": ("discover", "categories", *STORE, "--max-classes", "6"),
    "discover snowball": ("discover", "snowball", *STORE, "--labels", "few.csv", "--per-class", "2"),
    "discover lmcs": ("discover", "lmcs", *STORE, "--labels", "few.csv", "--per-class", "2"),
    "start": ("start", "{photos}", "--backbone", "pixels", "--labels", "few.csv", "--out", "made"),
}


def _train(name: str) -> tuple[str, ...]:
    """A short training with several checkpoints."""
    few = ("--max-per-class", "6", "--device", "cpu", "--threads", "1", "--log-every-steps", "1", "--out", "run")
    return ("train", name, "--dataset", "digits", *short_run(name, labels=10).split(), *few)


COMMANDS.update({f"train {name}": _train(name) for name in METHODS})


@dataclass
class Place:
    """What the commands need, and a warm process to run them."""

    worker: Worker
    root: Path

    @property
    def photos(self) -> Path:
        return self.root / "photos"

    @cached_property
    def inputs(self) -> Path:
        """A folder with a store of a trained network, groups in it, and labels of some photos."""
        folder = self.root / "inputs"
        folder.mkdir()
        rows = [f"{name}/{i:02d}.png,{name}" for name in CLASSES for i in range(3)]
        (folder / "few.csv").write_text("\n".join(["path,label", *rows]) + "\n")
        small = ("--batch-size", "16", "--projector-hidden-dim", "16", "--projection-dim", "8", "--epochs", "1")
        network = ("--backbone", "vit_nano_p8_32", "--align-blocks", "1", "--teacher-warmup-epochs", "1")
        options = (*network, *small, "--augmentation", "digits", "--threads", "1")
        for words in (
            ("train", "flipclass", "--dataset", str(self.photos), "--label-split", "gcd", *options, "--out", "trained"),
            ("embed", "--dataset", str(self.photos), "--checkpoint", "trained", "--out", "inputs/s.h5"),
            ("cluster", "k-means", "--index", "inputs/s.h5", "--num-clusters", "4"),
        ):
            code, _ = self.worker.run(list(words), self.root)
            assert code == 0, (self.root / "log").read_text()
        return folder

    def prepare(self, folder: Path, name: str) -> None:
        """Put into a new folder what a command reads."""
        folder.mkdir()
        if not name.startswith(("embed", "train")):
            shutil.copytree(self.inputs, folder, dirs_exist_ok=True)

    def run(self, name: str, folder: Path, kill_after: float | None = None) -> tuple[int, float]:
        """Give the command, in the folder; a training that has begun is resumed."""
        words = [word.format(photos=self.photos) for word in COMMANDS[name]]
        if name.startswith("train") and (folder / "run" / "config.yaml").exists():
            words.append("--resume")
        if name.startswith("discover") and (folder / f"s.{words[1]}.csv").exists():
            words.append("--overwrite")  # killed after its last file, which is replaced only if asked for
        return self.worker.run(words, folder, kill_after)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    root = tmp_path_factory.mktemp("place")
    write_photos(root / "photos", CLASSES)
    with Worker(root) as worker:
        yield Place(worker, root)


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        # seconds are in metrics.jsonl, so that its length and the digests of texts depend on them
        timed = ("second", "sha256", "metrics_bytes")
        kept = {key: entry for key, entry in value.items() if not any(word in key for word in timed)}
        return {key: _without_times(entry) for key, entry in kept.items()}
    return [_without_times(entry) for entry in value] if isinstance(value, list) else value


def _final(folder: Path) -> dict[str, Any]:
    """All files by name; of texts about a training all but how long it took."""
    found: dict[str, Any] = {}
    for name, data in tree(folder).items():
        path = Path(name)
        if name == "log" or path.name in (".lock", "lock") or path.name.startswith(".tmp-"):
            continue
        is_text = name.startswith(("run/", "made/")) and path.suffix in (".json", ".jsonl")
        found[name] = [_without_times(json.loads(line)) for line in data.splitlines()] if is_text else data
    return found


def _committed(folder: Path, expected: dict[str, Any]) -> dict[str, int]:
    """Check all that has its final name; return what there is, as a measure that must not shrink."""
    parts = [*folder.glob("*.run/parts/*.h5")]
    for path in parts:
        open_verified_part(path).close()
    for name, data in tree(folder).items():
        if name in expected and isinstance(expected[name], bytes) and not name.startswith("run/"):
            assert data == expected[name], f"{name} differs"
    steps = [*folder.glob("run/checkpoints/step-*")]
    for path in steps:
        verify_checkpoint(path)
    loaded = load_checkpoint(folder / "run") if steps else None
    assert loaded is None or not loaded.warnings
    is_published = (folder / "s.h5").exists()
    return {"parts": 1 << 30 if is_published else len(parts), "step": loaded.state["step"] if loaded else 0}


def _kill(place: Place, name: str, count: int, tmp_path: Path, tally: Tally) -> None:
    chance = random.Random(name)
    place.prepare(tmp_path / "whole", name)
    code, seconds = place.run(name, tmp_path / "whole")
    assert code == 0, (tmp_path / "whole" / "log").read_text()
    expected = _final(tmp_path / "whole")
    killed = 0
    for number in range(5 * count):
        if killed >= count:
            break
        folder = tmp_path / f"{number}"
        place.prepare(folder, name)
        before = {"parts": 0, "step": 0}
        for _ in range(KILLS_IN_A_ROW):
            code, took = place.run(name, folder, kill_after=chance.uniform(0.3, 1) * seconds)
            if code != KILLED:
                seconds = 0.5 * (seconds + took)  # the machine is faster or slower now
                break
            killed += 1
            with tally.attempt(f"{name}, output {number}"):
                now = _committed(folder, expected)
                assert all(now[key] >= before[key] for key in now), f"{before} before, {now} now"
                before = now
        with tally.attempt(f"{name}, output {number}, in the end"):
            tally.attempts -= 1  # the kill was counted
            if code == KILLED:
                code, _ = place.run(name, folder)
            assert code == 0, (folder / "log").read_text()[-1500:]
            found = _final(folder)
            assert found.keys() == expected.keys()
            different = [path for path in found if found[path] != expected[path]]
            assert not different, f"{different} differ"
        shutil.rmtree(folder)
    assert killed >= count, f"killed only {killed} times"


# faults at any call of what writes results are a row of their own
FULL = {"embed": 45, "embed --shards": 30, "embed --dense": 30}


def _full(name: str) -> int:
    return FULL.get(name, 6 if name.startswith("train") else 9)


@pytest.mark.torture
@pytest.mark.timeout(FULL_SECONDS)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_killed_at_random_ends_with_the_same_bytes(
    place: Place, tmp_path: Path, tally: Tally, name: str
) -> None:
    _kill(place, name, _full(name), tmp_path, tally)
