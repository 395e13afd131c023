import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from labelkit.errors import BusyError, CheckpointError, CheckpointMismatch, ConfigError
from labelkit.training.run_dir import RunDir, check_same_options, read_run_config

OPTIONS = {"lr": 0.1, "epochs": 4, "align_blocks": [1, 2], "dataset": "digits"}

HOLD_THE_LOCK = """
import sys
from pathlib import Path
from labelkit.training.run_dir import RunDir
run = RunDir(Path(sys.argv[1]))
run.open(resume=False, overwrite=False)
print("locked", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    """Return a new run with options and a checkpoint folder, still open."""
    run = RunDir(tmp_path / "run")
    run.open(resume=False, overwrite=False)
    run.begin("toy", OPTIONS)
    run.checkpoints.mkdir()
    yield run
    run.close()


@contextmanager
def _reopened(run: RunDir, *, resume: bool = False, overwrite: bool = False) -> Iterator[RunDir]:
    run.close()
    again = RunDir(run.path)
    again.open(resume=resume, overwrite=overwrite)
    yield again
    again.close()


def test_resume_takes_a_run_over_and_changes_nothing(run: RunDir) -> None:
    run.log({"loss": 1.0})
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with _reopened(run, resume=True):
        pass
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_overwrite_leaves_nothing_of_the_old_run(run: RunDir) -> None:
    run.log({"loss": 1.0})
    run.write_json("summary.json", {})
    (run.checkpoints / "step-00000001").mkdir()
    with _reopened(run, overwrite=True) as again:
        again.begin("toy", {"lr": 0.2})
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "config.yaml"]
    assert read_run_config(run.path) == ("toy", {"lr": 0.2})


@pytest.mark.slow
@pytest.mark.parametrize("name", ["thesis.tex", "checkpoints/notes.txt", "checkpoints/step-00000001/mine.npy", "old/x"])
@pytest.mark.parametrize("linked", [False, True], ids=["as it is", "through a link"])
def test_overwrite_refuses_a_folder_with_files_that_no_training_wrote(run: RunDir, name: str, linked: bool) -> None:
    path = run.path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("mine")
    run.close()
    given = run.path
    if linked:
        given = run.path.with_name("link")
        given.symlink_to(run.path)
    with pytest.raises(ConfigError, match="contains files that are not from training"):
        RunDir(given).open(resume=False, overwrite=True)
    assert path.read_text() == "mine"


def test_overwrite_follows_no_link_inside_a_run(run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "last.json").write_text("mine")
    run.checkpoints.rmdir()
    run.checkpoints.symlink_to(tmp_path / "elsewhere")
    run.close()
    with pytest.raises(ConfigError, match="checkpoints"):
        RunDir(run.path).open(resume=False, overwrite=True)
    assert (tmp_path / "elsewhere" / "last.json").read_text() == "mine"


def test_what_comes_into_a_run_while_it_is_replaced_stays(run: RunDir) -> None:
    with _reopened(run, overwrite=True) as again:
        (run.path / "thesis.tex").write_text("mine")
        again.begin("toy", {"lr": 0.2})
    assert (run.path / "thesis.tex").read_text() == "mine"


@pytest.mark.parametrize("name", ["thesis.tex", "config.yaml", ".lock"])
@pytest.mark.parametrize("flags", [{"resume": True, "overwrite": False}, {"resume": False, "overwrite": True}])
def test_a_folder_that_is_no_run_is_left_alone(tmp_path: Path, name: str, flags: dict[str, bool]) -> None:
    folder = tmp_path / "precious"
    folder.mkdir()
    (folder / name).write_text("mine: true\n")
    (folder / "data").mkdir()
    with pytest.raises(ConfigError, match="is not a run folder and will not be overwritten"):
        RunDir(folder).open(**flags)
    assert sorted(path.name for path in folder.iterdir()) == sorted([name, "data"])
    assert (folder / name).read_text() == "mine: true\n"


def test_a_run_that_never_trained_is_discarded(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.open(resume=False, overwrite=False)
    run.begin("toy", OPTIONS)
    run.remove_if_untrained()
    run.close()
    assert not run.path.exists()


@pytest.mark.parametrize("begun", [False, True])
def test_what_was_trained_is_not_discarded(run: RunDir, begun: bool) -> None:
    with _reopened(run, overwrite=True) as again:
        if begun:
            again.begin("toy", OPTIONS)
            again.log({"loss": 1.0})
        again.remove_if_untrained()
    assert read_run_config(run.path) == ("toy", OPTIONS)


def test_what_an_early_death_left_is_no_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    (path / ".lock").touch()
    (path / ".tmp-1-0000").write_bytes(b"torn")
    run = RunDir(path)
    run.open(resume=False, overwrite=False)
    run.begin("toy", OPTIONS)
    run.close()
    assert sorted(entry.name for entry in path.iterdir()) == [".lock", "config.yaml"]


def test_a_second_process_is_told_that_the_folder_is_busy(tmp_path: Path) -> None:
    path = tmp_path / "run"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD_THE_LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(BusyError) as caught:
            RunDir(path).open(resume=False, overwrite=False)
        holder.kill()
    assert caught.value.exit_code == 6
    run = RunDir(path)
    run.open(resume=False, overwrite=False)  # a killed process holds nothing
    run.close()


def test_a_process_that_does_not_write_leaves_no_trace(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run", writes=False)
    run.open(resume=False, overwrite=False)
    run.begin("toy", OPTIONS)
    run.log({"loss": 1.0})
    run.write_json("summary.json", {})
    run.close()
    assert not run.path.exists()


def test_metrics_are_one_json_object_a_line_with_null_for_undefined_values(run: RunDir) -> None:
    run.log({"epoch": 0, "loss": 0.1, "nested": {"acc": float("nan")}})
    run.log({"epoch": 1, "loss": float("inf")})
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines == [{"epoch": 0, "loss": 0.1, "nested": {"acc": None}}, {"epoch": 1, "loss": None}]


def test_metrics_are_cut_to_the_length_of_a_checkpoint_and_go_on_from_there(run: RunDir) -> None:
    run.log({"step": 1})
    length = run.metrics_length()
    run.log({"step": 2})
    with (run.path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 3, "lo')  # torn by a kill
    run.truncate_metrics(length)
    run.log({"step": 2, "again": 1})
    run.close()
    assert (run.path / "metrics.jsonl").read_text() == '{"step":1}\n{"step":2,"again":1}\n'


def test_every_option_that_differs_is_named_with_both_values(run: RunDir) -> None:
    changed = {"epochs": 4, "align_blocks": [3], "dataset": "cub", "beta": 1.0}  # without lr
    with pytest.raises(CheckpointMismatch) as caught:
        check_same_options(run.path, "toy", changed, allowed=frozenset({"dataset"}))
    assert "align_blocks is [3], was [1, 2]; beta is 1.0, was None; lr is None, was 0.1" in caught.value.problem
    assert "dataset" not in caught.value.problem
    assert str(run.path / "config.yaml") in caught.value.remedy


def test_a_run_of_before_an_option_goes_on_with_the_value_that_means_the_same(run: RunDir) -> None:
    before = {"term_gradients": "network"}
    check_same_options(run.path, "toy", {**OPTIONS, **before}, allowed=frozenset(), before=before)
    with pytest.raises(CheckpointMismatch, match="term_gradients is 'predictor', was 'network'") as caught:
        check_same_options(
            run.path, "toy", {**OPTIONS, "term_gradients": "predictor"}, allowed=frozenset(), before=before
        )
    # the file alone would not do
    assert "config.yaml --term-gradients network`" in caught.value.remedy


def test_a_longer_run_may_resume_and_a_shorter_one_may_not(run: RunDir) -> None:
    said = check_same_options(run.path, "toy", {**OPTIONS, "epochs": 5}, allowed=frozenset())
    assert "is extended from 4 to 5 epochs: schedules are stretched" in said
    assert check_same_options(run.path, "toy", OPTIONS, allowed=frozenset()) is None
    with pytest.raises(CheckpointMismatch, match="epochs is 3, was 4"):
        check_same_options(run.path, "toy", {**OPTIONS, "epochs": 3}, allowed=frozenset())


@pytest.mark.parametrize(("was", "now"), [("auto", "gcd"), ("gcd", "auto")])
def test_a_split_that_was_automatic_may_be_asked_for_by_name(run: RunDir, was: str, now: str) -> None:
    run.update_options("toy", {**OPTIONS, "label_split": was})
    check_same_options(run.path, "toy", {**OPTIONS, "label_split": now}, allowed=frozenset())


def test_a_run_of_another_method_is_refused_by_name(run: RunDir) -> None:
    with pytest.raises(CheckpointMismatch, match="is a run of toy, not of flipclass"):
        check_same_options(run.path, "flipclass", OPTIONS, allowed=frozenset())


@pytest.mark.parametrize("content", [b"", b"# labelkit train toy\n- a\n- b\n", b"# labelkit train toy\n{", b"\xff\xfe"])
def test_damaged_options_are_refused(run: RunDir, content: bytes) -> None:
    (run.path / "config.yaml").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"config\.yaml: cannot be read"):
        read_run_config(run.path)
