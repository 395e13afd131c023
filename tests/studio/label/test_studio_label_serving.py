"""What a server of ``labelkit label --serve`` does before it answers anybody: its lock."""

import contextlib
from pathlib import Path

import pytest
from labelkit.errors import BusyError
from labelkit.store import parts as run_folder
from labelkit.studio.label import label as serving


def test_a_second_server_is_told_to_use_the_link_of_the_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_folder, "LOCK_SECONDS", 0)
    with contextlib.ExitStack() as held:
        serving._lock_results_folder(held, tmp_path)
        with pytest.raises(BusyError, match="Use its link, or stop it with Ctrl-C") as caught:
            serving._lock_results_folder(held, tmp_path)

    assert "--out" not in str(caught.value)
