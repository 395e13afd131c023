"""``labelkit embed``: which rows, labels and columns a store gets, and what happens when it is stopped."""

import json
import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.commands.common.initialize import report_loaded_weights
from labelkit.commands.common.networks import load_run_network
from labelkit.commands.embed.embed import embed_images
from labelkit.errors import DatasetError, OutputExistsError
from labelkit.models.inference import BackboneNetwork
from labelkit.models.weights.files import LoadReport
from labelkit.options.embed import EmbedConfig
from labelkit.progress import Progress, Task, use_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.writing import EmbeddingRun
from labelkit.training.compute_device import default_batch_size, resolve_device
from PIL import Image
from safetensors.torch import save_file
from tests.running import Heard


def embed(out: Path, **options: Any) -> EmbeddingStore:
    embed_images(EmbedConfig(out=out, **options))
    return open_store(out)


def arrays_of(store: EmbeddingStore) -> dict[str, Any]:
    columns = ("embeddings", "sample_ids", "sha256", "file_sizes", "image_sizes", "labels", "labeled", "old_classes")
    return {**{name: np.asarray(getattr(store, name)) for name in columns}, **store.extras}


def assert_same_bytes(left: EmbeddingStore, right: EmbeddingStore) -> None:
    other = arrays_of(right)
    for name, array in arrays_of(left).items():
        assert array.dtype == other[name].dtype, name
        assert array.tobytes() == other[name].tobytes(), name
    assert left.content_digest == right.content_digest


@pytest.fixture
def broken(photos: Path, tmp_path: Path) -> Path:
    """The photos with one empty file and one that is cut off: 2 of 49."""
    folder = shutil.copytree(photos, tmp_path / "photos")
    (folder / "ant" / "zero.png").write_bytes(b"")
    cut = folder / "dog" / "03.png"
    cut.write_bytes(cut.read_bytes()[:-40])
    return folder


def test_image_files_that_were_replaced_are_said_when_the_store_exists(
    photos: Path, tmp_path: Path, labelkit: Any
) -> None:
    data = shutil.copytree(photos, tmp_path / "photos")
    words = ("embed", "--dataset", data, "--backbone", "pixels", "--image-size", 8, "--out", tmp_path / "s.h5")
    assert "changed" not in labelkit(*words).err + labelkit(*words).err
    Image.new("RGB", (20, 20)).save(data / "bee" / "03.png")

    answer = labelkit(*words)

    said = " ".join(answer.err.split())
    assert answer.code == 0
    assert "1 image file was changed after" in said
    assert "(the first is bee/03.png); the store is not updated: to embed all images again, pass --overwrite" in said


def test_other_images_of_the_same_names_are_another_data_set(
    photos: Path, trained: Path, tmp_path: Path, labelkit: Any
) -> None:
    data = shutil.copytree(photos, tmp_path / "photos")
    for number, path in enumerate(sorted(data.rglob("*.png"))):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(path)
    words = ("embed", "--checkpoint", trained, "--dry-run", "--out", tmp_path / "s.h5", "--dataset")

    assert "is not the dataset on which the run was trained" not in labelkit(*words, photos).err
    assert "is not the dataset on which the run was trained" in " ".join(labelkit(*words, data).err.split())


def test_rows_are_the_images_sorted_by_name_with_the_classes_and_labels_of_the_run(
    embedded: Path, trained: Path
) -> None:
    store, split = open_store(embedded), json.loads((trained / "split.json").read_text())["split"]

    assert list(store.sample_ids) == [f"{name}/{i:02d}.png" for name in ("ant", "bee", "cat", "dog") for i in range(12)]
    assert store.class_names == ("ant", "bee", "cat", "dog")
    assert store.labels is not None
    assert store.labels.tolist() == [label for label in range(4) for _ in range(12)]
    assert store.image_sizes.tolist() == [[8, 8]] * 48
    assert store.embeddings.dtype == np.float32
    assert store.labeled is not None
    assert store.old_classes is not None
    assert [name for name, used in zip(store.sample_ids, store.labeled, strict=True) if used] == split["labeled"]
    assert store.old_classes.tolist() == [True, True, False, False]


@pytest.mark.slow
def test_rows_are_what_the_runs_network_makes_of_the_pictures(embedded: Path, photos: Path, trained: Path) -> None:
    model = load_run_network(trained)
    spec = model.network.input_spec
    pixels = [np.asarray(Image.open(photos / "ant" / f"{i:02d}.png").convert("RGB")) for i in range(3)]
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    large = torch.nn.functional.interpolate(images, spec.size, mode="bicubic", antialias=True, align_corners=False)
    mean, std = (torch.tensor(values)[:, None, None] for values in (spec.mean, spec.std))

    with torch.inference_mode():
        rows = model.network.embed((large.clamp(0, 1) - mean) / std).numpy()

    # pixels are rounded to whole numbers on the way, so the last digits differ
    np.testing.assert_allclose(open_store(embedded).embeddings[:3], rows, atol=0.02)


