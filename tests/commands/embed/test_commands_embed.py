"""``labelkit embed``: which rows, labels and columns a store gets, and what happens when it is stopped."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.commands.common.networks import run_network
from labelkit.commands.embed.embed import embed_images
from labelkit.data.registry import load_dataset
from labelkit.errors import CheckpointError, ConfigError, DatasetError, OutputExistsError
from labelkit.models.inference import PixelNetwork
from labelkit.options.embed import EmbedConfig
from labelkit.progress import SilentProgress, Task, use_progress
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.writing import EmbeddingRun
from labelkit.training.compute_device import compute_device, images_at_once
from PIL import Image
from safetensors.torch import save_file


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


@pytest.fixture(scope="module")
def broken(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos with one empty file and one that is cut off: 2 of 49."""
    folder = tmp_path_factory.mktemp("data") / "photos"
    shutil.copytree(photos, folder)
    (folder / "ant" / "zero.png").write_bytes(b"")
    cut = folder / "dog" / "03.png"
    cut.write_bytes(cut.read_bytes()[:-40])
    return folder


# --- what is stored ------------------------------------------------------------------------------


def test_rows_are_the_images_sorted_by_name_with_their_classes(embedded: Path) -> None:
    store = open_store(embedded)

    assert list(store.sample_ids) == [f"{name}/{i:02d}.png" for name in ("ant", "bee", "cat", "dog") for i in range(12)]
    assert store.class_names == ("ant", "bee", "cat", "dog")
    assert store.labels is not None
    assert store.labels.tolist() == [label for label in range(4) for _ in range(12)]
    assert store.image_sizes.tolist() == [[8, 8]] * 48
    assert store.embeddings.dtype == np.float32


def test_usable_labels_and_old_classes_are_those_of_the_run(embedded: Path, trained: Path) -> None:
    store, split = open_store(embedded), json.loads((trained / "split.json").read_text())["split"]

    assert store.labeled is not None
    assert store.old_classes is not None
    assert [name for name, used in zip(store.sample_ids, store.labeled, strict=True) if used] == split["labeled"]
    assert store.old_classes.tolist() == [True, True, False, False]


@pytest.mark.slow
def test_rows_are_what_the_runs_network_makes_of_the_pictures(embedded: Path, photos: Path, trained: Path) -> None:
    model = run_network(trained)
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
def test_columns_of_logits_are_the_classifiers_outputs_of_the_rows(embedded: Path, trained: Path) -> None:
    store, network = open_store(embedded), run_network(trained).network

    with torch.inference_mode():
        logits = network.classify(torch.from_numpy(store.embeddings.copy())).numpy()

    np.testing.assert_allclose(store.extras["logits"], logits, atol=1e-5)


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
def test_logits_can_be_left_out(photos: Path, trained: Path, tmp_path: Path) -> None:
    assert "logits" not in embed(tmp_path / "x.h5", dataset=str(photos), checkpoint=trained, logits=False).extras


@pytest.mark.slow
def test_half_precision_rows_are_the_rounded_full_ones(
    photos: Path, trained: Path, embedded: Path, tmp_path: Path
) -> None:
    store = embed(tmp_path / "half.h5", dataset=str(photos), checkpoint=trained, dtype="float16")

    np.testing.assert_array_equal(store.embeddings, open_store(embedded).embeddings.astype(np.float16))


@pytest.mark.slow
def test_pixels_of_digits_at_their_own_size_are_the_digits(tmp_path: Path) -> None:
    digits = load_dataset("digits", data_root=tmp_path)
    expected = np.stack([digits.source.read(row).decode(1).ravel() for row in range(len(digits))]) / np.float32(255)

    store = embed(tmp_path / "pixels.h5", dataset="digits", backbone="pixels", image_size=8)

    np.testing.assert_allclose(store.embeddings, expected, atol=1e-6)
    assert store.labeled is not None
    assert 0 < store.labeled.sum() < 1797
    assert store.extras == {}


