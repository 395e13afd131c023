"""``train --dry-run``: report the plan, the time of a few real steps, and a score of the features; write nothing.

For the score, a classifier is fitted to the features of the network before training and predicts held-out labels, as in
``discover answer``. For embeddings in a store, these are the features; for images, the initial network computes the
features, which are meaningful only if it is pretrained.
"""

import time
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit.algorithms.few_label_classifier import CLASSIFIER, RefittableClassifier, cross_validate
from labelkit.commands.common.results import Cell, CommandResult, describe_dry_run
from labelkit.commands.train.reuse import plan_frozen_cache
from labelkit.commands.train.setup import build_trainer, choose_run_folder, prepare_training, set_up_runtime
from labelkit.data.keyed_random import keyed_generator
from labelkit.formatting import percent
from labelkit.options.training import RunConfig
from labelkit.training.devices import Runtime
from labelkit.training.method import Method, PassSettings, count_parameters
from labelkit.training.trainer import Trainer

_MAX_ROWS: Final = 20_000
_MAX_IMAGES: Final = 300
_MIN_HIDDEN: Final = 5


def score_frozen_features(
    trainer: Trainer, method: Method[Any], labels: NDArray[np.int64], seed: int
) -> dict[str, Any] | None:
    """Measure how well a classifier on the current, frozen features of the network predicts held-out labels.

    Labels are (n,) int64, -1 = none; if there are many rows, a random sample is used.

    Returns:
        ``count``, the number of held-out labels; ``right``, the fraction predicted correctly; ``low`` and ``high``, its
        95% confidence interval (Wilson); and the ``classifier``. ``None`` if fewer than two classes have two labels,
        or features are not finite.
    """
    rows = trainer.bank.rows
    generator = keyed_generator(seed, "frozen score")
    most = _MAX_ROWS if method.data.row_dim is not None else _MAX_IMAGES
    known, others = rows[labels[rows] >= 0], rows[labels[rows] < 0]
    _, counts = np.unique(labels[known], return_counts=True)
    if (counts > 1).sum() < 2:
        return None
    known = generator.permutation(known)[:most]
    others = generator.permutation(others)[: max(0, most - len(known))]
    chosen = np.sort(np.concatenate([known, others]))
    features = trainer.full_pass(method.network.embed, chosen, PassSettings(by_network=True)).numpy()
    if not np.isfinite(features).all():
        return None  # training reports the problem
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit = (features / np.maximum(lengths, np.finfo(np.float32).tiny)).astype(np.float32)
    right = cross_validate(RefittableClassifier(unit, labels[chosen]), labels[chosen], generator)
    if len(right) < _MIN_HIDDEN:
        return None
    from scipy.stats import binomtest

    interval = binomtest(int(right.sum()), len(right)).proportion_ci(method="wilson")
    return {
        "count": len(right),
        "right": float(right.mean()),
        "low": float(interval.low),
        "high": float(interval.high),
        "classifier": CLASSIFIER,
    }


def has_pretrained_features(config: RunConfig) -> bool:
    """Return whether training starts from meaningful features: embeddings, or a network with weights."""
    return any(getattr(config, name, None) for name in ("index", "pretrained", "weights", "init_from"))


_STEPS = 4
# Steps that take at least this many seconds are timed once.
_LONG_STEP = 1.0
# Estimated seconds per step above which no step is timed; cost of a step in forward passes: one each for teacher and
# student, and two for the backward pass.
_TOO_LONG_STEP, _PASSES = 20.0, 4


