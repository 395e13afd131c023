"""``--max-memory`` sizes blocks by one rule, and results do not depend on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.commands.cluster.options import SinkhornConfig
from labelkit.commands.common.max_memory import block_bytes, bounded_rows, has_room
from labelkit.commands.suggest.options import SuggestConfig
from labelkit.errors import ConfigError
from labelkit.options.presets import resolve
from labelkit.store.embeddings import open_store
from tests.running import Labelkit, MakeStore


def bounded(size: str | None) -> SinkhornConfig:
    return SinkhornConfig(index="s.h5", num_clusters=2, max_memory=size)


def test_half_is_for_rows_and_a_quarter_for_a_block() -> None:
    config = bounded("100MiB")
    assert has_room(config, 50 << 20)
    assert not has_room(config, (50 << 20) + 1)
    assert block_bytes(config, 1 << 30) == 25 << 20
    assert block_bytes(config, 1 << 20) == 1 << 20
    assert block_bytes(bounded("1B"), 1 << 20) == 1


def test_without_a_bound_rows_are_held_and_blocks_are_as_large_as_they_may_be() -> None:
    assert has_room(bounded(None), 1 << 60)
    assert block_bytes(bounded(None), 1 << 30) == 1 << 30


@pytest.mark.parametrize(("size", "in_blocks"), [(None, False), ("96B", False), ("95B", True)])
def test_rows_that_do_not_fit_are_read_in_blocks(make_store: MakeStore, size: str | None, in_blocks: bool) -> None:
    store = make_store([[3, 4], [0, 5], [5, 12], [8, 6], [6, 8], [1, 0]])

    rows = bounded_rows(bounded(size), store, np.arange(6), unit=True)

    assert rows.in_blocks == in_blocks
    np.testing.assert_allclose(np.linalg.norm(rows.to_array(), axis=1), 1, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "made"),
    [
        (("cluster", "sinkhorn", "--num-clusters", "4", "--init", "random"), "sinkhorn.h5"),
        (("retrieve", "--query-rows", "3,4", "--result", "hits"), "hits.h5"),
        (("evaluate", "retrieval", "--nmi-seeds", "0", "--threads", "1"), None),
    ],
)
def test_a_small_bound_gives_the_same_result(
    labelkit: Labelkit, embedded: Path, words: tuple[str, ...], made: str | None
) -> None:
    found = []
    for bound in ((), ("--max-memory", "1KiB")):
        more = () if made is None else ("--overwrite",)
        answer = labelkit(*words, "--index", embedded, *bound, *more, "--json")
        assert answer.code == 0, answer.err
        if made is None:
            found.append({key: answer.json[key] for key in ("recall", "map_at_r", "r_precision")})
        else:
            found.append(_arrays(embedded, made))
    assert found[0] == found[1]


def _arrays(store: Path, made: str) -> dict[str, Any]:
    from labelkit.store.results import read_result

    arrays = read_result(open_store(store), made.removesuffix(".h5")).arrays
    return {
        name: np.asarray(values).round(5).tolist()
        for name, values in arrays.items()
        if name in ("cluster_ids", "neighbor_rows", "scores")
    }


def test_a_command_that_lost_the_option_takes_a_config_file_without_a_bound_alone(tmp_path: Path) -> None:
    def read(text: str) -> Any:
        (tmp_path / "c.yaml").write_text(text)
        return resolve(SuggestConfig, config_file=tmp_path / "c.yaml", overrides={"index": "s.h5", "out": "next.csv"})

    assert read("max_memory: null\nseed: 3\n").config.seed == 3
    with pytest.raises(ConfigError, match="max_memory: no option any more"):
        read("max_memory: 2GiB\n")
