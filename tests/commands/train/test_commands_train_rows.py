"""Training on the rows of a store: from a store to a checkpoint, and from that to rows of a new one."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from labelkit.algorithms.indexes import find_approximate_neighbors
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result
from labelkit.training.checkpoint import load_checkpoint
from PIL import Image
from tests.row_heads import BATCHES, EACH_HEAD, HEADS, SHORT, rows_after
from tests.running import Labelkit, MakeStore, copy_store, run_labelkit


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, pixels: Path) -> Path:
    """A run of softmax on that store. Tests must not change it."""
    out = tmp_path_factory.mktemp("runs") / "softmax"
    answer = run_labelkit("train", "softmax", "--index", pixels, *BATCHES, "--epochs", 30, "--out", out, "-q")
    assert answer.code == 0, answer.err
    return out


@pytest.mark.parametrize("method", EACH_HEAD)
def test_a_head_trains_on_the_rows_of_a_store_and_makes_rows_of_a_new_one(
    labelkit: Labelkit, tmp_path: Path, pixels: Path, method: str
) -> None:
    out = tmp_path / "run"
    answer = labelkit("train", method, "--index", pixels, *HEADS[method], "--out", out, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["samples"]["images"] == 48
    assert answer.json["dataset"] == str(pixels)

    made = tmp_path / "made.h5"
    answer = labelkit("embed", "--index", pixels, "--checkpoint", out, "--out", made, "-q")
    assert answer.code == 0, answer.err

    old, new = open_store(pixels), open_store(made)
    assert new.sample_ids == old.sample_ids
    assert np.array_equal(new.sha256, old.sha256)
    assert (new.n, new.dim) == (48, 64 * 3)
    assert new.model.name == "pixels+head-2x256"


def test_a_photo_gets_the_row_that_the_store_would_have_got(
    labelkit: Labelkit, tmp_path: Path, photos: Path, pixels: Path, run: Path
) -> None:
    by_rows, by_photos = tmp_path / "rows.h5", tmp_path / "photos.h5"
    assert labelkit("embed", "--index", pixels, "--checkpoint", run, "--out", by_rows).code == 0
    answer = labelkit("embed", "--dataset", photos, "--checkpoint", run, "--out", by_photos)
    assert answer.code == 0, answer.err

    first, second = open_store(by_rows), open_store(by_photos)
    assert first.differences(second) == []
    assert first.sample_ids == second.sample_ids
    assert np.allclose(first.embeddings, second.embeddings, atol=1e-4)
    assert np.allclose(first.extras["logits"], second.extras["logits"], atol=1e-3)
    checkpoint = load_checkpoint(run)
    assert checkpoint is not None
    rows = np.asarray(open_store(pixels).embeddings, dtype=np.float64)
    center = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).mean(axis=0)
    kept = checkpoint.tensors("model.safetensors")["network.backbone.net.center"]
    assert np.allclose(kept.numpy(), center, atol=1e-6)


def test_a_head_names_the_classes_of_photos_without_labels(
    labelkit: Labelkit, tmp_path: Path, photos: Path, run: Path
) -> None:
    for name in ("2023", "2024"):
        (tmp_path / "new" / name).mkdir(parents=True)
    for place, photo in enumerate(sorted(photos.rglob("*.png"))):
        shutil.copy(photo, tmp_path / "new" / ("2023", "2024")[place % 2] / f"{photo.parent.name}-{photo.name}")
    out = tmp_path / "new.h5"
    words = ("embed", "--dataset", tmp_path / "new", "--label-split", "none", "--checkpoint", run, "--out", out)
    assert labelkit(*words).code == 0
    assert labelkit("discover", "head", "--index", out).code == 0

    store, found = open_store(out), read_result(open_store(out), "head").arrays
    predicted = [found["names"][group] for group in found["pseudo_labels"]]
    hits = [Path(name).name.startswith(label) for name, label in zip(store.sample_ids, predicted, strict=True)]
    assert np.mean(hits) > 0.9
    assert {store.class_names[label] for label in store.labels} == {"2023", "2024"}


def test_labels_of_a_file_count_beside_those_of_the_store(labelkit: Labelkit, tmp_path: Path, photos: Path) -> None:
    store, table = tmp_path / "blank.h5", tmp_path / "known.csv"
    words = ("embed", "--dataset", photos, "--backbone", "pixels", "--image-size", 8, "--label-split", "none")
    assert labelkit(*words, "--out", store).code == 0
    table.write_text("path,label\n" + "".join(f"{c}/{i:02d}.png,{c}\n" for c in ("ant", "bee") for i in range(6)))
    answer = labelkit(
        "train", "softmax", "--index", store, "--labels", table, *SHORT, "--out", tmp_path / "run", "--json"
    )
    assert answer.code == 0, answer.err
    assert answer.json["samples"]["labeled"] == 12
    assert answer.json["samples"]["old_classes"] == 2
    assert "ignored" not in answer.err

    table.write_text("path,label\n" + "".join(f"ant/{i:02d}.png,color {i % 2}\n" for i in range(6)))
    answer = labelkit("train", "softmax", "--index", store, "--labels", table, *SHORT, "--out", tmp_path / "colors")
    assert "the classes stored in blank (ant, bee, " in answer.err
    assert f"are ignored, even for evaluation, since none of them is in {table}" in answer.err


@pytest.mark.slow
@pytest.mark.parametrize("method", HEADS)
def test_a_head_stopped_and_resumed_has_the_same_bits(
    labelkit: Labelkit, tmp_path: Path, pixels: Path, method: str
) -> None:
    words = ("train", method, "--index", pixels, *HEADS[method], "--json")
    whole = labelkit(*words, "--out", tmp_path / "whole").json
    assert labelkit(*words, "--out", tmp_path / "cut", "--stop-after-steps", 5).code == 0
    resumed = labelkit(*words, "--out", tmp_path / "cut", "--resume")
    assert resumed.code == 0, resumed.err
    assert resumed.json["weights_fingerprint"] == whole["weights_fingerprint"]


@pytest.fixture(scope="module")
def viewed(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """A store of the photos with three views of each. Tests must not change it."""
    out = tmp_path_factory.mktemp("viewed") / "photos.h5"
    words = ("embed", "--dataset", photos, "--backbone", "pixels", "--image-size", 8, "--label-split", "given")
    answer = run_labelkit(*words, "--views", 3, "--out", out, "-q")
    assert answer.code == 0, answer.err
    return out


@pytest.fixture(scope="module")
def plain_views(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of images of one color, whose views are the images themselves."""
    folder = tmp_path_factory.mktemp("colors")
    for number in range(24):
        path = folder / "colors" / ("warm", "cold")[number % 2] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (16, 16), (10 * number + 5, 90, 250 - 9 * number)).save(path)
    words = ("embed", "--dataset", folder / "colors", "--backbone", "pixels", "--image-size", 8, "--views", 2)
    answer = run_labelkit(*words, "--label-split", "given", "--out", folder / "colors.h5", "-q")
    assert answer.code == 0, answer.err
    return folder / "colors.h5"


