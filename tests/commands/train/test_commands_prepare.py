"""From data options to the labels that training may use."""

import json
import shutil
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.common.training_data import PreparedData, choose_labels, prepare_data
from labelkit.data.batch import DataInfo
from labelkit.errors import ConfigError
from labelkit.options.data import DataConfig
from labelkit.progress import use_progress
from tests.running import Heard
from tests.textures import dataset_of


def prepare(dataset: Path | str, **options: Any) -> PreparedData:
    return prepare_data(DataConfig(dataset=str(dataset), **options))


def labeled_per_class(prepared: PreparedData) -> list[int]:
    classes = prepared.dataset.labels[prepared.split.labeled]
    return [int((classes == label).sum()) for label in range(len(prepared.dataset.class_names))]


def write_csv(path: Path, photos: Path, rows: list[tuple[str, str]], splits: list[str] | None = None) -> Path:
    """Write a table of pictures and labels, names relative to the photos, which are copied beside it."""
    shutil.copytree(photos, path.parent, dirs_exist_ok=True)
    lines = [f"{name},{label}" for name, label in rows]
    if splits is not None:
        lines = [f"{line},{split}" for line, split in zip(lines, splits, strict=True)]
    header = "path,label" if splits is None else "path,label,split"
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_own_data_keep_all_their_labels(photos: Path, tmp_path: Path) -> None:
    table = write_csv(tmp_path / "list.csv", photos, [("ant/00.png", "x"), ("bee/00.png", "y"), ("cat/00.png", "x")])
    for prepared in (prepare(photos), prepare(table)):
        assert prepared.split.kind == "given"
        assert (prepared.labels >= 0).all()
        assert prepared.split.new_classes == ()
    named = prepare("digits").split  # keeps the halves of the benchmark
    assert (named.kind, len(named.old_classes), len(named.new_classes)) == ("gcd", 5, 5)


def folders(root: Path, photos: Path, sizes: dict[str, int]) -> Path:
    for name, size in sizes.items():
        for row in range(size):
            (root / name).mkdir(parents=True, exist_ok=True)
            shutil.copy(photos / "ant" / f"{row:02d}.png", root / name)
    return root


@pytest.mark.parametrize(
    ("sizes", "note"),
    [
        ({"a": 3}, "there is only one folder, 'a', so folders are not used as classes"),
        ({"a": 3, "b": 1, "c": 1}, "2 of 3 folders have only one image, first: 'b', so folders"),
    ],
)
def test_folders_that_do_not_look_like_classes_are_none_unless_asked_for(
    photos: Path, tmp_path: Path, sizes: dict[str, int], note: str
) -> None:
    root = folders(tmp_path / "mine", photos, sizes)

    guessed = prepare(root)
    assert guessed.dataset.class_names == ()
    assert (guessed.labels == -1).all()
    assert [text for text in guessed.dataset.notes if text.startswith(note)]
    asked = prepare(root, label_split="given")
    assert asked.dataset.class_names == tuple(sizes)
    assert (asked.labels >= 0).all()


def test_half_of_the_images_of_the_first_half_of_a_folders_classes_are_labeled_if_asked(photos: Path) -> None:
    prepared = prepare(photos, label_split="gcd")

    assert prepared.split.kind == "gcd"
    assert (prepared.split.old_classes, prepared.split.new_classes) == ((0, 1), (2, 3))
    assert sum(labeled_per_class(prepared)) == 12
    assert labeled_per_class(prepared)[2:] == [0, 0]
    assert prepared.counts() == {"images": 48, "labeled": 12, "unlabeled": 36, "old_classes": 2, "new_classes": 2}
    other = prepare(photos, num_old_classes=3, label_ratio=0.25)
    assert (other.split.old_classes, sum(labeled_per_class(other))) == ((0, 1, 2), 9)
    assert (other.build_data_info(8).num_old_classes, other.build_data_info(8).num_known_classes) == (3, 4)
    again, drawn = (prepare(photos, label_split="gcd", split_seed=seed).split.labeled for seed in (0, 2))
    np.testing.assert_array_equal(prepared.split.labeled, again)
    assert (prepared.split.labeled != drawn).any()


def test_empty_labels_of_a_csv_are_unlabeled_and_leave_the_number_of_classes_open(photos: Path, tmp_path: Path) -> None:
    rows = [("ant/00.png", "ant"), ("ant/01.png", ""), ("bee/00.png", "bee"), ("cat/00.png", ""), ("dog/00.png", "")]

    prepared = prepare(write_csv(tmp_path / "some.csv", photos, rows))

    assert prepared.split.kind == "given"
    assert prepared.labels.tolist() == [0, -1, 1, -1, -1]
    assert prepared.dataset.class_names == ("ant", "bee")
    assert prepared.build_data_info(8).num_known_classes is None


