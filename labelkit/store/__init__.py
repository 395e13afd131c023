"""Embedding stores, named results beside them, and the protocol that commits files."""

from labelkit.store.commit import canonical_json, commit_bytes, commit_folder, commit_json, fsync_folder, sha256_file
from labelkit.store.embeddings import EmbeddingStore, ModelIdentity, open_store
from labelkit.store.fingerprint import weights_fingerprint
from labelkit.store.results import Result, list_results, read_result, write_result
from labelkit.store.writing import EmbeddingPlan, EmbeddingRun, continue_plan

__all__ = [
    "EmbeddingPlan",
    "EmbeddingRun",
    "EmbeddingStore",
    "ModelIdentity",
    "Result",
    "canonical_json",
    "commit_bytes",
    "commit_folder",
    "commit_json",
    "continue_plan",
    "fsync_folder",
    "list_results",
    "open_store",
    "read_result",
    "sha256_file",
    "weights_fingerprint",
    "write_result",
]
