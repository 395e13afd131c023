"""Commands that several processes run together find what one finds, and others are refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.algorithms.row_blocks import StoredRows
from labelkit.algorithms.shared_rows import Processes
from labelkit.config.cluster import KMeansConfig
from labelkit.errors import ConfigError
from labelkit.stages import several
from labelkit.stages.commands import all_commands
from labelkit.stages.memory import stored_rows
from labelkit.stages.read.rows import stored_zero_rows
from labelkit.stages.several import check_same_on_all, current_processes, together
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result
from tests.forked_processes import Done, run_forked
from tests.process_threads import in_threads
from tests.stages.conftest import MakeStore, run_labelkit
from tests.stages.test_stages_memory import write_store

ROWS, DIM = 900, 4  # in four dimensions classes overlap
ALONE = ["k-means", "ss-kmeans"]
QUICK = ["retrieve", "retrieval", "linear", "suggest"]
KILLED = ["linear", "linear-sgd", "suggest-typical"]
SUGGESTED = ["coverage", "typical", "k-center", "uncertainty", "random"]


def lines_of(folder: Path) -> dict[str, list[str]]:
    """Command lines, by name; all but the first two share rows. Some results go beside the store in the folder."""
    index, query = str(folder / "rows.h5"), str(folder / "queries.h5")
    few = ["--num-inits", "3", "--json"]
    cluster = {"k-means": ["--num-clusters", "12"], "ss-kmeans": ["--num-clusters", "25"]}  # by one process
    lines = {name: ["cluster", name, "--index", index, *options, *few] for name, options in cluster.items()}
    sinkhorn = ["cluster", "sinkhorn", "--index", index, "--num-clusters", "9", "--num-inits", "2", "--json"]
    lines["sinkhorn"] = [*sinkhorn, "--temperature", "0.2", "--prior", "zipf:1"]
    lines["sinkhorn-in-blocks"] = [*sinkhorn, "--result", "by-blocks", "--max-iterations", "3", "--max-memory", "3GiB"]
    search = ["retrieve", "--index", index, "--query", query, "-k", "5", "--json"]
    lines["retrieve"] = [*search, "--result", "found"]
    rows = ",".join(str(row) for row in range(0, 800, 16))
    chosen = ["--label", "c00,c04,c11", "--skip-duplicates"]
    lines["retrieve-few"] = ["retrieve", "--index", index, "--query-rows", rows, *chosen, "--json"]
    lines["retrieve-one"] = ["retrieve", "--index", index, "--query-rows", "7", "-k", "3", "--json"]
    evaluate = ["--index", index, "--json"]
    lines["retrieval"] = [
        "evaluate",
        "retrieval",
        *evaluate,
        "-k",
        "1,4",
        "--split",
        "all",
        "--nmi-seeds",
        "2",
        "--per-class",
    ]
    lines["knn"] = ["evaluate", "knn", *evaluate, "-k", "3,10", "--gallery", "all", "--linear", "--result", "knn"]
    linear = ["evaluate", "linear", *evaluate, "--gallery", "all"]  # classes of test are in no other split
    lines["linear"] = [*linear, "--l2", "1e-1,1", "--max-gallery", "300", "--result", "linear", "--per-class"]
    lines["linear-sgd"] = [*linear, "--solver", "sgd", "--epochs", "5", "--seeds", "2"]
    suggest = ["suggest", "--index", index, "--overwrite", "--json", "-n", "9", "--out"]
    lines["suggest"] = [*suggest, str(folder / "next.csv"), "--result", "k-means"]
    for strategy in SUGGESTED:
        lines[f"suggest-{strategy}"] = [*suggest, str(folder / f"{strategy}.csv"), "--strategy", strategy]
    lines["suggest-uncertainty"] += ["--labels", str(folder / "known.csv")]
    lines["leave-one-out"] = ["evaluate", "knn", *evaluate, "-k", "3", "--gallery", "test", "--queries", "test"]
    return lines


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Equal stores for one process and for two."""
    one = tmp_path_factory.mktemp("one")
    write_store(one / "rows.h5", ROWS, DIM)
    write_store(one / "queries.h5", 101, DIM)
    known = [f"{row:07}.png,c{row % 20:02}" for row in range(0, 900, 7)]
    (one / "known.csv").write_text("\n".join(["path,label", *known]))
    two = tmp_path_factory.mktemp("two")
    for store in one.iterdir():
        shutil.copy(store, two / store.name)
    return one, two