@pytest.mark.slow
def test_views_are_trained_on_where_the_store_keeps_some(
    labelkit: Labelkit, tmp_path: Path, viewed: Path, pixels: Path
) -> None:
    by_default = rows_after(labelkit, tmp_path, viewed)
    assert np.array_equal(by_default, rows_after(labelkit, tmp_path, viewed, "--row-views", "on"))
    assert not np.array_equal(by_default, rows_after(labelkit, tmp_path, viewed, "--row-views", "off"))
    # without views nothing changes
    assert np.array_equal(
        rows_after(labelkit, tmp_path, viewed, "--row-views", "off"), rows_after(labelkit, tmp_path, pixels)
    )


@pytest.mark.slow
def test_no_neighbor_is_looked_for_where_views_stand_for_rows(
    labelkit: Labelkit, tmp_path: Path, viewed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(
        "labelkit.data.image_bank.find_approximate_neighbors",
        lambda *given: asked.append(given[1]) or find_approximate_neighbors(*given),
    )
    for views in ("on", "off"):
        words = ("train", "softmax", "--index", viewed, *SHORT, "--row-views", views, "--out", tmp_path / views)
        assert labelkit(*words).code == 0
        assert asked == ([] if views == "on" else [10])


def test_a_part_of_a_store_has_its_own_views(labelkit: Labelkit, tmp_path: Path, plain_views: Path) -> None:
    # views of other rows would not be the rows themselves
    words = ("--holdout", 0.25, "--seed", 3)
    unchanged = ("--row-views", "off", "--row-noise", 0, "--row-dropout", 0, "--row-mix", 0)
    by_views = rows_after(labelkit, tmp_path, plain_views, *words)
    assert np.allclose(by_views, rows_after(labelkit, tmp_path, plain_views, *words, *unchanged), atol=1e-3)


@pytest.mark.parametrize(("option", "value"), [("--row-noise", 0.5), ("--row-mix", 0.5), ("--row-neighbors", 3)])
def test_changes_of_rows_are_refused_where_views_stand_for_them(
    labelkit: Labelkit, tmp_path: Path, viewed: Path, option: str, value: float
) -> None:
    words = ("train", "softmax", "--index", viewed, *SHORT, option, value, "--out", tmp_path / "run")
    answer = labelkit(*words)
    assert answer.code == 2
    assert option in answer.err
    assert "Pass --row-views off" in answer.err
    answer = labelkit(*words, "--row-views", "on")
    assert answer.code == 2
    assert f"{option} has no effect with --row-views on" in answer.err
    assert labelkit(*words, "--row-views", "off", "--dry-run").code == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--backbone", "resnet18"), "--backbone applies only to training on images"),
        (("--augmentation", "digits"), "--augmentation applies only to training on images"),
        (("--dataset", "digits"), "cannot be combined"),
        (("--head-layers", 1, "--head-width", 8), "has no hidden layer"),
    ],
)
def test_options_that_do_not_go_with_rows_are_refused(
    labelkit: Labelkit, tmp_path: Path, pixels: Path, words: tuple[object, ...], problem: str
) -> None:
    answer = labelkit("train", "softmax", "--index", pixels, *SHORT, *words, "--out", tmp_path / "run")
    assert answer.code == 2
    assert problem in answer.err
    assert not (tmp_path / "run").exists()