def test_a_long_tail_keeps_the_share_asked_for_in_the_rarest_class(photos: Path) -> None:
    prepared = prepare(photos, imbalance_factor=0.25)

    sizes = np.bincount(prepared.dataset.labels)
    # 12 * 0.25 ** (i / 3), rounded down
    assert sizes.tolist() == [12, 7, 4, 3]


def test_a_part_of_each_class_is_the_same_part_every_time(photos: Path) -> None:
    whole, part = prepare(photos), prepare(photos, max_per_class=5)

    first = [name for name in whole.dataset.sample_ids if name.endswith(tuple(part.dataset.sample_ids))]
    assert np.bincount(part.dataset.labels).tolist() == [5, 5, 5, 5]
    assert list(part.dataset.sample_ids) == first
    by_class = {label: whole.dataset.labels.tolist().index(label) for label in range(4)}
    assert all(whole.dataset.sample_ids[row] in part.dataset.sample_ids for row in by_class.values())


def test_test_images_are_never_labeled_even_when_all_splits_are_used(photos: Path, tmp_path: Path) -> None:
    for part in ("train", "test"):
        shutil.copytree(photos, tmp_path / "set" / part)

    prepared = prepare(tmp_path / "set", split="all", label_ratio=1.0, num_old_classes=4)

    is_test = np.array([name.startswith("test/") for name in prepared.dataset.sample_ids])
    assert is_test.sum() == 48
    assert not prepared.split.labeled[is_test].any()
    assert prepared.split.labeled[~is_test].all()
    assert (prepared.labels[is_test] == -1).all()


def test_images_that_auto_leaves_out_are_counted_with_their_splits(photos: Path, tmp_path: Path) -> None:
    shutil.copytree(photos, tmp_path / "set" / "Training")
    shutil.copytree(photos / "ant", tmp_path / "set" / "Testing" / "ant")
    shutil.copytree(photos / "bee", tmp_path / "set" / "unlabeled")
    shutil.copytree(photos / "cat", tmp_path / "set" / "stray")
    with use_progress(heard := Heard()):
        chosen = prepare(tmp_path / "set", num_old_classes=2)
        prepare(tmp_path / "set", num_old_classes=2, max_per_class=5)
        prepare(photos)
    said = [text for text in heard.messages if "--split auto" in text]
    assert len(chosen.labels) == 48
    others = "and others (12 in test, 12 in no split, 12 in unlabeled) at most for evaluation"
    assert said == [
        f"--split auto uses the 48 images in train, {others} (to use all, pass --split all)",
        f"--split auto uses 20 of the 48 images in train, {others} (to use all, pass --split all)",
    ]


@pytest.mark.parametrize("split", ["Testing", "test", "TEST"])
def test_a_split_may_be_asked_for_by_any_word_for_it(photos: Path, tmp_path: Path, split: str) -> None:
    shutil.copytree(photos, tmp_path / "set" / "train")
    shutil.copytree(photos / "ant", tmp_path / "set" / "test" / "ant")
    assert len(prepare(tmp_path / "set", split=split, label_split="none").labels) == 12


