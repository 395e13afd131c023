"""What is embedded of a part, kept every few seconds: a kill loses seconds, however slow the network is.

The bytes of a store do not depend on it: a part holds the same batches, whether they were computed at once or not.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labelkit.stages.embed.patches import PatchCollector
from labelkit.store.patch_writing import PatchRun
from labelkit.store.schema import name_text
from labelkit.store.writer import strings
from labelkit.store.writing import EmbeddingRun

SECONDS = 5.0


class Journal:
    """Keeps what is made of one part.

    Args:
        run: that the part is of.
        patches: that are made with it; ``None``: none.
        part: its number.
        collector: of the patches.
    """

    def __init__(
        self, run: EmbeddingRun, patches: PatchRun | None, part: int, collector: PatchCollector | None
    ) -> None:
        self._run, self._patches, self._part, self._collector = run, patches, part, collector
        self._last = time.monotonic()

    def restore(
        self, found: dict[str, list[NDArray[Any]]], rows: NDArray[np.int64]
    ) -> tuple[int, list[tuple[int, str]]]:
        """Take what was kept.

        Args:
            found: batches of each column; those that were kept are appended.
            rows: of the part that are to be embedded.

        Returns:
            How many of the rows are done, and those of them that were left out, with reasons.
        """
        kept = self._run.begun(self._part)
        if kept is None:
            return 0, []
        done = int(kept["done"][0])
        first = int(rows[done]) if done < len(rows) else int(rows[-1]) + 1
        if self._collector is not None:
            # patches may be wanted of a store whose rows were begun without them
            if not kept["has_patches"][0] or self._patches is None:
                return 0, []
            if not self._patches.has_pieces_before(self._part, first):
                return 0, []
            self._collector.go_on(first, kept)
        for name, batches in found.items():
            batches.append(kept[f"columns/{name}"])
        reasons = [name_text(raw) for raw in kept["skipped/reasons"].tolist()]
        return done, list(zip(kept["skipped/rows"].tolist(), reasons, strict=True))

    def keep(self, done: int, found: dict[str, list[NDArray[Any]]], skipped: Sequence[tuple[int, str]]) -> None:
        """Keep what there is, if the last time is some seconds ago.

        Args:
            done: rows that are embedded or left out.
            found: batches of each column.
            skipped: rows that were left out, with reasons.

        Raises:
            ResourceError: the disk is full, ...
        """
        if time.monotonic() - self._last < SECONDS:
            return
        for name, batches in found.items():
            found[name] = [np.concatenate(batches)]
        columns = {f"columns/{name}": batches[0] for name, batches in found.items()}
        columns["done"] = np.array([done], dtype=np.int64)
        columns["has_patches"] = np.array([self._collector is not None], dtype=np.uint8)
        columns["skipped/rows"] = np.array([row for row, _ in skipped], dtype=np.int64)
        columns["skipped/reasons"] = strings(reason.replace("\0", " ") for _, reason in skipped)
        if self._collector is not None:
            columns |= self._collector.waiting()
        self._run.keep_begun(self._part, columns)
        self._last = time.monotonic()