def test_rows_without_labels_or_a_direction_are_refused(
    labelkit: Labelkit, make_store: MakeStore, rng: np.random.Generator, tmp_path: Path
) -> None:
    rows = rng.normal(size=(24, 6))
    bare = make_store(rows, name="bare.h5")
    answer = labelkit("train", "softmax", "--index", bare.path, *SHORT, "--out", tmp_path / "run")
    assert answer.code == 3
    assert "no image has a label that training may use" in answer.err
    rows[7] = 0
    store = make_store(rows, labels=[0, 1] * 12, labeled=[1] * 24)
    answer = labelkit("train", "softmax", "--index", store.path, *SHORT, "--out", tmp_path / "run")
    assert answer.code == 3
    assert "0007.png" in answer.err


@pytest.mark.slow
def test_a_store_that_changed_is_refused_when_a_run_is_resumed(
    labelkit: Labelkit, tmp_path: Path, photos: Path, pixels: Path
) -> None:
    store = copy_store(pixels, tmp_path / "photos.h5")
    words = ("train", "softmax", "--index", store, *SHORT, "--out", tmp_path / "run")
    assert labelkit(*words, "--stop-after-steps", 5).code == 0
    store.unlink()
    made = ("embed", "--dataset", photos, "--backbone", "pixels", "--image-size", 8, "--label-split", "given")
    assert labelkit(*made, "--dtype", "float16", "--out", store).code == 0

    answer = labelkit(*words, "--resume")
    assert answer.code == 3
    assert "images, labels or embeddings have changed" in answer.err


def test_rows_of_another_model_are_refused(labelkit: Labelkit, tmp_path: Path, photos: Path, run: Path) -> None:
    other = tmp_path / "other.h5"
    words = ("embed", "--dataset", photos, "--backbone", "pixels", "--image-size", 6)
    assert labelkit(*words, "--out", other).code == 0
    answer = labelkit("embed", "--index", other, "--checkpoint", run, "--out", tmp_path / "made.h5")
    assert answer.code == 3
    assert "has embeddings of a different model" in answer.err
