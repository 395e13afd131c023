"""What a training would do over its updates, without training: rates, decays, weights, temperatures, labels.

Every value comes from the function that the trainer or the method asks in a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final

import numpy as np

from labelkit.commands.common.outputs import check_output
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.common.training_data import prepare_data
from labelkit.commands.show.options import ScheduleOptions
from labelkit.data.registry import DATASETS
from labelkit.errors import DatasetError
from labelkit.methods.registry import METHODS
from labelkit.options.training import RunConfig
from labelkit.store.commit import commit_bytes
from labelkit.store.csv_table import csv_bytes
from labelkit.training.optim import group_lr
from labelkit.training.timing import Plan, RunSize

_ALL_STEPS: Final = 2000
_MOST_POINTS: Final = 1000
#: Turns of one curve that the table shows; of more, the first and the last.
_MOST_TURNS: Final = 8
#: Options that change how many images are trained on.
_CHOOSE_IMAGES: Final = ("holdout", "holdout_classes", "max_per_class", "imbalance_factor")


@dataclass(frozen=True)
class Curves:
    """Values that change over the updates of a run, such as learning rates.

    Attributes:
        plan: its updates.
        at: the values by name in an update, counted from 0.
        steps: updates that are shown.
        values: by name, one for each of them.
    """

    plan: Plan
    at: Callable[[int], dict[str, float]]
    steps: list[int]
    values: dict[str, list[float]]

    def row(self, step: int) -> list[Cell]:
        """Return a table row for an update: its step and epoch as in ``metrics.jsonl``, then the scheduled values."""
        return [step + 1, self.plan.at(step).epoch, *self.at(step).values()]

    @property
    def columns(self) -> list[str]:
        """Return the column headings of a table of scheduled values."""
        return ["step", "epoch", *self.values]


def show_schedule(config: RunConfig) -> SimpleResult:
    """Show, plot or write how learning rates and other values change during a training, without training.

    The config is one that ``schedule_options`` made.

    Raises:
        ConfigError: the number of images is needed and not known, or is less than a batch; an output that cannot be
            written.
    """
    assert isinstance(config, ScheduleOptions)
    method = config.command[1]
    made: Path | None = config.out
    if made is not None:
        check_output(config, made, made.suffix.lower().removeprefix("."))
    size = run_size(config, config.images)
    curves = planned_curves(method, config, size)
    if made is not None:
        _write(made, curves)
    milestones = _milestones(curves)
    plan = curves.plan
    phases = [
        {"name": pace.name, "first_step": start + 1, "steps": length.total, "steps_per_epoch": length.whole}
        for pace, start, length in zip(plan.paces, plan.starts, plan.lengths, strict=False)
    ]
    values: dict[str, object] = {
        "method": method,
        "dataset": config.main_dataset,
        "images": size.images,
        "labeled": size.labeled,
        "steps": plan.steps,
        "epochs": plan.epochs,
        "phases": phases,
        "milestones": [{"step": step + 1, "epoch": plan.at(step).epoch} for step in milestones],
        "shown_steps": [step + 1 for step in curves.steps],
        "curves": [
            {"name": name, "values": shown, "at_milestones": [curves.at(step)[name] for step in milestones]}
            for name, shown in curves.values.items()
        ],
        "out": made,
    }
    of = "" if size.images is None else f" of {size.images:,} images"
    title = f"{plan.steps:,} updates in {plan.epochs:,} epochs, {config.main_dataset}{of}"
    tables = [Table(title, curves.columns, [curves.row(step) for step in milestones])]
    if len(phases) > 1:
        rows: list[list[Cell]] = [
            [str(phase["name"]), *(int(str(phase[key])) for key in ("first_step", "steps"))] for phase in phases
        ]
        tables.insert(0, Table("phases", ["phase", "first step", "steps"], rows))
    return SimpleResult(values, () if made is None else (made,), tuple(tables))


def run_size(config: RunConfig, images: int | None = None) -> RunSize:
    """Return the number of training images: the requested, published or counted one.

    Args:
        config: the options of the training.
        images: as told.
    """
    images = official_images(config) if images is None else images
    if images is None:
        try:
            counts = prepare_data(config).counts()
        except DatasetError:
            # it is not here; a method that needs the number asks for it
            return RunSize(None, config.num_labels)
        return RunSize(counts["images"], counts["labeled"])
    if config.num_labels is not None or config.label_kind != "all":
        return RunSize(images, config.num_labels)
    return RunSize(images, images)


def official_images(config: RunConfig) -> int | None:
    """Return the published number of training images; ``None`` if there is none, or options change it."""
    spec = DATASETS.get(config.dataset)
    if spec is None or getattr(config, "index", None) is not None or config.scenes() is not None:
        return None
    if config.label_split == "class-halves" or any(getattr(config, name) is not None for name in _CHOOSE_IMAGES):
        return None
    wanted = "train" if config.split == "auto" and "train" in spec.num_images else config.split
    counts = [count for name, count in spec.num_images.items() if wanted in ("all", "auto", name)]
    if not counts or any(count.high is not None for count in counts):
        return None
    return sum(count.low for count in counts)


def planned_curves(method: str, config: RunConfig, size: RunSize) -> Curves:
    """Compute all values that change during a run, such as learning rates, for each update shown.

    Args:
        method: its name.
        config: its options.
        size: number of images.

    Raises:
        ConfigError: the number of images is needed and not known, or is less than a batch.
    """
    kind = METHODS[method].load()
    plan = Plan(kind.paces(config, size), config)
    groups, scheduled = kind.group_rates(config), kind.scheduled(config, size)

    def at(step: int) -> dict[str, float]:
        now = plan.at(step)
        lr, weight_decay, betas = plan.optimizer(now)
        found: dict[str, float] = {}
        for name, group in groups.items():
            assert lr is not None
            found[f"lr/{name}" if name else "lr"] = group_lr(lr, now.epoch, group)
        if weight_decay is not None:
            found["weight_decay"] = weight_decay
        for number, beta in enumerate(betas or (), 1):
            found[f"adam_beta{number}"] = beta
        return found | {name: value(now) for name, value in scheduled.items()}

    steps = _shown_steps(plan)
    shown = [at(step) for step in steps]
    return Curves(plan, at, steps, {name: [one[name] for one in shown] for name in shown[0]})


def _shown_steps(plan: Plan) -> list[int]:
    """All updates of a short run; of a long one, some evenly, the starts of phases and, if they are few, of epochs."""
    if plan.steps <= _ALL_STEPS:
        return list(range(plan.steps))
    chosen = {int(step) for step in np.linspace(0, plan.steps - 1, _MOST_POINTS).round()}
    chosen |= set(plan.starts[:-1]) | {start - 1 for start in plan.starts[1:]}
    if plan.epochs <= _MOST_POINTS:
        chosen |= set(plan.epoch_starts())
    return sorted(chosen)


def _milestones(curves: Curves) -> list[int]:
    """First and last update, quarters, starts of phases, and where a value begins or ends to change."""
    last = curves.plan.steps - 1
    chosen = {0, last, *(round(last * quarter / 4) for quarter in (1, 2, 3)), *curves.plan.starts[:-1]}
    for name, values in curves.values.items():
        turns = _turns(curves.steps, values, lambda step, name=name: curves.at(step)[name])  # type: ignore[misc]
        chosen |= set(turns if len(turns) <= _MOST_TURNS else (turns[0], turns[-1]))
    return sorted(chosen)


def _turns(steps: Sequence[int], values: Sequence[float], value: Callable[[int], float]) -> list[int]:
    """First updates from which a value changes, or stays as it is."""
    moves = [not _same(before, after) for before, after in pairwise(values)]
    found = []
    for place, (before, after) in enumerate(pairwise(moves), 1):
        if before == after:
            continue
        # it rests at steps[place]; the turn lies in the interval beside it in which it moves
        low, high = (steps[place - 1], steps[place]) if before else (steps[place], steps[place + 1])
        rest = values[place]
        while high - low > 1:
            middle = (low + high) // 2
            if _same(value(middle), rest) == before:
                high = middle
            else:
                low = middle
        found.append(high)
    return found


def _same(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))


def _write(path: Path, curves: Curves) -> None:
    if path.suffix.lower() == ".csv":
        commit_bytes(path, csv_bytes(curves.columns, (curves.row(step) for step in curves.steps)))
        return
    from labelkit.commands.common.images.plots import Line, write_curves_plot  # matplotlib takes a second to load

    x = np.array(curves.steps, dtype=np.float64) + 1
    panels = {name: [Line("", x, np.array(values), True)] for name, values in curves.values.items()}
    write_curves_plot(path, panels, x_name="steps")
