"""Prototypes for given numbers of classes and dimensions, computed once and then read from the user's cache."""

import hashlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.prototypes import (
    DEFAULT_T,
    ITERATIONS,
    SHARPEST_T,
    PrototypeMethod,
    closed_form,
    measure_spread,
    spread_prototypes,
)
from labelkit.cache import cache_folder
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import LabelkitError
from labelkit.store.array_files import read_prototypes, write_prototypes
from labelkit.store.commit import canonical_json

# Version of the computation; changing it invalidates old cache files.
_RECIPE_VERSION = 1
#: Iterations and learning rate of `optimize_separated_prototypes` (published).
SEPARATION_ITERATIONS, SEPARATION_LR = 10_000, 0.1


@dataclass(frozen=True)
class Prototypes:
    """Unit-norm class prototypes, with the settings that determine them and their origin."""

    vectors: NDArray[np.float32]  # (c, d) float32, rows of length 1
    recipe: dict[str, object]  # all settings that the vectors depend on
    source: Literal["closed form", "optimized", "cache"]  # how they were obtained
    cached_in: Path | None  # cache file, if any


def load_or_compute_prototypes(
    num_prototypes: int,
    dim: int,
    *,
    seed: int = 0,
    method: PrototypeMethod = "auto",
    sharpest_t: float | None = SHARPEST_T,
    iterations: int = ITERATIONS,
    device: str = "cpu",
    show_message: Callable[[str], None] | None = None,
    report: Callable[[float, float], None] | None = None,
) -> Prototypes:
    """Return evenly spread prototypes, from a closed form, the cache or an optimization.

    New prototypes are cached. They depend on all arguments up to ``iterations``. These, ``device`` and ``report`` are
    those of :func:`labelkit.algorithms.prototypes.spread_prototypes`; ``seed`` determines the initial values, or the
    rotation and order of a closed form. A cache file that is damaged or has other contents is replaced. If the cache
    cannot be written, ``show_message`` says so.

    Raises:
        ValueError: a number is out of range.
    """
    is_closed = method == "auto" and min(num_prototypes, dim) >= 2 and closed_form(num_prototypes, dim) is not None
    recipe: dict[str, object] = {"version": _RECIPE_VERSION, "num_prototypes": num_prototypes, "dim": dim, "seed": seed}
    if is_closed:
        recipe["method"] = "closed form"
    else:
        recipe |= {"method": method, "t": DEFAULT_T, "sharpest_t": None if sharpest_t is None else float(sharpest_t)}
        recipe |= {"iterations": iterations, "num_starts": 1}
    make = partial(
        spread_prototypes,
        num_prototypes,
        dim,
        keyed_generator(seed, "prototypes"),
        method=method,
        sharpest_t=sharpest_t,
        iterations=iterations,
        device=device,
        report=report,
    )
    if is_closed:  # faster to compute than to read
        return Prototypes(make(), recipe, "closed form", None)
    return _load_or_compute(recipe, make, show_message or (lambda text: None))


def load_or_compute_hpn_prototypes(num_prototypes: int, dim: int, show_message: Callable[[str], None]) -> Prototypes:
    """Return the prototypes of hyperspherical prototype networks (HPN) from the cache, or compute and cache them."""
    recipe: dict[str, object] = {"version": _RECIPE_VERSION, "num_prototypes": num_prototypes, "dim": dim, "seed": 0}
    recipe |= {"method": "separated", "iterations": SEPARATION_ITERATIONS, "lr": SEPARATION_LR}
    generator = keyed_generator(0, "separated prototypes")
    return _load_or_compute(
        recipe, partial(optimize_separated_prototypes, num_prototypes, dim, generator), show_message
    )


def optimize_separated_prototypes(
    num_prototypes: int,
    dim: int,
    generator: np.random.Generator,
    *,
    iterations: int = SEPARATION_ITERATIONS,
    lr: float = SEPARATION_LR,
) -> NDArray[np.float32]:
    r"""Push c >= 2 unit vectors in d >= 2 dimensions away from their nearest neighbors; return them as (c, d) float32.

    Starting from random directions, gradient descent on

    .. math:: L = \frac{1}{c} \sum_i \max_{j \ne i} w_i \cdot w_j

    with rows normalized to length 1 after every step. L is the mean cosine between a vector and its nearest
    neighbor, at least -1/(c - 1), which the simplex attains.

    Source:
        P. Mettes, E. van der Pol and C. Snoek, "Hyperspherical Prototype Networks" (NeurIPS 2019), the separation
        loss, and its released code. The code sets a momentum of 0.9 but creates a new optimizer after each step, which
        cancels it; we use none. The paper's other loss, on the order of word vectors, is omitted.
    """
    rows = generator.standard_normal((num_prototypes, dim))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for _ in range(iterations):
        rows -= lr * separation_loss_and_gradient(rows)[1]
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows.astype(np.float32)


def separation_loss_and_gradient(prototypes: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Compute the mean cosine of unit vectors (c, d) with their nearest neighbors (ties: the first), and its gradient.

    Each vector contributes to the gradient of its nearest neighbor, and vice versa.
    """
    count = len(prototypes)
    cosines = prototypes @ prototypes.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = cosines.argmax(axis=1)
    gradient = prototypes[nearest]
    np.add.at(gradient, nearest, prototypes)
    return float(cosines[np.arange(count), nearest].mean()), gradient / count


def _load_or_compute(
    recipe: dict[str, object], make: Callable[[], NDArray[np.float32]], show_note: Callable[[str], None]
) -> Prototypes:
    path = prototype_cache_path(recipe)
    with suppress(LabelkitError):  # a missing or damaged file is written anew
        found = read_prototypes(path)
        if found.recipe == recipe:
            return Prototypes(found.prototypes, recipe, "cache", path)
    vectors = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_prototypes(path, vectors, recipe, asdict(measure_spread(vectors)), overwrite=True)
    except (OSError, LabelkitError) as error:
        show_note(f"could not save the prototypes in {path.parent}: {error}")
        return Prototypes(vectors, recipe, "optimized", None)
    return Prototypes(vectors, recipe, "optimized", path)


def prototype_cache_path(recipe: dict[str, object]) -> Path:
    """Return the path of the cache file for prototypes with the given settings."""
    key = hashlib.sha256(canonical_json(recipe).encode()).hexdigest()[:16]
    return cache_folder() / "prototypes" / f"{recipe['num_prototypes']}x{recipe['dim']}-{key}.h5"