@pytest.mark.slow
def test_columns_of_old_classes_come_first_in_class_order(photos: Path, trained: Path, tmp_path: Path) -> None:
    # the same run, told that it learned bee before ant
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    saved = json.loads((run / "split.json").read_text())
    saved["split"]["old_classes"] = [1, 0]
    (run / "split.json").write_text(json.dumps(saved))

    swapped = embed(tmp_path / "swapped.h5", dataset=str(photos), checkpoint=run)
    plain = embed(tmp_path / "plain.h5", dataset=str(photos), checkpoint=trained)

    np.testing.assert_array_equal(swapped.extras["logits"], plain.extras["logits"][:, [1, 0, 2, 3]])


@pytest.mark.slow
def test_truth_that_training_did_not_have_does_not_change_the_split(
    labelkit: Any, photos: Path, small: tuple[str | Path, ...], tmp_path: Path
) -> None:
    shutil.copytree(photos, tmp_path, dirs_exist_ok=True)
    names = [f"{name}/{i:02d}.png" for name in ("bee", "cat") for i in range(12)]
    part = [f"{name},{'cat' if name < 'cat/04' and name > 'cat' else ''}" for name in names]
    full = [f"{name},{name[:3]}" for name in names]
    (tmp_path / "part.csv").write_text("\n".join(["path,label", *part]))
    (tmp_path / "full.csv").write_text("\n".join(["path,label", *full]))
    options = ("--align-blocks", "1", "--num-classes", "2", *small, "--out", tmp_path / "run", "-q")
    assert labelkit("train", "flipclass", "--dataset", tmp_path / "part.csv", *options).code == 0

    store = embed(tmp_path / "x.h5", dataset=str(tmp_path / "full.csv"), checkpoint=tmp_path / "run")

    assert store.class_names == ("bee", "cat")
    assert store.old_classes is not None
    assert store.labeled is not None
    assert store.old_classes.tolist() == [False, True]
    assert [name for name, used in zip(store.sample_ids, store.labeled, strict=True) if used] == names[12:16]
    assert store.extras["logits"].shape == (24, 2)


def test_an_embed_that_is_stopped_goes_on_and_ends_with_the_same_bytes(
    photos: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"dataset": str(photos), "checkpoint": trained, "batch_size": 2, "part_rows": 2}
    stopped, write_part = tmp_path / "stopped.h5", EmbeddingRun.write_part

    def write_three(run: EmbeddingRun, part: int, **values: Any) -> None:
        if part == 3:
            raise KeyboardInterrupt
        write_part(run, part, **values)

    with monkeypatch.context() as patch:
        patch.setattr(EmbeddingRun, "write_part", write_three)
        with pytest.raises(KeyboardInterrupt):
            embed(stopped, **options)
    assert not stopped.exists()
    totals: list[int | None] = []

    class Listener(Progress):
        def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
            totals.append(total)
            return super().task(description, total)

    with use_progress(Listener()):
        finished = embed(stopped, **options | {"part_rows": None})  # the value of the stopped run

    assert totals == [42]
    whole = embed(tmp_path / "whole.h5", **options)
    assert_same_bytes(finished, whole)
    assert stopped.read_bytes() == whole.path.read_bytes()
    assert not (tmp_path / "stopped.h5.run").exists()


@pytest.mark.slow
@pytest.mark.parametrize("finished", [True, False])
def test_who_names_no_batch_size_goes_on_with_that_of_the_store(
    finished: bool, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"dataset": str(photos), "backbone": "vit_nano_p8_32", "random_weights": True}
    whole = embed(tmp_path / "whole.h5", **options, batch_size=6)
    out = tmp_path / "x.h5"

    def stop(run: EmbeddingRun, *given: object) -> None:
        raise RuntimeError

    if finished:
        embed(out, **options, batch_size=6)
    else:
        with monkeypatch.context() as patched:
            patched.setattr(EmbeddingRun, "publish", stop)
            with pytest.raises(RuntimeError):
                embed_images(EmbedConfig(out=out, **options, batch_size=6))
    result = embed_images(EmbedConfig(out=out, device="cpu", **options)).to_json()

    assert result["already_done"] is finished
    assert out.read_bytes() == whole.path.read_bytes()
    anew = embed(out, **options, overwrite=True, device="cpu")
    assert anew.model.numerics["batch_size"] == 16
    with pytest.raises(OutputExistsError):
        embed(out, **options, batch_size=6)


