"""What ``labelkit reproduce --smoke`` reads in place of data sets, weights and word vectors."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from labelkit.data.miniature_sets import make_miniature, write_class_vectors
from labelkit.data.registry import load_dataset

IN_DATA_ROOT = "{data_root}/"
"""What a file in the folder of the data begins with, in a table."""


def stand_ins(datasets: Sequence[str], root: Path) -> dict[str, str]:
    """Make the miniature of each data set, and return what ``--dataset`` says in its place.

    A folder of one's own, which is not touched, has class folders in its place.
    """
    own = {name: f"own-{Path(name).name}" if "/" in name else name for name in datasets}
    return {name: name if name == "digits" else make_miniature(own[name], root) for name in datasets}


def make_files(command: Sequence[str], root: Path) -> None:
    """Make up the files in ``root`` that a command reads, unless they are there.

    Args:
        command: with ``--class-vectors``: also ``--dataset``; with ``--weights``: also ``--backbone``.
        root: the folder of the data.
    """
    given = dict(pairwise(command))
    vectors, weights = (Path(given.get(option, "")) for option in ("--class-vectors", "--weights"))
    if vectors.is_relative_to(root) and not vectors.exists():
        write_class_vectors(vectors, load_dataset(given["--dataset"], data_root=root).class_names)
    if weights.is_relative_to(root) and not weights.exists():
        _write_weights(weights, given["--backbone"])


def _write_weights(path: Path, backbone: str) -> None:
    """Write random weights in the names of a checkpoint of DINO."""
    import torch

    from labelkit.models.backbones import build_backbone

    path.parent.mkdir(parents=True, exist_ok=True)
    net = build_backbone(backbone, seed=0).net
    torch.save({"teacher": {f"backbone.{name}": value for name, value in net.state_dict().items()}}, path)
