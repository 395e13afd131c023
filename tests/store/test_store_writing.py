"""Making stores: the plan, parts, several workers, publishing."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from labelkit.errors import BusyError, Damaged, DatasetError, Mismatch, OutputExistsError, ResourceError, StoreError
from labelkit.store import parts as run_folder
from labelkit.store import schema
from labelkit.store.embeddings import open_store
from labelkit.store.plans import EmbeddingPlan, resume_plan
from labelkit.store.writing import EmbeddingRun
from store_samples import DIM, MODEL, SAMPLE_IDS, contents_of, make_plan, make_store, rows_of, write_part


def iterate_blocks(out: Path) -> list[str]:
    return sorted(path.name for path in (out.with_name(out.name + ".run") / "parts").iterdir())


@pytest.mark.parametrize(
    ("batch_size", "wanted", "dim", "expected"),
    [(256, 1024, 4, 1024), (300, 1024, 4, 900), (256, 100, 4, 256), (1, 1024, 1 << 20, 15), (64, 1024, 1 << 20, 64)],
)
def test_parts_are_whole_batches_of_at_most_64_mib(batch_size, wanted, dim, expected):
    plan = make_plan(batch_size=batch_size, part_rows=wanted, dim=dim)
    assert plan.part_rows == expected


@pytest.mark.parametrize(
    "changes",
    [
        {"sample_ids": [*SAMPLE_IDS[:-1], SAMPLE_IDS[-2]]},
        {"sample_ids": []},
        {"labels": np.zeros(7, int)},
        {"old_classes": np.ones(2, dtype=bool)},
    ],
)
def test_a_plan_that_does_not_fit_together_is_the_programmers_error(changes):
    with pytest.raises(ValueError, match=r"\w"):
        make_plan(**changes)


@pytest.mark.parametrize("name", ["/abs", "../up", "a//b", "a/./b", ""])
def test_a_sample_outside_of_the_data_root_is_refused(name):
    with pytest.raises(DatasetError):
        EmbeddingPlan([name], MODEL, dim=1, batch_size=1, metric="l2", created_by="x")


def test_the_digest_covers_names_labels_and_model():
    plans = [
        make_plan(),
        make_plan(sample_ids=["A", *SAMPLE_IDS[1:]]),
        make_plan(labels=np.zeros(8, int)),
        make_plan(labeled=np.zeros(8, dtype=bool)),
        make_plan(splits=np.zeros(8, int)),
        make_plan(class_names=("a", "b", "c")),
        make_plan(model=replace(MODEL, layer="head")),
        make_plan(model=replace(MODEL, numerics={"threads": 2})),
        make_plan(dtype="float16"),
        make_plan(part_rows=2),
    ]
    assert len({plan.digest() for plan in plans}) == len(plans)
    assert make_plan().digest() == plans[0].digest()


@pytest.mark.slow
@pytest.mark.parametrize("block_bytes", [24, 4 << 20])
def test_a_store_that_does_not_fit_in_memory_has_the_same_bytes(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(schema, "BLOCK_BYTES", block_bytes)
    small = make_store(tmp_path / "small.h5", make_plan(part_rows=2))
    run = EmbeddingRun.open(tmp_path / "large.h5", make_plan(part_rows=2))
    for part in run.pending_parts():
        write_part(run, part)
    monkeypatch.setattr(schema, "MEMORY_BYTES", 1)
    assert run.publish().read_bytes() == small.path.read_bytes()
    contents = contents_of(small.path)
    # Digests made from the finished arrays, not while the parts were read.
    assert contents.sealed(block_bytes).to_bytes() == small.path.read_bytes()


def damaged_bit(data):
    return data[:100] + bytes([data[100] ^ 1]) + data[101:]


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-5], damaged_bit, lambda data: data + b"x"])
def test_a_damaged_part_is_set_aside_reported_and_made_again(tmp_path, damage):
    run = EmbeddingRun.open(tmp_path / "s.h5", make_plan())
    write_part(run, 0)
    write_part(run, 1)
    path = tmp_path / "s.h5.run" / "parts" / "000001.h5"
    expected = path.read_bytes()
    path.write_bytes(damage(expected))
    again = EmbeddingRun.open(tmp_path / "s.h5", make_plan())
    assert again.pending_parts() == [1]
    assert iterate_blocks(tmp_path / "s.h5") == ["000000.h5", "000001.h5.bad"]
    assert len(again.warnings) == 1
    assert str(path) in again.warnings[0]
    write_part(again, 1)
    assert path.read_bytes() == expected


def test_a_part_damaged_just_before_publishing_is_found(tmp_path):
    run = EmbeddingRun.open(tmp_path / "s.h5", make_plan())
    for part in run.pending_parts():
        write_part(run, part)
    path = tmp_path / "s.h5.run" / "parts" / "000001.h5"
    path.write_bytes(damaged_bit(path.read_bytes()))
    with pytest.raises(Damaged, match="Run the same command again"):
        run.publish()
    assert not (tmp_path / "s.h5").exists()


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"embeddings": np.full((4, DIM), np.nan)}, StoreError, "a/0.png: embeddings is not finite"),
        ({"embeddings": np.zeros((3, DIM))}, ValueError, "must have shape"),
        ({"other": np.zeros((4, 1))}, ValueError, "a part of this plan must have columns"),
        ({"logits": np.full((4, 2), np.inf)}, StoreError, "logits is not finite"),
        (
            {"embeddings": np.diag([0, 0, 1e6, 0])[:, 1:]},
            StoreError,
            r"a/10\.png: embeddings is too large for float16\. Pass --dtype float32",
        ),
    ],
)
def test_a_part_that_does_not_fit_the_plan_is_not_written(tmp_path, change, error, message):
    run = EmbeddingRun.open(tmp_path / "s.h5", make_plan(dtype="float16"))
    with pytest.raises(error, match=message):
        run.write_part(0, **{**rows_of(run.plan, [0, 1, 2, 3]), **change})
    assert iterate_blocks(tmp_path / "s.h5") == []


def test_too_many_broken_images_publish_nothing_and_keep_the_parts(tmp_path):
    run = EmbeddingRun.open(tmp_path / "s.h5", make_plan())
    for part in run.pending_parts():
        write_part(run, part, {1: "truncated", 6: "zero bytes"})
    with pytest.raises(DatasetError) as caught:
        run.publish(max_bad=0.2)
    assert "2 of 8 images" in caught.value.problem
    assert "a/1.png: truncated; b/é.png: zero bytes" in caught.value.problem
    assert not (tmp_path / "s.h5").exists()
    again = EmbeddingRun.open(tmp_path / "s.h5", make_plan())
    assert again.pending_parts() == []
    assert open_store(again.publish(max_bad=0.25)).n == 6


def test_missing_parts_are_told(tmp_path):
    run = EmbeddingRun.open(tmp_path / "s.h5", make_plan())
    write_part(run, 1)
    with pytest.raises(StoreError, match="1 of 2 parts are missing, first: 0"):
        run.publish()


def test_a_second_publisher_is_told_that_the_output_is_busy(tmp_path, monkeypatch):
    monkeypatch.setattr(run_folder, "LOCK_SECONDS", 0.05)
    run = EmbeddingRun.open(tmp_path / "s.h5", make_plan())
    for part in run.pending_parts():
        write_part(run, part)
    with run_folder.hold_lock(tmp_path / "s.h5.run"):
        with pytest.raises(BusyError):
            run.publish()
        with pytest.raises(BusyError):
            EmbeddingRun.open(tmp_path / "s.h5", make_plan())
    assert run.publish() == tmp_path / "s.h5"


def test_a_finished_store_of_the_same_plan_is_done(tmp_path):
    store = make_store(tmp_path / "s.h5")
    before = store.path.stat().st_mtime_ns
    run = EmbeddingRun.open(tmp_path / "s.h5", make_plan())
    assert run.already_done
    assert run.pending_parts() == []
    assert run.publish() == store.path
    assert store.path.stat().st_mtime_ns == before
    assert not (tmp_path / "s.h5.run").exists()


def test_a_store_of_another_plan_is_kept_unless_overwritten(tmp_path):
    old = make_store(tmp_path / "s.h5").path.read_bytes()
    with pytest.raises(OutputExistsError, match="--overwrite"):
        EmbeddingRun.open(tmp_path / "s.h5", make_plan(metric="l2"))
    run = EmbeddingRun.open(tmp_path / "s.h5", make_plan(metric="l2"), overwrite=True)
    for part in run.pending_parts():
        write_part(run, part)
    assert (tmp_path / "s.h5").read_bytes() == old
    run.publish()
    assert open_store(tmp_path / "s.h5").metric == "l2"


@pytest.mark.parametrize(
    ("changes", "said", "reuse"),
    [
        ({"model": replace(MODEL, layer="head")}, r"by another model \(layer differ\)", False),
        (
            {"model": replace(MODEL, numerics={"threads": 9})},
            r"from these images with other options \(.*threads",
            False,
        ),
        ({"metric": "l2"}, r"other options \(such as labels, splits, --dtype", False),
        ({"sample_ids": [*SAMPLE_IDS[:-1], "zz.png"]}, "7 of these 8 images, and 1 that are not among these", True),
        ({"sample_ids": [f"{name}.x" for name in SAMPLE_IDS]}, "0 of these 8 images, and 8 that", False),
    ],
)
def test_what_differs_from_a_store_that_is_there_is_named(tmp_path, changes, said, reuse):
    path = make_store(tmp_path / "s.h5").path

    with pytest.raises(OutputExistsError, match=said) as error:
        EmbeddingRun.open(path, make_plan(**changes))

    assert (f"--reuse {path} and another --out to embed only new images" in str(error.value.remedy)) == reuse


def test_a_damaged_store_does_not_count_as_done(tmp_path):
    path = make_store(tmp_path / "s.h5").path
    good = path.read_bytes()
    path.write_bytes(good[:-9])
    with pytest.raises(OutputExistsError, match=r"cannot be used .*--overwrite"):
        EmbeddingRun.open(path, make_plan())
    make_store(path, overwrite=True)
    assert path.read_bytes() == good


def test_an_unfinished_run_of_another_plan_names_the_keys(tmp_path):
    write_part(EmbeddingRun.open(tmp_path / "s.h5", make_plan()), 0)
    other = make_plan(model=replace(MODEL, preprocess={**MODEL.preprocess, "resize": 9}), labels=np.zeros(8, int))
    with pytest.raises(Mismatch, match=r"columns\.labels, model\.preprocess\.resize, model\.preprocess_digest"):
        EmbeddingRun.open(tmp_path / "s.h5", other)
    again = EmbeddingRun.open(tmp_path / "s.h5", other, overwrite=True)
    assert again.pending_parts() == [0, 1]
    assert EmbeddingRun.open(tmp_path / "s.h5", other).pending_parts() == [0, 1]


def test_an_interrupted_run_goes_on_with_the_names_it_began_with(tmp_path):
    out = tmp_path / "s.h5"
    write_part(EmbeddingRun.open(out, make_plan()), 0)
    # One file came and one went, so every row has another number now.
    now = make_plan(
        sample_ids=["0.png", *SAMPLE_IDS[:-1]],
        labels=[1, 0, 0, 1, 1, 2, 2, -1],
        labeled=[0, 1, 0, 1, 0, 0, 0, 0],
        splits=[-1, 0, 1, 0, 1, 0, 1, -1],
    )
    plan = resume_plan(out, now)
    assert plan.digest() == make_plan().digest()
    assert plan.sample_ids == tuple(SAMPLE_IDS)
    assert EmbeddingRun.open(out, plan).pending_parts() == [1]


def test_too_little_space_is_found_before_the_work(tmp_path, monkeypatch):
    plan = make_plan()
    needed = int(2.1 * plan.estimated_bytes())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed - 1))
    with pytest.raises(ResourceError, match="MB are free, but this run needs"):
        EmbeddingRun.open(tmp_path / "s.h5", plan)
    assert list(tmp_path.iterdir()) == []  # no empty run folder
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed))
    write_part(EmbeddingRun.open(tmp_path / "s.h5", plan), 0)
    # What the parts have taken need not be free any more.
    written = (tmp_path / "s.h5.run" / "parts" / "000000.h5").stat().st_size
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=needed - written))
    assert EmbeddingRun.open(tmp_path / "s.h5", plan).pending_parts() == [1]
