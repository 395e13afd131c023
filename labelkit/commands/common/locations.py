"""Record the last known locations of models and images on this machine in the user's cache.

Stores contain no paths, only model fingerprints, so that the same input gives the same bytes on every machine. Files
found at a recorded location are checked before use.
"""

from pathlib import Path
from typing import Any

from labelkit.cache import cache_folder
from labelkit.errors import LabelkitError
from labelkit.files import read_record
from labelkit.progress import current_progress
from labelkit.store.commit import commit_json

_KEYS: dict[str, dict[str, type]] = {"models": {"path": str}, "images": {"dataset": str, "data_root": str}}


def record_model_location(fingerprint: str, path: Path) -> None:
    """Record the path of the weights with the given fingerprint."""
    _write("models", fingerprint, {"path": str(path.resolve())})


def find_model_location(fingerprint: str) -> Path | None:
    """Find the last known path of the weights with the given fingerprint; ``None`` if unknown."""
    record = _read("models", fingerprint)
    return Path(record["path"]) if record else None


def record_image_location(store_digest: str, dataset: str, data_root: Path) -> None:
    """Record the dataset that a store was created from."""
    text = str(Path(dataset).resolve()) if Path(dataset).exists() else dataset
    _write("images", store_digest, {"dataset": text, "data_root": str(data_root.resolve())})


def find_image_location(store_digest: str) -> tuple[str, Path] | None:
    """Return the dataset and data root that a store was created from; ``None`` if unknown."""
    record = _read("images", store_digest)
    return (record["dataset"], Path(record["data_root"])) if record else None


def _write(kind: str, key: str, record: dict[str, str]) -> None:
    path = cache_folder() / kind / f"{key}.json"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        commit_json(path, record)
    except (OSError, LabelkitError) as error:
        current_progress().message(f"could not record the location in {path.parent}: {error}")


def _read(kind: str, key: str) -> dict[str, Any] | None:
    try:
        return read_record(cache_folder() / kind, f"{key}.json", _KEYS[kind])
    except ValueError as error:
        current_progress().warning(f"{error}; the file is ignored, and the next `labelkit embed` will rewrite it")
        return None
