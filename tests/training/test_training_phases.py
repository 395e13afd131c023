"""Phases: labels, lengths and learning rates of their own, decided on the way."""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from labelkit.data.batch import Batch, DataInfo
from labelkit.data.image_bank import ImageBank
from labelkit.data.samplers import ImageStream, StreamSampler
from labelkit.data.views.recipes import test_view, weak_view
from labelkit.data.views.spec import ViewSpec
from labelkit.options.training import StepTrainConfig
from labelkit.training.devices import Runtime
from labelkit.training.method import Method, Phase, StepOutput, TrainState
from labelkit.training.trainer import Trainer
from numpy.typing import NDArray
from torch import Tensor, nn


class GrowingConfig(StepTrainConfig):
    command: ClassVar[tuple[str, ...]] = ("train", "growing")

    steps: int = 5
    eval_every_steps: int = 2
    batch_size: int = 8
    device: str = "cpu"


class Growing(Method[GrowingConfig]):
    """Goes on for another phase of 3 steps, with one label more, until there are ``until`` labels."""

    def __init__(self, config: GrowingConfig, data: DataInfo, network: Any, until: int) -> None:
        super().__init__(config, data)
        self.network = network
        self.until = until
        self.labels: Tensor = nn.Buffer(torch.from_numpy(data.labels.copy()))
        self.decided: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.events: list[str] = []
        self.seen: list[list[int]] = []
        self.lrs: list[float] = []
        self.optimizer: Any = None

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        return (self.phase(0, rows),)

    def phase(self, index: int, rows: NDArray[np.int64]) -> Phase | None:
        if index > int(self.decided):
            return None
        labels = self.labels.numpy().copy()
        labeled = labels[rows] >= 0
        drawn = (ImageStream("labeled", rows[labeled], 4), ImageStream("unlabeled", rows[~labeled], 4))
        steps = 5 if index == 0 else 3
        sampler = StreamSampler(drawn, steps=2, seed=0, phase=index)
        view = weak_view(8, "digits", chiral=True)
        epochs = -(-steps // 2)
        return Phase(
            epochs, (view,), sampler, f"phase {index}", labels, steps, lr=lambda step: 0.1 / (index + step + 1)
        )

    def max_adaptive_steps(self) -> int:
        return 5 + 3 * self.until

    def on_phase_start(self, state: TrainState) -> None:
        self.events.append(f"start {state.phase} at {state.step}")

    def on_step_start(self, state: TrainState) -> None:
        assert 0 <= state.step_in_phase < state.phase_steps
        self.lrs.append(self.optimizer.param_groups[0]["lr"])

    def training_step(self, batch: Batch) -> StepOutput:
        self.seen.append(batch.labels.tolist())
        logits = self.network.classify(self.network.embed(batch.images))
        labeled = batch.labels >= 0
        return StepOutput(nn.functional.cross_entropy(logits[labeled], batch.labels[labeled] % 4))

    def on_phase_end(self, state: TrainState) -> Mapping[str, float]:
        free = torch.nonzero(self.labels < 0)[:, 0]
        count = int((self.labels >= 0).sum())
        self.events.append(f"end {state.phase} at {state.step}")
        if count < self.until:
            self.labels[free[0]] = 0
            self.decided += 1
        return {"labels": float(count)}

    def eval_view(self) -> ViewSpec:
        return test_view(8, "digits")


@pytest.fixture
def trainer(bank: ImageBank, make_method: Any) -> Any:
    labels = np.full(len(bank.dataset), -1)
    labels[:4] = [0, 1, 2, 3]
    info = DataInfo(len(labels), labels, (), tuple(range(10)), 10, 10, 1, 8, chiral=True, photographic=False)
    config = GrowingConfig(dataset="digits")
    method = Growing(config, info, make_method().network, until=6)
    trainer = Trainer(method, bank, labels, config, Runtime(device="cpu"))
    method.optimizer = trainer.optimizer
    return trainer


def test_phases_with_labels_and_rates_of_their_own_are_asked_for_until_there_is_none(trainer: Any) -> None:
    fit = trainer.fit()
    assert fit.finished
    assert fit.step == 5 + 3 + 3
    assert trainer.method.events == [
        "start 0 at 0", "end 0 at 5", "start 1 at 5", "end 1 at 8", "start 2 at 8", "end 2 at 11",
    ]  # fmt: skip
    assert [epoch.get("labels") for epoch in fit.history] == [None, None, 4, None, 5, None, 6]
    assert trainer.total_steps() == 5 + 3 * 6
    for step, labels in enumerate(trainer.method.seen):
        assert min(labels[:4]) >= 0
        assert labels[4:] == [-1] * 4
        if step < 5:
            assert sorted(labels[:4]) == [0, 1, 2, 3]
    wanted = [0.1 / (index + step + 1) for index, steps in enumerate((5, 3, 3)) for step in range(steps)]
    assert trainer.method.lrs == pytest.approx(wanted)


def test_an_event_may_train_in_a_loop_of_its_own(trainer: Any) -> None:
    phase = trainer.method.phases(trainer.bank.rows)[0]
    state = trainer._state(log_now=False)
    first, again = list(state.batches(phase, 1000)), list(state.batches(phase, 1000))
    other = list(state.batches(phase, 1001))
    assert len(first) == 2
    assert all(torch.equal(a.images, b.images) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0].images, other[0].images)
    parameter = nn.Parameter(torch.ones(2))
    parameter.grad = torch.tensor([1.0, 2.0])
    state.average_gradients([parameter])
    assert parameter.grad.tolist() == [1.0, 2.0]
