"""The groups that an algorithm of ``labelkit cluster`` finds, and what to store and report about them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.results import Cell


@dataclass(frozen=True)
class Grouping:
    """Groups that a clustering algorithm found among m rows.

    Attributes:
        ids: (m,) int64 in ``[0, k)``, group of each row.
        of_groups: (k, ...) arrays of the result with one entry per group.
        facts: how the groups were reached, for the parameters of the result and ``--json``.
        shown: the same facts as columns of the printed table.
        of_rows: (m,) arrays of the result with one entry per row.
        more: further numbers for ``--json``.
        classes: (k,) int64, class of each group, -1 = none; ``None`` without labels.
    """

    ids: NDArray[np.int64]
    of_groups: Mapping[str, NDArray[Any]]
    facts: Mapping[str, object]
    shown: Mapping[str, Cell]
    of_rows: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    more: Mapping[str, object] = field(default_factory=dict)
    classes: NDArray[np.int64] | None = None
