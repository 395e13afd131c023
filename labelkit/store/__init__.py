"""Embedding stores, named results, patches and matches; names are imported on first use."""

# ruff: noqa: F401 - what type checkers import is exported by the table below

from typing import TYPE_CHECKING

from labelkit.imports import lazy_getattr

if TYPE_CHECKING:
    from labelkit.store.array_files import Matches, MatchFile, PrototypeFile, read_matches, read_prototypes
    from labelkit.store.embeddings import EmbeddingStore, ModelIdentity, open_store
    from labelkit.store.patches import ImagePatches, PatchBlock, PatchSet, cell_boxes, open_patches
    from labelkit.store.plans import EmbeddingPlan
    from labelkit.store.results import Result, list_results, read_result, write_result
    from labelkit.store.writing import EmbeddingRun

_MODULES = {
    "array_files": ("Matches", "MatchFile", "PrototypeFile", "read_matches", "read_prototypes"),
    "embeddings": ("EmbeddingStore", "ModelIdentity", "open_store"),
    "patches": ("ImagePatches", "PatchBlock", "PatchSet", "cell_boxes", "open_patches"),
    "plans": ("EmbeddingPlan",),
    "results": ("Result", "list_results", "read_result", "write_result"),
    "writing": ("EmbeddingRun",),
}
__all__ = [name for names in _MODULES.values() for name in names]
__getattr__ = lazy_getattr(__name__, _MODULES)
