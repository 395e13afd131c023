"""Render templates, style and script to one HTML file that loads no other files and runs no other code.

All text is escaped by jinja2's autoescape, or stored in a data block as JSON without ``<``, ``>`` and ``&``. The
Content-Security-Policy allows only this style and this script, by their digests, and images inside the file.
"""

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from numpy.typing import NDArray

from labelkit import __version__
from labelkit.studio.report.groups import Grouping
from labelkit.studio.report.images import ShownImages, escape_for_page
from labelkit.studio.report.thumbnails import COLUMNS, LOSSLESS

_FOLDER = Path(__file__).parent / "page"
_STYLES = ("report.css", "work.css")
_WORK = ("work_grid.js", "work_keep.js", "work.js", "work_one.js", "work_take.js")
_SCRIPTS = ("data.js", "tiles.js", "panel.js", "groups.js", "work_state.js", "map.js", *_WORK, "main.js", "end.js")
_LABEL_SCRIPTS = ("data.js", "tiles.js", "panel.js", "work_state.js", "map.js", *_WORK, "end.js")
#: Types of the columns of ``build_page_data``.
_KINDS = {
    **dict.fromkeys(("group", "runnerUp", "label", "tile"), "<i4"),
    **dict.fromkeys(("split", "choice"), "<i2"),
    **dict.fromkeys(("point", "neighbor", "score"), "<u2"),
    **dict.fromkeys(("usable", "tileSize"), "|u1"),
    **dict.fromkeys(("confidence", "expected"), "<f4"),
    "image": "<u8",
}
_NONE = 65_535
# Maximum number of columns at which a table is still readable.
_WIDEST_TABLE = 40


def render_page(page: Mapping[str, Any], data: Mapping[str, Any]) -> bytes:
    """Render a report page as HTML; identical inputs produce identical bytes.

    Args:
        page: values shown by ``report.html.j2``, see :func:`~labelkit.studio.report.build.write_report`.
        data: data for the page's script, see :func:`build_page_data`.
    """
    html, _ = _render(
        "report.html.j2",
        _SCRIPTS,
        "img-src data:",
        page=page,
        data=htmlsafe_json_dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False),
        sheets=[Markup(base64.b64encode(sheet).decode("ascii")) for sheet in page["thumbnails"].sheets],
        classes=data["classes"],
        crossing=_cross_tabulate(page["grouping"], data["classes"]),
        lossless=LOSSLESS,
    )
    return html


def render_label_page(title: str) -> tuple[bytes, str]:
    """Render the page of ``labelkit label --serve`` for a store; return its HTML and Content-Security-Policy."""
    policy = "connect-src 'self'; frame-ancestors 'none'"
    return _render("label.html.j2", _LABEL_SCRIPTS, policy, title=escape_for_page(title))


def _render(template: str, scripts: tuple[str, ...], allowed: str, **values: Any) -> tuple[bytes, str]:
    """Render a template with its style and script; return HTML and a policy that allows these and ``allowed``."""
    # asynchronous, since a page may need to request its data
    style, script = _texts(_STYLES), f"(async function () {{\n'use strict';\n{_texts(scripts)}}})();\n"
    digests = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii") for text in (script, style))
    script_digest, style_digest = (f"'sha256-{digest}'" for digest in digests)
    policy = (
        f"default-src 'none'; script-src {script_digest}; style-src {style_digest}; {allowed}; "
        "base-uri 'none'; form-action 'none'"
    )
    values |= {"version": __version__, "style": Markup(style), "script": Markup(script), "policy": policy}
    return _environment().get_template(template).render(values).encode("utf-8"), policy


@cache  # a page is rendered twice, but its templates are compiled only once
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
    environment.filters["shown"] = escape_for_page
    return environment


def _texts(names: tuple[str, ...]) -> str:
    return "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in names)


def build_page_data(
    images: ShownImages, grouping: Grouping | None, metric: str, columns: Mapping[str, NDArray[Any]], **others: Any
) -> dict[str, Any]:
    """Build the data for a page's script: names as JSON, arrays as base64-encoded little-endian numbers.

    Args:
        images: the images of the page.
        grouping: groups, or ``None``.
        metric: ``cosine``, ``l2`` or ``dot``.
        columns: arrays by name, with one row per image: ``point``, ``tile``, ``tileSize``, ``choice``; others replace
            columns that are otherwise computed from the grouping or empty.
        others: ``groups``, ``side``, ``tilesPerSheet``, ``work``, and entries that only one kind of page has.
    """
    nobody = np.full(len(images), -1)
    every = {
        "group": nobody,
        "runnerUp": nobody,
        "confidence": np.full(len(images), np.nan),
        "expected": np.zeros(0),
        "label": nobody,
        "usable": np.zeros(len(images)),
        "split": nobody,
        "neighbor": np.zeros(0),
        "score": np.zeros(0),
    }
    if grouping is not None:
        every |= {"group": grouping.ids, "runnerUp": grouping.runner_up, "confidence": grouping.confidence}
    if grouping is not None and grouping.expected is not None:
        every["expected"] = grouping.expected
    every |= columns
    return {
        "n": len(images),
        "names": images.names,
        "classes": [],
        "splits": [],
        "measure": "" if grouping is None else grouping.measure,
        "metric": {"cosine": "cosine", "l2": "distance", "dot": "product"}[metric],
        "neighbors": 0,
        "scoreRange": [0.0, 1.0],
        "tilesPerRow": COLUMNS,
        "columns": {name: encode_array(values, _KINDS[name]) for name, values in every.items()},
        **others,
    }


def build_groups_data(grouping: Grouping) -> list[dict[str, Any]]:
    """Convert the groups of a report page to the format of the page's script."""
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


def build_neighbors_data(
    neighbors: NDArray[np.int64], scores: NDArray[np.float32]
) -> tuple[list[float], dict[str, NDArray[Any]]]:
    """Build the columns of nearest images and of their scores, quantized to two bytes; also return the score range."""
    finite = scores[np.isfinite(scores)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    high = high if high > low else low + 1.0
    steps = np.where(np.isfinite(scores), (scores.astype(np.float64) - low) / (high - low) * _NONE, 0)
    return [low, high], {"neighbor": np.where(neighbors < 0, _NONE, neighbors), "score": np.rint(steps)}


def encode_array(values: NDArray[Any], kind: str) -> str:
    """Encode an array as base64 in a little-endian type such as ``<i4``."""
    return base64.b64encode(np.ascontiguousarray(values).astype(kind).tobytes()).decode("ascii")


def _cross_tabulate(grouping: Grouping | None, classes: list[str]) -> list[tuple[str, list[int]]] | None:
    """Count the images of each class (row) in each group (column); ``None`` if the table would be too large."""
    if grouping is None or len(grouping.groups) > _WIDEST_TABLE or len(classes) > _WIDEST_TABLE:
        return None
    counts = [dict(group.counts) for group in grouping.groups]
    rows = [(name, [group.get(label, 0) for group in counts]) for label, name in enumerate(classes)]
    return [row for row in rows if any(row[1])] or None
