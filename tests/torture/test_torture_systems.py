"""Clocks that jump, slow file systems, full temporary folders, other disks, bombs, other versions."""

import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from labelkit.cli.main import main
from torture_systems import TOUR, TRAIN, begin_tour, layer, mounted, prepare, tour
from torture_tally import FULL_SECONDS, Tally, sized

ROW = "k  clocks that jump, delays, full TMPDIR, other mounts, bombs, groups, versions"

ROOT = Path(__file__).parents[2]
QUICK = TOUR.strip().splitlines()[0] + "\n"
# seconds that are added in turn at each look at the wall clock
CLOCKS = {"in turn": "0,-86400,31536000", "a day back": "-86400", "a year on": "31536000", "1970": "-1700000000"}


def _files(folder: Path) -> dict[str, bytes]:
    """All that the tour made but what says how long it took."""
    made = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*")) if path.is_file()}
    timed = ("run/", "made/start.json")
    kept = {name: path for name, path in made.items() if path.name not in ("lock", ".lock")}
    return {name: path.read_bytes() for name, path in kept.items() if not name.startswith(timed)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """What the tours make where nothing is in their way, by their lines; filled on demand."""
    return {}


def _expected(whole: dict[str, dict[str, bytes]], folder: Path, lines: str) -> dict[str, bytes]:
    if lines not in whole:
        codes, err = tour(prepare(folder / "whole"), lines, {}, folder / "cache-whole")
        assert all(code.startswith("0 ") for code in codes), err
        whole[lines] = _files(folder / "whole")
    return whole[lines]


def _lines(count: int) -> str:
    return QUICK if count == 1 else TOUR + TRAIN


@pytest.fixture(scope="module")
def layers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The layers between a process and the system."""
    if sys.platform != "linux":
        pytest.skip("the layers are for Linux")
    folder = tmp_path_factory.mktemp("layers")
    found = {name: layer(f"{name}.c", folder) for name in ("clock", "delay")}
    if None in found.values():
        pytest.skip("there is no C compiler")
    return {name: path for name, path in found.items() if path is not None}


@pytest.mark.slow
@sized(sample=1, full=len(CLOCKS))
def test_a_clock_that_jumps_changes_nothing(
    tmp_path: Path, tally: Tally, whole: dict[str, dict[str, bytes]], layers: dict[str, Path], count: int
) -> None:
    expected = _expected(whole, tmp_path, _lines(count))
    for name in list(CLOCKS)[:count]:
        with tally.attempt(name):
            environment = {"LD_PRELOAD": str(layers["clock"]), "CLOCK_STEPS": CLOCKS[name]}
            codes, err = tour(prepare(tmp_path / name), _lines(count), environment, tmp_path / f"cache {name}")
            assert [code for code in codes if not code.startswith("0 ")] == [], err[-1500:]
            assert len(codes) == len(_lines(count).split("\n")) - _lines(count).split("\n").count("")
            assert _files(tmp_path / name) == expected


@pytest.mark.slow
@sized(sample=1, full=5)
def test_calls_that_take_long_change_nothing_also_with_two_writers(
    tmp_path: Path, tally: Tally, whole: dict[str, dict[str, bytes]], layers: dict[str, Path], count: int
) -> None:
    expected = _expected(whole, tmp_path, QUICK)
    for seed in range(count):
        folder = prepare(tmp_path / f"{seed}")
        environment = {"LD_PRELOAD": str(layers["delay"]), "DELAY_MS": "30", "DELAY_SEED": str(seed)}
        with tally.attempt(f"seed {seed}"):
            both = [begin_tour(folder, QUICK, environment, tmp_path / "cache") for _ in range(2)]
            said = [process.communicate(timeout=600) for process in both]
            codes = [out.split("code ")[1].split()[0] for out, _ in said]
            # the other one may be at work, or have ended
            assert "0" in codes, said
            assert set(codes) <= {"0", "2", "6"}, said
            assert _files(folder) == expected


@pytest.mark.torture
@pytest.mark.timeout(FULL_SECONDS)
def test_a_tour_on_a_slow_file_system_ends_the_same(
    tmp_path: Path, tally: Tally, whole: dict[str, dict[str, bytes]], layers: dict[str, Path]
) -> None:
    expected = _expected(whole, tmp_path, _lines(2))
    with tally.attempt("all commands"):
        environment = {"LD_PRELOAD": str(layers["delay"]), "DELAY_MS": "10", "DELAY_SEED": "0"}
        codes, err = tour(prepare(tmp_path / "slow"), _lines(2), environment, tmp_path / "cache-slow")
        assert [code for code in codes if not code.startswith("0 ")] == [], err[-1500:]
        assert _files(tmp_path / "slow") == expected


@pytest.mark.slow
@sized(sample=1, full=2)
def test_outputs_may_lie_on_another_disk_than_the_cache_and_temporary_files(
    tmp_path: Path, tally: Tally, whole: dict[str, dict[str, bytes]], count: int
) -> None:
    expected = _expected(whole, tmp_path, _lines(count))
    disk = tmp_path / "disk"
    with mounted(disk, "500m"), tally.attempt("tmpfs"):
        codes, err = tour(prepare(disk / "here"), _lines(count), {"TMPDIR": str(tmp_path)}, tmp_path / "cache-disk")
        assert [code for code in codes if not code.startswith("0 ")] == [], err[-1500:]
        assert _files(disk / "here") == expected


COMPARE = "compare --dataset digits --methods simgcd --budget 1s --max-per-class 10 -q\n"


@pytest.mark.slow
@sized(sample=1, full=2)
def test_a_full_temporary_folder_is_told_as_what_it_is(tmp_path: Path, tally: Tally, count: int) -> None:
    folder, small = prepare(tmp_path / "here"), tmp_path / "small"
    with mounted(small, "16k"):
        with tally.attempt(COMPARE):
            codes, err = tour(folder, COMPARE, {"TMPDIR": str(small)}, tmp_path / "cache-small")
            assert codes == [f"5 {COMPARE.strip()}"], err
            assert "the disk is full" in err or "MB are free, but" in err
            assert not list(small.iterdir())


def _npz(path: Path, member: str, shape: tuple[int, ...], descr: str, method: int) -> None:
    """Write zeros, many of them in few bytes."""
    with zipfile.ZipFile(path, "w", method) as archive:
        if member != "embeddings":
            with archive.open("embeddings.npy", "w") as file:
                np.lib.format.write_array(file, np.ones((4, 2), np.float32))
        with archive.open(f"{member}.npy", "w", force_zip64=True) as file:
            header = {"descr": descr, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            left = int(np.prod(shape)) * np.dtype(descr).itemsize
            while left > 0:
                file.write(bytes(min(left, 1 << 22)))
                left -= 1 << 22


BOMBS = {
    "rows": ("embeddings", (1 << 20, 64), "<f4", zipfile.ZIP_DEFLATED),
    "rows, bzip2": ("embeddings", (1 << 20, 64), "<f4", zipfile.ZIP_BZIP2),
    "rows, lzma": ("embeddings", (1 << 20, 64), "<f4", zipfile.ZIP_LZMA),
    "labels": ("labels", (1 << 25,), "<i8", zipfile.ZIP_DEFLATED),
    "names": ("ids", (4,), "<U16777216", zipfile.ZIP_DEFLATED),
}


@pytest.mark.slow
@sized(sample=1, full=len(BOMBS))
def test_a_small_archive_does_not_become_a_large_one(
    tmp_path: Path, tally: Tally, capsys: pytest.CaptureFixture[str], count: int
) -> None:
    for name in list(BOMBS)[-count:]:
        _npz(tmp_path / "bomb.npz", *BOMBS[name])
        with tally.attempt(name):
            assert (tmp_path / "bomb.npz").stat().st_size < 1 << 20
            assert main(["import", "--source", str(tmp_path / "bomb.npz"), "--out", str(tmp_path / "b.h5")]) == 3
            assert "bytes declared" in capsys.readouterr().err
            assert not list(tmp_path.glob("b.h5*"))


# of 22 November 2026: stores and runs are of the formats that there are now
EARLIER = "56cb33e"
EACH_READS = (
    "verify --index {0}.h5 -q",
    "status --index {0}.h5 -q",
    "cluster sinkhorn --index {0}.h5 --num-clusters 4 --result {1} -q",
    "report --index {0}.h5 --out {0}{1}.html -q",
    "retrieve --index {0}.h5 --query-rows 0 --search hnsw --csv {0}{1}.csv -q",
)


@pytest.mark.torture
@pytest.mark.timeout(FULL_SECONDS)
def test_two_versions_read_and_write_one_store(tmp_path: Path, tally: Tally) -> None:
    packed = subprocess.run(["git", "archive", EARLIER, "labelkit"], cwd=ROOT, capture_output=True, check=False)
    if packed.returncode:
        pytest.skip("the history of the project is not here")
    (tmp_path / "before").mkdir()
    subprocess.run(["tar", "-x"], cwd=tmp_path / "before", input=packed.stdout, check=True)
    folder = prepare(tmp_path / "here")
    versions = {"before": {"PYTHONPATH": str(tmp_path / "before")}, "now": {"PYTHONPATH": str(ROOT)}}
    embed = QUICK.strip().replace("s.h5", "{}.h5")
    for writer, reader in (("before", "now"), ("now", "before")):
        lines = embed.format(writer) + f"\ncluster k-means --index {writer}.h5 --num-clusters 4 -q\n"
        codes, err = tour(folder, lines, versions[writer], tmp_path / "cache")
        assert [code[0] for code in codes] == ["0", "0"], err
        for one in (reader, writer):
            lines = "\n".join(line.format(writer, one) for line in EACH_READS) + "\n"
            codes, err = tour(folder, lines, versions[one], tmp_path / "cache")
            for line in lines.strip().splitlines():
                with tally.attempt(f"{line} by {one}, written by {writer}"):
                    assert f"0 {line}" in codes, err
    line = embed.format("both") + "\n"
    both = [begin_tour(folder, line, environment, tmp_path / "cache") for environment in versions.values()]
    said = [process.communicate(timeout=600) for process in both]
    with tally.attempt("both at the same time"):
        codes = [out.split("code ")[1].split()[0] for out, _ in said]
        assert "0" in codes, said
        assert set(codes) <= {"0", "2", "3", "6"}, said
        for environment in versions.values():
            assert tour(folder, "verify --index both.h5 -q\n", environment, tmp_path / "cache")[0][0].startswith("0 ")
