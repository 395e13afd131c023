"""What an algorithm of ``labelkit cluster`` finds, and wants to be kept and told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.results import Cell


@dataclass(frozen=True)
class Grouping:
    """Groups of m rows, as an algorithm found them.

    Attributes:
        ids: (m,) int64 in ``[0, k)``, group of each row.
        of_groups: (k, ...) arrays that the result keeps for each group.
        facts: how the groups were reached, for the parameters of the result and ``--json``.
        shown: columns of the table that tell the same.
        of_rows: (m,) arrays that the result keeps for each row.
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