def plan_training(method_name: str, config: RunConfig) -> CommandResult:
    """Set up a training run, time a few steps on real batches, and report the plan without writing anything."""
    runtime = set_up_runtime(config)
    before = runtime.peak_memory()
    setup = prepare_training(method_name, config, runtime, fresh=True)
    trainer = build_trainer(setup, config, runtime, None)
    search = trainer.score_before_training() if has_pretrained_features(config) else {}
    score = score_frozen_features(trainer, setup.method, setup.prepared.labels, config.seed)
    reuse = plan_frozen_cache(setup.method, setup.bank, config, runtime, trainer.phases[0])
    if reuse is not None:
        trainer.use_cached_views(reuse.build_timing_bank())
    reckoned = 0.0 if reuse is not None else _estimate_step_seconds(trainer, config)
    is_timed = reckoned < _TOO_LONG_STEP
    show = trainer.message
    trainer.message = lambda text: show(text) if text.startswith("warning") else None  # no scores of the timed steps
    first, seconds = _time_steps(trainer, runtime) if is_timed else (reckoned, reckoned)
    total = trainer.total_steps()
    parameters, trained = count_parameters(setup.method)
    values: dict[str, object] = {
        "method": method_name,
        "config": config.to_yaml_dict(),
        "run": choose_run_folder(config),
        "samples": setup.prepared.counts(),
        "skipped": len(setup.bank.bad),
        "in_memory": setup.bank.in_memory,
        "parameters": parameters,
        "trained_parameters": trained,
        "steps_per_epoch": trainer.steps_per_epoch(0),
        "steps": total,
        "seconds_per_step": round(seconds, 4),
        "start_minutes": round(max(0.0, first - seconds) / 60, 1),
        "estimated_minutes": round(total * seconds / 60, 1),
        "memory_mib": round((runtime.peak_memory() - before) / 2**20) if is_timed else None,
        "device": str(runtime.device),
    }
    if not is_timed:
        values["timed"] = "no step, since it would take too long: estimated from a forward pass of two images"
    if reuse is not None:
        values["kept_gib"] = round(reuse.plan.num_bytes / 2**30, 3)
        values["kept_minutes"] = round(reuse.estimate_seconds() / 60, 1)
    shown = {key: value for key, value in values.items() if key not in ("config", "samples") and value is not None}
    rows: list[list[Cell]] = [[key, str(value)] for key, value in shown.items()]
    rows.insert(2, ["samples", setup.prepared.describe()])
    if score is not None:
        values["before_training"] = score
        score_text = f"{percent(score['right'])}% of {score['count']} held-out labels predicted correctly"
        interval = f"{percent(score['low'])} to {percent(score['high'])}"
        rows.append(["before_training", f"{score_text} ({interval}), by {score['classifier']}"])
    if search:
        values["search_before_training"] = search
        found = {f"R@{name.removeprefix('recall_at_')}": value for name, value in search.items() if name != "map_at_r"}
        found["MAP@R"] = search["map_at_r"]
        listed = ", ".join(f"{name} {percent(value)}" for name, value in found.items())
        rows.append(["search before training", f"{listed} (held-out images)"])
    return describe_dry_run(config, values, rows)


def _estimate_step_seconds(trainer: Trainer, config: RunConfig) -> float:
    """Estimate the seconds per step from a forward pass of two images; 0 on a GPU, where steps are always timed."""
    if trainer.runtime.device.type != "cpu":
        return 0.0
    network, side = trainer.method.network, trainer.method.eval_view().size
    images = torch.zeros(2, trainer.bank.dataset.in_channels, side, side)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # threads that wait for each other use CPU time too, and more if other programs run
    with torch.inference_mode():
        network.embed(images)  # warm-up
        started = time.process_time()  # CPU time, so that other programs do not count
        network.embed(images)
    seconds = (time.process_time() - started) / threads / len(images)
    torch.set_num_threads(threads)
    views = trainer.phases[0].views
    pixels = sum(view.size**2 for view in (views(0) if callable(views) else views))
    return _PASSES * config.batch_size * pixels / side**2 * seconds


def _time_steps(trainer: Trainer, runtime: Runtime) -> tuple[float, float]:
    """Return the seconds for the first step, including all preparation, and for a later step."""

    def until(step: int) -> tuple[float, int]:
        trainer.config = trainer.config.model_copy(update={"stop_after_steps": step})
        started = time.perf_counter()
        reached = trainer.fit().step
        runtime.synchronize()
        return time.perf_counter() - started, reached

    first, _ = until(1)
    seconds, reached = until(2)
    if seconds < _LONG_STEP:
        more, reached = until(1 + _STEPS)
        seconds += more
    return first, seconds / max(1, reached - 1)
