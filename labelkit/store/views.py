"""Embeddings of augmented views in a store: where they are, and what is noted of how they were drawn."""

from __future__ import annotations

from typing import Any, Final

from labelkit.errors import Refused
from labelkit.reading import parse_json
from labelkit.store.digests import RESTORE
from labelkit.store.hdf5.reading import CheckedFile

COLUMN: Final = "view_embeddings"
"""Dataset of a store; root attribute ``views`` says how they were drawn."""


def read_view_recipe(file: CheckedFile, dim: int) -> dict[str, Any]:
    """Return what a store notes of its views, their number per image as ``count``; empty where it keeps none.

    Args:
        file: a checked file.
        dim: values per embedding.

    Raises:
        Refused: views without a note, a note without views, or one that does not fit them.
    """
    info, note = file.datasets.get(COLUMN), file.attributes[""].get("views")
    if info is None and note is None:
        return {}
    if info is None or note is None:
        problem = "is missing, and root attribute views is there" if info is None else "has no root attribute views"
        raise Refused(file.place(COLUMN), problem, RESTORE)
    try:
        recipe = parse_json(str(note))
    except ValueError as error:
        raise Refused(file.place("@views"), "is not JSON", RESTORE) from error
    count = recipe.get("count") if isinstance(recipe, dict) else None
    if not isinstance(recipe, dict) or type(count) is not int or count < 1:
        raise Refused(file.place("@views"), "does not say how many views there are", RESTORE)
    if info.shape[1] != count * dim:
        problem = f"has {info.shape[1]} values per row, {count} views of {dim} are {count * dim}"
        raise Refused(file.place(COLUMN), problem, RESTORE)
    return recipe