@pytest.fixture(scope="module", autouse=True)
def forked(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Done]]:
    """What two processes did, by entry: a command of each kind, and faults."""
    lines = lines_of(folders[1])
    for name in ALONE:
        of_one(folders[1], name)
    other = [*lines["sinkhorn"], "--result", "other"]
    thirteen = ["13" if word == "9" else word for word in other]
    return run_forked(
        tmp_path_factory.mktemp("forked"),
        {
            "work": [[lines[name] for name in QUICK]] * 2,
            "differing": [[other], [thirteen]],
            "killed": [[other, lines["sinkhorn"]]] * 2,
        },
        killed=["killed"],
    )


@pytest.fixture(scope="module")
def forked_slowly(folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Done]]:
    """The rest."""
    lines = lines_of(folders[1])
    index = ["--index", str(folders[1] / "rows.h5")]
    refused = [
        lines["k-means"],
        ["discover", "head", *index],
        ["embed", *index, "--out", str(folders[1] / "out.h5"), "--checkpoint", str(folders[1])],
    ]
    new = ["--dataset", "digits", "--device", "cpu", "--out"]
    train = ["train", "flipclass", *new, str(folders[1] / "run")]
    embed = ["embed", "--backbone", "pixels", *new, str(folders[1] / "new.h5")]
    return run_forked(
        tmp_path_factory.mktemp("forked"),
        {
            "work": [[lines[name] for name in lines if name not in QUICK + ALONE]] * 2,
            "alone": [refused] * 2,
            "index": [[[*lines["retrieve"], "--search", "hnsw"]]] * 2,
            "images": [[["retrieve", *index, "--query", str(folders[1])]]] * 2,
            "balance": [[[*lines["sinkhorn"], "--exact-balance"]]] * 2,
            "commands": [[lines["sinkhorn"]], [lines["retrieve"]]],
            "train": [[[*train, "--seed", "1"]], [[*train, "--seed", "2"]]],
            "embed": [[[*embed, "--image-size", "8"]], [[*embed, "--image-size", "16"]]],
            "absent": [[lines["sinkhorn"]], [["cluster", "sinkhorn"]]],
            "failing": [[lines["sinkhorn"]]] * 2,
            **{f"killed-{name}": [[lines[name]]] * 2 for name in KILLED},
        },
        killed=[f"killed-{name}" for name in KILLED],
        failing=["failing"],
    )


def of_one(folder: Path, name: str) -> Any:
    """What one process says of a command line."""
    answer = run_labelkit(*lines_of(folder)[name])
    assert answer.code == 0, answer.err
    return answer.json


def of_two(request: pytest.FixtureRequest, folder: Path, name: str) -> Any:
    """What the first of two processes says of a command line."""
    names = QUICK if name in QUICK else [other for other in lines_of(folder) if other not in QUICK + ALONE]
    forked = request.getfixturevalue("forked" if name in QUICK else "forked_slowly")
    code, out, err = forked["work"][0].answers[names.index(name)]
    assert code == 0, err
    return json.loads(out)


def each(*names: str) -> list[Any]:
    """Names as parameters; those that are not quick are slow."""
    return [pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow) for name in names]


@pytest.mark.parametrize(
    "name",
    each("retrieve", "retrieve-few", "retrieve-one", "retrieval", "knn", "leave-one-out", "linear", "linear-sgd"),
)
def test_two_processes_find_exactly_what_one_finds(
    request: pytest.FixtureRequest, folders: tuple[Path, Path], name: str
) -> None:
    found, expected = of_two(request, folders[1], name), of_one(folders[0], name)
    for values in (found, expected):
        for key in (
            "index",
            "result",
            "made",
            "measured",
            "search_seconds",
            "queries" if name == "retrieval" else "",
            "gallery",
        ):
            values.pop(key, None)
    assert found == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sinkhorn", "sinkhorn-in-blocks"])
