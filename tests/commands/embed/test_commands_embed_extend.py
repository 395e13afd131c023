"""``labelkit embed --extend``: the shards of a store stay as they are, and one more has the new images."""

import os
import shutil
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.store_files.packing import pack_store
from labelkit.errors import ConfigError, Damaged, Mismatch
from labelkit.progress import use_progress
from labelkit.store import writer
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.writing import EmbeddingRun
from PIL import Image
from tests.running import Heard, Labelkit, embed_folder

MODEL = {"backbone": "pixels", "image_size": 8, "batch_size": 8, "part_rows": 16, "threads": 1}
embed = partial(embed_folder, **MODEL)
WORDS = ("--backbone", "pixels", "--image-size", 8, "--batch-size", 8, "--part-rows", 16, "--threads", 1)
NEW = ["ant/new.png", "cow/0.png", "cow/1.png", "dog/copy.png"]


def shards_of(store: Path) -> dict[str, tuple[int, bytes]]:
    """Number on the disk, and bytes, of each shard."""
    return {path.name: (path.stat().st_ino, path.read_bytes()) for path in Path(f"{store}.shards").glob("0*.h5")}


def of_image(store: EmbeddingStore) -> dict[str, tuple[Any, ...]]:
    """All that a store says of each image."""
    assert store.labels is not None
    assert store.labeled is not None
    return {
        name: (
            store.embeddings[row].tobytes(),
            store.sha256[row].tobytes(),
            store.class_names[store.labels[row]],
            bool(store.labeled[row]),
        )
        for row, name in enumerate(store.sample_ids)
    }


@pytest.fixture(scope="module")
def old(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> EmbeddingStore:
    """The store of the 48 photos, in three shards."""
    return embed(tmp_path_factory.mktemp("old") / "old.h5", photos, shards=3)


@pytest.fixture(scope="module")
def more(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos, with one more, a copy, and a class that sorts between theirs."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    shutil.copytree(photos, folder)
    (folder / "cow").mkdir()
    for number, name in enumerate(NEW[:3]):
        Image.linear_gradient("L").rotate(90 * number).save(folder / name)
    shutil.copy(folder / "bee" / "03.png", folder / NEW[3])
    return folder


@pytest.fixture(scope="module")
def new(old: EmbeddingStore, more: Path, tmp_path_factory: pytest.TempPathFactory) -> EmbeddingStore:
    return embed(tmp_path_factory.mktemp("new") / "new.h5", more, extend=old.path)


def test_old_shards_are_the_same_files_and_one_is_added(old: EmbeddingStore, new: EmbeddingStore) -> None:
    before, after = shards_of(old.path), shards_of(new.path)
    assert {name: after[name] for name in before} == before
    assert len(after) == new.num_shards == len(before) + 1
    assert new.sample_ids == [*old.sample_ids, *NEW]


def test_an_extended_store_says_of_each_image_what_one_made_at_once_says(
    new: EmbeddingStore, more: Path, tmp_path: Path
) -> None:
    once = embed(tmp_path / "once.h5", more)
    assert of_image(new) == of_image(once)
    assert (new.class_names, new.differences(once)) == (once.class_names, [])
    np.testing.assert_array_equal(new.lazy_embeddings[46:51], new.embeddings[46:51])


def test_only_new_files_are_embedded(
    old: EmbeddingStore, photos: Path, more: Path, tmp_path: Path, labelkit: Labelkit
) -> None:
    words = ("embed", "--dataset", more, *WORDS, "--extend", old.path, "--out", tmp_path / "new.h5")
    answer = labelkit(*words, "--json")
    assert f"4 new images are added to the 48 images of {old.path}" in answer.err
    # the copy of a known file is not embedded either
    assert (answer.json["rows"], answer.json["reused"], answer.json["shards"]) == (52, 49, 4)
    assert labelkit(*words, "--json").json["already_done"]
    same = embed(tmp_path / "same.h5", photos, extend=old.path)  # nothing new
    assert shards_of(same.path) == shards_of(old.path)
    assert of_image(same) == of_image(old)
    assert labelkit("verify", "--index", tmp_path / "new.h5").code == 0


def test_images_that_are_gone_stay_with_their_labels_and_stores_grow_again(
    new: EmbeddingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        (tmp_path / "photos" / "yak").mkdir(parents=True, exist_ok=True)
        Image.linear_gradient("L").resize((8 + number, 8)).save(tmp_path / "photos" / "yak" / f"{number}.png")
    # a file system without hard links
    monkeypatch.setattr(Path, "hardlink_to", lambda *names: (_ for _ in ()).throw(OSError(1, "not permitted")))
    heard = Heard()
    with use_progress(heard):
        last = embed(tmp_path / "last.h5", tmp_path / "photos", extend=new.path, shards=2)
    assert "52 of the earlier images are no longer in photos, but are kept, first: ant/00.png" in heard.messages
    known = of_image(new)
    assert {name: value for name, value in of_image(last).items() if name in known} == known
    assert last.sample_ids[52:] == ["yak/0.png", "yak/1.png", "yak/2.png"]
    assert last.num_shards == 6
    assert {name: data for name, (_, data) in shards_of(last.path).items() if name in shards_of(new.path)} == {
        name: data for name, (_, data) in shards_of(new.path).items()
    }
    packed = pack_store(last, tmp_path / "packed.h5")
    assert packed.content_digest == last.content_digest
    assert packed.sample_ids == last.sample_ids


def test_images_under_another_name_are_named_and_other_images_of_a_name_refused(
    old: EmbeddingStore, photos: Path, tmp_path: Path
) -> None:
    photos_of = shutil.copytree(photos, tmp_path / "photos")
    (photos_of / "bee").rename(photos_of / "wasp")
    with use_progress(heard := Heard()):
        embed(tmp_path / "new.h5", photos_of, extend=old.path)
    Image.linear_gradient("L").save(photos_of / "cat" / "05.png")
    with pytest.raises(Mismatch, match=r"1 of its images have changed .*, first: cat/05\.png"):
        embed(tmp_path / "x.h5", photos_of, extend=old.path)
    (told,) = heard.warnings
    assert told.startswith(f"12 of the new images are already in {old.path} under another name, so they are stored")
    assert "(first: wasp/00.png is bee/00.png). If paths now start at another folder" in told


@pytest.mark.parametrize("moment", ["part", "link", "shard", "index", "removal"])
def test_a_kill_leaves_the_old_store_whole_and_the_command_repeated_ends_the_same(
    old: EmbeddingStore, new: EmbeddingStore, more: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    before, out = shards_of(old.path), tmp_path / "new.h5"
    owner, name = {
        "part": (EmbeddingRun, "_install"),
        "link": (writer, "_link"),
        "shard": (writer, "_write_virtual"),
        "index": (writer, "_index"),
        "removal": (EmbeddingRun, "_clear"),
    }[moment]
    child = os.fork()
    if child == 0:  # a kill runs no handler
        monkeypatch.setattr(owner, name, lambda *given, **named: os.kill(os.getpid(), signal.SIGKILL))
        embed(out, more, extend=old.path)
        os._exit(0)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert out.exists() == (moment == "removal")
    assert open_store(old.path).embeddings.tobytes() == old.embeddings.tobytes()
    assert embed(out, more, extend=old.path).path.read_bytes() == new.path.read_bytes()
    assert shards_of(old.path) == before
    assert {name: data for name, (_, data) in shards_of(out).items()} == {
        name: data for name, (_, data) in shards_of(new.path).items()
    }
    assert not Path(f"{out}.run").exists()


def test_a_lost_shard_is_linked_again_by_the_command_that_its_error_names(
    old: EmbeddingStore, new: EmbeddingStore, more: Path, tmp_path: Path
) -> None:
    out = embed(tmp_path / "new.h5", more, extend=old.path).path
    next(Path(f"{out}.shards").glob("00001-*")).unlink()
    with pytest.raises(Damaged, match=r"00001-.*the shard does not exist \(it contains rows 16-31\)") as caught:
        open_store(out)
    assert f"`labelkit embed ... --extend STORE --out {out} --shards 1 --overwrite`" in caught.value.remedy
    assert embed(out, more, extend=old.path, shards=1, overwrite=True).content_digest == new.content_digest
    assert shards_of(old.path).items() <= shards_of(out).items()


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"image_size": 16}, "preprocess.size"),
        ({"dtype": "float16"}, "dtype"),
        ({"backbone": "vit_nano_p8_32", "random_weights": True, "image_size": None}, "weights_fingerprint"),
    ],
)
def test_another_model_is_one_error_before_any_work(
    old: EmbeddingStore, more: Path, tmp_path: Path, options: dict[str, Any], key: str
) -> None:
    with pytest.raises(Mismatch, match="was embedded differently from this run") as caught:
        embed(tmp_path / "x.h5", more, extend=old.path, **options)
    assert key in caught.value.problem
    assert "or embed with the same model and options" in caught.value.remedy
    assert not list(tmp_path.iterdir())


