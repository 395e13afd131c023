"""What a command reads is looked for before anything large is imported: a slip in a name is answered at once."""

from __future__ import annotations

from pathlib import Path

from labelkit.errors import CheckpointError, NotAStore
from labelkit.files import missing_store_remedy
from labelkit.options.base import StageConfig
from labelkit.options.data import DataConfig

_TOLD_BY_THE_STAGE = ("datasets", "status")
"""Commands whose answer is what is there and what is not."""


def check_inputs(config: StageConfig) -> None:
    """Check that stores, runs and data sets exist, before any work and before importing torch.

    Stages look again, and closer: they may be called without this.

    Raises:
        NotAStore: there is no file that ``--index`` names.
        CheckpointError: nothing is where ``--checkpoint`` says.
        DatasetError: ``--dataset`` is no named set, and no folder or CSV that exists; or, without images of one object,
            ``--scene-dataset``.
    """
    if config.command[0] in _TOLD_BY_THE_STAGE:
        return
    index, checkpoint, dataset = (getattr(config, name, None) for name in ("index", "checkpoint", "dataset"))
    if isinstance(index, Path) and not index.exists():
        raise NotAStore(str(index), "does not exist", missing_store_remedy(index))
    if isinstance(checkpoint, Path) and not checkpoint.exists():
        raise CheckpointError(str(checkpoint), "does not exist", "Train first: `labelkit train METHOD`.")
    if isinstance(config, DataConfig) and not config.has_objects:
        dataset = config.main_dataset
    if isinstance(dataset, str):
        from labelkit.data.registry import check_dataset

        check_dataset(dataset)
