"""Embedding stores, named results, patches and matches; how they are written, checked and packed.

Names are imported on first use.
"""

from typing import TYPE_CHECKING

from labelkit.imports import names_of

if TYPE_CHECKING:
    from labelkit.store.commit import (
        canonical_json,
        commit_bytes,
        commit_folder,
        commit_json,
        fsync_folder,
    )
    from labelkit.store.embeddings import EmbeddingStore, ModelIdentity, open_store
    from labelkit.store.fingerprint import weights_fingerprint
    from labelkit.store.matches import Matches, MatchFile, read_matches
    from labelkit.store.packing import PackedStore, pack_store
    from labelkit.store.patches import ImagePatches, PatchBlock, PatchSet, cell_boxes, open_patches
    from labelkit.store.plans import EmbeddingPlan, continue_plan
    from labelkit.store.prototypes import PrototypeFile, read_prototypes
    from labelkit.store.results import Result, list_results, read_result, write_result
    from labelkit.store.run_status import RunStatus, embedding_status, patches_status
    from labelkit.store.verification import (
        Verified,
        VerifiedImages,
        verify_file,
        verify_images,
        verify_patches,
        verify_results,
    )
    from labelkit.store.writing import EmbeddingRun

__all__ = [
    "EmbeddingPlan",
    "EmbeddingRun",
    "EmbeddingStore",
    "ImagePatches",
    "MatchFile",
    "Matches",
    "ModelIdentity",
    "PackedStore",
    "PatchBlock",
    "PatchSet",
    "PrototypeFile",
    "Result",
    "RunStatus",
    "Verified",
    "VerifiedImages",
    "canonical_json",
    "cell_boxes",
    "commit_bytes",
    "commit_folder",
    "commit_json",
    "continue_plan",
    "embedding_status",
    "fsync_folder",
    "list_results",
    "open_patches",
    "open_store",
    "pack_store",
    "patches_status",
    "read_matches",
    "read_prototypes",
    "read_result",
    "verify_file",
    "verify_images",
    "verify_patches",
    "verify_results",
    "weights_fingerprint",
    "write_result",
]

__getattr__ = names_of(
    __name__,
    {
        "commit": (
            "canonical_json",
            "commit_bytes",
            "commit_folder",
            "commit_json",
            "fsync_folder",
        ),
        "embeddings": (
            "EmbeddingStore",
            "ModelIdentity",
            "open_store",
        ),
        "fingerprint": ("weights_fingerprint",),
        "matches": (
            "Matches",
            "MatchFile",
            "read_matches",
        ),
        "packing": (
            "PackedStore",
            "pack_store",
        ),
        "patches": (
            "ImagePatches",
            "PatchBlock",
            "PatchSet",
            "cell_boxes",
            "open_patches",
        ),
        "plans": (
            "EmbeddingPlan",
            "continue_plan",
        ),
        "prototypes": (
            "PrototypeFile",
            "read_prototypes",
        ),
        "results": (
            "Result",
            "list_results",
            "read_result",
            "write_result",
        ),
        "run_status": (
            "RunStatus",
            "embedding_status",
            "patches_status",
        ),
        "verification": (
            "Verified",
            "VerifiedImages",
            "verify_file",
            "verify_images",
            "verify_patches",
            "verify_results",
        ),
        "writing": ("EmbeddingRun",),
    },
)
