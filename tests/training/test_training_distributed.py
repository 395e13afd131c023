"""Several processes of one command: a training shares its work, all others are refused."""

from pathlib import Path

import pytest
from labelkit.cli.main import main


@pytest.mark.parametrize("words", [("cluster", "k-means", "--num-clusters", "2"), ("embed", "--checkpoint", "run")])
def test_a_command_that_works_alone_is_refused_before_it_looks_at_anything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    out = ["--out", str(tmp_path / "out.h5")] if words[0] == "embed" else []

    assert main([*words, "--index", "not there.h5", *out]) == 2

    said = capsys.readouterr().err
    assert f"labelkit {' '.join(words[:2] if not out else words[:1])}: was started as 2 processes (WORLD_SIZE)" in said
    assert "Start it without torchrun" in said
