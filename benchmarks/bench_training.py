"""Time training steps: the trainer against a bare loop, FlipClass against SimGCD, DL2PA against a classifier.

A step is one batch, from its rows to updated weights. It is timed from the end of the previous step to its own end, so
that everything that the trainer does in between counts; work between two epochs is not part of a step. Times are CPU
times of all threads of this process, which exclude other processes on a busy machine.
"""

import copy
import itertools
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from labelkit.commands.common.training_data import PreparedData, prepare_data
from labelkit.data.batch import Batch, DataInfo
from labelkit.data.image_bank import ImageBank
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.loaders import TrainLoader
from labelkit.data.views.boxes import sample_crop_boxes
from labelkit.data.views.recipes import ClassificationRecipe, classification_view
from labelkit.data.views.spec import Normalize
from labelkit.data.views.transforms import crop_and_resize, finish_view
from labelkit.methods.discovery.options import DiscoveryTrainConfig
from labelkit.methods.registry import METHODS
from labelkit.options.presets import resolve_config
from labelkit.options.training import RunConfig
from labelkit.progress import Task as ProgressTask
from labelkit.training.devices import Runtime
from labelkit.training.method import Method
from labelkit.training.run_dir import RunDir
from labelkit.training.trainer import Trainer
from torchvision.transforms import v2

from benchmarks.measure import Row, Wanted, compare, processor_seconds, with_check

SEEDS = {"seed": 0, "split_seed": 0}
WARMUPS = 1
# Timed steps per repetition: the default of --log-every-steps, so that one of them is logged.
NANO_STEPS, NANO_REPETITIONS, READY_REPETITIONS = 10, 11, 5
# For larger networks, whose steps vary less.
LARGE_STEPS, LARGE_REPETITIONS = 5, 3
# So that the bare loop need not repeat the schedules.
CONSTANT = {"lr_schedule": "constant", "teacher_temperature_start": 0.05, "teacher_temperature_final": 0.05}
VIEWS, PHOTO, VIEW_SIZE, VIEW_REPETITIONS = 32, (300, 400), 224, 15
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BARE = "training step, vit_nano_p8_32, b 64: trainer / bare loop"
MINI = {"backbone": "vit_mini_p4_32", "batch_size": 32}


@dataclass(frozen=True)
class Task:
    """A method on the digits: everything before the first step."""

    config: RunConfig
    prepared: PreparedData
    info: DataInfo
    method: Method[Any]
    bank: ImageBank

    def loader(self) -> TrainLoader:
        """The loader that the trainer would make."""
        spec = self.method.network.input_spec
        (phase,) = self.method.phases(self.bank.rows)
        return TrainLoader(
            self.bank,
            phase.views,
            phase.sampler,
            self.prepared.labels,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            normalize=Normalize(spec.mean, spec.std),
        )


def make_task(method_name: str, **options: object) -> Task:
    """Build a method with the digits preset; ``options`` take precedence."""
    spec = METHODS[method_name]
    config = resolve_config(spec.config, overrides={"dataset": "digits", "epochs": 10_000, **SEEDS, **options}).config
    prepared = prepare_data(config)
    info = prepared.build_data_info(0)
    method = spec.load()(config, info)
    bank = ImageBank(prepared.dataset, base_size=method.network.input_spec.size)
    return Task(config, prepared, info, method, bank)


class TrainerSteps(ProgressTask):
    """Steps with the trainer, which logs metrics to a run folder."""

    def __init__(self, task: Task, folder: Path, steps: int) -> None:
        self._config = task.config
        self._steps = steps
        self._ends: list[tuple[int, float]] = []
        run = RunDir(folder)
        run.open(resume=False, overwrite=False)
        run.begin(task.config.command[1], task.config.to_yaml_dict())
        self.trainer = Trainer(
            task.method,
            task.bank,
            task.prepared.labels,
            task.config,
            Runtime(device="cpu", precision=task.config.precision),
            run=run,
            progress_task=self,
        )

    def advance(self, n: int = 1, **info: object) -> None:
        """Record the end of a step; called by the trainer."""
        self._ends.append((self.trainer.clock.epoch, time.process_time()))

    def run(self) -> float:
        """Run a block; return the mean seconds of a step."""
        self._ends.clear()
        stop = self.trainer.clock.step + self._steps + 1
        self.trainer.config = self._config.model_copy(update={"stop_after_steps": stop})
        self.trainer.fit()
        pairs = list(itertools.pairwise(self._ends))
        inside = [after[1] - before[1] for before, after in pairs if before[0] == after[0]]
        return sum(inside) / len(inside)


