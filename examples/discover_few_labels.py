"""Measure how accurate discovered labels are, and whether a classifier benefits from them, on digits.

    python examples/discover_few_labels.py --out examples/results/digits_discovered.json

Precision: starting from 20 labels, two per class, how many of the first 20, 40, 80 and 160 images discovered in a store
(pixels, or the store in ``--index``) get the correct label? The methods are Snowball, LMCS, and confidence-based
self-training, which uses the probabilities of a logistic regression on the same features, trained once or again after
every 20 images.

Benefit: 20, 50 or 100 labels are doubled in each of three rounds, and a logistic regression is trained on all of them.
The table shows its error on 500 other digits, and the fraction of wrong labels in its training set.
"""

from __future__ import annotations

import argparse
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from comparison import shown, spread, write_record
from labelkit.commands.discover.few import discover_lmcs, discover_snowball
from labelkit.commands.discover.few_options import DiscoverLMCSConfig, DiscoverSnowballConfig
from labelkit.commands.embed.embed import embed_images
from labelkit.methods.few_labels.critical_samples import discover_critical_samples
from labelkit.methods.few_labels.pseudo_label_selection import Discovery, SearchRound, search_in_rounds
from labelkit.methods.few_labels.snowball_search import discover_confident_samples
from labelkit.options.embed import EmbedConfig
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

Array = NDArray[Any]
FIRST = (20, 40, 80, 160)
STEP = 20


def classifier(features: Array, labels: Array) -> LogisticRegression:
    """Fit a logistic regression to the labeled rows."""
    held = labels >= 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return LogisticRegression(C=1, max_iter=300).fit(features[held], labels[held])


def surest(turn: SearchRound) -> Discovery:
    """Return the rows with the most confident predictions."""
    chosen = [group[:wanted] for group, wanted in zip(turn.groups, turn.wants, strict=True)]
    return turn.build_discovery(chosen, [turn.keys[np.concatenate(chosen)]])


def self_train(
    features: Array, labels: Array, count: int | Literal["double"], rounds: int, **options: Any
) -> tuple[Array, Array]:
    """Repeatedly label the most confident rows and retrain the classifier; return rows and labels in order."""
    rows, named, current = [], [], labels
    for _ in range(rounds):
        wanted = int((current >= 0).sum()) if count == "double" else count
        doubt = 1 - classifier(features, current).predict_proba(features)

        def measure(
            now: Array, given: Array, pool: Array, num_classes: int, doubt: Array = doubt
        ) -> tuple[Array, Array]:
            return doubt[pool].min(axis=1), doubt[pool].argmin(axis=1)

        found = search_in_rounds(measure, surest, current, wanted, original=labels, **options)
        rows.append(found.indices)
        named.append(found.labels)
        current = found.fill_in(current)
    return np.concatenate(rows), np.concatenate(named)


# --------------------------------------------------------------------------- precision


