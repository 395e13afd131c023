"""Embedding stores with their results and patches, and files of matches and prototypes; imported on first use."""

from typing import TYPE_CHECKING

from labelkit.imports import lazy_exports

if TYPE_CHECKING:
    from labelkit.store.array_files import Matches as Matches
    from labelkit.store.array_files import MatchFile as MatchFile
    from labelkit.store.array_files import PrototypeFile as PrototypeFile
    from labelkit.store.array_files import read_matches as read_matches
    from labelkit.store.array_files import read_prototypes as read_prototypes
    from labelkit.store.embeddings import EmbeddingStore as EmbeddingStore
    from labelkit.store.embeddings import ModelIdentity as ModelIdentity
    from labelkit.store.embeddings import open_store as open_store
    from labelkit.store.patches import ImagePatches as ImagePatches
    from labelkit.store.patches import PatchBlock as PatchBlock
    from labelkit.store.patches import PatchSet as PatchSet
    from labelkit.store.patches import compute_cell_boxes as compute_cell_boxes
    from labelkit.store.patches import open_patches as open_patches
    from labelkit.store.plans import EmbeddingPlan as EmbeddingPlan
    from labelkit.store.results import Result as Result
    from labelkit.store.results import list_results as list_results
    from labelkit.store.results import read_result as read_result
    from labelkit.store.results import write_result as write_result
    from labelkit.store.writing import EmbeddingRun as EmbeddingRun

__getattr__, __all__ = lazy_exports(__name__)
