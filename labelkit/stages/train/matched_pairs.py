"""Give a method the matches of a file of ``labelkit match``, by row of what it is trained on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import BadImage
from labelkit.engine.method import Method
from labelkit.errors import StoreError
from labelkit.methods.metric.matched_images import MatchedImages
from labelkit.methods.metric.tac_ccl import TACCCL
from labelkit.stages.progress import current_progress
from labelkit.store.matches import read_matches

# Images whose bytes are compared, so that a set of equal names is not taken for the one that was matched.
_LOOKED_AT = 8


def take_matches(method: Method[Any], path: Path, dataset: ImageDataset) -> None:
    """Read the file, keep the pairs whose images are both trained on, and give them to the method.

    Args:
        method: the one that uses them.
        path: of the file.
        dataset: what is trained on.

    Raises:
        StoreError: the file cannot be used, or is of other images.
    """
    assert isinstance(method, TACCCL)  # no other one has such an option
    found = read_matches(path)
    position = {sample_id: row for row, sample_id in enumerate(dataset.sample_ids)}
    rows = np.array([position.get(sample_id, -1) for sample_id in found.sample_ids], dtype=np.int64)
    pairs = rows[found.matches.pairs]
    kept = np.flatnonzero((pairs >= 0).all(axis=1))
    where = str(path)
    if not len(kept):
        known = int((rows >= 0).sum())
        raise StoreError(
            where,
            f"has no pair of images that are trained on ({known} of its {len(rows)} images are in {dataset.name})",
            "Match the images of this data set with `labelkit match`, or leave --matches out.",
        )
    matches = replace(found.matches.take(kept), pairs=pairs[kept])
    for place in np.flatnonzero(rows >= 0)[:_LOOKED_AT].tolist():
        try:
            sha256 = dataset.source.read(int(rows[place])).sha256
        except BadImage:
            continue
        if sha256 != found.sha256[place].tobytes():
            raise StoreError(
                where,
                f"was made of other images: {found.sample_ids[place]} has changed",
                "Embed and match again.",
            )
    sizes = np.ones((len(dataset), 2), dtype=np.int64)
    sizes[rows[rows >= 0]] = found.image_sizes[rows >= 0]
    images = MatchedImages(matches, sizes, found.content_digest)
    method.use_matches(images)
    everyone = np.arange(len(dataset))
    current_progress().message(
        f"{len(matches)} matches; {images.coverage(everyone):.0%} of the images have a partner, the others follow "
        "themselves"
    )
