"""HDF5 files that hold what a store must not hold: refused, and nothing outside of them is opened."""

from pathlib import Path

import pytest
from labelkit.errors import StoreError
from labelkit.store.embeddings import open_store
from store_samples import make_plan, make_store
from torture_crafted import ADDITIONS, CHANGES, crafted
from torture_processes import Canary
from torture_tally import Tally

ROW = "e  HDF5 files crafted: refused, looks outside"


@pytest.mark.slow
def test_what_a_store_must_not_hold_is_refused(tmp_path: Path, tally: Tally) -> None:
    data = make_store(tmp_path / "whole.h5", make_plan(dim=40), bad={1: "broken"}).path.read_bytes()
    canary = Canary(tmp_path / "canary")
    for name in [*ADDITIONS, *CHANGES]:
        path = tmp_path / f"{name}.h5"
        with tally.attempt(name):
            message = crafted(name, data, path, str(canary.path))
            canary.touched()  # making the file may look at it
            with pytest.raises(StoreError) as caught:
                open_store(path)
            assert message in str(caught.value)
            assert not canary.touched(), "a file outside was opened"
