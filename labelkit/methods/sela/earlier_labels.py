"""Pseudo-labels of a finished run, for a second stage."""

from __future__ import annotations

from pathlib import Path

from labelkit.engine.checkpoint import MODEL, load_checkpoint, load_model_state
from labelkit.engine.inputs import RunInputs
from labelkit.engine.run_dir import read_split
from labelkit.errors import CheckpointError, CheckpointMismatch
from labelkit.methods.sela.self_labels import SelfLabels

_LABELS = "labels."


def take_labels(labels: SelfLabels, source: Path, inputs: RunInputs) -> None:
    """Give a method the pseudo-labels of a finished run over the same images.

    Args:
        labels: where they go.
        source: folder of the run.
        inputs: of the run that begins.

    Raises:
        CheckpointError: there is no run with pseudo-labels.
        CheckpointMismatch: it was trained on other images, or has other heads.
    """
    checkpoint = load_checkpoint(source, say=inputs.say)
    if checkpoint is None:
        raise CheckpointError(str(source), "holds no checkpoint", "Give the --out of a `labelkit train sela`.")
    found = {name: value for name, value in checkpoint.tensors(MODEL).items() if name.startswith(_LABELS)}
    if not found:
        raise CheckpointError(str(source), "has no pseudo-labels", "Give the --out of a `labelkit train sela`.")
    saved = read_split(source)
    if saved.get("dataset_digest") != inputs.digest():
        raise CheckpointMismatch(
            str(source), "was trained on other images", "Give the data options that it was trained with."
        )
    load_model_state(labels, {name.removeprefix(_LABELS): value for name, value in found.items()}, str(source))
    inputs.say(f"labels are those of {checkpoint.folder}, and stay as they are")
