"""Labels of ``labelkit start`` stay with their photos, whatever is done to the names between calls."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tests.pipelines.squares import add_photos, rows, run

LABELS = ("red", "green", "blue")
ROUNDS = 12


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass
class Folder:
    """Photos that a person labels, renames, takes away and brings back; ``labels`` are the right ones, by file."""

    root: Path
    rng: np.random.Generator
    labels: dict[str, str] = field(default_factory=dict)
    names: int = 100

    def __post_init__(self) -> None:
        self.photos, self.away, self.out = (self.root / name for name in ("photos", "away", "out"))
        self.photos.mkdir()
        self.away.mkdir()
        add_photos(self.photos, range(30), seed=0)

    def some(self, count: int) -> list[Path]:
        return [Path(path) for path in self.rng.choice(sorted(map(str, self.photos.iterdir())), count, replace=False)]

    def write(self, table: Path, photos: list[Path]) -> Path:
        """Write a table of labels of photos by their names, which count for the files of now."""
        given = {path.name: str(self.rng.choice(LABELS)) for path in photos}
        table.write_text("path,label\n" + "".join(f"{name},{text}\n" for name, text in given.items()))
        self.labels |= {digest(self.photos / name): text for name, text in given.items()}
        return table

    def label(self) -> Path | None:
        """Fill in a table of the last call, for the names that it listed; return the one to pass."""
        name = self.rng.choice(["next.csv", "novel.csv", "none"])
        listed = [self.photos / row["path"] for row in rows(self.out / name)[:2]]
        if not listed:
            return None
        table = self.write(self.out / name, listed)
        return table if name == "novel.csv" else None

    def new_name(self) -> Path:
        self.names += 1
        return self.photos / f"{self.names}.png"

    def rename(self) -> None:
        """Do one thing to the names."""
        what = self.rng.choice(["exchange", "rename", "take away", "bring back", "number anew"])
        if what == "exchange":
            self.move(dict(zip(chosen := self.some(3), chosen[1:] + chosen[:1], strict=True)))
        elif what == "rename":
            self.move({self.some(1)[0]: self.new_name()})
        elif what == "take away" and len(list(self.photos.iterdir())) > 24:
            (photo,) = self.some(1)
            photo.rename(self.away / self.new_name().name)
        elif what == "bring back" and any(self.away.iterdir()):
            min(self.away.iterdir()).rename(self.new_name())
        elif what == "number anew":
            listed = sorted(self.photos.iterdir())
            self.move({path: self.photos / f"{i:03d}.png" for i, path in enumerate(listed)})

    def move(self, names: dict[Path, Path]) -> None:
        for path in names:
            path.rename(self.root / path.name)
        for path, new in names.items():
            (self.root / path.name).rename(new)

    def call(self, table: Path | None) -> None:
        run(self.photos, num_classes=4, out=self.out, labels=table)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_labels_stay_with_their_photos_whatever_is_done_to_the_names(tmp_path: Path, seed: int) -> None:
    folder = Folder(tmp_path, np.random.default_rng(seed))
    own = folder.write(tmp_path / "own.csv", folder.some(6))
    folder.call(own)
    for _ in range(ROUNDS):
        table = folder.label()
        for _ in range(folder.rng.integers(4)):
            folder.rename()
        if table is None and folder.rng.random() < 0.5:
            table = own
            if folder.rng.random() < 0.5:
                # a name that lost a label is not told from an old line
                lost = json.loads((folder.out / "start.json").read_text())["left"]
                lost |= {row["path"]: [] for row in rows(folder.out / "given.csv")}
                free = [path for path in folder.some(3) if digest(path) not in folder.labels and path.name not in lost]
                if free:
                    folder.write(own, free)
        folder.call(table)

        there = {digest(path) for path in folder.photos.iterdir()}
        given_rows, away_rows = rows(folder.out / "given.csv"), rows(folder.out / "away.csv")
        assert all(digest(folder.photos / row["path"]) == row["sha256"] for row in given_rows)
        found = {row["sha256"]: row["label"] for row in given_rows}
        assert found == {file: text for file, text in folder.labels.items() if file in there}
        waiting = {row["sha256"]: row["label"] for row in away_rows}
        assert waiting == {file: text for file, text in folder.labels.items() if file not in there}
