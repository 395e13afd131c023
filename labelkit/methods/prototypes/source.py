"""Where the prototypes of a run come from: spread over the sphere, word vectors, a file, or a learned classifier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.algorithms.prototypes import closed_form_is_least, uniformity
from labelkit.errors import CheckpointError, ConfigError
from labelkit.methods.prototypes.class_vectors import read_class_vectors, word_prototypes
from labelkit.methods.prototypes.files import load_or_make_prototypes, load_or_separate
from labelkit.methods.prototypes.options import DL2PAConfig
from labelkit.options.prototypes import SHARPEST_T
from labelkit.store.array_files import read_prototypes
from labelkit.training.checkpoint import MODEL, load_checkpoint

_LEARNED = ("network.head.weight", "network.head.cosine.prototypes")


def starting_prototypes(
    config: DL2PAConfig, num_classes: int, dim: int, say: Callable[[str], None], class_names: Sequence[str] = ()
) -> Tensor:
    """Return (c, d) float32 unit rows.

    Args:
        config: says which.
        num_classes: c.
        dim: d.
        say: is told what happened to the cache.
        class_names: of the training classes, as far as they have one; for word vectors.

    Raises:
        ConfigError: a simplex does not fit into d dimensions, or there are too few prototypes, or of another width;
            word vectors of fewer than d numbers, or a class without a name.
        StoreError, CheckpointError, DatasetError: the file or run cannot be used.
    """
    if config.prototypes == "simplex" and dim < num_classes - 1:
        raise ConfigError(
            "--prototypes simplex",
            f"{num_classes} classes with equal angles need {num_classes - 1} dimensions, the embedding has {dim}",
            f"Use --embed-dim {num_classes - 1} or more, or --prototypes uniform.",
        )
    source = config.prototypes_from
    if source is None and config.prototypes == "hpn":
        words = None if config.class_vectors is None else _words(config.class_vectors, num_classes, class_names)
        try:
            made = load_or_separate(num_classes, dim, seed=0, words=words, say=say)
        except ValueError as error:
            raise ConfigError("--class-vectors", f"{config.class_vectors}: {error}", "Use other vectors.") from error
        return torch.from_numpy(made.vectors)
    if source is None and config.class_vectors is not None:
        return _of_words(config.class_vectors, num_classes, dim, class_names)
    if source is None:
        make = partial(load_or_make_prototypes, num_classes, dim, seed=0, say=say)
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


def _words(path: Path, num_classes: int, class_names: Sequence[str]) -> NDArray[np.float64]:
    """Word vectors of the classes' names."""
    if len(class_names) < num_classes:
        problem = f"{num_classes} classes are asked for, and {len(class_names)} have a name"
        raise ConfigError("--class-vectors", problem, "Leave out --num-classes, or choose other --prototypes.")
    return read_class_vectors(path, class_names[:num_classes])


def _of_words(path: Path, num_classes: int, dim: int, class_names: Sequence[str]) -> Tensor:
    """Class vectors of the classes' names, in d dimensions."""
    vectors = _words(path, num_classes, class_names)
    if vectors.shape[1] < dim:
        problem = f"{path} has vectors of {vectors.shape[1]} numbers, {dim} are needed"
        raise ConfigError("--class-vectors", problem, f"Pass --embed-dim {vectors.shape[1]} or less.")
    try:
        return torch.from_numpy(word_prototypes(vectors, dim))
    except ValueError as error:
        raise ConfigError("--class-vectors", f"{path}: {error}", "Use other vectors, or more dimensions.") from error


def _learned_prototypes(run: Path, say: Callable[[str], None]) -> Tensor:
    """Class vectors of a run of ``softmax``."""
    checkpoint = load_checkpoint(run, say=say)
    tensors = {} if checkpoint is None else checkpoint.tensors(MODEL)
    found = next((tensors[name] for name in _LEARNED if name in tensors), None)
    if found is None:
        problem = "holds no checkpoint" if checkpoint is None else "has no learned class vectors"
        raise CheckpointError(str(run), problem, "Give the --out of a `labelkit train softmax`.")
    return found
