"""A method of two layers on 64 digits, and a trainer for it: what the tests of the engine train."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from labelkit.data.batch import Batch, DataInfo
from labelkit.data.image_bank import ImageBank
from labelkit.data.registry import load_dataset
from labelkit.data.samplers import UniformSampler
from labelkit.data.views.recipes import test_view, weak_view
from labelkit.data.views.spec import ViewSpec
from labelkit.models.inference import InferenceNetwork, InputSpec
from labelkit.options.training import TrainConfig
from labelkit.training.devices import Runtime
from labelkit.training.method import Method, Phase, StepOutput, TrainState
from labelkit.training.run_dir import RunDir
from labelkit.training.trainer import Trainer
from numpy.typing import NDArray
from torch import Tensor, nn

NUM_IMAGES = 64


class ToyConfig(TrainConfig):
    """Options of the toy."""

    command: ClassVar[tuple[str, ...]] = ("train", "toy")

    epochs: int = 2
    batch_size: int = 16
    lr: float = 0.05
    device: str = "cpu"
    dropout: float = 0.5
    augment: bool = True


class ToyNetwork(InferenceNetwork):
    """Two layers: pixels to 6 features to 4 logits."""

    input_spec = InputSpec(8, 1, (0.5,), (0.5,))
    embed_dim = 6
    num_outputs = 4

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.first = nn.Linear(64, 6)
            self.second = nn.Linear(6, 4)

    @property
    def identity(self) -> dict[str, str]:
        return {"name": "toy", "layer": "first", "pooling": "none"}

    def embed(self, images: Tensor) -> Tensor:
        return self.first(images.flatten(1))

    def classify(self, embeddings: Tensor) -> Tensor:
        return self.second(embeddings)


class Toy(Method[ToyConfig]):
    """Cross-entropy on digits modulo 4, with dropout; notes what happened to it."""

    def __init__(self, config: ToyConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        self.network: ToyNetwork = ToyNetwork()
        self.updates: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.events: list[str] = []
        self.lrs: list[float] = []
        self.at_step: Callable[[int], None] = lambda step: None
        self.optimizer: torch.optim.Optimizer | None = None
        self.note = "none"

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        view = weak_view(8, "digits", chiral=True) if self.config.augment else test_view(8, "digits")
        return (Phase(self.config.epochs, (view,), UniformSampler(rows, seed=self.config.seed)),)

    def on_train_start(self, state: TrainState) -> None:
        self.events.append("train")

    def on_epoch_start(self, state: TrainState) -> None:
        self.events.append(f"epoch {state.epoch}")

    def on_step_start(self, state: TrainState) -> None:
        self.at_step(state.step)
        if self.optimizer is not None:
            self.lrs.append(self.optimizer.param_groups[0]["lr"])

    def training_step(self, batch: Batch) -> StepOutput:
        features = nn.functional.dropout(self.network.embed(batch.images), self.config.dropout)
        loss = nn.functional.cross_entropy(self.network.classify(features), batch.labels % 4)
        return StepOutput(loss, {"spread": features.detach().std(), "diag/b": torch.tensor(float(len(batch.labels)))})

    def on_step_end(self, state: TrainState) -> None:
        self.updates += 1

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        return {"embed_norm": float(state.full_pass(self.network.embed).norm())}

    def eval_view(self) -> ViewSpec:
        return test_view(8, "digits")

    def extra_state(self) -> dict[str, Any]:
        return {"note": self.note}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        self.note = state["note"]


@pytest.fixture(scope="session")
def bank() -> ImageBank:
    digits = load_dataset("digits", data_root=Path("data")).select(np.arange(NUM_IMAGES))
    return ImageBank(digits)


@pytest.fixture(scope="session")
def labels(bank: ImageBank) -> NDArray[np.int64]:
    return bank.dataset.labels % 10


@pytest.fixture
def make_method(labels: NDArray[np.int64]) -> Callable[..., Toy]:
    """Return a function: options to a new toy method."""
    info = DataInfo(NUM_IMAGES, labels, (), tuple(range(10)), 10, 10, 1, 8, chiral=True, photographic=False)

    def make(**options: Any) -> Toy:
        return Toy(ToyConfig(**options), info)

    return make


@pytest.fixture
def build_trainer(
    bank: ImageBank, labels: NDArray[np.int64], make_method: Callable[..., Toy]
) -> Callable[..., Trainer]:
    """Return a function: run folder and options to a trainer of a new toy method."""

    def make(path: Path | None = None, *, monitor: Any = None, message: Any = None, **options: Any) -> Trainer:
        method = make_method(**options)
        run = RunDir(path) if path is not None else None
        if path is not None and run is not None:
            run.open(resume=path.exists(), overwrite=False)
            if not (path / "config.yaml").exists():
                run.begin("toy", method.config.to_yaml_dict())
        trainer = Trainer(
            method,
            bank,
            labels,
            method.config,
            Runtime(device="cpu"),
            run=run,
            monitor=monitor,
            message=message or (lambda text: None),
        )
        method.optimizer = trainer.optimizer
        return trainer

    return make
