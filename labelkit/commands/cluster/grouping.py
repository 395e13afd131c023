"""Output of the algorithms of ``labelkit cluster``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.results import Cell


@dataclass(frozen=True)
class ClusteringOutput:
    """Clusters found by an algorithm among m rows, with the values to store and report.

    Attributes:
        ids: (m,) int64 in ``[0, k)``, cluster of each row.
        of_groups: (k, ...) arrays for the result, one entry per cluster.
        facts: facts about the optimization, for the result's parameters and ``--json``.
        shown: facts to show as columns of the table.
        of_rows: (m,) arrays for the result, one entry per row.
        more: further values for ``--json``.
        classes: (k,) int64, class of each cluster, -1 = none; ``None`` without labels.
    """

    ids: NDArray[np.int64]
    of_groups: Mapping[str, NDArray[Any]]
    facts: Mapping[str, object]
    shown: Mapping[str, Cell]
    of_rows: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)
    classes: NDArray[np.int64] | None = None
