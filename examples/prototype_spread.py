"""Measure how well prototypes are spread, compared with the published files of DL2PA and with theoretical bounds.

Run: ``python examples/prototype_spread.py --out examples/results/prototype_spread.json``, which takes minutes. The
published values are measured on the files in the paper's repository, after normalizing the vectors. "refined" is the
best result that we obtained with the authors' loss and a sharper potential (t = 100), before the current optimizer.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from labelkit.algorithms.prototypes import closed_form, max_cosine_bound, measure_spread, spread_prototypes

# (classes, dim): published largest cosine and loss, refined largest cosine; None: not published
REFERENCES: dict[tuple[int, int], tuple[float | None, float | None, float | None]] = {
    (100, 3): (0.999772, -2.153134, 0.9360),
    (100, 5): (0.763479, -2.795857, 0.6924),
    (100, 10): (0.457278, -3.455158, 0.3422),
    (100, 16): (0.326188, -3.714486, 0.2130),
    (100, 25): (None, None, 0.1184),
    (100, 32): (0.246496, -3.921394, 0.0849),
    (100, 50): (None, None, 0.0),
    (100, 84): (0.018950, -4.029406, 0.0010),
    (100, 128): (-0.010086, -4.040404, None),
    (100, 200): (-0.010089, -4.040404, None),
    (200, 50): (0.204991, -3.928387, 0.0853),
    (200, 100): (0.199453, -4.004808, 0.0),
    (200, 200): (-0.004613, -4.020100, None),
    (1000, 512): (0.156410, -3.992997, 0.0506),
}


def main() -> None:
    """Compute the prototypes, measure their spread, print and write."""
    parser = argparse.ArgumentParser(description="Compare the spread of prototypes with published files and bounds.")
    parser.add_argument("--seeds", type=int, default=3, help="seeds per row (3)")
    parser.add_argument("--max-classes", type=int, default=1000, help="maximum number of classes (1000)")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = []
    print(
        "| c, d | published max / loss | refined max | ours: max | ours, t = 2 alone: loss | cannot be below | form |"
    )
    print("|---|---|---|---|---|---|---|")
    for (count, dim), (published, loss, refined) in REFERENCES.items():
        if count > options.max_classes:
            continue
        form = closed_form(count, dim)
        sharp, plain, seconds = [], [], []
        for seed in range(options.seeds):
            begin = time.process_time()
            sharp.append(measure_spread(spread_prototypes(count, dim, np.random.default_rng(seed))))
            seconds.append(time.process_time() - begin)
            generator = np.random.default_rng(seed)
            plain.append(measure_spread(spread_prototypes(count, dim, generator, sharpest_t=None)))
        row = {
            "classes": count,
            "dim": dim,
            "published": {"max_cosine": published, "uniformity": loss},
            "refined": {"max_cosine": refined},
            "bound": max_cosine_bound(count, dim),
            "closed_form": form is not None,
            "ours": [asdict(spread) for spread in sharp],
            "ours_loss_alone": [asdict(spread) for spread in plain],
            "cpu_seconds": seconds,
        }
        table.append(row)
        # the worst of the seeds: any single seed is at least as good
        largest, losses = max(s.max_cosine for s in sharp), max(s.uniformity for s in plain)
        cells = [
            f"{count}, {dim}",
            "-" if published is None else f"{published:.4f} / {loss:.4f}",
            "-" if refined is None else f"{refined:.4f}",
            f"{largest + 0.0:.4f}",
            f"{losses:.4f}",
            f"{row['bound']:.4f}",
            "closed" if form is not None else f"optimized, {np.mean(seconds):.1f} s",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
    if options.out is not None:
        packages = ("labelkit-images", "numpy", "scipy", "torch")
        versions = {"python": platform.python_version(), **{name: version(name) for name in packages}}
        options.out.write_text(
            json.dumps({"seeds": options.seeds, "versions": versions, "rows": table}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
