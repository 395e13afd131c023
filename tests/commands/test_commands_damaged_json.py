"""Damaged JSON and pipes in place of files end no command with a traceback; a damaged cache is said and made anew."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from labelkit.commands.common.locations import find_image_location, record_image_location
from labelkit.store.embeddings import open_store
from tests.tiers import quick_every

DAMAGES: dict[str, bytes | None] = {
    "brackets": b"[" * 100_000 + b"\n",
    "objects": b'{"a":' * 50_000,
    "nothing": b"",
    "empty": b"{}",
    "infinite": b'{"checkpoint": 1e999, "split": 1e999, "recall": 1e999, "dataset": 1e999, "epoch": 1e999}\n',
    "not text": b"\xff\xfe\x00" * 10,
    "other kinds": b'{"checkpoint": [], "split": 3, "recall": {}, "dataset": null, "path": 1, "step": "x"}\n',
    "pipe": None,
}
RUN_FILES = ("checkpoints/last.json", "split.json", "metrics.jsonl", "summary.json", "config.yaml")
READERS = {
    "embed": ("embed", "--dataset", "{photos}", "--checkpoint", "{run}", "--out", "{tmp}/s.h5", "--dry-run"),
    "status": ("status", "--run", "{run}"),
    "verify": ("verify", "--index", "{run}"),
    "show curves": ("show", "curves", "--run", "{run}", "--out", "{tmp}/curves.png"),
    "resume": (
        *("train", "flipclass", "--config", "{run}/config.yaml", "--dataset", "{photos}"),
        *("--out", "{run}", "--resume"),
    ),
}


def damage(path: Path, content: bytes | None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if content is None:
        os.mkfifo(path)
    else:
        path.write_bytes(content)


@pytest.mark.parametrize("file", RUN_FILES)
@pytest.mark.parametrize("kind", quick_every(4, ["brackets", "infinite", "other kinds", "pipe"]))
def test_a_damaged_file_of_a_run_is_told(
    labelkit: Any, trained: Path, photos: Path, tmp_path: Path, file: str, kind: str
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    damage(run / file, DAMAGES[kind])
    for name, words in READERS.items():
        if name == "resume" and file == "checkpoints/last.json":
            continue  # trains; see below
        answer = labelkit(*(word.format(photos=photos, run=run, tmp=tmp_path) for word in words), "-q")
        assert "Traceback" not in answer.err, name
        assert answer.code in (0, 2, 3, 5), f"{name}: {answer.err}"
        if (name, file) in (("embed", "split.json"), ("show curves", "metrics.jsonl"), ("verify", "split.json")):
            assert answer.code == 3
            assert Path(file).name in answer.err + answer.out


@pytest.mark.parametrize("content", quick_every(4, DAMAGES.values()), ids=DAMAGES.keys())
def test_a_damaged_record_of_images_is_a_warning(
    labelkit: Any, index: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
) -> None:
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "cache"))
    digest = open_store(index).content_digest
    damage(tmp_path / "cache" / "images" / f"{digest}.json", content)
    sheet = ("--sheet", tmp_path / "odd.png", "--dataset", photos)
    answer = labelkit("retrieve", "--index", index, "--query-rows", "0", *sheet)
    assert answer.code == 0, answer.err
    answer = labelkit("retrieve", "--index", index, "--query-rows", "0", "--sheet", tmp_path / "other.png")
    assert answer.code == 3
    assert f"{digest}.json" in answer.err
    assert "warning" in answer.err
    (tmp_path / "cache" / "images" / f"{digest}.json").unlink()
    record_image_location(digest, str(photos), photos)
    assert find_image_location(digest) is not None
