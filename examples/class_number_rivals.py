"""What other ways to count classes say of the cases of ``class_number_cases.py``.

    python examples/class_number_rivals.py --choose STORE ... --report STORE ... --out rivals.json

They get the same rows, of length 1, and the same range: from the classes with labels, or 2, to a third of the rows.
Pass the file to ``class_number_cases.py --rivals``. For want of time:

- ``published`` (GCD's search by labels, Brent's method) has one start of k-means; ``published, to a tenth`` is the
  same, to a tenth of the rows;
- the others need no labels, so each set of rows is looked at once; all but HDBSCAN and the spectral gap try 24
  numbers, evenly on a logarithmic scale.

All of these but ``published`` work on the first 48 principal components:

- k-means judged by silhouette, Calinski-Harabasz, Davies-Bouldin, and prediction strength (the most groups that have
  .8 or more);
- Gaussian mixtures with diagonal covariances, by BIC;
- HDBSCAN, groups of ten rows or more;
- spectral gap: of the normalized Laplacian of the graph of ten neighbors, among the first numbers up to a tenth of
  the rows.

Sources: Vaze et al., "Generalized Category Discovery"; Tibshirani and Walther, "Cluster Validation by Prediction
Strength"; von Luxburg, "A Tutorial on Spectral Clustering"; the others as in scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from class_number_cases import cases, key_of, read
from labelkit.algorithms.matching import contingency
from labelkit.algorithms.over_clustering import estimate_num_classes
from labelkit.algorithms.projection import principal_directions
from numpy.typing import NDArray
from scipy.sparse import identity
from scipy.sparse.csgraph import laplacian
from scipy.sparse.linalg import eigsh
from sklearn.cluster import HDBSCAN, KMeans
from sklearn.metrics import calinski_harabasz_score, davies_bouldin_score, silhouette_score
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import kneighbors_graph

Floats = NDArray[np.float32]

COMPONENTS = 48
NUMBERS = 24
LEAST_SIZE = 10
NEIGHBORS = 10
STRONG = 0.8
PUBLISHED = {"published": 3, "published, to a tenth": 10}


def reduced(x: Floats) -> Floats:
    """First principal components."""
    directions, _ = principal_directions(x, min(COMPONENTS, x.shape[1], len(x) - 1))
    return ((x - x.mean(axis=0)) @ directions).astype(np.float32)


def numbers_to_try(count: int) -> list[int]:
    """From 2 to a third of the rows."""
    return sorted(set(np.geomspace(2, max(3, count // 3), NUMBERS).round().astype(int).tolist()))


def by_kmeans(x: Floats) -> dict[str, int]:
    """The best numbers by three indices of k-means."""
    numbers = numbers_to_try(len(x))
    ids = [KMeans(number, n_init=1, random_state=0).fit_predict(x) for number in numbers]
    judges: dict[str, Callable[[NDArray[np.int64]], float]] = {
        "silhouette": lambda groups: float(silhouette_score(x, groups)),
        "Calinski-Harabasz": lambda groups: float(calinski_harabasz_score(x, groups)),
        "Davies-Bouldin": lambda groups: -float(davies_bouldin_score(x, groups)),
    }
    return {name: numbers[int(np.argmax([judge(groups) for groups in ids]))] for name, judge in judges.items()}


def by_prediction_strength(x: Floats) -> int:
    """The most groups that a half of the rows predicts in the other."""
    order = np.random.default_rng(0).permutation(len(x))
    first, second = x[order[: len(x) // 2]], x[order[len(x) // 2 :]]
    strong = 1
    for number in numbers_to_try(len(x)):
        if number > len(first) // 2:
            break
        ours = KMeans(number, n_init=1, random_state=0).fit(second)
        predicted = KMeans(number, n_init=1, random_state=0).fit(first).predict(second)
        table = contingency(ours.labels_.astype(np.int64), predicted.astype(np.int64)).astype(float)
        sizes = table.sum(axis=1)
        pairs = (table * (table - 1)).sum(axis=1)[sizes > 1] / (sizes * (sizes - 1))[sizes > 1]
        strong = number if len(pairs) and pairs.min() >= STRONG else strong
    return max(2, strong)


def by_mixtures(x: Floats) -> int:
    """The number of Gaussians of lowest BIC."""
    numbers = numbers_to_try(len(x))
    bics = []
    for number in numbers:
        made = GaussianMixture(number, covariance_type="diag", random_state=0, max_iter=50, reg_covar=1e-5).fit(x)
        bics.append(made.bic(x))
    return numbers[int(np.argmin(bics))]


def by_density(x: Floats) -> int:
    """Groups of HDBSCAN, at least one."""
    return max(1, int(HDBSCAN(min_cluster_size=min(LEAST_SIZE, len(x)), copy=True).fit_predict(x).max()) + 1)


def by_gap(x: Floats) -> int:
    """The eigenvalues before the widest gap."""
    near = kneighbors_graph(x, min(NEIGHBORS, len(x) - 1))
    most = min(200, max(3, len(x) // 10))
    matrix = laplacian(near.maximum(near.T), normed=True)
    start = np.random.default_rng(0).normal(size=len(x))
    # the largest of 2 - L are found faster than the smallest of L
    largest = eigsh(2 * identity(len(x), format="csr") - matrix, k=most + 1, which="LA", v0=start)[0]
    values = np.sort(2 - largest)
    return int(np.argmax(np.diff(values)[1:])) + 2


LABEL_FREE: dict[str, Callable[[Floats], int]] = {
    "prediction strength": by_prediction_strength,
    "mixtures by BIC": by_mixtures,
    "HDBSCAN": by_density,
    "spectral gap": by_gap,
}


def published(x: Floats, labels: NDArray[np.int64], share: int) -> int:
    """GCD's estimate."""
    least = max(2, len(np.unique(labels[labels >= 0])))
    most = max(least + 1, len(x) // share)
    return estimate_num_classes(x, labels, labels >= 0, k_min=least, k_max=most, seed=0, num_inits=1).best


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its CPU seconds."""
    started = time.process_time()
    return call(), round(time.process_time() - started, 2)


def main() -> None:
    """Run what is not in the file yet, and write after each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choose", nargs="*", default=[], help="stores, as for class_number_cases.py")
    parser.add_argument("--report", nargs="*", default=["digits"])
    parser.add_argument("--out", type=Path, required=True, help="JSON file; what is in it is kept")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # mixtures that have not converged
    record: dict[str, Any] = json.loads(options.out.read_text()) if options.out.exists() else {}
    record["command"] = "python " + " ".join(sys.argv)
    for half in ("report", "choose"):
        sets = [read(word) for word in getattr(options, half)]
        found: dict[str, dict[str, Any]] = record.setdefault(half, {})
        for about, part, labels in cases(sets, seed=0):
            key, row = key_of({**about, "seed": 0}), {}
            if key in found:
                continue
            if about["labels"] == "none":
                few = reduced(part.x)
                numbers, seconds = timed(lambda few=few: by_kmeans(few))
                row = {name: [number, seconds] for name, number in numbers.items()}
                row |= {name: timed(lambda few=few, ask=ask: ask(few)) for name, ask in LABEL_FREE.items()}
            else:
                for name, share in PUBLISHED.items():
                    row[name] = timed(lambda part=part, labels=labels, share=share: published(part.x, labels, share))
            found[key] = row
            options.out.write_text(json.dumps(record, indent=1) + "\n")
            print(half, about, row, flush=True)


if __name__ == "__main__":
    main()