class BareSteps:
    """The same SimGCD step written out, without the trainer."""

    def __init__(self, task: Task, batches: Iterator[Batch], steps: int) -> None:
        config = task.config
        assert isinstance(config, DiscoveryTrainConfig)
        self._batches = batches
        self._steps = steps
        self._temperature = config.teacher_temperature_final
        self.network: Any = copy.deepcopy(task.method.network).train()
        self._loss: Any = task.method.loss
        trained = [parameter for parameter in self.network.parameters() if parameter.requires_grad]
        groups = [
            {"params": [p for p in trained if p.ndim >= 2], "weight_decay": config.weight_decay},
            {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=config.lr)

    def _step(self) -> None:
        batch = next(self._batches)
        projections, logits = self.network.forward_pair(batch.views[0], batch.views[1])
        loss, _ = self._loss(projections, logits, batch.labels, teacher_temperature=self._temperature)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    def run(self) -> float:
        """Run a block; return the mean seconds of a step."""
        self._step()  # as many steps as with the trainer, where the first is not timed, either
        begin = time.process_time()
        for _ in range(self._steps):
            self._step()
        return (time.process_time() - begin) / self._steps


def against_bare_loop(folder: Path) -> Row:
    """Compare SimGCD with the trainer and with a bare loop on the same views."""
    task = make_task("simgcd", **CONSTANT)
    loader = task.loader()
    batches = itertools.chain.from_iterable(loader.epoch_batches(epoch) for epoch in itertools.count())
    ours = TrainerSteps(task, folder / "bare", NANO_STEPS)
    peer = BareSteps(task, batches, NANO_STEPS)
    row = compare(BARE, ours.run, peer.run, wanted=Wanted(">=", 0.95), repetitions=NANO_REPETITIONS, warmups=WARMUPS)
    pairs = zip(task.method.network.parameters(), peer.network.parameters(), strict=True)
    return with_check(row, "weights", all(torch.equal(first, second) for first, second in pairs))


def against_ready_batches(folder: Path) -> Row:
    """Compare with a bare loop on precomputed views."""
    task = make_task("simgcd", **CONSTANT)
    return compare(
        f"{BARE} with ready batches",
        TrainerSteps(task, folder / "ready", NANO_STEPS).run,
        BareSteps(task, itertools.cycle(list(task.loader().epoch_batches(0))), NANO_STEPS).run,
        wanted=Wanted(""),
        repetitions=READY_REPETITIONS,
        warmups=WARMUPS,
    )


def against_simgcd(folder: Path, name: str, steps: int, repetitions: int, **options: object) -> Row:
    """Compare FlipClass with SimGCD on the same views, both with the trainer, including the logging of energies."""
    align = {"align_blocks": (2, 3)} if options else {}
    flipclass = TrainerSteps(make_task("flipclass", **options, **align), folder / f"{name}-flipclass", steps)
    simgcd = TrainerSteps(make_task("simgcd", views="weak-strong", **options), folder / f"{name}-simgcd", steps)
    config = flipclass.trainer.config
    return compare(
        f"training step, {name}, b {config.batch_size}: FlipClass / SimGCD",
        flipclass.run,
        simgcd.run,
        wanted=Wanted("<=", 1.1),
        repetitions=repetitions,
        warmups=WARMUPS,
    )


def against_softmax(folder: Path, name: str, steps: int, repetitions: int, **options: object) -> Row:
    """Compare DL2PA with a learned classifier on the same network and images, both with the trainer."""
    dl2pa = TrainerSteps(make_task("dl2pa", **options), folder / f"{name}-dl2pa", steps)
    softmax = TrainerSteps(make_task("softmax", **options), folder / f"{name}-softmax", steps)
    return compare(
        f"training step, {name}, b {dl2pa.trainer.config.batch_size}: DL2PA / softmax",
        dl2pa.run,
        softmax.run,
        wanted=Wanted("<=", 1.05),
        repetitions=repetitions,
        warmups=WARMUPS,
    )


def against_float32(folder: Path, **options: object) -> Row:
    """Compare half precision, compiled or not, with float32 on the same network and images, with the trainer."""
    common = {"backbone": "resnet32_cifar", "batch_size": 128}
    words = " ".join("--compile" if name == "compile" else str(value) for name, value in options.items())
    return compare(
        f"training step, resnet32_cifar, b 128: {words} / float32",
        TrainerSteps(make_task("softmax", **common, **options), folder / words.replace(" ", ""), LARGE_STEPS).run,
        TrainerSteps(make_task("softmax", **common), folder / f"float32 for {words}", LARGE_STEPS).run,
        wanted=Wanted(""),
        repetitions=LARGE_REPETITIONS,
        warmups=WARMUPS,
    )


def rows() -> Iterator[Row]:
    """Yield every comparison of training steps."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield against_bare_loop(folder)
        yield against_simgcd(folder, "vit_nano_p8_32", NANO_STEPS, NANO_REPETITIONS)
        yield against_simgcd(folder, "vit_mini_p4_32", LARGE_STEPS, LARGE_REPETITIONS, **MINI)
        yield against_softmax(folder, "convnet_demo", NANO_STEPS, NANO_REPETITIONS)
        yield against_softmax(folder, "resnet32_cifar", LARGE_STEPS, LARGE_REPETITIONS, backbone="resnet32_cifar")
    yield against_torchvision("imagenet")
    yield against_torchvision("imagenet-jitter")


def shown_rows() -> Iterator[Row]:
    """Show the share of the views in the time of a training step, and what half precision gains on this processor."""
    with tempfile.TemporaryDirectory() as name:
        yield against_ready_batches(Path(name))
        yield against_float32(Path(name), precision="bf16")
        yield against_float32(Path(name), precision="bf16", compile=True)


def against_torchvision(recipe: ClassificationRecipe) -> Row:
    """Compare a worker's views for a classifier, from decoded photos, with the same torchvision recipe."""
    draws = np.random.default_rng(SEEDS["seed"])
    small = draws.integers(0, 256, (VIEWS, PHOTO[0] // 10, PHOTO[1] // 10, 3), dtype=np.uint8)
    photos = [np.ascontiguousarray(np.kron(image, np.ones((10, 10, 1), dtype=np.uint8))) for image in small]
    spec, keys = classification_view(VIEW_SIZE, recipe, chiral=False), np.arange(VIEWS)
    sizes, normalize = np.tile(PHOTO, (VIEWS, 1)), Normalize(MEAN, STD)
    transform = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(VIEW_SIZE, interpolation=v2.InterpolationMode.BICUBIC),
            v2.RandomHorizontalFlip(),
            *([v2.ColorJitter(0.4, 0.4, 0.4)] if recipe == "imagenet-jitter" else []),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(MEAN, STD),
        ]
    )
    epochs = itertools.count()

    def ours() -> None:
        epoch, boxes = next(epochs), np.empty((VIEWS, 4))
        crops = np.empty((VIEWS, VIEW_SIZE, VIEW_SIZE, 3), dtype=np.uint8)
        for i, photo in enumerate(photos):
            size = ([PHOTO[0]], [PHOTO[1]])
            found = sample_crop_boxes((spec,), size, size, KeyedRNG(0, epoch, keys[i : i + 1]))
            boxes[i] = found[0][0]
            crops[i] = crop_and_resize(photo, boxes[i], spec)
        pixels = torch.from_numpy(np.ascontiguousarray(crops.transpose(0, 3, 1, 2)))
        finish_view(pixels, boxes, sizes, spec, KeyedRNG(0, epoch, keys), 0, normalize=normalize)

    return compare(
        f"views {recipe} of {VIEWS} photos, {VIEW_SIZE} px / torchvision v2",
        processor_seconds(ours),
        processor_seconds(lambda: torch.stack([transform(photo) for photo in photos])),
        wanted=Wanted(">=", 1),
        repetitions=VIEW_REPETITIONS,
    )
