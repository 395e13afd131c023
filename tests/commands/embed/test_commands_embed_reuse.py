"""``labelkit embed --reuse``: which rows are copied, and what such a store has in common with one made from scratch."""

import os
import shutil
import signal
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from labelkit.errors import Mismatch
from labelkit.progress import Progress, Task, use_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.writing import EmbeddingRun
from PIL import Image
from tests.running import embed_folder

MODEL = {"backbone": "vit_nano_p8_32", "random_weights": True, "batch_size": 8, "part_rows": 16, "threads": 1}
embed = partial(embed_folder, **MODEL)


def row_of(store: EmbeddingStore, name: str) -> bytes:
    return bytes(store.embeddings[store.sample_ids.index(name)].tobytes())


@pytest.fixture(scope="module")
def old(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> EmbeddingStore:
    return embed(tmp_path_factory.mktemp("old") / "old.h5", photos)


@pytest.fixture(scope="module")
def changed(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos: one renamed, one removed, one painted over, one new, one that is no image."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    shutil.copytree(photos, folder)
    (folder / "ant" / "00.png").rename(folder / "dog" / "zoe.png")
    (folder / "bee" / "03.png").unlink()
    Image.effect_noise((8, 8), 50).save(folder / "cat" / "05.png")
    Image.linear_gradient("L").save(folder / "ant" / "new.png")
    (folder / "bee" / "bad.png").write_bytes(b"")
    return folder


def test_copied_rows_are_reported_first_so_that_the_time_left_is_that_of_the_others(
    old: EmbeddingStore, changed: Path, tmp_path: Path
) -> None:
    told: list[tuple[str, int]] = []

    class Listener(Progress, Task):
        def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
            told.clear()  # of the task before, which compares the files
            return nullcontext(self)

        def skip(self, n: int) -> None:
            told.append(("skip", n))

        def advance(self, n: int = 1, **info: object) -> None:
            told.append(("advance", n))

    with use_progress(Listener()):
        embed(tmp_path / "x.h5", changed, reuse=old.path, max_bad=0.1)
    assert told == [("skip", 46), *told[1:]]
    assert {name for name, _ in told[1:]} == {"advance"}
    assert sum(n for _, n in told) == 49


@pytest.fixture(scope="module")
def once(old: EmbeddingStore, changed: Path, tmp_path_factory: pytest.TempPathFactory) -> EmbeddingStore:
    """Their store, made with the rows of the old one in a single run."""
    return embed(tmp_path_factory.mktemp("once") / "new.h5", changed, reuse=old.path, max_bad=0.1)


def test_rows_of_known_files_are_copied_under_any_name_also_with_other_batches(
    old: EmbeddingStore, once: EmbeddingStore, photos: Path, tmp_path: Path
) -> None:
    assert row_of(once, "dog/zoe.png") == row_of(old, "ant/00.png")
    for name in ("ant/01.png", "cat/04.png", "dog/11.png"):
        assert row_of(once, name) == row_of(old, name)
    assert row_of(once, "cat/05.png") != row_of(old, "cat/05.png")
    assert "bee/03.png" not in once.sample_ids
    assert [name for name, _ in once.skipped] == ["bee/bad.png"]
    other = embed(tmp_path / "x.h5", photos, reuse=old.path, batch_size=5, part_rows=7)
    assert other.embeddings.tobytes() == old.embeddings.tobytes()


def test_a_store_with_copied_rows_is_that_from_scratch_but_for_last_bits(
    old: EmbeddingStore, once: EmbeddingStore, changed: Path, tmp_path: Path
) -> None:
    scratch = embed(tmp_path / "scratch.h5", changed, max_bad=0.1)

    # a row depends on the batch it ran in by rounding alone
    np.testing.assert_allclose(once.embeddings, scratch.embeddings, rtol=1e-4, atol=1e-5)
    with h5py.File(once.path) as one, h5py.File(scratch.path) as two:
        assert set(one) == set(two)
        for name in set(one) - {"embeddings", "model", "digests", "skipped"}:
            np.testing.assert_array_equal(one[name][()], two[name][()])
        assert dict(one["model"].attrs) == dict(two["model"].attrs)
        differing = {key for key in one.attrs if key not in two.attrs or one.attrs[key] != two.attrs[key]}
        assert differing == {"plan_digest", "content_digest", "reused_rows", "reused_from"}
        # 48 less the removed and the painted one; the renamed one counts
        assert one.attrs["reused_rows"] == 46
        assert one.attrs["reused_from"].decode() == old.content_digest
    assert not once.differences(scratch)


def test_a_run_that_is_stopped_and_resumed_gives_the_bytes_of_one_run(
    old: EmbeddingStore,
    once: EmbeddingStore,
    changed: Path,
    tmp_path: Path,
    labelkit: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_part = EmbeddingRun.write_part

    def write_then_stop(self: EmbeddingRun, part: int, **values: Any) -> None:
        write_part(self, part, **values)
        os.kill(os.getpid(), signal.SIGTERM)

    options = ("--backbone", "vit_nano_p8_32", "--random-weights", "--batch-size", 8, "--part-rows", 16, "--threads", 1)
    words = ("embed", "--dataset", changed, *options, "--reuse", old.path, "--out", tmp_path / "new.h5")
    monkeypatch.setattr(EmbeddingRun, "write_part", write_then_stop)
    codes = [labelkit(*words, "--max-bad", 0.1).code for _ in range(3)]
    monkeypatch.undo()
    assert labelkit(*words, "--max-bad", 0.1).code == 0

    assert codes == [143, 143, 143]
    assert (tmp_path / "new.h5").read_bytes() == once.path.read_bytes()


def test_a_resumed_run_keeps_what_it_planned_when_images_are_added(
    old: EmbeddingStore, once: EmbeddingStore, changed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(changed, folder)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):  # noqa: PT012
        patch.setattr(EmbeddingRun, "publish", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        embed(tmp_path / "new.h5", folder, reuse=old.path, max_bad=0.1)
    shutil.copy(folder / "ant" / "01.png", folder / "dog" / "later.png")

    store = embed(tmp_path / "new.h5", folder, reuse=old.path, max_bad=0.1)

    assert store.path.read_bytes() == once.path.read_bytes()


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"image_size": 16}, "preprocess.size"),
        ({"precision": "bf16"}, "numerics.compute"),
        ({"dtype": "float16"}, "dtype"),
        ({"backbone": "pixels", "random_weights": False}, "weights_fingerprint"),
    ],
)
def test_rows_of_another_model_are_refused_with_the_key_that_differs(
    old: EmbeddingStore, photos: Path, tmp_path: Path, options: dict[str, Any], key: str
) -> None:
    with pytest.raises(Mismatch, match=r"was embedded differently from this run") as caught:
        embed(tmp_path / "x.h5", photos, reuse=old.path, **options)

    assert key in caught.value.problem
    assert caught.value.where == str(old.path)
    assert not (tmp_path / "x.h5.run").exists()
