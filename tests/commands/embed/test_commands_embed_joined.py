"""``embed --last-blocks``: the store records which tokens, and photos are put through the same."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from labelkit.store.embeddings import open_store

NET = ("--backbone", "vit_nano_p8_32", "--random-weights", "--label-split", "none")


def test_a_photo_is_found_by_the_tokens_that_the_store_records(
    photos: Path, tmp_path: Path, labelkit: Callable[..., Any]
) -> None:
    plain, joined = tmp_path / "plain.h5", tmp_path / "joined.h5"
    assert labelkit("embed", "--dataset", photos, *NET, "--out", plain).code == 0
    made = labelkit("embed", "--dataset", photos, *NET, "--last-blocks", "3", "--mean-patch", "--out", joined)
    assert made.code == 0, made.err

    rows, last = np.asarray(open_store(joined).embeddings), np.asarray(open_store(plain).embeddings)

    assert rows.shape == (len(last), 48 * 4)
    assert np.allclose(rows[:, 48 * 2 : 48 * 3], last, atol=1e-5)
    assert open_store(joined).model.layer == "class tokens of 3 blocks and mean patch"
    assert open_store(joined).model.weights_fingerprint == open_store(plain).model.weights_fingerprint
    first = photos / open_store(joined).sample_ids[0]
    found = labelkit("retrieve", "--index", joined, "--query", first, "-k", "1", "--json")
    assert found.code == 0, found.err
    (hit,) = found.json["queries"][0]["hits"]
    assert (hit["row"], round(hit["score"], 4)) == (0, 1.0)
