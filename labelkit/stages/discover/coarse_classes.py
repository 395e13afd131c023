"""Classes of classes: what a result keeps of the levels above its classes, and how they are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.group_levels import GroupLevels
from labelkit.stages.group.stable_ids import LastingIds
from labelkit.stages.result import Cell, Table

LEVEL_ARRAYS = ("level_parents", "tree_classes", "tree_unions", "tree_costs")
"""What results keep of levels, see :meth:`CoarseClasses.arrays`."""

_SHOWN = 3


@dataclass(frozen=True)
class CoarseClasses:
    """Levels above the classes of a result.

    Attributes:
        levels: of the groups as they were made.
        lasting: their ids.
        names: of the classes, by id.
    """

    levels: GroupLevels
    lasting: LastingIds
    names: Sequence[str]

    @property
    def columns(self) -> list[str]:
        """Headings of the levels, the finest first."""
        return [f"level {number}" for number in range(2, len(self.levels.numbers) + 2)]

    def arrays(self) -> dict[str, NDArray[np.generic]]:
        """What the result keeps.

        ``level_parents`` (l, ids): coarse class of each class, by level, -1 = retired. ``tree_classes`` (k,): class of
        each leaf of the tree; ``tree_unions`` (k - 1, 2): what each union joins, leaves by place, union i as k + i;
        ``tree_costs`` (k - 1,).
        """
        levels, empty = self.levels, np.zeros((0, self.lasting.num_ids), dtype=np.int64)
        parents = [self.lasting.place(parents) for parents in levels.parents]
        return {
            "level_parents": np.stack(parents) if parents else empty,
            "tree_classes": self.lasting.ids,
            "tree_unions": levels.unions,
            "tree_costs": levels.costs,
        }

    def cells(self, class_id: int) -> list[Cell]:
        """Coarse class of a class at each level."""
        place = int(np.flatnonzero(self.lasting.ids == class_id)[0])
        return [int(parents[place]) for parents in self.levels.parents]

    def to_json(self, sizes: NDArray[np.int64]) -> list[dict[str, Any]]:
        """Levels, the finest first: their number of classes, and what each holds; ``sizes`` are images by id."""
        found: list[dict[str, Any]] = []
        for level, (number, parents) in enumerate(zip(self.levels.numbers, self.levels.parents, strict=True), 2):
            members = [self.lasting.ids[parents == coarse].tolist() for coarse in range(number)]
            classes = [
                {"id": coarse, "classes": ids, "images": int(sizes[ids].sum())} for coarse, ids in enumerate(members)
            ]
            found.append({"level": level, "num_classes": number, "classes": classes})
        return found

    def table(self, sizes: NDArray[np.int64]) -> Table:
        """Return one row per coarse class, the coarsest level first."""
        cells: list[list[Cell]] = []
        for entry in reversed(self.to_json(sizes)):
            for one in entry["classes"]:
                cells.append([entry["level"], one["id"], len(one["classes"]), one["images"], self._text(one, sizes)])
        return Table("classes of classes", ["level", "id", "classes", "images", "of these"], cells)

    def _text(self, one: Mapping[str, Any], sizes: NDArray[np.int64]) -> str:
        """Names of the largest classes."""
        order = sorted(one["classes"], key=lambda number: -int(sizes[number]))
        more = f", and {len(order) - _SHOWN} more" if len(order) > _SHOWN else ""
        return ", ".join(self.names[number] for number in order[:_SHOWN]) + more
