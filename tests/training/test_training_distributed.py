"""Several processes of one command: a training shares its work, all others are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from labelkit.cli.main import main
from labelkit.commands.retrieve.options import RetrieveConfig
from labelkit.errors import ConfigError
from labelkit.training.distributed import check_same_on_all


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


def test_options_that_differ_between_processes_are_named_but_where_images_lie() -> None:
    configs = [RetrieveConfig(index="a.h5", query_rows=(1,), data_root=place) for place in ("here", "there")]
    texts = [json.dumps({"command": ["retrieve"], **config.to_yaml_dict()}) for config in configs]
    check_same_on_all(configs[0], lambda own: texts)
    changed = json.dumps({"command": ["retrieve"], **configs[1].model_copy(update={"k": 3}).to_yaml_dict()})
    with pytest.raises(ConfigError, match="--k: is 10 in process 0, but 3 in process 2"):
        check_same_on_all(configs[0], lambda own: [texts[0], texts[1], changed])
    other = json.dumps({"command": ["match"], **configs[1].to_yaml_dict()})
    with pytest.raises(ConfigError, match="process 0 runs retrieve, but process 1 runs match"):
        check_same_on_all(configs[0], lambda own: [texts[0], other])
