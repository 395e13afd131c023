"""Summarize, from the measured results, how much training improved on frozen features.

    python examples/measured_gains.py

The script writes ``examples/results/measured_gains.json``. A case is one method on one dataset with one number of
labels, with the same seeds before and after training. For heads on a store, the score before training is that of the
best method on average among ``discover answer``, logistic regression, label spreading and semi-supervised k-means. For
networks, it is the same score on the features of the initial weights.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
OUT = RESULTS / "measured_gains.json"
PEERS = ("logistic regression", "label spreading", "ss-kmeans", "ours")
ROWS = {
    "grocery_head_cases.json": "5,421 photographs of 81 products, EfficientNet-Lite0",
    "cifar10_head_cases.json": "4,000 photographs of CIFAR-10, EfficientNet-Lite0",
    "digits_head_cases.json": "1,797 digits, pixels",
    "grocery_few_label_head_cases.json": "5,421 photographs of 81 products, EfficientNet-Lite0",
}
# heads on stored views; their rows end in ON_VIEWS
VIEWS = {"grocery_view_head_cases.json": "2,640 photographs of 81 products, 4 views, EfficientNet-Lite0"}
ON_VIEWS, OFF_VIEWS = ", views on", ", views off"
# per file: images; row before training, its key and score; rows: name, method, fraction of labeled classes, labels
RUNS: dict[str, dict[str, Any]] = {
    "cifar10_discovery_weights.json": {
        "data": "1,000 photographs of CIFAR-10 at 56 px, a ViT-S fine-tuned on scans",
        "before": "discover answer on frozen features",
        "key": "all",
        "score": "accuracy on images without a label",
        "rows": [
            ("gcd", "gcd", 0.5, 50),
            ("simgcd", "simgcd", 0.5, 50),
            *((f"flipclass, {mode}", "flipclass", 0.5, 50) for mode in ("none", "flip", "kld", "da")),
        ],
    },
    "grocery_retrieval_stages.json": {
        "data": "800 photographs of 40 products at 112 px, EfficientNet-Lite0",
        "before": "untrained",
        "key": "r@1",
        "score": "Recall@1 among 41 other products",
        "rows": [
            *((row, "tac-ccl", 0.0, 0) for row in ("baseline", "+ CCL", "+ CCL + TAC")),
            *((row, "san", 0.0, 0) for row in ("clusters, no SAN", "clusters, SAN")),
            *((f"labels, multi-similarity{more}", "san", 1.0, 20) for more in ("", ", SAN", ", SAN, no terms")),
        ],
    },
    "grocery_retrieval_large.json": {
        "data": "800 photographs of 40 products at 224 px, EfficientNet-Lite0",
        "before": "untrained",
        "key": "r@1",
        "score": "Recall@1 among 41 other products",
        "rows": [("clusters, no SAN", "san", 0.0, 0), ("labels, multi-similarity", "san", 1.0, 20)],
    },
    "grocery_retrieval_whole.json": {
        "kind": "whole network",
        "data": "800 photographs of 40 products at 112 px, EfficientNet-Lite0",
        "before": "untrained",
        "key": "r@1",
        "score": "Recall@1 among 41 other products",
        "rows": [("labels, multi-similarity", "san", 1.0, 20)],
    },
    "grocery_prototypes_rows.json": {
        "kind": "rows",
        "data": "5,421 photographs of 81 products, EfficientNet-Lite0",
        "before": "logistic regression on frozen features",
        "key": "accuracy",
        "score": "accuracy on test images",
        "rows": [
            ("psc d=64", "softmax", 1.0, 33),
            *((f"{row} d=64", "dl2pa", 1.0, 33) for row in ("fixed", "dl2pa")),
        ],
    },
    "grocery_prototypes_full.json": {
        "kind": "whole network",
        "data": "5,421 photographs of 81 products at 80 px, EfficientNet-Lite0",
        "before": "logistic regression on frozen features",
        "key": "accuracy",
        "score": "accuracy on test images",
        "rows": [("psc d=64", "softmax", 1.0, 33), ("dl2pa d=64", "dl2pa", 1.0, 33)],
    },
}


FEW_LABELS = {
    "cifar10_weights_few_labels.json": ("1,000 photographs of CIFAR-10 at 64 px, EfficientNet-Lite0", 10),
}
# heads for retrieval: images, and number of labels per class if labels are used
SEARCHES = {
    "grocery_label_free_heads.json": ("2,640 photographs of 81 products, 4 views, EfficientNet-Lite0", 33),
    "digits_label_free_heads.json": ("1,797 digits, pixels", 180),
}
FROZEN = ("logistic regression on frozen features", "discover answer on frozen features")


def case(pairs: Sequence[tuple[float, float]], **about: Any) -> dict[str, Any]:
    """Return one case from pairs of scores before and after training, one pair per seed."""
    gains = [after - before for before, after in pairs]
    return {
        **about,
        "before": round(statistics.mean(before for before, _ in pairs), 4),
        "after": round(statistics.mean(after for _, after in pairs), 4),
        "spread": round(statistics.stdev(gains), 4) if len(gains) > 1 else 0.0,
    }


def read(name: str) -> dict[str, Any]:
    """Read a file of results."""
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return found


def of_rows() -> Iterator[dict[str, Any]]:
    """Compare the best method without a head with the head, or with ``discover answer`` on its embeddings."""
    for name, data in (ROWS | VIEWS).items():
        rows = read(name)["rows"]
        for share, labels in sorted({(row["share"], row["labels"]) for row in rows}):
            cases = [row for row in rows if (row["share"], row["labels"]) == (share, labels)]
            peers = [peer for peer in PEERS if all(peer in row for row in cases)]
            if not peers:
                continue
            best = max(peers, key=lambda peer: statistics.mean(row[peer] for row in cases))
            methods = [key.removesuffix(" seconds") for key in cases[0] if key.endswith(" seconds")]
            for method in methods:
                forms = [form for form in (method, f"answer on {method}") if all(form in row for row in cases)]
                form = max(forms, key=lambda key: statistics.mean(row[key] for row in cases))
                pairs = [(row[best], row[form]) for row in cases]
                kind = "rows with views" if method.endswith(ON_VIEWS) else "rows"
                name_alone = method.removesuffix(ON_VIEWS).removesuffix(OFF_VIEWS)
                yield case(
                    pairs, kind=kind, method=name_alone, data=data, row=form, share=share, labels_per_class=labels,
                    score="accuracy on images without a label", source=name,
                )  # fmt: skip


def of_searches() -> Iterator[dict[str, Any]]:
    """Compare retrieval before and after training a head, for classes whose labels the head did not use."""
    for name, (data, labels) in SEARCHES.items():
        found: dict[tuple[str, str], dict[int, float]] = {}
        for row in read(name)["rows"]:
            found.setdefault((row["task"], row["rows"]), {})[row["seed"]] = row["recall_at_1"]
        for (task, form), after in found.items():
            method, _, on = form.partition(", on ")
            if method not in ("san", "sela"):
                continue
            before, has_labels = found[task, "as they are"], task != "no labels"
            yield case(
                [(before[seed], after[seed]) for seed in after],
                kind="rows with views" if on == "views" else "rows", method=method, data=data, row=f"{form}, {task}",
                share=float(has_labels), labels_per_class=labels * has_labels,
                score="Recall@1 among other classes" if has_labels else "Recall@1", source=name,
            )  # fmt: skip


def of_runs() -> Iterator[dict[str, Any]]:
    """Compare trained networks with the untrained row of the same file, seed by seed."""
    for name, about in RUNS.items():
        results, key = read(name)["results"], about["key"]
        start = {run["seed"]: run[key] for run in results[about["before"]]["runs"]}
        for row, method, share, labels in about["rows"]:
            pairs = [(start.get(run["seed"], start[0]) / 100, run[key] / 100) for run in results[row]["runs"]]
            yield case(
                pairs, kind=about.get("kind", "last stages"), method=method, data=about["data"], row=row, share=share,
                labels_per_class=labels, score=about["score"], source=name,
            )  # fmt: skip


def of_few_labels() -> Iterator[dict[str, Any]]:
    """Compare pretrained networks fine-tuned with a few labels with the better of two classifiers on features."""
    for name, (data, classes) in FEW_LABELS.items():
        for labels, results in read(name)["results"].items():
            best = min(FROZEN, key=lambda row: results[row]["error"]["mean"])
            for row, found in results.items():
                if row in FROZEN:
                    continue
                runs = zip(results[best]["runs"], found["runs"], strict=True)
                pairs = [(1 - before["error"] / 100, 1 - after["error"] / 100) for before, after in runs]
                yield case(
                    pairs, kind="whole network", method=row, data=data, row=row, share=1.0,
                    labels_per_class=int(labels) / classes, score="accuracy on test images", source=name,
                )  # fmt: skip


def main() -> None:
    """Collect and write."""
    cases = [*of_rows(), *of_searches(), *of_runs(), *of_few_labels()]
    record = {"command": "python examples/measured_gains.py", "cases": cases}
    OUT.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{len(cases)} cases in {OUT.name}")


if __name__ == "__main__":
    main()