@pytest.mark.slow
def test_random_weights_depend_on_the_seed_alone(photos: Path, tmp_path: Path) -> None:
    options = {"dataset": str(photos), "backbone": "vit_nano_p8_32", "random_weights": True}

    first, again, other = (
        embed(tmp_path / f"{number}.h5", **options, seed=seed) for number, seed in enumerate((0, 0, 1))
    )

    assert_same_bytes(first, again)
    assert not np.array_equal(first.embeddings, other.embeddings)
    assert first.model.weights_fingerprint != other.model.weights_fingerprint


@pytest.mark.slow
def test_weights_of_a_file_embed_as_the_run_they_come_from(
    photos: Path, trained: Path, embedded: Path, tmp_path: Path
) -> None:
    file = next(trained.glob("checkpoints/*/model.safetensors"))

    store = embed(tmp_path / "file.h5", dataset=str(photos), backbone="vit_nano_p8_32", weights=file)

    # the run's picture is resized with another rule, so this shows the weights, not the bits
    cosine = np.sum(store.embeddings * open_store(embedded).embeddings, axis=1) / (
        np.linalg.norm(store.embeddings, axis=1) * np.linalg.norm(open_store(embedded).embeddings, axis=1)
    )
    assert (cosine > 0.99).all()


# --- which labels --------------------------------------------------------------------------------


@pytest.mark.slow
def test_another_data_set_gets_labels_as_asked_and_no_logits(trained: Path, labelkit: Any, tmp_path: Path) -> None:
    words = ("--dataset", "digits", "--checkpoint", trained, "--out", tmp_path / "digits.h5")

    answer = labelkit("embed", *words, "--label-split", "few-labels", "--num-labels", 20, "--json")

    assert answer.code == 0
    assert answer.json["labeled"] == 20
    assert "is not what the run was trained on (photos): labels as --label-split says" in answer.err
    assert "its output is not stored" in answer.err
    assert open_store(tmp_path / "digits.h5").extras == {}


@pytest.mark.slow
def test_a_renamed_folder_is_still_what_the_run_was_trained_on(
    photos: Path, trained: Path, embedded: Path, tmp_path: Path
) -> None:
    shutil.copytree(photos, tmp_path / "pictures")

    store = embed(tmp_path / "x.h5", dataset=str(tmp_path / "pictures"), checkpoint=trained)

    np.testing.assert_array_equal(store.labeled, open_store(embedded).labeled)
    assert "logits" in store.extras


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


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"label_split": "gcd"}, {"label_ratio": 0.2}, {"split_seed": 3}])
def test_options_that_the_runs_split_leaves_no_room_for_are_refused(
    photos: Path, trained: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match="split of that run is used"):
        embed(tmp_path / "x.h5", dataset=str(photos), checkpoint=trained, **options)

    assert list(tmp_path.iterdir()) == []


def test_labels_of_test_images_are_never_usable(photos: Path, tmp_path: Path) -> None:
    for part in ("train", "test"):
        shutil.copytree(photos, tmp_path / "set" / part)

    store = embed(
        tmp_path / "x.h5", dataset=str(tmp_path / "set"), backbone="pixels", image_size=8, split="all", label_ratio=1.0
    )

    assert store.labeled is not None
    assert store.labeled[store.rows("train")].sum() == 24
    assert store.labeled[store.rows("test")].sum() == 0


def test_a_class_without_a_labeled_image_is_warned_about(labelkit: Any, photos: Path, tmp_path: Path) -> None:
    words = ("--dataset", photos, "--backbone", "pixels", "--num-old-classes", 4, "--label-ratio", 0.03)

    answer = labelkit("embed", *words, "--out", tmp_path / "x.h5", "-q")

    assert answer.code == 0
    assert "warning: 3 of 4 old classes without a labeled image: " in " ".join(answer.err.split())


# --- again, over, stopped ------------------------------------------------------------------------


@pytest.mark.slow
def test_the_same_command_again_does_nothing(photos: Path, trained: Path, tmp_path: Path) -> None:
    config = EmbedConfig(dataset=str(photos), checkpoint=trained, out=tmp_path / "x.h5")
    first = embed_images(config).to_json()
    status = (tmp_path / "x.h5").stat()

    again = embed_images(config).to_json()

    assert (first["already_done"], again["already_done"]) == (False, True)
    assert again["content_digest"] == first["content_digest"]
    assert (tmp_path / "x.h5").stat() == status
    assert [path.name for path in tmp_path.iterdir()] == ["x.h5"]


