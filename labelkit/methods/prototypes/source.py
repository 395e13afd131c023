"""A run's initial prototypes: spread evenly over the sphere, or from word vectors, a file or a learned classifier."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.algorithms.prototypes import is_closed_form_optimal, uniformity_loss
from labelkit.errors import CheckpointError, ConfigError, DatasetError
from labelkit.formatting import join_first_few
from labelkit.methods.prototypes.files import load_or_compute_hpn_prototypes, load_or_compute_prototypes
from labelkit.methods.prototypes.options import DL2PAConfig
from labelkit.options.prototypes import SHARPEST_T
from labelkit.store.array_files import read_prototypes
from labelkit.training.checkpoint import MODEL, load_checkpoint

_LEARNED = ("network.head.weight", "network.head.cosine.prototypes")


def load_initial_prototypes(
    config: DL2PAConfig,
    num_classes: int,
    dim: int,
    show_message: Callable[[str], None],
    class_names: Sequence[str] = (),
) -> Tensor:
    """Return the initial prototypes of a run as (c, d) float32 unit rows; word vectors require class names.

    Raises:
        ConfigError: a simplex does not fit into d dimensions, there are too few prototypes, or their dimension differs;
            word vectors have fewer than d dimensions, or a class has no name.
        StoreError, CheckpointError, DatasetError: the file or run cannot be used.
    """
    if config.prototypes == "simplex" and dim < num_classes - 1:
        least = num_classes - 1
        problem = f"{num_classes} prototypes at equal angles require {least} dimensions, but the embedding has {dim}"
        remedy = f"Use --embed-dim {least} or more, or --prototypes uniform."
        raise ConfigError("--prototypes simplex", problem, remedy)
    if config.prototypes == "hpn":
        return torch.from_numpy(load_or_compute_hpn_prototypes(num_classes, dim, show_message).vectors)
    if config.class_vectors is not None:
        return _load_word_prototypes(config.class_vectors, num_classes, dim, class_names)
    source = config.prototypes_from
    if source is None:
        make = partial(load_or_compute_prototypes, num_classes, dim, seed=0, show_message=show_message)
        made = make(sharpest_t=config.sharpest_t)
        if made.source == "closed form" and config.sharpest_t is None and not is_closed_form_optimal(num_classes, dim):
            # with opposite pairs, either the closed form or one optimization run may have the lower loss
            optimized = make(method="optimize", sharpest_t=None)
            made = min(made, optimized, key=lambda one: uniformity_loss(one.vectors))
        elif made.source == "closed form" and config.sharpest_t != SHARPEST_T:
            show_message(f"--sharpest-t has no effect: {num_classes} prototypes in {dim} dimensions have a closed form")
        return torch.from_numpy(made.vectors)
    found = (
        _load_learned_prototypes(source, show_message)
        if source.is_dir()
        else torch.from_numpy(read_prototypes(source).prototypes)
    )
    if len(found) < num_classes or found.shape[1] != dim:
        raise ConfigError(
            "--prototypes-from",
            f"{source} has {len(found)} prototypes of dimension {found.shape[1]}, but {num_classes} of dimension "
            f"{dim} are required",
            "Use other prototypes, or change --embed-dim.",
        )
    return torch.nn.functional.normalize(found[:num_classes].float(), dim=1)


def _load_word_prototypes(path: Path, num_classes: int, dim: int, class_names: Sequence[str]) -> Tensor:
    """Return the word vectors of the class names, projected to ``dim`` dimensions."""
    if len(class_names) < num_classes:
        problem = f"{num_classes} classes were requested, but only {len(class_names)} have names"
        raise ConfigError("--class-vectors", problem, "Remove --num-classes, or choose other --prototypes.")
    vectors = read_class_vectors(path, class_names[:num_classes])
    if vectors.shape[1] < dim:
        problem = f"{path} contains vectors of dimension {vectors.shape[1]}, but dimension {dim} is required"
        raise ConfigError("--class-vectors", problem, f"Pass --embed-dim {vectors.shape[1]} or less.")
    try:
        return torch.from_numpy(project_word_vectors(vectors, dim))
    except ValueError as error:
        raise ConfigError("--class-vectors", f"{path}: {error}", "Use other vectors, or raise --embed-dim.") from error


def _load_learned_prototypes(run: Path, show_message: Callable[[str], None]) -> Tensor:
    """Return the class vectors learned by a ``softmax`` run."""
    checkpoint = load_checkpoint(run, show_message=show_message)
    tensors = {} if checkpoint is None else checkpoint.tensors(MODEL)
    found = next((tensors[name] for name in _LEARNED if name in tensors), None)
    if found is None:
        problem = "contains no checkpoint" if checkpoint is None else "has no learned class vectors"
        raise CheckpointError(str(run), problem, "Pass the --out folder of a `labelkit train softmax` run.")
    return found


_FORM = "On each line, write a class name (with _ for spaces) and its vector; all vectors must have the same length."


def project_word_vectors(vectors: NDArray[np.float64], dim: int) -> NDArray[np.float32]:
    """Project word vectors to ``dim`` principal dimensions and normalize them to unit length.

    Their mean is subtracted first. Cosines between centered vectors are preserved if ``dim`` is at least the number of
    vectors minus one.

    Args:
        vectors: (c, m) float64, one for each class.
        dim: d <= m; if c - 1 < d, the remaining dimensions are 0.

    Returns:
        (c, d) float32, rows of length 1.

    Raises:
        ValueError: d > m, or a vector equals the mean and thus has no direction.
    """
    count, width = vectors.shape
    if dim > width:
        raise ValueError(f"dim must be at most {width}, got {dim}")
    centered = vectors - vectors.mean(axis=0)
    _, _, axes = np.linalg.svd(centered, full_matrices=False)
    kept = min(dim, len(axes))
    rows = np.zeros((count, dim))
    rows[:, :kept] = centered @ axes[:kept].T
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if (lengths <= 1e-9 * np.linalg.norm(centered, axis=1).max()).any():
        raise ValueError(f"row {int(lengths.argmin())} has zero norm in {dim} dimensions")
    unit: NDArray[np.float64] = rows / lengths
    return unit.astype(np.float32)


def read_class_vectors(path: Path, names: Sequence[str]) -> NDArray[np.float64]:
    """Read the word vector of each class name from a file; if a name occurs repeatedly, its first vector is used.

    If the file does not contain the exact name, names are compared ignoring case and with blanks as ``_``.

    Args:
        path: text file with a name and its vector on each line, optionally after a header of two numbers.
        names: names of the classes.

    Returns:
        (len(names), m) float64.

    Raises:
        DatasetError: the file cannot be read, a class has no vector, or a line is malformed.
    """
    wanted = {_normalize_name(name) for name in names}
    exact: dict[str, NDArray[np.float64]] = {}
    alike: dict[str, NDArray[np.float64]] = {}
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for number, line in enumerate(file, start=1):
                name, *numbers = line.split() or [""]
                if _normalize_name(name) in wanted and (number > 1 or len(numbers) > 1):
                    vector = _parse_vector(numbers, f"{path}: line {number}")
                    exact.setdefault(name, vector)
                    alike.setdefault(_normalize_name(name), vector)
    except OSError as error:
        problem = str(error.strerror)
        raise DatasetError(str(path), problem, "Pass a text file of class names and their vectors.") from error
    missing = [name for name in names if _normalize_name(name) not in alike]
    if missing:
        problem = f"has no vector for {len(missing)} of {len(names)} classes: {join_first_few(missing, 5)}"
        raise DatasetError(str(path), problem, _FORM)
    vectors = [exact.get(name.replace(" ", "_"), alike[_normalize_name(name)]) for name in names]
    widths = {len(vector) for vector in vectors}
    if len(widths) > 1:
        raise DatasetError(
            str(path), f"has vectors of different dimensions, from {min(widths)} to {max(widths)}", _FORM
        )
    return np.stack(vectors)


def _parse_vector(numbers: Sequence[str], where: str) -> NDArray[np.float64]:
    try:
        vector = np.array([float(number) for number in numbers])
    except ValueError as error:
        raise DatasetError(where, f"{error}", _FORM) from error
    if not np.isfinite(vector).all():
        raise DatasetError(where, "contains a value that is not finite", _FORM)
    return vector


def _normalize_name(name: str) -> str:
    return name.strip().lower().replace(" ", "_")
