"""Which code of a user's method made the runs that are kept in a folder."""

from __future__ import annotations

from pathlib import Path

from labelkit.errors import OutputExistsError, StoreError
from labelkit.files import read_object
from labelkit.methods.registry import own_digest
from labelkit.store.commit import commit_json


def check_same_code(noted: Path, method: str, remedy: str) -> None:
    """Check that a user-defined method's code matches its recorded digest; record the digest if there is none.

    Args:
        noted: where its digest is kept; its folder is there.
        method: its name; one that labelkit ships is always the same.
        remedy: what to do about other code.

    Raises:
        OutputExistsError: it is another one.
        StoreError: the note is damaged.
        ResourceError: no room, no permission.
    """
    digest = own_digest(method)
    if digest is None:
        return
    if not noted.exists():
        commit_json(noted, {"sha256": digest})
    try:
        same = read_object(noted, {"sha256": str})["sha256"] == digest
    except (OSError, ValueError) as error:
        raise StoreError(str(noted), f"cannot be read: {error}", "Delete this file and the runs next to it.") from error
    if not same:
        raise OutputExistsError(str(noted.parent), f"contains a run of a different version of {method}'s code", remedy)