def test_another_store_in_the_way_stays_unless_overwrite_is_given(photos: Path, index: Path) -> None:
    before = index.read_bytes()
    options: dict[str, Any] = {"dataset": str(photos), "backbone": "pixels", "image_size": 8}

    with pytest.raises(OutputExistsError, match="--overwrite"):
        embed(index, **options)

    assert index.read_bytes() == before
    assert embed(index, **options, overwrite=True).dim == 192


def test_a_killed_embed_goes_on_and_ends_with_the_same_bytes(
    photos: Path, trained: Path, tmp_path: Path, own_cache: Path
) -> None:
    # batches of two, committed one by one and slowly, so that there are many moments to be killed at
    options: dict[str, Any] = {"dataset": str(photos), "checkpoint": trained, "batch_size": 2, "part_rows": 2}
    killed, parts = tmp_path / "killed.h5", tmp_path / "killed.h5.run" / "parts"
    code = f"""
import sys, time
from pathlib import Path
from labelkit.options.embed import EmbedConfig
from labelkit.models.inference import PixelNetwork
from labelkit.commands.embed.embed import embed_images
from labelkit.store.writing import EmbeddingRun
write_part = EmbeddingRun.write_part
def write_slowly(*args, **kwargs):
    write_part(*args, **kwargs)
    time.sleep(0.2)
EmbeddingRun.write_part = write_slowly
dataset, checkpoint, out = sys.argv[1:]
embed_images(EmbedConfig(dataset=dataset, checkpoint=checkpoint, out=out, batch_size=2, part_rows=2,
                         threads={torch.get_num_threads()}))
"""
    command = [sys.executable, "-c", code, str(photos), str(trained), str(killed)]
    with subprocess.Popen(command, env={**os.environ, "LABELKIT_CACHE": str(own_cache)}) as process:
        deadline = time.monotonic() + 120
        while len(list(parts.glob("*.h5"))) < 3 and time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    assert 3 <= len(list(parts.glob("*.h5"))) < 24
    assert not killed.exists()

    left = 48 - 2 * len(list(parts.glob("*.h5")))
    totals: list[int | None] = []

    class Listener(SilentProgress):
        def task(self, description: str, total: int | None = None) -> AbstractContextManager[Task]:
            totals.append(total)
            return super().task(description, total)

    with use_progress(Listener()):
        finished = embed(killed, **options)

    assert totals == [left]
    whole = embed(tmp_path / "whole.h5", **options)
    assert_same_bytes(finished, whole)
    assert killed.read_bytes() == whole.path.read_bytes()
    assert not (tmp_path / "killed.h5.run").exists()


