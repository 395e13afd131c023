"""Is the advice before training right on images that it does not know? Cases of one set, advised by those of others.

    python examples/verdict_cases.py --out examples/results/verdict_cases.json

``labelkit train --dry-run`` and ``labelkit start`` advise from measured cases (``examples/measured_gains.py``).
Here each case gets the advice of the cases of the same method that were measured on other images (digits, groceries,
CIFAR-10), and it is counted what training then gave. Gained: more than the spread over seeds. Gain: percentage points,
mean over the cases. A case without another set of images is not counted.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
from labelkit.stages.train.verdict import MeasuredGain, measured_gains, verdict_of_cases

CLASSES = 20
"""Classes of the labels that stand for a case's; the advice looks only at labels a class and at the share."""


def images(case: MeasuredGain) -> str:
    """Return which images a case was measured on, whatever the network and their number."""
    return case.source.partition("_")[0]


def advised(case: MeasuredGain, every: list[MeasuredGain], *, any_method: bool) -> dict[str, Any] | None:
    """Advise a case by those of other images; None if there is none."""
    others = [
        one
        for one in every
        if one.kind == case.kind
        and images(one) != images(case)
        and (not one.is_search if any_method else one.method == case.method)
    ]
    labels = np.repeat(np.arange(round(CLASSES * case.share)), max(1, round(case.labels_per_class)))
    found = verdict_of_cases(case.kind, others, labels.astype(np.int64), CLASSES)
    if found.advice == "not measured":
        return None
    return {
        "method": case.method,
        "images": images(case),
        "share": case.share,
        "labels": case.labels_per_class,
        "advice": found.advice,
        "gain": round(100 * case.gain, 1),
        "gained": case.is_sure,
    }


def counted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Count, for each advice, how often training gained and how much."""
    found = []
    for advice in ("stop here", "try it", "may help"):
        cases = [row for row in rows if row["advice"] == advice]
        if cases:
            gains = [row["gain"] for row in cases]
            found.append(
                {"advice": advice, "cases": len(cases), "gained": sum(row["gained"] for row in cases)}
                | {"gain": round(statistics.mean(gains), 1), "smallest": min(gains), "largest": max(gains)}
            )
    return found


def main() -> int:
    """Advise every case, count, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="JSON to write")
    options = parser.parse_args()
    every = measured_gains()
    record: dict[str, Any] = {"command": shlex.join(["python", *sys.argv]), "rows": [], "cases": []}
    for by, any_method in (("cases of the same method", False), ("heads of all methods, as `labelkit start`", True)):
        asked = [case for case in every if not any_method or (case.kind == "rows" and not case.is_search)]
        rows = [row for case in asked if (row := advised(case, every, any_method=any_method)) is not None]
        record["rows"] += [{"by": by, **row} for row in counted(rows)]
        record["cases"] += [{"by": by, **row} for row in rows]
    for row in record["rows"]:
        print(
            f"{row['by']}: {row['advice']}: {row['gained']} of {row['cases']} gained more than their spread, mean "
            f"{row['gain']:+} points ({row['smallest']:+} to {row['largest']:+})"
        )
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
