"""Compare two groupings of partly the same images: what became of each group, and which images moved."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.algorithms.group_changes import GroupChanges, compare_groups
from labelkit.commands.cluster.options import DiffConfig
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.common.stable_ids import Groups, read_groups, shared_rows
from labelkit.data.path_rule import escaped_path
from labelkit.errors import StoreError
from labelkit.store.commit import commit_bytes
from labelkit.store.csv_table import csv_bytes
from labelkit.store.embeddings import open_store
from labelkit.store.results import list_results

COLUMNS = ("path", "previous_path", "previous_group", "group", "change")
CHANGES = ("stayed", "moved", "added", "removed", "grouped", "ungrouped", "without group")
"""What became of an image: in a related group, in another, only in the later or earlier store; in both, with a group
only there or only here, or with none."""

_MOVES_SHOWN = 10


@dataclass(frozen=True)
class _Side:
    """One grouping, its groups numbered from 0.

    Attributes:
        groups: as read.
        used: ids that have rows, in order.
        places: (n,) number of each row's group, -1 = none.
        sizes: rows of each.
    """

    groups: Groups
    used: NDArray[np.int64]
    places: NDArray[np.int64]
    sizes: NDArray[np.int64]

    def name(self, number: int) -> str:
        """Return the id of a group with its name, if it has one."""
        group = int(self.used[number])
        return str(group) if self.groups.names is None else f"{group} ({self.groups.name(group)})"

    def to_json(self, number: int) -> dict[str, object]:
        """Return id, name and size of a group as JSON."""
        group = int(self.used[number])
        return {"id": group, "name": self.groups.name(group), "images": int(self.sizes[number])}


def diff_groups(config: DiffConfig) -> SimpleResult:
    """Compare two groupings on the images that both stores contain, by the SHA-256 of their files.

    Which groups are kept, split, merged, changed, new or vanished is defined by :func:`compare_groups`. An image moved
    if it has a group in both, and its groups are not related by one of the first four.

    Raises:
        StoreError: a store or a result cannot be used, or no image is in both.
        ConfigError: the CSV would be overwritten.
    """
    later = _side(read_groups(open_store(config.index), config.result))
    previous_store = open_store(config.previous or config.index)
    names = list_results(previous_store)
    if config.previous_result is None and names and config.result not in names:
        problem = f"has no result {config.result!r} (it has: {', '.join(names)})"
        raise StoreError(str(previous_store.path), problem, "Choose a result with --previous-result.")
    earlier = _side(read_groups(previous_store, config.previous_result or config.result))
    before, after = shared_rows(earlier.groups.store, later.groups.store)
    both = (earlier.places[before] >= 0) & (later.places[after] >= 0)
    if not both.any():
        raise StoreError(
            str(earlier.groups.result.path),
            f"groups none of the images that {later.groups.result.path} groups",
            "Compare stores of mostly the same images.",
        )
    counts = np.zeros((len(earlier.used), len(later.used)), dtype=np.int64)
    np.add.at(counts, (earlier.places[before[both]], later.places[after[both]]), 1)
    same = _same(earlier, later)
    changes = compare_groups(counts, main_share=config.main_share, part_share=config.part_share, same=same)
    lines = _images(earlier, later, before, after, changes)
    made: tuple[Path, ...] = ()
    if config.csv is not None:
        commit_bytes(config.csv, _table(lines))
        made = (config.csv,)
    tally = {change: sum(line[4] == change for line in lines) for change in CHANGES}
    events = _events(earlier, later, counts, changes)
    values: dict[str, object] = {
        "index": config.index,
        "result": config.result,
        "previous": config.previous or config.index,
        "previous_result": earlier.groups.result.name,
        "main_share": config.main_share,
        "part_share": config.part_share,
        "images": tally,
        "csv": config.csv,
        **events,
        "moved": [
            {"path": line[0], "previous_group": line[2], "group": line[3]} for line in lines if line[4] == "moved"
        ],
    }
    tables = [
        Table(
            "groups",
            ["change", "previous", "images", "now", "images now", "in both"],
            _cells(earlier, later, counts, changes),
        ),
        Table("images", list(tally), [list(tally.values())]),
        *_moves(lines),
    ]
    return SimpleResult(values, made, tuple(tables))


def _side(groups: Groups) -> _Side:
    used = np.unique(groups.ids[groups.ids >= 0])
    places = np.where(groups.ids >= 0, np.searchsorted(used, groups.ids), -1)
    return _Side(groups, used, places, np.bincount(places[places >= 0], minlength=len(used)))


def _same(earlier: _Side, later: _Side) -> list[tuple[int, int]]:
    """Pairs of one class with labels, and of one id where the later run went on with the ids of the earlier one."""
    source = later.groups.result.params.get("previous")
    goes_on = isinstance(source, dict) and source.get("content_digest") == earlier.groups.result.content_digest
    ids = {group: p for p, group in enumerate(earlier.used.tolist())}
    classes = {earlier.groups.name(group): p for group, p in ids.items() if earlier.groups.is_class[group]}
    pairs = []
    for q, group in enumerate(later.used.tolist()):
        if later.groups.is_class[group]:
            p = classes.get(later.groups.name(group))
        else:
            p = ids.get(group) if goes_on and not earlier.groups.is_class[group] else None
        if p is not None:
            pairs.append((p, q))
    return pairs


def _images(
    earlier: _Side, later: _Side, before: NDArray[np.int64], after: NDArray[np.int64], changes: GroupChanges
) -> list[tuple[str, str, str, str, str]]:
    """A line per image, by path; those that are gone at the end."""
    before_of = dict(zip(after.tolist(), before.tolist(), strict=True))
    lines: list[tuple[str, str, str, str, str]] = []
    for row, path in enumerate(later.groups.store.sample_ids):
        now = int(later.places[row])
        group = "" if now < 0 else later.name(now)
        if row not in before_of:
            lines.append((path, "", "", group, "added"))
            continue
        old_row = before_of[row]
        was = int(earlier.places[old_row])
        if was >= 0 and now >= 0:
            change = "stayed" if changes.related[was, now] else "moved"
        else:
            change = "ungrouped" if was >= 0 else "grouped" if now >= 0 else "without group"
        old_path = earlier.groups.store.sample_ids[old_row]
        lines.append((path, old_path, "" if was < 0 else earlier.name(was), group, change))
    gone = np.setdiff1d(np.arange(earlier.groups.store.n), before)
    for row in gone.tolist():
        was = int(earlier.places[row])
        path = earlier.groups.store.sample_ids[row]
        lines.append(("", path, "" if was < 0 else earlier.name(was), "", "removed"))
    return lines


def _moves(lines: list[tuple[str, str, str, str, str]]) -> list[Table]:
    """Where most images moved from and to; nothing if none did."""
    moves = Counter(line[2:4] for line in lines if line[4] == "moved")
    cells: list[list[Cell]] = [[was, now, count] for (was, now), count in moves.most_common(_MOVES_SHOWN)]
    more = f", the {_MOVES_SHOWN} most frequent of {len(moves)} pairs of groups" if len(moves) > _MOVES_SHOWN else ""
    return [Table(f"moved{more}", ["previous", "now", "images"], cells)] if cells else []


def _table(lines: list[tuple[str, str, str, str, str]]) -> bytes:
    return csv_bytes(COLUMNS, (map(escaped_path, line) for line in lines))


def _events(earlier: _Side, later: _Side, counts: NDArray[np.int64], changes: GroupChanges) -> dict[str, object]:
    def pair(p: int, q: int) -> dict[str, object]:
        return {"previous": earlier.to_json(p), "now": later.to_json(q), "shared": int(counts[p, q])}

    return {
        "kept": [pair(p, q) for p, q in changes.kept],
        "changed": [pair(p, q) for p, q in changes.changed],
        "split": [
            {
                "previous": earlier.to_json(p),
                "now": [{**later.to_json(q), "shared": int(counts[p, q])} for q in parts],
            }
            for p, parts in changes.splits
        ],
        "merged": [
            {
                "previous": [{**earlier.to_json(p), "shared": int(counts[p, q])} for p in parts],
                "now": later.to_json(q),
            }
            for q, parts in changes.merges
        ],
        "new": [later.to_json(q) for q in changes.new],
        "vanished": [earlier.to_json(p) for p in changes.vanished],
    }


def _cells(earlier: _Side, later: _Side, counts: NDArray[np.int64], changes: GroupChanges) -> list[list[Cell]]:
    def row(change: str, p: int | None, q: int | None) -> list[Cell]:
        return [
            change,
            None if p is None else earlier.name(p),
            None if p is None else int(earlier.sizes[p]),
            None if q is None else later.name(q),
            None if q is None else int(later.sizes[q]),
            None if p is None or q is None else int(counts[p, q]),
        ]

    cells = [row("kept", p, q) for p, q in changes.kept]
    cells += [row("changed", p, q) for p, q in changes.changed]
    cells += [row("split", p, q) for p, parts in changes.splits for q in parts]
    cells += [row("merged", p, q) for q, parts in changes.merges for p in parts]
    cells += [row("new", None, q) for q in changes.new]
    return cells + [row("vanished", p, None) for p in changes.vanished]