@pytest.mark.slow
def test_sigterm_keeps_the_finished_parts(
    labelkit: Any, photos: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_part = EmbeddingRun.write_part

    def write_then_stop(self: EmbeddingRun, part: int, **values: Any) -> None:
        write_part(self, part, **values)
        os.kill(os.getpid(), signal.SIGTERM)

    words = ("embed", "--dataset", photos, "--checkpoint", trained, "--batch-size", 16, "--part-rows", 16)
    monkeypatch.setattr(EmbeddingRun, "write_part", write_then_stop)
    stopped = labelkit(*words, "--out", tmp_path / "x.h5")
    monkeypatch.undo()

    assert stopped.code == 143
    assert "SIGTERM" in stopped.err
    assert len(list((tmp_path / "x.h5.run" / "parts").glob("*.h5"))) == 1
    resumed = labelkit(*words, "--out", tmp_path / "x.h5", "--json")
    assert resumed.json["rows"] == 48


@pytest.mark.slow
@pytest.mark.parametrize("finished", [True, False])
def test_who_names_no_batch_size_goes_on_with_that_of_the_store(
    finished: bool, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"dataset": str(photos), "backbone": "vit_nano_p8_32", "random_weights": True}
    whole = embed(tmp_path / "whole.h5", **options, batch_size=6)
    out = tmp_path / "x.h5"

    def stop(run: EmbeddingRun, max_bad: float, sharding: object) -> None:
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
    assert plan["batch_size"] == images_at_once(compute_device("auto"))
    assert plan["memory_mib"] > 0
    assert all(f"\n{name} " in shown for name in EmbedConfig.model_fields)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_dry_run_does_not_count_the_start_of_the_device(
    labelkit: Any, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embed, started = PixelNetwork.embed, []

    def slow_at_first(self: PixelNetwork, images: Any) -> Any:
        if not started:
            time.sleep(1.5)
        started.append(len(images))
        return embed(self, images)

    monkeypatch.setattr(PixelNetwork, "embed", slow_at_first)
    words = ("embed", "--dataset", photos, "--backbone", "pixels", "--out", tmp_path / "x.h5", "--dry-run", "--json")
    plan = labelkit(*words, "--batch-size", 16).json
    assert started == [16, 16, 16]
    assert plan["estimated_minutes"] * 60 < 1.5  # two batches of three: above 2 if the start is counted


# --- images that cannot be read ------------------------------------------------------------------


@pytest.mark.slow
def test_broken_images_are_left_out_and_listed_with_their_reasons(broken: Path, trained: Path, tmp_path: Path) -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"max_bad": 0.1, "strict": True}])
def test_more_broken_images_than_allowed_are_an_error(
    broken: Path, trained: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    with pytest.raises(DatasetError, match=r"2 of 49 images") as caught:
        embed(tmp_path / "x.h5", dataset=str(broken), checkpoint=trained, **options)

    assert caught.value.exit_code == 3
    assert "ant/zero.png: empty file" in str(caught.value)
    assert "--max-bad" in caught.value.remedy
    assert not (tmp_path / "x.h5").exists()


@pytest.mark.slow
def test_allowing_more_after_a_refusal_takes_what_was_embedded(broken: Path, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError):
        embed(tmp_path / "x.h5", dataset=str(broken), checkpoint=trained)

    assert embed(tmp_path / "x.h5", dataset=str(broken), checkpoint=trained, max_bad=0.1).n == 47


# --- models that cannot be used ------------------------------------------------------------------


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
    assert said.count("images show next to nothing") == 2
    assert "2 of 15 images show next to nothing, first white0.png: white on transparent" in said
    assert "1 of 15 images show next to nothing, first dark.png: 16-bit values" in said


@pytest.mark.parametrize(
    ("checkpoint", "problem"),
    [("nothing", "does not exist"), ("photos", "is no run folder"), ("photos/ant/00.png", "is a file")],
)
def test_what_is_no_run_is_named(photos: Path, tmp_path: Path, checkpoint: str, problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem) as caught:
        embed(tmp_path / "x.h5", dataset=str(photos), checkpoint=photos.parent / checkpoint)

    assert caught.value.where == str(photos.parent / checkpoint)
    assert caught.value.remedy
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_one_checkpoint_of_a_run_can_be_given(photos: Path, trained: Path, embedded: Path, tmp_path: Path) -> None:
    store = embed(tmp_path / "x.h5", dataset=str(photos), checkpoint=next(trained.glob("checkpoints/step-*")))

    assert_same_bytes(store, open_store(embedded))


def test_a_damaged_checkpoint_is_refused(photos: Path, trained: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    file = next(run.glob("checkpoints/*/model.safetensors"))
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)

    with pytest.raises(CheckpointError, match="bytes differ from what was written"):
        embed(tmp_path / "x.h5", dataset=str(photos), checkpoint=run)


def test_a_network_that_gives_no_numbers_makes_no_store(
    labelkit: Any, photos: Path, trained: Path, tmp_path: Path
) -> None:
    state = run_network(trained).network.state_dict()
    backbone = {name.removeprefix("backbone."): value for name, value in state.items() if name.startswith("backbone.")}
    save_file({name: torch.full_like(value, 1e38) for name, value in backbone.items()}, tmp_path / "huge.safetensors")
    words = ("--dataset", photos, "--backbone", "vit_nano_p8_32", "--weights", tmp_path / "huge.safetensors")

    answer = labelkit("embed", *words, "--out", tmp_path / "x.h5")

    assert answer.code == 4
    assert "the network gives NaN or infinite embeddings. Use --precision float32, or another checkpoint." in answer.err
    assert not (tmp_path / "x.h5").exists()
