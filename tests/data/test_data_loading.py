"""Loading: the same batches for any workers and processes, bad files left out and named."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelkit.data import image_bank, workers
from labelkit.data.batch import Batch
from labelkit.data.datasets import ImageDataset
from labelkit.data.image_bank import ImageBank
from labelkit.data.loaders import EvalLoader, TrainLoader
from labelkit.data.registry import load_dataset
from labelkit.data.samplers import BalancedSampler, Sampler, UniformSampler
from labelkit.data.splits import ClassLabels, make_gcd_split
from labelkit.data.views.recipes import simgcd_view, strong_view, weak_view
from labelkit.data.views.recipes import test_view as plain_view
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.data.workers import PlanBatchSampler, build_loader, iter_items
from labelkit.errors import ConfigError, DatasetError, ResourceError
from labelkit.progress import use_progress
from PIL import Image
from tests.running import Heard
from tests.textures import dataset_of

PLAIN1 = Normalize((0.0,), (1.0,))
PLAIN3 = Normalize((0.0,) * 3, (1.0,) * 3)
DIGIT_VIEWS = (weak_view(32, "digits", chiral=True), strong_view(32, "digits", chiral=True))


def in_memory(n: int = 24, side: int = 32, channels: Any = 1) -> ImageDataset:
    images = np.random.default_rng(0).integers(0, 256, (n, side, side, channels), dtype=np.uint8)
    return dataset_of(images, np.arange(n) % 4, chiral=True, photographic=False)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve photos of different sizes, too large for memory mode."""
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for i in range(12):
        height, width = generator.integers(70, 110, 2)
        coarse = generator.integers(0, 256, (6, 6, 3), dtype=np.uint8)
        (root / f"class{i % 3}").mkdir(exist_ok=True)
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(
            root / f"class{i % 3}/{i:02d}.png"
        )
    return root


def loader(bank: ImageBank, sampler: Sampler | None = None, views: Any = DIGIT_VIEWS, **options: Any) -> TrainLoader:
    options = {
        "labels": np.full(len(bank.dataset), -1),
        "batch_size": 8,
        "seed": 3,
        "normalize": PLAIN1 if bank.dataset.in_channels == 1 else PLAIN3,
    } | options
    return TrainLoader(bank, views, sampler or UniformSampler(bank.rows, seed=3), **options)


def by_sample(batches: Iterator[Batch]) -> dict[int, tuple[torch.Tensor, ...]]:
    """Views and matrices of each sample, by its row."""
    found = {}
    for batch in batches:
        for i, row in enumerate(batch.sample_index.tolist()):
            matrices = (geometry.matrices[i] for geometry in batch.geometry)
            found[row] = (*(view[i] for view in batch.views), *matrices)
    return found


def assert_equal_samples(first: dict[int, Any], second: dict[int, Any], atol: float = 0.0) -> None:
    assert first.keys() == second.keys()
    for row in first:
        for a, b in zip(first[row], second[row], strict=True):
            assert torch.allclose(a, b, rtol=0, atol=atol)


def test_images_above_the_memory_limit_or_of_many_sizes_are_read_when_needed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_bank, "MEMORY_BYTES", 5 * 1024)
    assert ImageBank(in_memory(5)).in_memory
    monkeypatch.setattr(image_bank, "MEMORY_BYTES", 5 * 1024 - 1)
    assert not ImageBank(in_memory(5)).in_memory
    bank = ImageBank(load_dataset(str(folder), data_root=Path()))
    assert not bank.in_memory
    with pytest.raises(ValueError, match="not in memory"):
        bank.gather(np.array([0]))


def test_digits_are_enlarged_once_by_an_antialiased_bicubic_resize() -> None:
    dataset = load_dataset("digits", data_root=Path()).select(np.arange(40))
    bank = ImageBank(dataset, base_size=32)
    assert bank.images is not None
    for row in range(40):
        picture = Image.fromarray(dataset.source.read(row).decode(1)[..., 0]).resize((32, 32), Image.Resampling.BICUBIC)
        assert np.array_equal(bank.images[row, 0].numpy(), np.asarray(picture))


