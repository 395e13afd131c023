"""What is said on stderr while work goes on."""

from collections.abc import Iterator

import pytest
from labelkit.cli.console import OutputOptions
from labelkit.cli.progress import LineProgress, QuietProgress, create_progress_display, format_duration
from labelkit.progress import Progress, current_progress, use_progress


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Iterator[Clock]:
    return Clock()


def test_a_line_comes_every_few_seconds_and_at_the_end(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    progress = LineProgress(seconds=5, clock=clock)
    with progress.task("embed", total=10) as task:
        for _ in range(10):
            clock.now += 2
            task.advance(1, loss=0.51234)
    assert capsys.readouterr().err.splitlines() == [
        "embed: 3/10, 14 s left, loss 0.5123",
        "embed: 6/10, 8 s left, loss 0.5123",
        "embed: 9/10, 2 s left, loss 0.5123",
        "embed: 10/10, done in 20 s, loss 0.5123",
    ]


def test_the_log_of_a_long_task_has_a_line_a_minute(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with LineProgress(clock=clock).task("embed", total=1200) as task:
        for _ in range(1200):
            clock.now += 1
            task.advance(1)
    done = [int(line.split()[1].split("/")[0].replace(",", "")) for line in capsys.readouterr().err.splitlines()]
    assert done[:3] == [5, 10, 15]
    assert len(done) < 50
    assert done[-3] - done[-4] == 60


def test_what_was_done_before_says_nothing_of_the_time_left(capsys: pytest.CaptureFixture[str], clock: Clock) -> None:
    with LineProgress(seconds=5, clock=clock).task("train", total=10) as task:
        task.skip(6)
        clock.now += 6
        task.advance(1)
    assert capsys.readouterr().err.splitlines() == ["train: 7/10, 18 s left", "train: 7/10, done in 6 s"]


def test_work_without_known_length_counts_up_and_short_work_is_not_mentioned(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    progress = LineProgress(seconds=5, clock=clock)
    with progress.task("search") as task:
        clock.now += 6
        task.advance(1, classes=12)
    with progress.task("map"):
        clock.now += 7
    with progress.task("embed", total=2) as task:
        clock.now += 1
        task.advance(2)
    told = ["search: 1, classes 12", "search: 1, done in 6 s, classes 12", "map: done in 7 s"]
    assert capsys.readouterr().err.splitlines() == told


def test_messages_and_warnings_go_to_stderr_and_quiet_leaves_only_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    for progress, told in (
        (LineProgress(), "hello\nwarning: careful\n"),
        (QuietProgress(), "warning: careful\n"),
    ):
        with progress.task("embed", total=1) as task:
            task.advance()
        progress.message("hello")
        progress.warning("careful")
        assert capsys.readouterr() == ("", told)


def test_on_a_terminal_one_line_changes_and_messages_stand_above_it(
    capsys: pytest.CaptureFixture[str], clock: Clock
) -> None:
    progress = LineProgress(0.1, clock, redraws=True)
    with progress.task("train", total=2) as outer:
        clock.now += 1
        outer.advance(1)
        progress.message("checkpoint")
        clock.now += 1
        outer.advance(1, loss=0.25)
    erase = "\r\x1b[K"
    shown = f"{erase}train: 1/2, 1 s left{erase}checkpoint\n{erase}train: 2/2, 0 s left, loss 0.25{erase}"
    assert capsys.readouterr().err == shown


def test_the_kind_of_progress_follows_terminal_options_and_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(create_progress_display(OutputOptions()), LineProgress)
    assert isinstance(create_progress_display(OutputOptions(quiet=True)), QuietProgress)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert vars(create_progress_display(OutputOptions()))["redraws"]
    monkeypatch.setenv("TERM", "dumb")
    assert isinstance(create_progress_display(OutputOptions()), LineProgress)
    monkeypatch.setenv("RANK", "1")
    assert type(create_progress_display(OutputOptions())) is Progress


def test_who_listens_is_limited_to_the_with_block_and_library_users_hear_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = current_progress()
    listener = LineProgress()
    with use_progress(listener):
        assert current_progress() is listener
    assert current_progress() is before
    with before.task("embed", total=1) as task:
        task.advance(1, loss=1.0)
    before.message("hello")
    before.warning("careful")
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("seconds", "text"), [(8.4, "8 s"), (204, "3.4 min"), (7560, "2.1 h")])
def test_time_spans_are_for_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
