"""The one rule by which a label that somebody wrote names a class, for CSV, tar, Parquet and imported rows.

Spaces around it do not count, letters with accents are equal however they are composed, and a whole number is the same
with and without ``.0``: ``3``, `` 3`` and ``3.0`` are one class.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

NO_LABEL: Final = frozenset(
    "-1 #N/A N/A NA NULL NaN None n/a nan null <NA> #NA -NaN -nan NAN 1.#IND -1.#IND 1.#QNAN -1.#QNAN".split()
)
"""What means that there is no label, as an empty one does: -1, and what pandas reads as missing."""
_SHOWN: Final = 3
_WHOLE: Final = re.compile(r"([+-]?\d+)\.0*")


def class_name(label: object) -> str | None:
    """Return the class that a label names; ``None``: it names none."""
    if label is None or (isinstance(label, float) and math.isnan(label)):
        return None
    name = unicodedata.normalize("NFC", str(label)).strip()
    whole = _WHOLE.fullmatch(name)
    name = whole[1] if whole else name
    return None if not name or name in NO_LABEL else name


def class_names(labels: Sequence[object]) -> tuple[list[str | None], list[str]]:
    """Return the class of each label, and what to tell: words that were taken for none, spellings that were joined."""
    counts = Counter(str(label) for label in labels if label is not None)
    name_of = {text: class_name(text) for text in counts}
    spellings: dict[str, list[str]] = defaultdict(list)
    for text, name in name_of.items():
        if name is not None:
            spellings[name].append(text)
    none = {text: count for text, count in counts.items() if name_of[text] is None and text.strip()}
    told: list[str] = []
    if none:
        listed = _few(f"{text.strip()!r} ({count} of {len(labels)})" for text, count in none.items())
        told.append(f"labels that mean none: {listed}; rename them if they are classes")
    joined = [f"{_few(map(repr, texts))} are {name!r}" for name, texts in spellings.items() if len(texts) > 1]
    if joined:
        told.append(f"labels that differ only by spaces, accents or .0 are one class: {_few(joined, '; ')}")
    return [None if label is None else name_of[str(label)] for label in labels], told


def as_known(labels: Mapping[int, str], known: Iterable[str]) -> dict[int, str]:
    """Return names of classes by place, those of known classes as these are written."""
    names = list(known)
    written = {class_name(name): name for name in names} | {name: name for name in names}
    return {place: written.get(name, name) for place, name in labels.items()}


def _few(texts: Iterable[str], between: str = ", ") -> str:
    listed = list(texts)
    return between.join(listed[:_SHOWN]) + (f"{between}..." if len(listed) > _SHOWN else "")