def test_two_processes_balance_groups_as_one_does(
    request: pytest.FixtureRequest, folders: tuple[Path, Path], name: str
) -> None:
    found, expected = of_two(request, folders[1], name), of_one(folders[0], name)
    for key in ("sizes", "rounds", "passes", "converged"):
        assert found[key] == expected[key]
    for key in ("cost", "mean_confidence"):
        assert found[key] == pytest.approx(expected[key], rel=1e-3)
    kept = [read_result(open_store(folder / "rows.h5"), found["result"]).arrays for folder in folders]
    np.testing.assert_array_equal(kept[1]["cluster_ids"], kept[0]["cluster_ids"])
    np.testing.assert_allclose(kept[1]["confidence"], kept[0]["confidence"], atol=1e-5)
    np.testing.assert_allclose(kept[1]["prototypes"], kept[0]["prototypes"], atol=1e-6)


@pytest.mark.parametrize("name", each("suggest", *(f"suggest-{strategy}" for strategy in SUGGESTED)))
def test_two_processes_suggest_what_one_suggests(
    request: pytest.FixtureRequest, folders: tuple[Path, Path], name: str
) -> None:
    of_one(folders[0], "k-means")
    found, expected = of_two(request, folders[1], name), of_one(folders[0], name)
    assert len(found["images"]) == 9
    tables = [Path(values["csv"]).read_bytes() for values in (found, expected)]
    assert tables[0] == tables[1]
    for key in ("like_them", "uncertainty_from", "rows", "labels"):
        assert found[key] == expected[key]


def test_the_first_process_alone_speaks(forked: dict[str, list[Done]]) -> None:
    first, second = forked["work"]
    assert (first.code, second.code) == (0, 0)
    assert all(out for _, out, _ in first.answers)
    assert {(code, out, err) for code, out, err in second.answers} == {(0, "", "")}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "words"), [(0, "labelkit cluster k-means"), (1, "labelkit discover head"), (2, "--index")]
)
def test_a_command_that_works_alone_is_refused(forked_slowly: dict[str, list[Done]], place: int, words: str) -> None:
    for process in forked_slowly["alone"]:
        code, out, err = process.answers[place]
        assert code == 2
        assert not out
        assert f"{words}: " in err
        assert "torchrun" in err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("index", "--search: hnsw is an index, which several"),
        ("balance", "--exact-balance: balances all rows at once, which several processes do not share"),
        ("images", "is to be embedded first, which several processes do not share. Embed it, and give the store"),
    ],
)
def test_an_option_that_one_process_works_by_is_refused(
    forked_slowly: dict[str, list[Done]], entry: str, said: str
) -> None:
    assert [process.answers[0][0] for process in forked_slowly[entry]] == [2, 2]
    assert said in forked_slowly[entry][0].answers[0][2]


def test_options_that_differ_are_refused_by_name(forked: dict[str, list[Done]], folders: tuple[Path, Path]) -> None:
    for process in forked["differing"]:
        ((code, _, err),) = process.answers
        assert code == 2
        assert "--num-clusters: is 9 in process 0, and 13 in process 1. Give all processes the same options." in err
    assert not (folders[1] / "rows.h5.results" / "other.h5").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "said", "made"),
    [
        ("train", "--seed: is 1 in process 0, and 2 in process 1", "run"),
        ("embed", "--image-size: is 8 in process 0, and 16 in process 1", "new.h5"),
    ],
)
def test_options_that_differ_are_refused_where_images_are_shared(
    forked_slowly: dict[str, list[Done]], folders: tuple[Path, Path], entry: str, said: str, made: str
) -> None:
    for process in forked_slowly[entry]:
        assert process.answers[0][0] == 2
        assert said in process.answers[0][2]
    assert not (folders[1] / made).exists()


@pytest.mark.slow
def test_commands_that_differ_are_refused(forked_slowly: dict[str, list[Done]]) -> None:
    for process in forked_slowly["commands"]:
        ((code, _, err),) = process.answers
        assert code == 2
        assert "process 0 runs cluster sinkhorn, process 1 runs retrieve" in err


