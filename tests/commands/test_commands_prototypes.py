"""``labelkit prototypes`` and the cache that methods share."""

import json
from dataclasses import asdict
from pathlib import Path

import h5py
import numpy as np
import pytest
from labelkit.algorithms.prototypes import measure_spread
from labelkit.cli.main import main
from labelkit.commands.prototypes.prototypes import make_prototypes
from labelkit.errors import Damaged, OutputExistsError
from labelkit.methods.prototypes.files import Prototypes, load_or_compute_prototypes, prototype_cache_path
from labelkit.options.prototypes import PrototypesConfig
from labelkit.store.array_files import read_prototypes, write_prototypes
from tests.running import flip_bit


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache" / "prototypes"


def make(said: list[str] | None = None, **changes: object) -> Prototypes:
    show_message = None if said is None else said.append
    return load_or_compute_prototypes(
        **{"num_prototypes": 20, "dim": 4, "iterations": 10, "show_message": show_message, **changes}
    )


def test_prototypes_are_written_and_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prototypes", "--embed-dim", "50", "--num-classes", "100", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)

    with h5py.File("prototypes-100x50.h5") as file:
        vectors = file["prototypes"][:]
        assert file.attrs["format"] == b"labelkit.prototypes" or file.attrs["format"] == "labelkit.prototypes"
    assert vectors.shape == (100, 50)
    assert said["spread"] == pytest.approx(asdict(measure_spread(vectors)))
    assert said["spread"]["max_cosine"] == pytest.approx(0, abs=1e-6)
    assert said["bounds"] == pytest.approx(
        {
            "max_cosine": 0,
            "min_cosine": -1,
            "mean_cosine": -1 / 99,
            "rms_cosine": (50 / (50 * 99)) ** 0.5,
            "uniformity": -400 / 99,
        }
    )
    assert said["source"] == "closed form"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--embed-dim", "1", "--num-classes", "5"],
            "--embed-dim: input should be greater than or equal to 2 (value 1)",
        ),
        (
            ["--embed-dim", "5", "--num-classes", "1"],
            "--num-classes: input should be greater than or equal to 2 (value 1)",
        ),
        (["--embed-dim", "5", "--num-classes", "9", "--out", "none/p.h5"], "does not exist"),
    ],
)
def test_what_cannot_be_made_exits_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prototypes", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_same_file_written_twice_is_no_error_and_another_one_is() -> None:
    config = PrototypesConfig(embed_dim=4, num_classes=6, out=Path("p.h5"))
    made = make_prototypes(config)
    before = Path("p.h5").read_bytes()
    make_prototypes(config)

    assert Path("p.h5").read_bytes() == before
    assert made.paths == (Path("p.h5"),)
    other = config.model_copy(update={"seed": 1})
    with pytest.raises(OutputExistsError, match="exists and has other content"):
        make_prototypes(other)
    make_prototypes(other.model_copy(update={"overwrite": True}))
    assert Path("p.h5").read_bytes() != before


def test_what_was_optimized_is_read_from_the_cache_the_next_time(cache: Path) -> None:
    first, second = make(), make()

    assert (first.source, second.source) == ("optimized", "cache")
    assert first.cached_in == second.cached_in == prototype_cache_path(first.recipe)
    assert [path.parent for path in cache.iterdir()] == [cache]
    np.testing.assert_array_equal(first.vectors, second.vectors)


def test_a_damaged_file_of_the_cache_is_found_and_made_again() -> None:
    first = make()
    assert first.cached_in is not None
    flip_bit(first.cached_in, "prototypes")

    again = make()

    assert again.source == "optimized"
    np.testing.assert_array_equal(again.vectors, first.vectors)
    assert make().source == "cache"


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.h5"
    write_prototypes(path, np.eye(3, dtype=np.float32), {"seed": 0}, {})
    assert read_prototypes(path).recipe == {"seed": 0}
    np.testing.assert_array_equal(read_prototypes(path).prototypes, np.eye(3))
    flip_bit(path, "prototypes")
    with pytest.raises(Damaged):
        read_prototypes(path)