@pytest.mark.slow
def test_a_dry_run_tells_the_plan_and_writes_nothing(
    labelkit: Any, photos: Path, trained: Path, tmp_path: Path
) -> None:
    words = ("embed", "--dataset", photos, "--checkpoint", trained, "--out", tmp_path / "x.h5", "--dry-run")

    plan = labelkit(*words, "--json").json
    shown = labelkit(*words).out

    assert (plan["images"], plan["dim"]) == (48, 48)
    assert plan["config"]["out"] == str(tmp_path / "x.h5")
    assert plan["parameters"] > 0
    assert plan["estimated_minutes"] >= 0
    assert plan["batch_size"] == default_batch_size(resolve_device("auto"))
    assert plan["memory_mib"] > 0
    assert all(f"\n{name} " in shown for name in EmbedConfig.model_fields)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_broken_images_are_left_out_with_their_reasons_unless_they_are_more_than_allowed(
    broken: Path, trained: Path, tmp_path: Path
) -> None:
    result = embed_images(
        EmbedConfig(dataset=str(broken), checkpoint=trained, out=tmp_path / "x.h5", max_bad=0.1)
    ).to_json()
    store = open_store(tmp_path / "x.h5")

    assert [name for name, _ in store.skipped] == ["ant/zero.png", "dog/03.png"]
    assert store.skipped[0][1] == "empty file"
    assert "truncated" in store.skipped[1][1]
    assert result["skipped"] == [{"sample_id": name, "reason": reason} for name, reason in store.skipped]
    assert store.n == 47
    assert "dog/03.png" not in store.sample_ids
    assert store.labels is not None
    assert store.labels.tolist() == [0] * 12 + [1] * 12 + [2] * 12 + [3] * 11
    for number, options in enumerate(({}, {"max_bad": 0.0})):
        with pytest.raises(DatasetError, match=r"2 of 49 images") as caught:
            embed(tmp_path / f"{number}.h5", dataset=str(broken), checkpoint=trained, **options)
        assert "ant/zero.png: empty file" in str(caught.value)
        assert "--max-bad" in caught.value.remedy
        assert not (tmp_path / f"{number}.h5").exists()


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_images_that_show_next_to_nothing_are_said_once_with_the_reason(
    labelkit: Any, photos: Path, tmp_path: Path, num_workers: int
) -> None:
    shutil.copytree(photos / "ant", tmp_path / "set")
    clear = np.full((16, 16, 4), 255, dtype=np.uint8)
    clear[:8, :, 3] = 0
    for name in ("white0.png", "white1.png"):
        Image.fromarray(clear).save(tmp_path / "set" / name)
    dark = np.linspace(0, 4095, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(dark).save(tmp_path / "set" / "dark.png")
    options = ["--backbone", "pixels", "--image-size", "8", "--num-workers", num_workers, "--out", tmp_path / "x.h5"]

    run = labelkit("embed", "--dataset", tmp_path / "set", *options)

    said = " ".join(run.err.split())
    assert said.count("images look almost blank") == 2
    assert "2 of 15 images look almost blank (first: white0.png): white on transparent" in said
    assert "1 of 15 images look almost blank (first: dark.png): 16-bit values" in said


def test_a_network_that_gives_no_numbers_makes_no_store(
    labelkit: Any, photos: Path, trained: Path, tmp_path: Path
) -> None:
    state = load_run_network(trained).network.state_dict()
    backbone = {name.removeprefix("backbone."): value for name, value in state.items() if name.startswith("backbone.")}
    save_file({name: torch.full_like(value, 1e38) for name, value in backbone.items()}, tmp_path / "huge.safetensors")
    words = ("--dataset", photos, "--backbone", "vit_nano_p8_32", "--weights", tmp_path / "huge.safetensors")

    answer = labelkit("embed", *words, "--out", tmp_path / "x.h5")

    assert answer.code == 4
    assert (
        "the network produces NaN or infinite embeddings. Use --precision float32, or another checkpoint." in answer.err
    )
    assert not (tmp_path / "x.h5").exists()


@pytest.mark.parametrize(
    ("prefix", "hint"),
    [("teacher.backbone.", "; for DINO's preprocessing, pass --backbone vit_small_patch16_224.dino"), ("model.", "")],
)
def test_how_images_are_prepared_is_said_of_a_weights_file(prefix: str, hint: str) -> None:
    network = BackboneNetwork("vit_small_patch16_224", image_size=32)
    network.backbone.source, network.backbone.load_report = "w.pth", LoadReport((), (), (), prefix)

    with use_progress(heard := Heard()):
        report_loaded_weights(network)

    # timm: crop_pct 0.9 of the default tag
    text = "images are preprocessed as for vit_small_patch16_224.augreg_in21k_ft_in1k (resized to 35, cropped to 32; "
    assert heard.messages[0].endswith(f"{text}mean 0.5, 0.5, 0.5; std 0.5, 0.5, 0.5){hint}")
