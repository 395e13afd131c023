"""Which code of a user's method made the runs that are kept in a folder."""

from __future__ import annotations

from pathlib import Path

from labelkit.errors import StoreError
from labelkit.files import read_object
from labelkit.methods.registry import own_digest
from labelkit.store.commit import commit_json


def is_same_code(noted: Path, method: str) -> bool:
    """Compare the file of a method with the one that was noted, and note it if none was.

    Args:
        noted: where its digest is kept; its folder is there.
        method: its name; one that labelkit ships is always the same.

    Raises:
        StoreError: the note is damaged.
        ResourceError: no room, no permission.
    """
    digest = own_digest(method)
    if digest is None:
        return True
    if not noted.exists():
        commit_json(noted, {"sha256": digest})
        return True
    try:
        return bool(read_object(noted, {"sha256": str})["sha256"] == digest)
    except (OSError, ValueError) as error:
        raise StoreError(str(noted), f"cannot be read: {error}", "Remove it with the runs beside it.") from error
