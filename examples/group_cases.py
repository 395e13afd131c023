"""Which grouping finds classes again? Cases cut from stores whose labels are all known; the number is given.

    python examples/group_cases.py --choose grocery.h5 digits omniglot-a=omniglot.h5:omniglot-a.csv \
        --report kinds=grocery.h5:kinds.csv cifar10.h5 omniglot-b=omniglot.h5:omniglot-b.csv camvid.h5 \
        --seeds 2 --out group_cases.json

A case is ten classes of a store, or up to 66 of them, at most 1,500 rows, equally large or cut to a long tail;
without labels, or with 20 % of the labels of half of the classes. Each store is for choosing the method or for
reporting, never both; how stores are written is said in ``class_number_cases.py``. Kinds are other classes of the
same groceries.

Methods:
    tree is ``discover categories``, ss-kmeans as published starts new groups at single rows only. The rivals are
    scikit-learn's, and take no labels. HDBSCAN gets the least size, of five, whose number of groups is nearest; rows
    that it calls noise go to the nearest group. Rows have length 1; ``48`` are their first principal components,
    ``whitened`` these with variance 1.

All, Old and New are accuracies on rows without a label, by one matching for all three; a case counts as much as
another. With ``--odd STORE``, ten rows of that store are planted among those to choose on: how many groups are made
of such rows mostly, or of one row, for some least sizes. With ``--levels TABLE`` the groups of all classes of
a store are joined to as many as that table of the same rows has, and compared with it.
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
import sklearn
import torch
from class_number_cases import Rows, cut, draw_labels, read
from labelkit import __version__
from labelkit.algorithms.clustering import kmeans, nearest_centroids, spherical_kmeans, sum_rows
from labelkit.algorithms.group_levels import groups_at, join_groups
from labelkit.algorithms.projection import principal_directions
from labelkit.algorithms.sinkhorn import LinearScores, solve
from labelkit.metrics.clustering import cluster_accuracy, normalized_mutual_information
from labelkit.stages.discover.made_groups import GroupingRule, make_groups
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

FEW, MANY = 10, 66
LABELS = {"none": 0.0, "half": 0.5}
COMPONENTS = 48
LEAST_SIZES = (1, 2, 3, 5, 8)
ODD = 10


def fresh() -> np.random.Generator:
    """The same draws for every method."""
    return np.random.default_rng(0)


def unit(x: NDArray[Any]) -> Floats:
    """Rows of length 1."""
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12), dtype=np.float32)


def components(x: Floats, *, whiten: bool = False) -> Floats:
    """The first principal components."""
    directions, _ = principal_directions(x, min(COMPONENTS, x.shape[1]))
    found = (x - x.mean(axis=0)) @ directions
    return np.asarray(found / np.maximum(found.std(axis=0), 1e-9) if whiten else found, dtype=np.float32)


def by_stage(x: Floats, labels: Ints, k: int, name: str, min_size: int = 1) -> Ints:
    """As ``discover categories`` groups."""
    rule = GroupingRule("tree" if name == "tree" else "k-means", min_size)
    return make_groups(x, labels, k, rule, generator=fresh()).ids


def published(x: Floats, labels: Ints, k: int) -> Ints:
    """Semi-supervised k-means without the restart from means that labelkit adds."""
    free = labels < 0
    classes, own = np.unique(labels[~free], return_inverse=True)
    means = np.stack([x[labels == label].mean(axis=0) for label in classes]).astype(np.float32)
    rows = x[free]
    begun = np.square(rows - means[nearest_centroids(rows, means)]).sum(axis=1)
    sums = np.zeros((k, x.shape[1]))
    np.add.at(sums, own, x[~free])
    counts = np.bincount(own, minlength=k)
    best: tuple[float, Ints] | None = None
    for draws in fresh().random((10, k - len(classes))):
        places, closest = list(means), begun
        for number in draws:
            shares = np.cumsum(closest, dtype=np.float64)
            places.append(rows[min(int(shares.searchsorted(number * shares[-1])), len(rows) - 1)])
            closest = np.minimum(closest, np.square(rows - places[-1]).sum(axis=1))
        places = np.array(places, dtype=np.float64)
        for _ in range(100):
            ids = nearest_centroids(rows, places)
            total, members = sums + sum_rows(rows, ids, k), counts + np.bincount(ids, minlength=k)
            moved = np.where(members[:, None] > 0, total / np.maximum(members, 1)[:, None], places)
            done, places = np.linalg.norm(moved - places, axis=1).sum() ** 2 < 1e-4, moved
            if done:
                break
        inertia = float(np.square(rows - places[ids]).sum())
        if best is None or inertia < best[0]:
            best = (inertia, ids)
    assert best is not None
    found = np.empty(len(x), dtype=np.int64)
    found[free], found[~free] = best[1], own
    return found


def sinkhorn(x: Floats, k: int) -> Ints:
    """Groups of equal sizes."""
    rows = torch.from_numpy(unit(components(x)))
    prototypes = torch.from_numpy(spherical_kmeans(rows.numpy(), k, generator=fresh(), num_inits=1).centroids)
    before = None
    for _ in range(30):
        found = solve(LinearScores(rows, prototypes), 50.0, prior=torch.full((k,), 1 / k), tol=1e-3, max_iterations=200)
        if before is not None and torch.equal(found.cluster_ids, before):
            break
        before = found.cluster_ids
        sums = torch.zeros_like(prototypes).index_add_(0, before, rows)
        prototypes = torch.where(
            sums.norm(dim=1, keepdim=True) > 1e-6, sums / sums.norm(dim=1, keepdim=True), prototypes
        )
    return found.cluster_ids.numpy()


def hdbscan(x: Floats, k: int) -> Ints:
    """The least size, of five, that comes nearest to k groups."""
    from sklearn.cluster import HDBSCAN

    rows, tried = unit(components(x)), []
    for size in (3, 5, 8, 12, 20):
        ids = HDBSCAN(min_cluster_size=size, min_samples=min(3, size), copy=True).fit_predict(rows)
        tried.append((abs(np.log(max(1, ids.max() + 1) / k)), size, ids))
    ids = min(tried, key=lambda one: one[:2])[2].astype(np.int64)
    if ids.max() < 0:
        return np.zeros(len(x), dtype=np.int64)
    means = np.stack([rows[ids == group].mean(axis=0) for group in range(ids.max() + 1)])
    noise = np.flatnonzero(ids < 0)
    if len(noise):
        ids[noise] = nearest_centroids(rows[noise], means)
    return ids


def ward(x: Floats, k: int) -> Ints:
    """Agglomerative."""
    from sklearn.cluster import AgglomerativeClustering

    return np.asarray(AgglomerativeClustering(k, linkage="ward").fit_predict(x), dtype=np.int64)


def spectral(x: Floats, k: int) -> Ints:
    """On the graph of ten neighbors."""
    from sklearn.cluster import SpectralClustering

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the graph has several parts
        made = SpectralClustering(k, affinity="nearest_neighbors", n_neighbors=10, random_state=0, n_init=10)
        return np.asarray(made.fit_predict(x), dtype=np.int64)


def methods(x: Floats, labels: Ints, k: int) -> dict[str, Callable[[], Ints]]:
    """What is compared, by name."""
    few, white = components(x), components(x, whiten=True)

    def plain(rows: Floats) -> Ints:
        return kmeans(rows, k, generator=fresh()).cluster_ids

    found: dict[str, Callable[[], Ints]] = {
        "tree": lambda: by_stage(x, labels, k, "tree"),
        "k-means": lambda: plain(x),
        "k-means, 48": lambda: plain(few),
        "k-means, 48, length 1": lambda: plain(unit(few)),
        "k-means, 48, whitened": lambda: plain(white),
        "spherical k-means": lambda: spherical_kmeans(x, k, generator=fresh()).cluster_ids,
        "sinkhorn": lambda: sinkhorn(x, k),
        "HDBSCAN": lambda: hdbscan(x, k),
        "Ward": lambda: ward(x, k),
        "Ward, 48, length 1": lambda: ward(unit(few), k),
        "spectral": lambda: spectral(x, k),
    }
    if (labels >= 0).any():
        found |= {
            "ss-kmeans": lambda: by_stage(x, labels, k, "ss-kmeans"),
            "ss-kmeans as published": lambda: published(x, labels, k),
            "ss-kmeans, 48, length 1": lambda: by_stage(unit(few), labels, k, "ss-kmeans"),
            "tree without the labels": lambda: by_stage(x, np.full(len(x), -1), k, "tree"),
        }
    return found


def score(truth: Ints, labels: Ints, ids: Ints) -> dict[str, float]:
    """Accuracies and NMI on rows without a label, in percent; Old and New if there are labels."""
    free = labels < 0
    old = np.isin(np.arange(truth.max() + 1), labels[labels >= 0])
    found = cluster_accuracy(truth[free], ids[free], old)
    row = {"all": 100 * found.all_accuracy, "nmi": 100 * normalized_mutual_information(truth[free], ids[free])}
    if old.any():
        row |= {"old": 100 * found.old_accuracy, "new": 100 * found.new_accuracy}
    return {name: round(value, 2) for name, value in row.items()}


def cases(sets: list[Rows], seeds: int) -> Any:
    """Yield what each case is, its rows, and its labels."""
    for rows in sets:
        total = int(rows.truth.max()) + 1
        for num_classes in sorted({min(FEW, total), min(MANY, total)}):
            for tail in (False, True):
                for given, share in LABELS.items():
                    for seed in range(seeds):
                        rng = np.random.default_rng([seed, num_classes, tail])
                        part = cut(rows, num_classes, tail, rng)
                        part = Rows(part.name, part.x, np.unique(part.truth, return_inverse=True)[1])
                        labels = draw_labels(part.truth, share, "20 %", rng)
                        about = {"set": rows.name, "classes": num_classes, "tail": tail, "labels": given, "seed": seed}
                        yield about, part, labels, rng


def compare(sets: list[Rows], seeds: int) -> list[dict[str, Any]]:
    """A row for each case and method."""
    found = []
    for about, part, labels, _ in cases(sets, seeds):
        for name, group in methods(part.x, labels, about["classes"]).items():
            started = time.process_time()
            ids = group()
            seconds = round(time.process_time() - started, 2)
            found.append({**about, "method": name, **score(part.truth, labels, ids), "cpu_seconds": seconds})
    return found


def plant_odd(sets: list[Rows], strangers: Rows) -> list[dict[str, Any]]:
    """A row for each case, method and least size, with ten rows of another set among the others."""
    found = []
    for about, part, labels, rng in cases(sets, 1):
        if strangers.name.split("-")[0] == part.name.split("-")[0] or strangers.x.shape[1] != part.x.shape[1]:
            continue
        odd = strangers.x[rng.permutation(len(strangers.x))[:ODD]]
        x = np.concatenate([part.x, odd]).astype(np.float32)
        known = np.concatenate([labels, np.full(ODD, -1)])
        for name in ("tree", "k-means" if about["labels"] == "none" else "ss-kmeans"):
            for least in LEAST_SIZES:
                ids = by_stage(x, known, about["classes"], name, least)
                sizes = np.bincount(ids)
                strange = np.bincount(ids[-ODD:], minlength=len(sizes))
                row = {**about, "method": name, "min_size": least, **score(part.truth, labels, ids[:-ODD])}
                row |= {"odd_groups": int((2 * strange >= sizes).sum()), "single": int((sizes == 1).sum())}
                found.append(row | {"groups": len(sizes)})
    return found


def judge_levels(sets: list[Rows], tables: list[str], seeds: int) -> list[dict[str, Any]]:
    """How well groups of all classes, joined to as many as a table has, agree with that table."""
    found = []
    for word in tables:
        coarse = read(word)
        for rows in sets:
            if len(rows.x) != len(coarse.x) or not np.array_equal(rows.x, coarse.x):
                continue
            k, number = int(rows.truth.max()) + 1, int(coarse.truth.max()) + 1
            for given, share in LABELS.items():
                for seed in range(seeds):
                    labels = draw_labels(rows.truth, share, "20 %", np.random.default_rng(seed))
                    made = make_groups(rows.x, labels, k, GroupingRule(), generator=fresh())
                    levels = made.levels(2)
                    ids = groups_at(levels.unions, len(made.labels), number)[made.ids]
                    exact = np.stack([rows.x[rows.truth == label].mean(axis=0) for label in range(k)])
                    ideal = join_groups(exact, np.bincount(rows.truth), num_levels=1)
                    about = {"set": rows.name, "table": coarse.name, "labels": given, "seed": seed, "classes": number}
                    nmi = normalized_mutual_information(coarse.truth, ids)
                    best = normalized_mutual_information(coarse.truth, groups_at(ideal.unions, k, number)[rows.truth])
                    row = {**about, "nmi": round(100 * nmi, 1), "nmi_of_true_classes": round(100 * best, 1)}
                    found.append(row | {"chosen": levels.numbers})
    return found


def say(half: str, rows: list[dict[str, Any]]) -> None:
    """Print the mean of each method, best All first."""
    for given in LABELS:
        some = [row for row in rows if row["labels"] == given]
        means = {
            name: {
                key: np.mean([row[key] for row in some if row["method"] == name])
                for key in ("all", "old", "new", "nmi", "cpu_seconds")
                if key in some[0]
            }
            for name in dict.fromkeys(row["method"] for row in some)
        }
        for name, mean in sorted(means.items(), key=lambda one: -one[1]["all"]):
            print(f"{half}, labels {given}: {name}:", ", ".join(f"{key} {value:.1f}" for key, value in mean.items()))


def main() -> None:
    """Run the cases, print the means, and write all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--choose", nargs="*", default=["digits"], help="stores that the method was chosen on")
    parser.add_argument("--report", nargs="*", default=[], help="stores that it was not chosen on")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--odd", nargs="*", default=[], help="stores whose rows are planted among those to choose on")
    parser.add_argument("--levels", nargs="*", default=[], help="NAME=PATH:TABLE of coarser classes")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    record: dict[str, Any] = {"command": "python " + " ".join(sys.argv), "seeds": options.seeds}
    record["versions"] = {"labelkit": __version__, "scikit-learn": sklearn.__version__}
    sets = {half: [read(word) for word in getattr(options, half)] for half in ("choose", "report")}
    record["odd"] = [row for word in options.odd for row in plant_odd(sets["choose"], read(word))]
    every = sets["choose"] + sets["report"]
    record["levels"] = judge_levels(every, options.levels, options.seeds)
    for row in record["levels"]:
        print(row, flush=True)
    for half, rows in sets.items():
        record[half] = compare(rows, options.seeds)
        if record[half]:
            say(half, record[half])
    if options.out is not None:
        text = json.dumps(record)
        options.out.write_text(text.replace("}, {", "},\n{").replace(": [{", ": [\n{") + "\n")


if __name__ == "__main__":
    main()
