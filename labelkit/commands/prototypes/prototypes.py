"""Compute class prototypes, write them, and report how well they are separated."""

import math
import time
from dataclasses import asdict
from pathlib import Path

from labelkit.algorithms.prototypes import Spread, build_t_schedule, max_cosine_bound, measure_spread, rms_cosine_bound
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.methods.prototypes.files import load_or_compute_prototypes
from labelkit.options.prototypes import PrototypesConfig
from labelkit.progress import current_progress
from labelkit.store.array_files import write_prototypes


def make_prototypes(config: PrototypesConfig) -> CommandResult:
    """Compute well-separated class prototypes on the sphere, write them, and compare them with theoretical bounds.

    Raises:
        OutputExistsError: the file exists and has different content.
        ResourceError: the device does not exist, or writing failed, for example because the disk is full.
    """
    progress, device = current_progress(), str(config.device)
    if device != "cpu":
        from labelkit.training.devices import Runtime

        device = str(Runtime(device=device).device)
    levels = build_t_schedule(config.sharpest_t)
    started = time.monotonic()
    with progress.task("optimizing prototypes", total=len(levels)) as task:
        made = load_or_compute_prototypes(
            config.num_classes,
            config.embed_dim,
            seed=config.seed,
            sharpest_t=config.sharpest_t,
            device=device,
            show_message=progress.warning,
            report=lambda t, largest: task.advance(1, sharpness=t, max_cosine=largest),
        )
    seconds = time.monotonic() - started
    spread = measure_spread(made.vectors)
    out = config.out or Path(f"prototypes-{config.num_classes}x{config.embed_dim}.h5")
    digest = write_prototypes(out, made.vectors, made.recipe, asdict(spread), overwrite=config.overwrite)
    bounds = _compute_bounds(config.num_classes, config.embed_dim)
    values: dict[str, object] = {
        "path": out,
        "classes": config.num_classes,
        "dim": config.embed_dim,
        "source": made.source,
        "cached_in": made.cached_in,
        "recipe": made.recipe,
        "spread": asdict(spread),
        "bounds": bounds,
        "content_digest": digest,
        "seconds": round(seconds, 3),
    }
    title = f"{config.num_classes} prototypes in {config.embed_dim} dimensions ({made.source})"
    return CommandResult(values, (out,), (_build_table(title, spread, bounds),))


def _compute_bounds(count: int, dim: int) -> dict[str, float]:
    """Return lower bounds for any vectors; a simplex, if it fits, attains those of the mean and the loss."""
    return {
        "max_cosine": max_cosine_bound(count, dim),
        "min_cosine": -1.0,
        "mean_cosine": -1 / (count - 1),
        "rms_cosine": rms_cosine_bound(count, dim),
        "uniformity": -4 * count / (count - 1),
    }


def _build_table(title: str, spread: Spread, bounds: dict[str, float]) -> Table:
    what = {
        "max_cosine": "largest cosine",
        "min_cosine": "smallest cosine",
        "mean_cosine": "mean cosine",
        "rms_cosine": "root mean square",
        "mean_nearest_cosine": "mean over nearest pairs",
        "uniformity": "uniformity loss, t = 2",
    }
    rows: list[list[Cell]] = [
        [label, round(getattr(spread, name), 7), round(bounds.get(name, math.nan), 7)] for name, label in what.items()
    ]
    closest_bound = math.degrees(math.acos(bounds["max_cosine"]))
    rows.append(["angle of the closest pair", round(spread.closest_angle, 4), round(closest_bound, 4)])
    rows.append(["mean angle", round(spread.mean_angle, 4), None])
    return Table(title, ["cosines of pairs", "found", "lower bound"], rows)
