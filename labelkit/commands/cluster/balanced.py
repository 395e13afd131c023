"""Group the rows of a store into groups of given sizes: balanced assignment and new prototypes by turns.

Source of the assignment: Y. Asano, C. Rupprecht and A. Vedaldi, "Self-labelling via Simultaneous Clustering and
Representation Learning" (ICLR 2020); here features are fixed and prototypes, means of unit rows scaled to unit length,
take the place of the network. A round assigns with potentials warm from the round before.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.algorithms.clustering import spherical_kmeans
from labelkit.algorithms.row_blocks import StoredRows, blocks
from labelkit.algorithms.sinkhorn import (
    KERNEL_BYTES,
    LinearScores,
    SinkhornResult,
    balanced_labels,
    make_prior,
    order_prior,
    solve,
)
from labelkit.commands.cluster.options import SinkhornConfig
from labelkit.commands.common.embeddings import check_directions
from labelkit.commands.common.max_memory import block_bytes, bounded_rows
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.common.stable_ids import NO_PARAMETERS, Groups, assign_stable_ids, read_earlier
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.tables import is_file
from labelkit.errors import ConfigError, InputError
from labelkit.files import read_bytes
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore
from labelkit.store.results import check_new_result, write_result

# Rounds before the last need not meet the sizes to every digit.
_ROUND_TOLERANCE = 1e-4
_EXACT_MOST_ROWS = 8000
_LARGEST_PRIOR_BYTES = 1 << 26


@dataclass(frozen=True)
class _Balanced:
    """What the rounds come to; ``rounds`` of assignment, ``passes`` over the scores in total."""

    result: SinkhornResult
    prior: Tensor
    prototypes: Tensor
    cluster_ids: NDArray[np.int64]
    confidence: NDArray[np.float32]
    rounds: int
    passes: int


def cluster_balanced(config: SinkhornConfig, store: EmbeddingStore, rows: NDArray[np.int64]) -> SimpleResult:
    """Cluster rows of a store into clusters of given sizes, as ``labelkit cluster sinkhorn`` does.

    Returns:
        The result file, sizes, marginal error, rounds.

    Raises:
        StoreError: rows cannot be used.
        ConfigError: the prior is neither a word nor a file, or there are too many rows for an exact balance.
        InputError: the file of the prior cannot be used.
    """
    if config.exact_balance and len(rows) > _EXACT_MOST_ROWS:
        raise ConfigError(
            "--exact-balance",
            f"{config.index} has {len(rows)} images; the assignment takes at most {_EXACT_MOST_ROWS}",
            "Remove this option, or choose a smaller --split.",
        )
    name, params = config.result or "sinkhorn", _params(config)
    check_new_result(store, name, overwrite=config.overwrite, kind="clusters", stage="cluster sinkhorn", params=params)
    earlier = read_earlier(config, name)
    prior = _read_prior(config.prior, config.num_clusters, len(rows))
    features = bounded_rows(config, store, rows, unit=True)
    check_directions(store, rows, features)
    started = time.monotonic()
    with current_progress().task(f"sinkhorn, {config.num_clusters} clusters", total=None):
        generator = keyed_generator(config.seed, "cluster")
        clustering = spherical_kmeans(features, config.num_clusters, generator=generator, num_inits=config.num_inits)
        prototypes = torch.from_numpy(clustering.centroids.astype(np.float32))
        points = features if features.in_blocks else torch.from_numpy(features.to_array())
        found = _alternate(config, points, prior, prototypes)
    seconds = time.monotonic() - started
    if not found.result.converged:
        current_progress().warning(
            f"cluster sizes are matched only to within {found.result.marginal_error:.1e}, not --tolerance "
            f"{config.tolerance:g}; raise --temperature"
        )
    return _write(config, store, rows, found, seconds, earlier)


def _params(config: SinkhornConfig) -> dict[str, object]:
    return {key: value for key, value in config.to_yaml_dict().items() if key not in NO_PARAMETERS}


def _write(
    config: SinkhornConfig,
    store: EmbeddingStore,
    rows: NDArray[np.int64],
    found: _Balanced,
    seconds: float,
    earlier: Groups | None,
) -> SimpleResult:
    name = config.result or "sinkhorn"
    overlap = config.keep_overlap
    lasting = assign_stable_ids(earlier, store, rows, found.cluster_ids, config.num_clusters, keep_overlap=overlap)
    cluster_ids = np.full(store.n, -1, dtype=np.int64)
    cluster_ids[rows] = lasting.ids[found.cluster_ids]
    confidence = np.zeros(store.n, dtype=np.float32)
    confidence[rows] = found.confidence
    sizes = np.bincount(cluster_ids[rows], minlength=lasting.num_ids)
    used = sizes[~lasting.retired]
    reached = {
        "marginal_error": found.result.marginal_error,
        "converged": found.result.converged,
        "rounds": found.rounds,
        "passes": found.passes,
    }
    path = write_result(
        store,
        name,
        kind="clusters",
        arrays={
            "cluster_ids": cluster_ids,
            "confidence": confidence,
            "prototypes": lasting.place(found.prototypes.numpy()),
            "potentials": lasting.place(found.result.potentials.numpy()),
            "marginals": lasting.place(found.result.marginals.numpy()),
            "prior_shares": lasting.place(found.prior.numpy()),
            **lasting.arrays(),
        },
        params={**_params(config), **lasting.params(), **reached},
        stage="cluster sinkhorn",
        overwrite=config.overwrite,
    )
    values: dict[str, object] = {
        "index": config.index,
        "result": name,
        "path": path,
        "algorithm": "sinkhorn",
        "num_clusters": config.num_clusters,
        "rows": len(rows),
        **reached,
        "cost": found.result.cost,
        "mean_confidence": float(found.confidence.mean()),
        "seconds": round(seconds, 3),
        "sizes": sizes.tolist(),
        **lasting.to_json(),
    }
    columns = ["result", "clusters", "rows", "smallest", "largest"]
    columns += ["marginal error", "rounds", "passes", "seconds", "path"]
    row: list[Cell] = [name, config.num_clusters, len(rows), int(used.min()), int(used.max())]
    row += [found.result.marginal_error, found.rounds, found.passes, round(seconds, 2), path]
    return SimpleResult(values, (path,), (Table("", columns, [row]),))


def _alternate(
    config: SinkhornConfig,
    points: Tensor | StoredRows,
    prior: Tensor,
    prototypes: Tensor,
) -> _Balanced:
    """Assign and move prototypes until no row changes its group.

    Args:
        config: options.
        points: (m, d) rows.
        prior: (k,) shares.
        prototypes: (k, d) to begin with.
    """
    lam = 1 / config.temperature
    memory_bytes = block_bytes(config, KERNEL_BYTES)
    potentials: Tensor | None = None
    passes = 0
    if bool((prior != prior[0]).any()):
        first = solve(LinearScores(points, prototypes), lam, max_iterations=1)
        prior, passes = order_prior(prior, first.marginals), 1
    rounds = 0
    before: Tensor | None = None
    while True:
        rounds += 1
        last = rounds == config.max_iterations
        tol = config.tolerance if last else max(config.tolerance, _ROUND_TOLERANCE)
        scores = LinearScores(points, prototypes)
        found = _solve(scores, lam, prior, tol, potentials, memory_bytes)
        passes += found.num_iterations
        same = before is not None and torch.equal(found.cluster_ids, before)
        if same and not last and tol > config.tolerance:
            found = _solve(scores, lam, prior, config.tolerance, found.potentials, memory_bytes)
            passes += found.num_iterations
        if same or last:
            break
        before, potentials = found.cluster_ids, found.potentials
        prototypes = _means(points, found.cluster_ids, prototypes)
    cluster_ids, confidence = found.cluster_ids, found.confidence
    if config.exact_balance:
        cluster_ids = balanced_labels(torch.as_tensor(points[:]) @ prototypes.T, prior)
        confidence = found.assignments(scores).gather(1, cluster_ids[:, None]).squeeze(1)
    ids, shares = cluster_ids.numpy(), confidence.float().numpy()
    return _Balanced(found, prior, prototypes, ids, shares, rounds=rounds, passes=passes)


def _solve(
    scores: LinearScores,
    lam: float,
    prior: Tensor,
    tol: float,
    initial: Tensor | None,
    memory_bytes: int,
) -> SinkhornResult:
    # sums of float32 exponentials do not meet a prior to six digits
    dtype = torch.float64 if tol < _ROUND_TOLERANCE else torch.float32
    return solve(scores, lam, prior=prior, tol=tol, initial=initial, dtype=dtype, memory_bytes=memory_bytes)


def _means(points: Tensor | StoredRows, cluster_ids: Tensor, prototypes: Tensor) -> Tensor:
    """Mean directions of the members; a group without members, or whose members cancel out, keeps its prototype."""
    sums = torch.zeros(prototypes.shape, dtype=torch.float64)
    for block in blocks(*points.shape):
        sums.index_add_(0, cluster_ids[block], torch.as_tensor(points[block]).double())
    lengths = sums.norm(dim=1, keepdim=True)
    return torch.where(lengths > 1e-6, (sums / lengths.clamp_min(1e-12)).float(), prototypes)


def _read_prior(spec: str, num_clusters: int, num_rows: int) -> Tensor:
    """Shares from a word or a file."""
    path = Path(spec)
    if spec == "uniform" or spec.startswith("zipf:"):
        try:
            return make_prior(spec, num_clusters)
        except ValueError as error:
            raise ConfigError(
                "--prior", str(error).removeprefix("prior: "), "Use uniform, zipf:1, or a file."
            ) from error
    if not is_file(path):
        raise ConfigError("--prior", f"{spec!r} is neither a known prior nor a file", "Use uniform, zipf:1, or a file.")
    remedy = f"Write {num_clusters} positive numbers: fractions that sum to 1, or sizes that sum to {num_rows}."
    try:
        if path.stat().st_size > _LARGEST_PRIOR_BYTES:
            raise InputError(spec, "is too large for a list of cluster sizes", remedy)
        text = read_bytes(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(spec, "cannot be read as text", remedy) from error
    try:
        values = np.array(text.replace(",", " ").split(), dtype=np.float64)
    except ValueError as error:
        raise InputError(spec, str(error), remedy) from error
    if len(values) and np.isfinite(values).all() and (values == np.round(values)).all() and values.sum() == num_rows:
        # sizes as they are: all that remains to check is that none is zero
        values = values / num_rows
    try:
        return make_prior(values, num_clusters)
    except ValueError as error:
        problem = str(error).removeprefix("prior: ")
        if len(values) != num_clusters:
            problem = f"{len(values)} numbers for {num_clusters} clusters"
        raise InputError(spec, problem, remedy) from error
