"""Where the prototypes of a run come from: spread over the sphere, a file, or a classifier that was learned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from labelkit.algorithms.prototypes import spread_prototypes
from labelkit.config.methods.dl2pa import DL2PAConfig
from labelkit.engine.checkpoint import MODEL, load_checkpoint
from labelkit.errors import CheckpointError, CheckpointMismatch, ConfigError

_LEARNED = ("network.head.weight", "network.head.cosine.prototypes")


def starting_prototypes(config: DL2PAConfig, num_classes: int, dim: int) -> Tensor:
    """Return (c, d) float32 unit rows.

    Raises:
        ConfigError: a simplex does not fit into d dimensions.
        CheckpointError: the file or run cannot be used.
    """
    if config.prototypes == "simplex" and dim < num_classes - 1:
        raise ConfigError(
            "--prototypes simplex",
            f"{num_classes} classes with equal angles need {num_classes - 1} dimensions, the embedding has {dim}",
            f"Use --embed-dim {num_classes - 1} or more, or --prototypes uniform.",
        )
    if config.prototypes_from is None:
        generator = np.random.default_rng(config.prototype_seed)
        return torch.from_numpy(spread_prototypes(num_classes, dim, generator))
    return _learned_prototypes(config.prototypes_from, num_classes, dim)


def _learned_prototypes(run: Path, num_classes: int, dim: int) -> Tensor:
    checkpoint = load_checkpoint(run)
    if checkpoint is None:
        raise CheckpointError(str(run), "holds no checkpoint", "Give the --out of a `labelkit train softmax`.")
    tensors = checkpoint.tensors(MODEL)
    found = next((tensors[name] for name in _LEARNED if name in tensors), None)
    if found is None:
        raise CheckpointError(str(run), "has no learned class vectors", "Give the --out of a `labelkit train softmax`.")
    if found.shape[0] < num_classes or found.shape[1] != dim:
        raise CheckpointMismatch(
            str(run),
            f"has {found.shape[0]} class vectors of {found.shape[1]} dimensions, {num_classes} of {dim} are needed",
            "Train it with the same classes and --embed-dim.",
        )
    return torch.nn.functional.normalize(found[:num_classes].float(), dim=1)
