"""Where the prototypes of a run come from: spread over the sphere, a file, or a classifier that was learned."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from labelkit.algorithms.prototypes import closed_form_is_least, uniformity
from labelkit.config.methods.dl2pa import DL2PAConfig
from labelkit.config.prototypes import SHARPEST_T
from labelkit.engine.checkpoint import MODEL, load_checkpoint
from labelkit.errors import CheckpointError, ConfigError
from labelkit.methods.prototypes.files import load_or_make_prototypes
from labelkit.store.prototypes import read_prototypes

_LEARNED = ("network.head.weight", "network.head.cosine.prototypes")


def starting_prototypes(config: DL2PAConfig, num_classes: int, dim: int, say: Callable[[str], None]) -> Tensor:
    """Return (c, d) float32 unit rows; ``say`` is told what happened to the cache.

    Raises:
        ConfigError: a simplex does not fit into d dimensions, or there are too few prototypes, or of another width.
        StoreError, CheckpointError: the file or run cannot be used.
    """
    if config.prototypes == "simplex" and dim < num_classes - 1:
        raise ConfigError(
            "--prototypes simplex",
            f"{num_classes} classes with equal angles need {num_classes - 1} dimensions, the embedding has {dim}",
            f"Use --embed-dim {num_classes - 1} or more, or --prototypes uniform.",
        )
    source = config.prototypes_from
    if source is None:
        make = partial(load_or_make_prototypes, num_classes, dim, seed=config.prototype_seed, say=say)
        made = make(sharpest_t=config.sharpest_t)
        if made.source == "closed form" and config.sharpest_t is None and not closed_form_is_least(num_classes, dim):
            # with opposite pairs it has not always the least loss, and no more has what one start leads to
            optimized = make(method="optimize", sharpest_t=None)
            made = min(made, optimized, key=lambda one: uniformity(one.vectors))
        elif made.source == "closed form" and config.sharpest_t != SHARPEST_T:
            say(f"--sharpest-t changes nothing: the best {num_classes} prototypes of {dim} dimensions are known")
        return torch.from_numpy(made.vectors)
    found = (
        _learned_prototypes(source, say) if source.is_dir() else torch.from_numpy(read_prototypes(source).prototypes)
    )
    if len(found) < num_classes or found.shape[1] != dim:
        raise ConfigError(
            "--prototypes-from",
            f"{source} has {len(found)} prototypes of {found.shape[1]} dimensions, {num_classes} of {dim} are needed",
            "Make others, or change --embed-dim.",
        )
    return torch.nn.functional.normalize(found[:num_classes].float(), dim=1)


def _learned_prototypes(run: Path, say: Callable[[str], None]) -> Tensor:
    """Class vectors of a run of ``softmax``."""
    checkpoint = load_checkpoint(run, say=say)
    tensors = {} if checkpoint is None else checkpoint.tensors(MODEL)
    found = next((tensors[name] for name in _LEARNED if name in tensors), None)
    if found is None:
        problem = "holds no checkpoint" if checkpoint is None else "has no learned class vectors"
        raise CheckpointError(str(run), problem, "Give the --out of a `labelkit train softmax`.")
    return found
