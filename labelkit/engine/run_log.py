"""What a run writes while it trains: lines of ``metrics.jsonl``, and TensorBoard events if they are asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from labelkit.engine.run_dir import RunDir
from labelkit.errors import ConfigError


class RunLog:
    """Writes numbers with the moment they belong to.

    Args:
        run: where to; ``None`` = nowhere.
        is_main: this process writes what all processes know alike.
        tensorboard: write events too.

    Raises:
        ConfigError: TensorBoard is not installed.
    """

    def __init__(self, run: RunDir | None, *, is_main: bool, tensorboard: bool) -> None:
        self._run = run
        self._is_main = is_main
        self._events = _open_tensorboard(run) if tensorboard and run is not None and is_main else None

    def epoch(self, epoch: int, step: int, metrics: Mapping[str, float]) -> None:
        """Write what an epoch came to."""
        if self._run is not None:
            self._run.log({"epoch": epoch, "step": step, **metrics})
        self._add_events("epoch", step, metrics)

    def step(self, epoch: int, step: int, lr: float, means: Mapping[str, float]) -> None:
        """Write the losses of a step."""
        if self._run is None or not self._is_main:
            return
        self._run.log({"epoch": epoch, "step": step, "kind": "step", "lr": lr, **means})
        self._add_events("step", step, means)

    def event(self, kind: str, epoch: int, step: int, values: Mapping[str, float]) -> None:
        """Write what a method says of an event."""
        if self._run is not None and self._is_main:
            self._run.log({"epoch": epoch, "step": step, "kind": kind, **values})
        self._add_events(kind, step, values)

    def close(self) -> None:
        """Finish the events."""
        if self._events is not None:
            self._events.close()

    def _add_events(self, kind: str, step: int, values: Mapping[str, float]) -> None:
        if self._events is not None:
            for name, value in values.items():
                self._events.add_scalar(f"{kind}/{name}", value, step)


def _open_tensorboard(run: RunDir) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise ConfigError("--tensorboard", "TensorBoard is not installed", "Run `pip install tensorboard`.") from error
    return SummaryWriter(str(run.path / "tensorboard"))