@pytest.fixture
def broken(folder: Path, tmp_path: Path) -> Path:
    root = tmp_path / "broken"
    shutil.copytree(folder, root)
    good = (root / "class0/00.png").read_bytes()
    (root / "class0/empty.png").touch()
    (root / "class0/cut.png").write_bytes(good[: len(good) // 2])
    (root / "class1/notes.jpg").write_text("notes")
    os.mkfifo(root / "class1/pipe.png")
    (root / "class2/link.png").symlink_to(root / "nowhere.png")
    return root


def test_bad_files_are_named_before_training_and_left_out_and_one_that_vanishes_later_ends_it(broken: Path) -> None:
    dataset = load_dataset(str(broken), data_root=Path())
    bank = ImageBank(dataset)
    reasons = {dataset.sample_ids[row]: reason.split(":")[0] for row, reason in bank.bad.items()}
    assert reasons == {
        "class0/cut.png": "damaged",
        "class0/empty.png": "empty file",
        "class1/notes.jpg": "not an image (JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF or PPM)",
        "class1/pipe.png": "cannot be read",
        "class2/link.png": "the file no longer exists",
    }
    assert len(bank.rows) == 12
    assert len(bank.dataset) == 17
    bank.check_readable(0.3)
    with pytest.raises(DatasetError, match=r"(?s)5 of 17 images cannot be read.*class0/empty\.png: empty file"):
        bank.check_readable(0.01)
    rows = torch.cat([batch.sample_index for batch in loader(bank, views=FILE_VIEWS, batch_size=4).epoch_batches(0)])
    assert sorted(rows.tolist()) == bank.rows.tolist()
    shutil.rmtree(broken)
    with pytest.raises(DatasetError, match=r"class\d/\d\d\.png: can no longer be read: the file no longer exists"):
        list(loader(bank, views=FILE_VIEWS, batch_size=4).epoch_batches(0))


def test_an_epoch_has_every_row_once_in_whole_batches() -> None:
    train = loader(ImageBank(in_memory(27)))
    assert train.steps_per_epoch == 3
    batches = list(train.epoch_batches(0))
    rows = torch.cat([batch.sample_index for batch in batches])
    assert [len(batch.sample_index) for batch in batches] == [8, 8, 8]
    assert len(set(rows.tolist())) == 24
    assert batches[0].views[0].shape == (8, 1, 32, 32)
    assert batches[0].views[0].dtype == torch.float32


def test_processes_share_each_batch_by_striding() -> None:
    bank = ImageBank(in_memory())
    whole = list(loader(bank).epoch_batches(1))
    shares = [list(loader(bank, rank=rank, world_size=4).epoch_batches(1)) for rank in range(4)]
    for step, batch in enumerate(whole):
        for rank in range(4):
            share = shares[rank][step]
            assert torch.equal(share.sample_index, batch.sample_index[rank::4])
            assert torch.allclose(share.views[1], batch.views[1][rank::4], atol=1e-6)


def test_a_resumed_epoch_continues_where_it_stopped() -> None:
    train = loader(ImageBank(in_memory()))
    rest = list(train.epoch_batches(4))[1:]
    resumed = list(train.epoch_batches(4, start_step=1))
    assert len(resumed) == 2
    for a, b in zip(rest, resumed, strict=True):
        assert torch.equal(a.sample_index, b.sample_index)
        assert torch.equal(a.views[1], b.views[1])


def test_truth_of_unlabeled_images_cannot_change_a_batch() -> None:
    dataset = in_memory(64)
    split = make_gcd_split(ClassLabels(dataset.labels, dataset.given, 4))
    random = np.random.default_rng(1).integers(0, 4, 64)
    bank = ImageBank(dataset)

    def batches(truth: Any) -> list[Batch]:
        labels = split.to_training_labels(truth)
        return list(loader(bank, BalancedSampler(split.labeled, seed=0), labels=labels).epoch_batches(0))

    for a, b in zip(batches(dataset.labels), batches(np.where(split.labeled, dataset.labels, random)), strict=True):
        assert torch.equal(a.labels, b.labels)
        assert torch.equal(a.sample_index, b.sample_index)
        assert all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))
        assert np.array_equal(a.labels.numpy() >= 0, split.labeled[a.sample_index.numpy()])


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"batch_size": 9, "world_size": 2}, "9 cannot be divided among 2"),
        ({"batch_size": 25}, "25 exceeds the number of images in an epoch"),
        ({"batch_size": 0}, "0 cannot"),
    ],
)
def test_loaders_that_cannot_be_are_refused(options: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        loader(ImageBank(in_memory()), **options)


FILE_VIEWS = (simgcd_view(16, "generic", chiral=False), strong_view(16, "generic", chiral=False))


READS_FOREVER = """
from itertools import cycle
from pathlib import Path
from sys import argv
from labelkit.data.loaders import EvalLoader
from labelkit.data.image_bank import ImageBank
from labelkit.data.registry import load_dataset
from labelkit.data.views.spec import Normalize
from labelkit.data.views.recipes import test_view

if __name__ == "__main__":
    bank = ImageBank(load_dataset(argv[1], data_root=Path()))
    plain = Normalize((0.0,) * 3, (1.0,) * 3)
    loader = EvalLoader(bank, test_view(16), batch_size=4, normalize=plain, num_workers=1)
    for _ in cycle([0]):
        for _ in loader:
            print("read", flush=True)
"""


@pytest.mark.slow
def test_workers_end_when_the_process_that_reads_is_killed(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "reads.py"
    script.write_text(READS_FOREVER)
    with subprocess.Popen([sys.executable, str(script), str(folder)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"read\n"

        process.kill()

        # the pipe ends with the last process that holds it; without a watch that is never
        said, _ = process.communicate(timeout=60)
        assert set(said.split()) <= {b"read"}


class Unsendable:
    def __reduce__(self) -> str:
        raise OSError("no room for it")


def unsendable(plan: int) -> Unsendable:
    return Unsendable()


def killed(plan: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(("read", "said"), [(unsendable, "no room for it"), (killed, "exited unexpectedly")])
def test_what_a_worker_cannot_send_is_an_error_and_not_waited_for(read: Callable[[int], object], said: str) -> None:
    loader = build_loader(read, PlanBatchSampler(iter([0])), 1)

    with pytest.raises(ResourceError, match=f"--num-workers: .* cannot continue: .*{said}.*--num-workers 0"):
        list(iter_items(loader))


def test_one_process_per_core_decodes_at_most_eight_and_none_for_few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(5), raising=False)
    assert workers.get_num_workers(None, 500, 1) == 5
    assert workers.get_num_workers(None, 499, 1) == 0
    assert workers.get_num_workers(0, 10**6, 1) == 0
    assert workers.get_num_workers(12, 10, 1) == 12
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    assert workers.get_num_workers(None, 500, 1) == 8
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "16")
    assert workers.get_num_workers(None, 500, 1) == 4


def test_fewer_processes_decode_where_shared_memory_has_no_room_for_their_batches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=64 << 20)
    monkeypatch.setattr(workers, "SHARED_MEMORY", tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
    # six batches of 10 MiB fit: one is in use, and each process makes two ahead
    with use_progress(heard := Heard()):
        assert workers.get_num_workers(None, 500, 10 << 20) == 2
    assert heard.messages == [f"using only 2 of 8 decoding processes: {tmp_path} is small (docker run --shm-size=8g)"]
    assert workers.get_num_workers(None, 500, 100 << 20) == 0


@pytest.mark.usefixtures("script")
def test_files_give_the_same_batches_for_any_number_of_workers(folder: Path) -> None:
    bank = ImageBank(load_dataset(str(folder), data_root=Path()))
    expected = list(loader(bank, views=FILE_VIEWS, batch_size=4).epoch_batches(1))
    global_state = torch.get_rng_state()
    for num_workers in (1, 2):
        train = loader(bank, views=FILE_VIEWS, batch_size=4, num_workers=num_workers)
        next(train.epoch_batches(0))  # an epoch that is left early must not disturb the next one
        found = list(train.epoch_batches(1))
        assert len(found) == len(expected) == 3
        for a, b in zip(expected, found, strict=True):
            assert torch.equal(a.sample_index, b.sample_index)
            assert all(torch.equal(x, y) for x, y in zip(a.views, b.views, strict=True))
            assert all(torch.equal(x.matrices, y.matrices) for x, y in zip(a.geometry, b.geometry, strict=True))
    assert torch.equal(global_state, torch.get_rng_state())


def test_files_give_the_same_views_for_any_batch_and_process(folder: Path) -> None:
    bank = ImageBank(load_dataset(str(folder), data_root=Path()))
    expected = by_sample(loader(bank, views=FILE_VIEWS, batch_size=12).epoch_batches(0))
    assert_equal_samples(expected, by_sample(loader(bank, views=FILE_VIEWS, batch_size=3).epoch_batches(0)), atol=1e-6)
    shares = [
        by_sample(loader(bank, views=FILE_VIEWS, batch_size=4, rank=r, world_size=2).epoch_batches(0)) for r in (0, 1)
    ]
    assert_equal_samples(expected, shares[0] | shares[1], atol=1e-6)


def test_the_geometry_of_a_sample_is_the_same_in_memory_and_from_files(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = in_memory(8, 32, 3)
    views = (ViewSpec(32, area_range=(0.3, 1.0), hflip=0.5), ViewSpec(32, resize_ratio=36 / 32, crop="random"))
    memory = by_sample(loader(ImageBank(dataset), views=views).epoch_batches(0))
    monkeypatch.setattr(image_bank, "MEMORY_BYTES", 0)
    stream = by_sample(loader(ImageBank(dataset), views=views).epoch_batches(0))
    for row in memory:
        assert torch.equal(memory[row][2], stream[row][2])
        assert torch.equal(memory[row][3], stream[row][3])
        # Two bicubic kernels on noise differ, but it is the same part of the same image.
        assert torch.corrcoef(torch.stack((memory[row][0].flatten(), stream[row][0].flatten())))[0, 1] > 0.95


def test_evaluation_sees_each_row_once_in_order_without_padding() -> None:
    bank = ImageBank(in_memory(10))
    batches = list(EvalLoader(bank, ViewSpec(32), batch_size=4, normalize=PLAIN1))
    assert [batch.rows.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert bank.images is not None
    assert torch.equal(torch.cat([batch.images for batch in batches]), bank.images.float() / 255)


def test_bad_images_keep_their_place_as_black_and_others_are_identified_by_digest_and_sizes(broken: Path) -> None:
    dataset = load_dataset(str(broken), data_root=Path())
    bank = ImageBank(dataset)
    normalize = Normalize((0.5,) * 3, (0.5,) * 3)
    batches = list(EvalLoader(dataset, plain_view(16), batch_size=5, normalize=normalize))
    bad = [entry for batch in batches for entry in batch.bad]
    assert dict(bad) == bank.bad
    assert [len(batch.images) for batch in batches] == [5, 5, 5, 2]
    images = torch.cat([batch.images for batch in batches])
    assert (images[[row for row, _ in bad]] == -1).all()
    assert not (images[bank.rows] == -1).all(dim=(1, 2, 3)).any()

    import hashlib

    (batch,) = EvalLoader(dataset, plain_view(16), batch_size=99, normalize=PLAIN3, identify=True)
    assert batch.crops is not None
    for i, sample_id in enumerate(dataset.sample_ids):
        if i in dict(batch.bad):
            continue
        content = (broken / sample_id).read_bytes()
        with Image.open(broken / sample_id) as picture:
            assert batch.crops.sizes[i].tolist() == [picture.height, picture.width]
        assert batch.crops.sha256[i].tobytes() == hashlib.sha256(content).digest()
        assert batch.crops.file_sizes[i] == len(content)


def test_a_last_batch_of_one_can_join_the_one_before() -> None:
    def sizes(count: int, batch_size: int, **options: Any) -> list[int]:
        loader = EvalLoader(
            in_memory(10), ViewSpec(32), rows=range(count), batch_size=batch_size, normalize=PLAIN1, **options
        )
        return [len(batch.rows) for batch in loader]

    assert sizes(9, 4) == [4, 4, 1]
    assert sizes(9, 4, join_single=True) == [4, 5]
    assert sizes(10, 4, join_single=True) == [4, 4, 2]
    assert sizes(1, 4, join_single=True) == [1]
    assert sizes(9, 4, join_single=True, rank=1, world_size=2) == [5]


def test_a_random_view_needs_a_seed_and_follows_it() -> None:
    def images(epoch: int, seed: int = 1) -> Any:
        loader = EvalLoader(in_memory(4), DIGIT_VIEWS[0], batch_size=4, normalize=PLAIN1, seed=seed, epoch=epoch)
        return next(iter(loader)).images

    assert torch.equal(images(0), images(0))
    assert not torch.equal(images(0), images(1))
    assert not torch.equal(images(0), images(0, seed=2))


def test_passes_share_what_reads_images_but_not_at_the_same_time(folder: Path) -> None:
    bank = ImageBank(load_dataset(str(folder), data_root=folder.parent))
    assert not bank.in_memory
    assert bank.build_reader(0) is bank.build_reader(0)

    def loader() -> EvalLoader:
        return EvalLoader(bank, plain_view(32, "generic"), batch_size=4, normalize=PLAIN3)

    whole = [batch.images for batch in loader()]
    first = iter(loader())
    images = [next(first).images]
    images_between = [batch.images for batch in loader()]  # while the first pass has not ended
    images += [batch.images for batch in first]
    for found in (images, images_between):
        assert all(torch.equal(a, b) for a, b in zip(whole, found, strict=True))


def test_images_that_a_gpu_has_no_room_for_stay_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4000, 10_000))
    assert image_bank._has_room(cuda, 1000)
    assert not image_bank._has_room(cuda, 1001)
    assert image_bank._has_room(torch.device("cpu"), 10**15)
    bank = ImageBank(load_dataset("digits", data_root=Path("data")).select(np.arange(8)))
    expected = bank.gather(np.array([3, 1]))
    bank.device = cuda
    sent = []
    monkeypatch.setattr(image_bank, "move_tensor_to_device", lambda values, device: sent.append(device) or values)
    assert torch.equal(bank.gather(np.array([3, 1])), expected)
    assert sent == [cuda]
