"""Take weights, and only weights, from another run or a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from labelkit.engine.checkpoint import MODEL, load_checkpoint
from labelkit.engine.method import Method
from labelkit.engine.run_dir import CONFIG
from labelkit.engine.trainer import load_model_state
from labelkit.errors import CheckpointError


def initialize_from(method: Method[Any], source: Path) -> list[str]:
    """Start a method from a run folder (all of its network) or a weights file (its backbone).

    Returns:
        Names of tensors in a weights file that were not needed.

    Raises:
        CheckpointError: nothing usable is there.
        CheckpointMismatch: tensors differ in name or shape.
    """
    if source.is_dir():
        checkpoint = load_checkpoint(source)
        if checkpoint is None:
            raise CheckpointError(str(source), f"holds no checkpoint (looked for checkpoints/ and {CONFIG})", "")
        tensors = checkpoint.tensors(MODEL)
        load_model_state(method, tensors, str(checkpoint.folder))
        return []
    backbone = getattr(method.network, "backbone", None)
    if backbone is None:
        raise CheckpointError(str(source), "this method has no backbone to put weights into", "Give a run folder.")
    return list(backbone.load_weights(source).unexpected)
