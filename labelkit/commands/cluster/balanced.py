"""Cluster the embeddings of a store with given cluster sizes: alternate balanced assignment and prototype updates.

Source of the assignment: Y. Asano, C. Rupprecht and A. Vedaldi, "Self-labelling via Simultaneous Clustering and
Representation Learning" (ICLR 2020); here the features are fixed, and prototypes (normalized means of normalized
embeddings) replace the network. Each assignment starts from the potentials of the previous round.
"""

import itertools
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.algorithms.clustering import kmeans
from labelkit.algorithms.row_blocks import StoredRows, row_slices
from labelkit.algorithms.sinkhorn import (
    KERNEL_BYTES,
    LinearScores,
    SinkhornResult,
    build_prior,
    solve_assignment,
    sort_prior_by_cluster_size,
)
from labelkit.commands.cluster.grouping import ClusteringOutput
from labelkit.commands.cluster.options import SinkhornConfig
from labelkit.commands.common.embeddings import check_nonzero_embeddings, load_rows_within_memory_limit, max_block_bytes
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.tables import is_file
from labelkit.errors import ConfigError, InputError
from labelkit.files import read_bytes
from labelkit.progress import current_progress
from labelkit.store.embeddings import EmbeddingStore

# Tolerance of intermediate rounds; only the last assignment must meet --tolerance.
_ROUND_TOLERANCE = 1e-4
_LARGEST_PRIOR_BYTES = 1 << 26


def assign_balanced_groups(config: SinkhornConfig, store: EmbeddingStore, rows: NDArray[np.int64]) -> ClusteringOutput:
    """Assign rows of a store to clusters of prescribed sizes.

    Raises:
        StoreError: the rows cannot be used.
        ConfigError: the prior is neither a known word nor a file.
        InputError: the file of the prior cannot be used.
    """
    prior = _read_prior(config.prior, config.num_clusters, len(rows))
    features = load_rows_within_memory_limit(config, store, rows, normalize=True)
    check_nonzero_embeddings(store, rows, features)
    generator = keyed_generator(config.seed, "cluster")
    clustering = kmeans(features, config.num_clusters, generator=generator, num_inits=config.num_inits, spherical=True)
    prototypes = torch.from_numpy(clustering.centroids.astype(np.float32))
    points = features if features.in_blocks else torch.from_numpy(features.to_array())
    found = _optimize_alternately(config, points, prior, prototypes)
    if not found.facts["converged"]:
        apart = f"{found.facts['marginal_error']:.1e}, more than --tolerance {config.tolerance:g}"
        current_progress().warning(f"cluster sizes deviate from the prior by {apart}; raise --temperature")
    return found


def _optimize_alternately(
    config: SinkhornConfig, points: Tensor | StoredRows, prior: Tensor, prototypes: Tensor
) -> ClusteringOutput:
    """Alternate between assigning rows (m, d), with prior (k,), and updating prototypes (k, d) until convergence."""
    lam = 1 / config.temperature
    memory_bytes = max_block_bytes(config, KERNEL_BYTES)

    def assign(tol: float, initial: Tensor | None) -> SinkhornResult:
        # float32 is not precise enough for a small tolerance
        dtype = torch.float64 if tol < _ROUND_TOLERANCE else torch.float32
        scores = LinearScores(points, prototypes)
        return solve_assignment(
            scores, lam, prior=prior, tol=tol, initial=initial, dtype=dtype, memory_bytes=memory_bytes
        )

    potentials: Tensor | None = None
    before: Tensor | None = None
    passes = 0
    if bool((prior != prior[0]).any()):
        first = solve_assignment(LinearScores(points, prototypes), lam, max_iterations=1)
        prior, passes = sort_prior_by_cluster_size(prior, first.marginals), 1
    for rounds in itertools.count(1):
        last = rounds == config.max_iterations
        tol = config.tolerance if last else max(config.tolerance, _ROUND_TOLERANCE)
        found = assign(tol, potentials)
        passes += found.num_iterations
        same = before is not None and torch.equal(found.cluster_ids, before)
        if same and not last and tol > config.tolerance:
            found = assign(config.tolerance, found.potentials)
            passes += found.num_iterations
        if same or last:
            break
        before, potentials = found.cluster_ids, found.potentials
        prototypes = _compute_mean_directions(points, found.cluster_ids, prototypes)
    shares = found.confidence.numpy()
    reached = {"rounds": rounds, "passes": passes}
    arrays = {"prototypes": prototypes, "potentials": found.potentials}
    arrays |= {"marginals": found.marginals, "prior_shares": prior}
    return ClusteringOutput(
        found.cluster_ids.numpy(),
        {name: array.numpy() for name, array in arrays.items()},
        {"marginal_error": found.marginal_error, "converged": found.converged, **reached},
        {"marginal error": found.marginal_error, **reached},
        {"confidence": shares},
        {"cost": found.cost, "mean_confidence": float(shares.mean())},
    )


def _compute_mean_directions(points: Tensor | StoredRows, cluster_ids: Tensor, prototypes: Tensor) -> Tensor:
    """Compute the mean direction of each cluster; clusters that are empty or have a zero mean keep their prototypes."""
    sums = torch.zeros(prototypes.shape, dtype=torch.float64)
    for block in row_slices(*points.shape):
        sums.index_add_(0, cluster_ids[block], torch.as_tensor(points[block]).double())
    lengths = sums.norm(dim=1, keepdim=True)
    return torch.where(lengths > 1e-6, (sums / lengths.clamp_min(1e-12)).float(), prototypes)


def _read_prior(spec: str, num_clusters: int, num_rows: int) -> Tensor:
    """Return the cluster proportions (k,) given by a word (``uniform``, ``zipf:a``) or a file."""
    is_word, path = spec == "uniform" or spec.startswith("zipf:"), Path(spec)
    words = "Pass uniform, zipf:A (such as zipf:1), or an existing file."
    if not is_word and not is_file(path):
        raise ConfigError("--prior", f"{spec!r} is neither a known prior nor a file", words)
    remedy = f"Pass a file of {num_clusters} positive numbers: fractions that sum to 1 or sizes that sum to {num_rows}."
    try:
        if is_word:
            return build_prior(spec, num_clusters)
        values = np.array(read_bytes(path, _LARGEST_PRIOR_BYTES).decode().replace(",", " ").split(), dtype=np.float64)
        if len(values) != num_clusters:
            raise ValueError(f"contains {len(values)} numbers, but there are {num_clusters} clusters")
        # build_prior checks that all are positive
        is_sizes = np.isfinite(values).all() and (values == np.round(values)).all() and values.sum() == num_rows
        return build_prior(values / num_rows if is_sizes else values, num_clusters)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(spec, "cannot be read as text", remedy) from error
    except ValueError as error:
        problem = str(error).removeprefix("prior ")
        raise (ConfigError("--prior", problem, words) if is_word else InputError(spec, problem, remedy)) from error