@pytest.mark.parametrize("options", [{"old_classes": ("ant", "bee")}, {"num_old_classes": 2}])
def test_old_classes_say_that_folders_are_classes_though_one_has_a_single_image(
    photos: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    folder = Path(shutil.copytree(photos, tmp_path / "photos"))
    for path in sorted((folder / "bee").iterdir())[1:]:
        path.unlink()

    prepared = prepare(folder, **options)

    assert prepared.dataset.class_names == ("ant", "bee", "cat", "dog")
    # half of 12 ants and one bee, rounded down
    assert (prepared.split.kind, prepared.split.old_classes, int(prepared.split.labeled.sum())) == ("gcd", (0, 1), 6)


@pytest.mark.parametrize(
    ("options", "where", "problem"),
    [
        ({"num_old_classes": 9}, "--num-old-classes", "cannot use 9 of 4 classes as old classes"),
        ({"old_classes": ("cow",)}, "--old-classes", "no class 'cow' among the 4"),
        ({"label_split": "none", "old_classes": ("ant",)}, "--old-classes", "has no effect with --label-split none"),
        ({"label_ratio": 0.001}, "--label-split gcd", "no image would be labeled"),
        ({"label_split": "few-labels"}, "--num-labels", "is required"),
        ({"label_split": "few-labels", "num_labels": 3}, "--num-labels", "3 labels are too few for 4 classes"),
        ({"label_split": "few-labels", "num_labels": 80}, "--num-labels", "class 'ant' has 12"),
        ({"label_split": "gcd", "num_labels": 8}, "--num-labels", "has no effect with --label-split gcd"),
        ({"label_seed": 8}, "--label-seed", "has no effect with --label-split given"),
        ({"label_split": "given", "num_old_classes": 2}, "--num-old-classes", "has no effect with --label-split given"),
        ({"imbalance_factor": 0.01}, "--imbalance-factor 0.01", "class 'cat' would be left without"),
        ({"split": "test"}, "--split", "no split 'test'"),
    ],
)
def test_options_that_the_data_cannot_meet_are_named(
    photos: Path, options: dict[str, Any], where: str, problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        prepare(photos, **options)

    assert caught.value.where == where
    assert problem in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("words", "expected"),
    [(("dog", "bee"), (1, 3)), (("*a*",), (0, 2)), (("2-3",), (2, 3)), (("half",), (2, 3)), (("0-3",), (0, 1, 2, 3))],
)
def test_old_classes_are_chosen_by_name_pattern_and_number(
    photos: Path, words: tuple[str, ...], expected: tuple[int, ...]
) -> None:
    prepared = prepare(photos, old_classes=words, label_ratio=1.0)

    assert prepared.split.old_classes == expected
    assert labeled_per_class(prepared) == [12 if label in expected else 0 for label in range(4)]


@pytest.mark.parametrize(("name", "count", "extra"), [("cub", 200, -10), ("scars", 196, 5), ("aircraft", 100, 5)])
def test_a_number_of_old_classes_takes_the_first_of_the_published_order(name: str, count: int, extra: int) -> None:
    record = json.loads((files("labelkit.data.named") / "class_lists" / f"{name}.json").read_text())
    published = record["old_classes"] + record["new_classes"]
    number = len(record["old_classes"]) + extra
    labels = np.arange(2 * count) % count
    dataset = dataset_of(np.zeros((2 * count, 1, 1, 3), dtype=np.uint8), labels, name=name)

    split = choose_labels(DataConfig(dataset=name, num_old_classes=number), dataset)

    assert split.old_classes == tuple(published[:number])
    assert split.new_classes == tuple(published[number:])


def test_a_method_can_be_built_again_from_what_a_run_saves(photos: Path) -> None:
    prepared = prepare(photos, label_split="gcd")
    info = prepared.build_data_info(32)

    again = DataInfo.from_json(info.to_json(), len(prepared.to_json()["split"]["labeled"]))

    assert again.to_json() == info.to_json()
    assert int((again.labels >= 0).sum()) == 12


def test_the_draw_of_labels_has_a_seed_of_its_own(photos: Path) -> None:
    plain = prepare(photos, num_labels=8, split_seed=3)
    assert plain.split.kind == "few-labels"
    same = prepare(photos, num_labels=8, label_seed=3)
    assert (plain.split.labeled == same.split.labeled).all()
    draws = [prepare(photos, num_labels=8, label_seed=seed).split.labeled for seed in range(4)]
    assert len({tuple(draw) for draw in draws}) > 1


def test_splits_of_a_set_can_be_pooled_for_a_test_split_that_is_drawn(photos: Path, tmp_path: Path) -> None:
    rows = [(f"{name}/{i:02d}.png", name) for name in ("ant", "bee") for i in range(10)]
    splits = ["val" if i % 2 else "train" for i in range(20)]
    table = write_csv(tmp_path / "list.csv", photos, rows, splits)

    with pytest.raises(ConfigError, match=r"has predefined splits \(train, val\).*--pool-splits"):
        prepare(table, holdout=0.2)
    prepared = prepare(table, holdout=0.2, pool_splits=True)

    # 2 of 10 images of each class, of both splits alike; the others are trained on
    assert len(prepared.held_out) == 4
    assert sorted(name.split("/")[0] for name in prepared.held_out) == ["ant", "ant", "bee", "bee"]
    assert set(prepared.dataset.sample_ids) == {name for name, _ in rows} - set(prepared.held_out)
    assert prepared.listing is not None
    assert prepared.listing.split_names == ("train", "test")
    assert prepared.to_json()["replaces_splits"] is True
    again, other = (prepare(table, holdout=0.2, pool_splits=True, split_seed=seed) for seed in (0, 1))
    assert again.held_out == prepared.held_out != other.held_out


def test_a_holdout_that_is_auto_leaves_splits_of_a_set_alone(photos: Path, tmp_path: Path) -> None:
    rows = [(f"{name}/{i:02d}.png", name) for name in ("ant", "bee") for i in range(10)]
    table = write_csv(tmp_path / "list.csv", photos, rows, ["val" if i % 2 else "train" for i in range(20)])

    # of a set without splits it takes one fifth of each class, and none where whole classes are set apart
    assert prepare(photos, holdout="auto").held_out == prepare(photos, holdout=0.2).held_out != ()
    by_class = prepare(photos, holdout="auto", holdout_classes=("ant",)).held_out
    assert {name.split("/")[0] for name in by_class} == {"ant"}
    kept = prepare(table, holdout="auto")
    assert kept.held_out == ()
    assert sorted(kept.dataset.sample_ids) == [name for name, _ in rows[::2]]
    assert len(prepare(table, holdout="auto", pool_splits=True).held_out) == 4