def test_a_killed_process_ends_the_others_with_a_reason(
    forked: dict[str, list[Done]], folders: tuple[Path, Path]
) -> None:
    first, second = forked["killed"]
    assert second.code == -9
    assert second.answers == []
    assert first.seconds < 30
    code, out, err = first.answers[0]
    assert code == 5
    assert not out
    assert re.search(
        r"another process of this command ended before the work was done \([^[]*\[[\d.]+\]:\d+[^()]*\)", err
    )
    assert not (folders[1] / "rows.h5.results" / "other.h5").exists()
    # it does not go on without the others
    assert first.answers[1][0] == 5
    assert "this process left the others" in first.answers[1][2]


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_a_killed_process_ends_the_others_in_other_commands_too(
    forked_slowly: dict[str, list[Done]], name: str
) -> None:
    first, second = forked_slowly[f"killed-{name}"]
    assert (second.code, second.answers) == (-9, [])
    assert first.seconds < 30
    code, out, err = first.answers[0]
    assert (code, out) == (5, "")
    assert "another process of this command ended before the work was done" in err


@pytest.mark.slow
def test_a_process_that_fails_and_lives_on_ends_the_others(forked_slowly: dict[str, list[Done]]) -> None:
    first, second = forked_slowly["failing"]
    assert first.answers[0][0] == 5
    assert "another process of this command ended before the work was done" in first.answers[0][2]
    assert "[process 1] here: the disk is full" in second.answers[0][2]
    assert first.seconds < second.seconds


@pytest.mark.slow
def test_a_process_that_never_joins_is_not_waited_for_long(forked_slowly: dict[str, list[Done]]) -> None:
    code, _, err = forked_slowly["absent"][0].answers[0]
    assert code == 5
    assert "another process of this command ended before the work was done" in err
    assert forked_slowly["absent"][1].code == 2


def test_every_command_that_is_run_alone_is_refused_before_it_looks_at_anything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    shared = {words for words, command in all_commands().items() if command.shares == "rows"}
    assert shared == {
        ("cluster", "sinkhorn"), ("retrieve",), ("evaluate", "retrieval"), ("evaluate", "knn"), ("evaluate", "linear"),
        ("discover", "answer"), ("discover", "categories"), ("suggest",), ("match",),
    }  # fmt: skip
    assert {words[0] for words, command in all_commands().items() if command.shares == "images"} == {"train", "embed"}
    config = KMeansConfig(index="not there.h5", num_clusters=2)
    with (
        pytest.raises(ConfigError, match=r"labelkit cluster k-means: was started as 2 processes"),
        together(None, config),
    ):
        pass
    with together("images", config) as processes:
        assert processes.size == 1


def test_a_launcher_that_says_too_little_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    config = KMeansConfig(index="not there.h5", num_clusters=2)
    with pytest.raises(ConfigError, match="RANK, MASTER_ADDR, MASTER_PORT is not set"), together("rows", config):
        pass
    assert current_processes().size == 1


def test_processes_share_what_it_takes_to_scale_rows_and_to_find_zeros(make_store: MakeStore) -> None:
    values = np.random.default_rng(0).standard_normal((9, 4)).astype(np.float32)
    values[[1, 7]] = 0
    store = make_store(values)

    def run(processes: Processes) -> tuple[Any, Any]:
        token = several._current.set(processes)
        try:
            rows = stored_rows(store, np.arange(9), unit=True, in_blocks=True)
            return rows.to_array(), stored_zero_rows(rows)
        finally:
            several._current.reset(token)

    for scaled, zero in in_threads(2, run):
        np.testing.assert_array_equal(scaled, StoredRows(values, unit=True, in_blocks=True).to_array())
        assert np.flatnonzero(zero).tolist() == [1, 7]


def test_where_images_lie_may_differ() -> None:
    from labelkit.config.retrieve import RetrieveConfig

    configs = [RetrieveConfig(index="a.h5", query_rows=(1,), data_root=place) for place in ("here", "there")]
    texts = [json.dumps({"command": ["retrieve"], **config.to_yaml_dict()}) for config in configs]
    check_same_on_all(configs[0], lambda own: texts)
    changed = json.dumps({"command": ["retrieve"], **configs[1].model_copy(update={"k": 3}).to_yaml_dict()})
    with pytest.raises(ConfigError, match="--k: is 10 in process 0, and 3 in process 2"):
        check_same_on_all(configs[0], lambda own: [texts[0], texts[1], changed])
