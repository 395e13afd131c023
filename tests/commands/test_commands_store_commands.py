"""``verify``, ``pack`` and ``status`` from the command line."""

import shutil
from pathlib import Path

import pytest
from labelkit.store.embeddings import open_store
from tests.running import Labelkit, flip_bit

FORMATS = Path(__file__).parents[1] / "data" / "formats"


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """The golden store with its result and its patches."""
    index = Path(shutil.copy(FORMATS / "store-1.0.h5", tmp_path / "s.h5"))
    (tmp_path / "s.h5.results").mkdir()
    shutil.copy(FORMATS / "result-1.0.h5", tmp_path / "s.h5.results" / "clusters.h5")
    shutil.copytree(FORMATS / "patches-1.0", tmp_path / "s.h5.patches")
    return index


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("# labelkit train softmax --config config.yaml\nepochs: 4\n")
    (folder / "metrics.jsonl").write_text('{"epoch":0,"step":2,"loss":0.75}\n')
    shutil.copytree(FORMATS / "checkpoints-1.0", folder / "checkpoints")
    return folder


def test_verify_finds_the_golden_files_whole(labelkit: Labelkit, golden: Path, run: Path) -> None:
    answer = labelkit("verify", "--index", golden, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["ok"]
    assert [one["kind"] for one in answer.json["checked"]] == ["store", "result", "patches", "patches", "patches"]
    for path, kinds in (
        (golden.with_name("s.h5.results"), ["result"]),
        (golden.with_name("s.h5.patches"), ["patches"] * 3),
        (golden.with_name("s.h5.patches") / "SET.json", ["patches"] * 3),
        (golden.with_name("s.h5.patches") / "SET-00000-of-00002.h5", ["patches"]),
        (FORMATS / "matches-1.0.h5", ["matches"]),
        (FORMATS / "packed-1.0.h5", ["store", "result"]),
        (run, ["run", "checkpoint"]),
        (run / "checkpoints", ["run", "checkpoint"]),
        (run / "checkpoints" / "step-00000003", ["checkpoint"]),
        (run / "checkpoints" / "step-00000003" / "state.json", ["checkpoint"]),
    ):
        answer = labelkit("verify", "--index", path, "--json")
        assert answer.code == 0, answer.err
        assert [one["kind"] for one in answer.json["checked"]] == kinds


def test_verify_names_every_fault_and_exits_3(labelkit: Labelkit, golden: Path) -> None:
    places = {
        golden: "labels",
        golden.with_name("s.h5.results") / "clusters.h5": "cluster_ids",
        golden.with_name("s.h5.patches") / "SET-00001-of-00002.h5": "patches",
    }
    for path, dataset in places.items():
        flip_bit(path, dataset)
    answer = labelkit("verify", "--index", golden)
    assert answer.code == 3
    # a store that cannot be opened has no results that could be told to be its own
    assert f"{golden}: content digest differs" in answer.err
    assert "file" in answer.out.splitlines()[1].split()
    flip_bit(golden, "labels")
    answer = labelkit("verify", "--index", golden)
    assert answer.code == 3
    assert "2 faults" in answer.err
    for path in list(places)[1:]:
        assert f"{path}: content digest differs" in answer.err
        assert str(path) in answer.out


def test_verify_compares_images(labelkit: Labelkit, index: Path, photos: Path, tmp_path: Path) -> None:
    answer = labelkit("verify", "--index", index, "--images", photos, "--json")
    assert answer.code == 0, answer.err
    assert answer.json["images"] == {"root": str(photos), "total": 48, "faults": []}
    copy = Path(shutil.copytree(photos, tmp_path / "copy"))
    (copy / "ant" / "00.png").unlink()
    (copy / "bee" / "01.png").write_bytes((copy / "bee" / "01.png").read_bytes() + b"x")
    answer = labelkit("verify", "--index", index, "--images", copy)
    assert answer.code == 3
    assert "2 of 48 images have changed or are missing: ant/00.png: is missing; bee/01.png: " in answer.err
    assert "46" in answer.out


def test_verify_looks_for_no_files_of_a_set_without_any(labelkit: Labelkit, tmp_path: Path) -> None:
    index = tmp_path / "digits.h5"
    few = ("--max-per-class", "2", "--backbone", "pixels", "--image-size", "8", "--num-workers", "0")
    assert labelkit("embed", "--dataset", "digits", *few, "--out", index).code == 0

    answer = labelkit("verify", "--index", index, "--images", tmp_path)

    assert (answer.code, "come from a bundled or generated dataset" in answer.err) == (2, True), answer.err


def test_pack_says_that_patches_stay(labelkit: Labelkit, golden: Path, tmp_path: Path) -> None:
    answer = labelkit("pack", "--index", golden, "--out", tmp_path / "all.h5", "--json")
    assert answer.json["patches_left_out"] is True
    assert "s.h5.patches" in answer.err
    packed, format_1_0 = open_store(tmp_path / "all.h5"), open_store(FORMATS / "packed-1.0.h5")
    assert (packed.content_digest, packed.packed_results) == (format_1_0.content_digest, format_1_0.packed_results)


def test_status_of_a_finished_store(labelkit: Labelkit, golden: Path) -> None:
    shown = labelkit("status", "--index", golden, "--json").json
    assert shown["state"] == "finished"
    assert (shown["store"]["rows"], shown["store"]["results"]) == (7, ["clusters"])
    assert shown["store"]["skipped"] == [{"image": "a/1.png", "reason": "truncated"}]
    assert shown["patches"]["patches"] == 28
    assert shown["run"] is None


def test_status_follows_an_embed_that_was_stopped_and_goes_on(labelkit: Labelkit, photos: Path, tmp_path: Path) -> None:
    images = Path(shutil.copytree(photos, tmp_path / "images"))
    for number in (0, 1):
        (images / "ant" / f"{number:02d}.png").write_bytes(b"no image")
    out = tmp_path / "s.h5"
    words = ("embed", "--dataset", images, "--backbone", "pixels", "--image-size", "8", "--out", out)
    small = ("--batch-size", "4", "--part-rows", "4")
    # too many bad images: nothing is published, all parts stay
    assert labelkit(*words, *small, "--max-bad", "0").code == 3
    (tmp_path / "s.h5.run" / "parts" / "000003.h5").unlink()
    part = tmp_path / "s.h5.run" / "parts" / "000005.h5"
    part.write_bytes(part.read_bytes()[:-40])
    answer = labelkit("status", "--index", out)
    assert answer.code == 0, answer.err
    assert "10 of 12" in answer.out
    shown = labelkit("status", "--index", out, "--json").json
    assert (shown["state"], shown["store"]) == ("unfinished", None)
    run = shown["run"]
    assert run["parts"] == {"done": 10, "planned": 12}
    assert run["images"] == {"done": 38, "planned": 48}
    assert run["bytes"] == sum(path.stat().st_size for path in part.parent.iterdir() if path != part)
    assert [one["image"] for one in run["skipped"]] == ["ant/00.png", "ant/01.png"]
    assert [one["part"] for one in run["damaged"]] == ["000005.h5"]
    checked = labelkit("verify", "--index", tmp_path / "s.h5.run")
    assert checked.code == 3
    assert str(part) in checked.err
    assert labelkit(*words, *small, "--max-bad", "0.1").code == 0
    shown = labelkit("status", "--index", out, "--json").json
    assert (shown["state"], shown["store"]["rows"], shown["run"]) == ("finished", 46, None)


def test_status_of_a_damaged_store_names_the_fault(labelkit: Labelkit, golden: Path) -> None:
    flip_bit(golden, "labels")
    answer = labelkit("status", "--index", golden)
    assert answer.code == 3
    assert "unusable" in answer.out
    assert f"{golden}: content digest differs" in answer.err
    assert "content digest differs" not in answer.out
    shown = labelkit("status", "--index", golden, "--json")
    assert (shown.code, shown.json["state"], len(shown.json["faults"])) == (3, "damaged", 1)


def test_status_of_a_run_and_its_only_fault(labelkit: Labelkit, run: Path) -> None:
    shown = labelkit("status", "--run", run, "--json").json
    assert (shown["method"], shown["state"]) == ("softmax", "unfinished")
    assert (shown["step"], shown["epoch"], shown["epochs"]) == (3, 1, 4)
    assert shown["last"] == "step-00000003"
    assert [(one["name"], one["verifies"]) for one in shown["checkpoints"]] == [("step-00000003", True)]
    assert shown["last_metrics"] == {"epoch": 0, "step": 2, "loss": 0.75}
    path = run / "checkpoints" / "step-00000003" / "model.safetensors"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    answer = labelkit("status", "--run", run)
    assert answer.code == 0
    assert str(path) in answer.out
    answer = labelkit("verify", "--index", run)
    assert answer.code == 3
    assert answer.err == f"error: {path}: was changed or is corrupt. Restore the file from a copy.\n"


def test_status_and_verify_of_a_finished_training(labelkit: Labelkit, trained: Path) -> None:
    shown = labelkit("status", "--run", trained, "--json").json
    assert (shown["state"], shown["method"], shown["epoch"]) == ("finished", "flipclass", 1)
    assert all(one["verifies"] for one in shown["checkpoints"])
    assert shown["last_metrics"]["step"] == shown["step"]
    answer = labelkit("verify", "--index", trained)
    assert answer.code == 0, answer.err
