"""Embedding stores with their results and patches, and files of matches and prototypes; imported on first use."""

from typing import TYPE_CHECKING

from labelkit.imports import lazy_getattr

if TYPE_CHECKING:
    from labelkit.store.array_files import Matches, MatchFile, PrototypeFile, read_matches, read_prototypes
    from labelkit.store.embeddings import EmbeddingStore, ModelIdentity, open_store
    from labelkit.store.patches import ImagePatches, PatchBlock, PatchSet, compute_cell_boxes, open_patches
    from labelkit.store.plans import EmbeddingPlan
    from labelkit.store.results import Result, list_results, read_result, write_result
    from labelkit.store.writing import EmbeddingRun

__all__ = [
    "EmbeddingPlan",
    "EmbeddingRun",
    "EmbeddingStore",
    "ImagePatches",
    "MatchFile",
    "Matches",
    "ModelIdentity",
    "PatchBlock",
    "PatchSet",
    "PrototypeFile",
    "Result",
    "compute_cell_boxes",
    "list_results",
    "open_patches",
    "open_store",
    "read_matches",
    "read_prototypes",
    "read_result",
    "write_result",
]
__getattr__ = lazy_getattr(__name__)