def test_a_store_in_one_file_is_refused_with_the_command_that_splits_it(more: Path, tmp_path: Path) -> None:
    one = embed(tmp_path / "one.h5", more)
    with pytest.raises(ConfigError) as caught:
        embed(tmp_path / "x.h5", more, extend=one.path)
    assert f"labelkit pack --index {one.path} --out NAME.h5 --shards 1" in caught.value.remedy
    pack_store(one, tmp_path / "many.h5", shards=1)
    assert embed(tmp_path / "x.h5", more, extend=tmp_path / "many.h5").num_shards == 1


def test_commands_take_an_extended_store(
    old: EmbeddingStore, new: EmbeddingStore, tmp_path: Path, labelkit: Labelkit, monkeypatch: Any
) -> None:
    for store in (old, new):
        shutil.copy(store.path, tmp_path)
        shutil.copytree(f"{store.path}.shards", tmp_path / f"{store.path.name}.shards")
    (tmp_path / "few.csv").write_text("path,label\nant/00.png,ant\nbee/00.png,bee\ncow/0.png,cow\n")
    monkeypatch.chdir(tmp_path)
    for line in (
        "cluster k-means --index old.h5 --num-clusters 4",
        "cluster k-means --index new.h5 --num-clusters 4 --previous old.h5",
        "discover answer --index new.h5 --num-clusters 5 --labels few.csv --no-own-labels",
        "retrieve --index new.h5 --query-rows 0,50 -k 3",
        "evaluate retrieval --index new.h5",
        "export --index new.h5 --out all.csv",
        "verify --index new.h5",
        "train simgcd --epochs 1 --index new.h5 --label-split gcd --batch-size 8 --out run",
        "embed --index new.h5 --checkpoint run --out head.h5",
    ):
        answer = labelkit(*line.split())
        assert answer.code == 0, answer.err
    assert open_store("head.h5").sample_ids == new.sample_ids
