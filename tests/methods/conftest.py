"""Every method of the table on a few digits: its preset for digits, fewer images, smaller batches."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.common.training_data import PreparedData
from labelkit.data.batch import Batch
from labelkit.data.datasets import ImageDataset
from labelkit.data.image_bank import ImageBank
from labelkit.data.loaders import TrainLoader
from labelkit.data.registry import load_dataset
from labelkit.data.splits import ClassLabels, make_few_labels_split, make_gcd_split
from labelkit.data.views.spec import Normalize
from labelkit.methods.metric.options import MetricLearningConfig
from labelkit.methods.prototypes.options import SupervisedTrainConfig
from labelkit.methods.registry import METHODS
from labelkit.options.presets import resolve_config
from labelkit.options.training import RunConfig, StepRunConfig, StepTrainConfig
from labelkit.training.devices import Runtime
from labelkit.training.inputs import HeldOutImages, MonitorInputs
from labelkit.training.method import Method
from labelkit.training.run_dir import RunDir
from labelkit.training.trainer import Trainer

NUM_IMAGES = 64


@dataclass
class Setup:
    """One method on one small dataset."""

    config: RunConfig
    prepared: PreparedData
    bank: ImageBank
    method: Method[Any]
    trainer: Trainer

    def batches(self, epoch: int = 0) -> Iterator[Batch]:
        """Yield the batches that the trainer would train on."""
        phase = self.trainer.phases[0]
        spec = self.method.network.input_spec
        yield from TrainLoader(
            self.bank,
            phase.views,
            phase.sampler,
            self.prepared.labels,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            normalize=Normalize(spec.mean, spec.std),
        ).epoch_batches(epoch)


@pytest.fixture(scope="session")
def digits() -> ImageDataset:
    return load_dataset("digits", data_root=Path("data")).select(np.arange(NUM_IMAGES))


@pytest.fixture(scope="session")
def prepared(digits: ImageDataset) -> PreparedData:
    """Return 64 digits, half of those of 0 to 4 labeled."""
    split = make_gcd_split(
        ClassLabels(digits.labels, digits.given, 10),
        old_classes=tuple(range(5)),
        num_old_classes=None,
        label_ratio=0.5,
        seed=0,
    )
    return PreparedData(digits, split, split.to_training_labels(digits.labels))


@pytest.fixture(scope="session")
def few(digits: ImageDataset) -> PreparedData:
    """Return the same digits, two of each labeled."""
    split = make_few_labels_split(ClassLabels(digits.labels, digits.given, 10), total=20)
    return PreparedData(digits, split, split.to_training_labels(digits.labels))


@pytest.fixture(scope="session")
def small_bank(digits: ImageDataset) -> ImageBank:
    return ImageBank(digits, base_size=16)


@pytest.fixture(scope="session")
def bank(digits: ImageDataset) -> ImageBank:
    return ImageBank(digits, base_size=32)


def _in_steps(name: str, epochs: int) -> dict[str, Any]:
    """Four steps to an evaluation; snowball spends the last of several on twice as many labels."""
    options: dict[str, Any] = {"steps": 4 * epochs, "eval_every_steps": 4, "lr": 0.02, "lr_schedule": "constant"}
    if name == "snowball":
        grows = {"steps": 4 * (epochs - 1), "later_steps": 4, "cap": 2.0} if epochs > 1 else {"cap": 1.0}
        options |= {"labeled_batch_size": 4, **grows}
    elif name != "supervised":
        options["labeled_batch_size"] = 8 if name in ("mixmatch", "lmcs") else 4
    if name == "lmcs":
        options |= {"first_blocks": 1, "generation_blocks": 1, "master_steps": 2}
    return options


@pytest.fixture
def make(
    prepared: PreparedData,
    bank: ImageBank,
    few: PreparedData,
    small_bank: ImageBank,
) -> Iterator[Callable[..., Setup]]:
    """Return a function: method and options to a new trainer; the run of the one before is closed."""
    open_runs: list[RunDir] = []

    def close() -> None:
        while open_runs:
            open_runs.pop().close()

    def make_setup(
        name: str, path: Path | None = None, *, data: PreparedData | None = None, resume: bool = False, **options: Any
    ) -> Setup:
        close()
        spec = METHODS[name]
        by_steps = issubclass(spec.config, StepTrainConfig)
        counts_steps = issubclass(spec.config, StepRunConfig)
        data = data or (few if by_steps else prepared)
        own_bank = small_bank if by_steps else bank
        # classifiers train on the labeled quarter alone; four steps make an epoch all the same
        small = {"batch_size": 4, "lr": 0.003} if issubclass(spec.config, SupervisedTrainConfig) else {"batch_size": 16}
        if issubclass(spec.config, MetricLearningConfig):
            # two images of two classes, sixteen labeled ones in all; or eight clusters of the 64
            unlabeled = options.get("mode", "supervised") == "unsupervised" or "mode" not in spec.config.model_fields
            small = {"batch_size": 16 if unlabeled else 4, "images_per_class": 2, "num_clusters": 8}
        overrides = {"dataset": "digits", **small, "epochs": 2, "device": "cpu", **options}
        if by_steps:
            overrides = {**_in_steps(name, int(overrides.pop("epochs"))), **overrides}
            overrides |= {"noise": 0.0} if "noise" in spec.config.model_fields else {}
        elif counts_steps:
            epochs = int(overrides.pop("epochs"))
            overrides |= {"steps": 4 * epochs, "eval_every_steps": 4, "lr_warmup_steps": 0, "lr": 0.002}
        config = resolve_config(spec.config, preset="digits", overrides=overrides).config
        method = spec.load()(config, data.build_data_info(0))
        run = RunDir(path) if path is not None else None
        if run is not None:
            run.open(resume=resume, overwrite=False)
            open_runs.append(run)
            if not resume:
                run.begin(name, config.to_yaml_dict(operational=False))
        truth = data.dataset.labels
        known = MonitorInputs(own_bank.rows, truth, data.dataset.sample_ids, HeldOutImages(own_bank, truth))
        monitor = method.monitor(known)
        trainer = Trainer(method, own_bank, data.labels, config, Runtime(device="cpu"), run=run, monitor=monitor)
        return Setup(config, data, own_bank, method, trainer)

    yield make_setup
    close()
