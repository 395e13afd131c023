"""The page itself: template, style and script become one HTML file that loads nothing and runs nothing else.

All texts go through jinja2's autoescape, or as JSON without ``<``, ``>`` and ``&`` into a block of data. The
Content-Security-Policy allows exactly this style and this script, by their digests, and images that are in the file.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from labelkit import __version__
from labelkit.studio.report.curves import Curves
from labelkit.studio.report.findings import Finding, Neighbors
from labelkit.studio.report.groups import Candidate, Grouping
from labelkit.studio.report.images import Places, ShownImages, shown_text
from labelkit.studio.report.overview import Overview, Scores
from labelkit.studio.report.thumbnails import COLUMNS, LOSSLESS, TILES, Thumbnails
from labelkit.studio.report.work import WorkStart, work_data

_FOLDER = Path(__file__).parent / "page"
_STYLES = ("report.css", "work.css")
_WORK = ("work_grid.js", "work_keep.js", "work.js", "work_one.js", "work_take.js")
_SCRIPTS = ("data.js", "tiles.js", "panel.js", "groups.js", "work_state.js", "map.js", *_WORK, "main.js", "end.js")
_LABEL_SCRIPTS = ("data.js", "tiles.js", "panel.js", "work_state.js", "map.js", *_WORK, "end.js")
_NONE = 65_535
# columns of a table that still can be read
_WIDEST_TABLE = 40


@dataclass(frozen=True)
class PageContents:
    """Everything that a report page shows.

    Attributes:
        title: name of the store.
        images: those shown.
        store_rows: images of the store.
        class_names: as in the store.
        split_names: as in the store.
        splits: (m,) int16, split of each image shown, -1 = none.
        usable: (m,) bool, whether training may use the label.
        overview: of the store.
        candidates: its results.
        grouping: groups, or ``None`` if there is no result with groups.
        neighbors: of each image.
        findings: what other commands found.
        places: the map.
        scores: of the groupings; or why there are none; ``None`` without labels or groups.
        curves: of the run, if there is one.
        thumbnails: of the images.
        images_note: why there are no images at all, or empty.
        max_size: that was asked for.
        numbers: (m,) uint64 of the image files, so that a later page takes their thumbnails over.
        start: what labeling in the page begins with.
    """

    title: str
    images: ShownImages
    store_rows: int
    class_names: tuple[str, ...]
    split_names: tuple[str, ...]
    splits: NDArray[np.int16]
    usable: NDArray[np.bool_]
    overview: Overview
    candidates: list[Candidate]
    grouping: Grouping | None
    neighbors: Neighbors
    findings: tuple[Finding, ...]
    places: Places
    scores: Scores | str | None
    curves: Curves | None
    thumbnails: Thumbnails
    images_note: str
    max_size: str
    numbers: NDArray[np.uint64]
    start: WorkStart


def render_page(page: PageContents) -> bytes:
    """Render a report page as HTML; equal contents give equal bytes."""
    environment = _environment()
    style, script = _texts(_STYLES), _script(_SCRIPTS)
    html = environment.get_template("report.html.j2").render(
        page=page,
        version=__version__,
        style=Markup(style),
        script=Markup(script),
        policy=_policy(style, script),
        data=Markup(script_safe_json(page_data(page))),
        sheets=[Markup(base64.b64encode(sheet).decode("ascii")) for sheet in page.thumbnails.sheets],
        names=page.images.names,
        classes=[shown_text(name) for name in page.class_names],
        stage="" if page.grouping is None else shown_text(page.grouping.result.stage),
        crossing=_crossing(page),
        lossless=LOSSLESS,
    )
    return html.encode("utf-8")


def render_label_page(title: str) -> tuple[bytes, str]:
    """Render the page of ``labelkit label --serve``; return its HTML and its Content-Security-Policy.

    Args:
        title: name of the store.
    """
    style, script = _texts(_STYLES), _script(_LABEL_SCRIPTS)
    html = (
        _environment()
        .get_template("label.html.j2")
        .render(title=shown_text(title), version=__version__, style=Markup(style), script=Markup(script))
    )
    policy = _policy(style, script, "connect-src 'self'; frame-ancestors 'none'")
    return html.encode("utf-8"), policy


@cache  # a page is rendered twice, and templates are compiled once
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["number"] = lambda value: f"{value:,}"
    environment.filters["percent"] = lambda value: f"{value:.1f}"
    environment.filters["short"] = lambda value: f"{value:.4g}"
    return environment


def _texts(names: tuple[str, ...]) -> str:
    return "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in names)


def _script(names: tuple[str, ...]) -> str:
    # asynchronous, since a page may have to ask for its data
    return f"(async function () {{\n'use strict';\n{_texts(names)}}})();\n"


def script_safe_json(value: Mapping[str, Any]) -> str:
    """Serialize a value as JSON that is safe to embed in an HTML script element."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def page_data(page: PageContents) -> dict[str, Any]:
    """Return the data that the page's script reads: names as JSON, arrays as base64 of little-endian numbers."""
    grouping, near = page.grouping, page.neighbors
    finite = near.scores[np.isfinite(near.scores)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    span = high - low if high > low else 1.0
    steps = np.where(np.isfinite(near.scores), (near.scores.astype(np.float64) - low) / span * _NONE, 0)
    nobody = np.full(len(page.images), -1)
    return {
        "n": len(page.images),
        "names": page.images.names,
        "classes": [shown_text(name) for name in page.class_names],
        "splits": [shown_text(name) for name in page.split_names],
        "groups": [] if grouping is None else _groups(grouping),
        "measure": "" if grouping is None else grouping.measure,
        "metric": {"cosine": "cosine", "l2": "distance", "dot": "product"}[near.metric],
        "neighbors": near.images.shape[1],
        "scoreRange": [low, high if high > low else low + 1.0],
        "side": page.thumbnails.side,
        "quality": page.thumbnails.quality,
        "maxSize": page.max_size,
        "tilesPerSheet": TILES,
        "tilesPerRow": COLUMNS,
        "work": work_data(page.start),
        "columns": {
            "group": encode_array(nobody if grouping is None else grouping.ids, "<i4"),
            "runnerUp": encode_array(nobody if grouping is None else grouping.runner_up, "<i4"),
            "confidence": encode_array(
                np.full(len(nobody), np.nan) if grouping is None else grouping.confidence, "<f4"
            ),
            "expected": encode_expected(grouping),
            "label": encode_array(page.images.labels, "<i4"),
            "usable": encode_array(page.usable, "|u1"),
            "split": encode_array(page.splits, "<i2"),
            "point": encode_array(page.places.points, "<u2"),
            "tile": encode_array(page.thumbnails.tiles, "<i4"),
            "image": encode_array(page.numbers, "<u8"),
            "tileSize": encode_array(page.thumbnails.sizes, "|u1"),
            "neighbor": encode_array(np.where(near.images < 0, _NONE, near.images), "<u2"),
            "score": encode_array(np.rint(steps), "<u2"),
            "choice": encode_array(page.start.choices, "<i2"),
        },
    }


def _groups(grouping: Grouping) -> list[dict[str, Any]]:
    return [
        {
            "name": group.name,
            "known": group.new is False,
            "size": group.size,
            "shown": group.shown,
            "major": group.counts[0][0] if group.counts else -1,
            "typical": list(group.typical),
            "doubtful": list(group.doubtful),
        }
        for group in grouping.groups
    ]


def encode_array(values: NDArray[Any], kind: str) -> str:
    """Encode an array as base64 of a little-endian type such as ``<i4``."""
    return base64.b64encode(np.ascontiguousarray(values).astype(kind).tobytes()).decode("ascii")


def encode_expected(grouping: Grouping | None) -> str:
    """Encode the probabilities of correct predictions as base64; empty if the grouping has none."""
    if grouping is None or grouping.expected is None:
        return ""
    return encode_array(grouping.expected, "<f4")


def _policy(style: str, script: str, more: str = "img-src data:") -> str:
    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii") + "'"

    return (
        f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}; {more}; "
        "base-uri 'none'; form-action 'none'"
    )


def _crossing(page: PageContents) -> list[tuple[str, list[int]]] | None:
    """Images of each class (row) in each group, if that fits a table."""
    if page.grouping is None or len(page.grouping.groups) > _WIDEST_TABLE or len(page.class_names) > _WIDEST_TABLE:
        return None
    counts = [dict(group.counts) for group in page.grouping.groups]
    rows = [
        (shown_text(name), [group.get(label, 0) for group in counts]) for label, name in enumerate(page.class_names)
    ]
    return [row for row in rows if any(row[1])] or None