def precision(index: Path, seed: int) -> dict[str, dict[int, float]]:
    """Return the percentage of correct labels among the first discovered ones, per method."""
    store = open_store(index)
    features, truth = np.asarray(store.embeddings, dtype=np.float64), np.asarray(store.labels)
    common = {"index": index, "num_labels": STEP, "label_seed": seed, "overwrite": True}
    snowball, lmcs = DiscoverSnowballConfig(**common), DiscoverLMCSConfig(**common)
    at_once = {
        "snowball": partial(discover_snowball, snowball),
        "snowball, far": partial(discover_snowball, snowball.model_copy(update={"select": "far"})),
        "snowball, global": partial(discover_snowball, snowball.model_copy(update={"balance": "global"})),
        "lmcs": partial(discover_lmcs, lmcs),
        "lmcs, not confined": partial(discover_lmcs, lmcs.model_copy(update={"confine": False})),
    }
    found: dict[str, dict[int, float]] = {}
    for name, discover in at_once.items():
        config = discover.args[0]
        found[name] = {}
        for count in FIRST:
            told: dict[str, Any] = discover.func(config.model_copy(update={"count": count})).to_json()
            found[name][count] = 100 * (1 - told["truth"]["error"])
    rounds = {"count": STEP, "rounds": FIRST[-1] // STEP}
    for name, discover in (
        ("snowball, in rounds of 20", partial(discover_snowball, snowball)),
        ("lmcs, in rounds of 20", partial(discover_lmcs, lmcs)),
    ):
        discover.func(discover.args[0].model_copy(update=rounds))
        result = read_result(store, discover.args[0].command[1])
        right = result.arrays["discovered_labels"] == truth[result.arrays["discovered_rows"]]
        found[name] = first_of(right)
    given = read_result(store, "snowball").arrays
    labels = np.where(given["sources"] == 1, given["pseudo_labels"], -1)
    for name, balance in (("self-training", "balanced"), ("self-training, global", "global")):
        found[name] = {}
        for count in FIRST:
            rows, named = self_train(features, labels, count, 1, balance=balance)
            found[name][count] = 100 * float((named == truth[rows]).mean())
    rows, named = self_train(features, labels, STEP, FIRST[-1] // STEP)
    found["self-training, again every 20"] = first_of(named == truth[rows])
    return found


def first_of(right: Array) -> dict[int, float]:
    """Return the percentage among the first discovered labels, in whole rounds."""
    return {count: 100 * float(right[:count].mean()) for count in FIRST}


# --------------------------------------------------------------------------- use


def growers() -> dict[str, Callable[[Array, Array, int], Discovery | None]]:
    """Return functions, by name, that map (features, labels, seed) to the labels found in three doubling rounds."""

    def snowball(features: Array, labels: Array, seed: int, **options: Any) -> Discovery:
        return discover_confident_samples(features, labels, "double", 3, seed=seed, **options)

    def lmcs(features: Array, labels: Array, seed: int, **options: Any) -> Discovery:
        return discover_critical_samples(features, labels, "double", 3, **options)

    return {
        "no discovery": lambda features, labels, seed: None,
        "snowball, min": snowball,
        "snowball, min, global": partial(snowball, balance="global"),
        "snowball, far": partial(snowball, select="far"),
        "snowball, random": partial(snowball, select="random"),
        "lmcs, max entropy": lmcs,
        "lmcs, min entropy": partial(lmcs, criterion="min_entropy"),
        "lmcs, max entropy, not confined": partial(lmcs, confine=False),
    }


def use(num_labels: int, seed: int) -> dict[str, dict[str, float]]:
    """Return test error and percentage of wrong labels, per method."""
    bundle = load_digits()
    pixels, truth = bundle.data / 16, bundle.target
    order = np.random.RandomState(0).permutation(len(truth))
    test, train = order[:500], order[500:]
    features, classes = pixels[train], truth[train]
    generator = np.random.RandomState(seed)
    labels = np.full(len(train), -1)
    for label in range(10):
        labels[generator.permutation(np.flatnonzero(classes == label))[: num_labels // 10]] = label
    found = {}
    for name, grow in growers().items():
        discovery = grow(features, labels, seed)
        grown = labels if discovery is None else discovery.fill_in(labels)
        found[name] = judge(features, grown, classes, pixels[test], truth[test])
    rows, named = self_train(features, labels, "double", 3)
    grown = labels.copy()
    grown[rows] = named
    found["self-training"] = judge(features, grown, classes, pixels[test], truth[test])
    return found


def judge(features: Array, labels: Array, classes: Array, queries: Array, answers: Array) -> dict[str, float]:
    """Return the errors of a classifier trained on the labels, and of the labels themselves, in percent."""
    held = labels >= 0
    error = float((classifier(features, labels).predict(queries) != answers).mean())
    return {"error": 100 * error, "wrong": 100 * float((labels[held] != classes[held]).mean())}


def main() -> None:
    """Run everything and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--index", type=Path, default=None, help="store of digits; default: their pixels")
    parser.add_argument("--out", type=Path, default=None, help="JSON file to write")
    parser.set_defaults(dataset="digits", extra=[])
    options = parser.parse_args()
    seeds = range(options.seeds)
    with tempfile.TemporaryDirectory() as scratch:
        index = Path(scratch) / "digits.h5"
        if options.index is None:
            embed_images(EmbedConfig(out=index, backbone="pixels", image_size=8))
        else:
            index.write_bytes(options.index.read_bytes())
        runs = [precision(index, seed) for seed in seeds]
    shares = {name: {count: spread([run[name][count] for run in runs]) for count in FIRST} for name in runs[0]}
    print(f"correct labels in %, {STEP} initial labels, mean ± standard deviation over {options.seeds} seeds\n")
    print("| first | " + " | ".join(map(str, FIRST)) + " |\n|---" + "|---" * len(FIRST) + "|")
    for name, row in shares.items():
        print(f"| {name} | " + " | ".join(shown(row[count]) for count in FIRST) + " |")
    errors: dict[str, Any] = {}
    for num_labels in (20, 50, 100):
        found = [use(num_labels, seed) for seed in seeds]
        errors[str(num_labels)] = {
            name: {key: spread([run[name][key] for run in found]) for key in ("error", "wrong")}
            | {"errors": [run[name]["error"] for run in found]}
            for name in found[0]
        }
    print("\ntest error in % (wrong labels in the training set in %)\n")
    print("| labels | " + " | ".join(errors) + " |\n|---" + "|---" * len(errors) + "|")
    for name in errors["20"]:
        cells = [f"{shown(row[name]['error'])} ({row[name]['wrong']['mean']:.1f})" for row in errors.values()]
        print(f"| {name} | " + " | ".join(cells) + " |")
    write_record(options, precision=shares, error=errors)


if __name__ == "__main__":
    main()
