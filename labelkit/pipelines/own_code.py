"""Check which version of a user-defined method created the runs in a folder."""

from pathlib import Path

from labelkit.errors import OutputExistsError, StoreError
from labelkit.files import read_json_object
from labelkit.methods.registry import compute_method_digest
from labelkit.store.commit import commit_json


def check_code_digest(digest_path: Path, method: str, remedy: str) -> None:
    """Check that the code of a user-defined method matches its recorded digest; if there is none, record it.

    Args:
        digest_path: file with the digest; its folder must exist.
        method: name of the method; built-in methods are not checked.
        remedy: remedy in the error message.

    Raises:
        OutputExistsError: the code is different.
        StoreError: the file is damaged.
        ResourceError: the disk is full, permission is denied, ...
    """
    digest = compute_method_digest(method)
    if digest is None:
        return
    if not digest_path.exists():
        commit_json(digest_path, {"sha256": digest})
    try:
        same = read_json_object(digest_path, {"sha256": str})["sha256"] == digest
    except (OSError, ValueError) as error:
        problem = f"cannot be read: {error}"
        raise StoreError(str(digest_path), problem, "Delete this file and the runs next to it.") from error
    if not same:
        problem = f"contains a run with a different version of the code of {method}"
        raise OutputExistsError(str(digest_path.parent), problem, remedy)
