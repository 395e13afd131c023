"""Prototypes for a number of classes and dimensions: made once, then read from the user's cache."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
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
from labelkit.errors import LabelkitError, StoreError
from labelkit.methods.prototypes import class_separation
from labelkit.store.array_files import read_prototypes, write_prototypes
from labelkit.store.commit import canonical_json

# Of the way they are made; a change makes old files of the cache unused.
_RECIPE_VERSION = 1


@dataclass(frozen=True)
class Prototypes:
    """Unit prototype vectors with their recipe and origin.

    Attributes:
        vectors: (c, d) float32, rows of length 1.
        recipe: everything they depend on.
        source: ``closed form``, ``optimized`` just now, or ``cache``.
        cached_in: their file in the cache, if there is one.
    """

    vectors: NDArray[np.float32]
    recipe: dict[str, object]
    source: Literal["closed form", "optimized", "cache"]
    cached_in: Path | None


def load_or_make_prototypes(
    num_prototypes: int,
    dim: int,
    *,
    seed: int = 0,
    method: PrototypeMethod = "auto",
    t: float = DEFAULT_T,
    sharpest_t: float | None = SHARPEST_T,
    iterations: int = ITERATIONS,
    num_starts: int = 1,
    device: str = "cpu",
    use_cache: bool = True,
    say: Callable[[str], None] | None = None,
    report: Callable[[float, float], None] | None = None,
) -> Prototypes:
    """Return spread prototypes from a closed form, the cache or an optimization.

    What is made now goes into the cache. They depend on all arguments up to ``num_starts``. A file of the cache that is
    damaged or holds something else is made again, and a cache that cannot be written is no error; both are said.

    Args:
        num_prototypes: c, >= 2.
        dim: d, >= 2.
        seed: of the start, or of the rotation and order of a closed form.
        method: see :func:`labelkit.algorithms.prototypes.spread_prototypes`, as for the next four.
        t: sharpness of the loss.
        sharpest_t: sharpness in the end, or ``None``.
        iterations: for every sharpness.
        num_starts: starts, of which the best is kept.
        device: where torch computes; changes the last digits only.
        use_cache: look there, and put there what was made.
        say: is told what the user may want to know.
        report: progress, see ``spread_prototypes``.

    Raises:
        ValueError: a number is out of range.
    """
    is_closed = method == "auto" and min(num_prototypes, dim) >= 2 and closed_form(num_prototypes, dim) is not None
    recipe: dict[str, object] = {"version": _RECIPE_VERSION, "num_prototypes": num_prototypes, "dim": dim, "seed": seed}
    if is_closed:
        recipe["method"] = "closed form"
    else:
        recipe |= {"method": method, "t": float(t), "sharpest_t": None if sharpest_t is None else float(sharpest_t)}
        recipe |= {"iterations": iterations, "num_starts": num_starts}
    make = partial(
        spread_prototypes,
        num_prototypes,
        dim,
        keyed_generator(seed, "prototypes"),
        method=method,
        t=t,
        sharpest_t=sharpest_t,
        iterations=iterations,
        num_starts=num_starts,
        device=device,
        report=report,
    )
    if is_closed or not use_cache:  # a closed form is made quicker than read
        return Prototypes(make(), recipe, "closed form" if is_closed else "optimized", None)
    return _cached(recipe, make, say or (lambda text: None))


def load_or_separate(
    num_prototypes: int,
    dim: int,
    *,
    seed: int = 0,
    words: NDArray[np.float64] | None = None,
    say: Callable[[str], None] | None = None,
) -> Prototypes:
    """Return the prototypes of hyperspherical prototype networks, from the cache or computed and cached.

    Args:
        num_prototypes: c, >= 2.
        dim: d, >= 2.
        seed: of the start.
        words: (c, m) word vectors, whose order the prototypes shall have.
        say: is told what the user may want to know.

    Raises:
        ValueError: a word vector has length 0.
    """
    recipe: dict[str, object] = {"version": _RECIPE_VERSION, "num_prototypes": num_prototypes, "dim": dim, "seed": seed}
    if words is not None:
        recipe["words"] = hashlib.sha256(np.ascontiguousarray(words, dtype="<f8").tobytes()).hexdigest()
    recipe |= {"method": "separated", "iterations": class_separation.ITERATIONS, "lr": class_separation.LEARNING_RATE}
    make = partial(
        class_separation.separated_prototypes,
        num_prototypes,
        dim,
        keyed_generator(seed, "separated prototypes"),
        words=words,
    )
    return _cached(recipe, make, say or (lambda text: None))


def _cached(
    recipe: dict[str, object], make: Callable[[], NDArray[np.float32]], tell: Callable[[str], None]
) -> Prototypes:
    """Return what the cache holds, else what is made now and put there."""
    path = cache_path(recipe)
    found = _from_cache(path, recipe, tell) if path.exists() else None
    if found is not None:
        return Prototypes(found, recipe, "cache", path)
    vectors = make()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_prototypes(path, vectors, recipe, asdict(measure_spread(vectors)), overwrite=True)
    except (OSError, LabelkitError) as error:
        tell(f"could not keep the prototypes in {path.parent}: {error}")
        return Prototypes(vectors, recipe, "optimized", None)
    return Prototypes(vectors, recipe, "optimized", path)


def cache_path(recipe: dict[str, object]) -> Path:
    """Return the path of prototypes with this recipe in the cache."""
    key = hashlib.sha256(canonical_json(recipe).encode()).hexdigest()[:16]
    return cache_folder() / "prototypes" / f"{recipe['num_prototypes']}x{recipe['dim']}-{key}.h5"


def _from_cache(path: Path, recipe: dict[str, object], tell: Callable[[str], None]) -> NDArray[np.float32] | None:
    try:
        found = read_prototypes(path)
    except (StoreError, OSError) as error:
        problem = error.problem if isinstance(error, StoreError) else str(error)
        tell(f"{path}: {problem}; the prototypes are made again")
        return None
    shape = (recipe["num_prototypes"], recipe["dim"])
    if found.recipe != recipe or found.prototypes.shape != shape:
        tell(f"{path}: holds other prototypes than its name says; they are made again")
        return None
    return found.prototypes
