"""``--compile``: backbones are compiled where they are run as a whole, and methods that look inside refuse it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from labelkit.cli.main import main
from labelkit.methods.registry import METHODS
from tests.tiers import quick_every
from torch import nn

Make = Callable[..., Any]
WHOLE = [name for name, spec in METHODS.items() if spec.load().runs_whole_backbone]


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The graphs that were compiled; they are run as they are, since a compiler would take minutes."""
    found: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        found.append(graph)
        return graph.forward

    compile_one = nn.Module.compile
    monkeypatch.setattr(nn.Module, "compile", lambda self: compile_one(self, backend=backend))
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_a_compiled_backbone_trains_to_the_same_weights(make: Make, graphs: list[Any], name: str) -> None:
    plain = make(name)
    plain.trainer.fit()
    assert graphs == []
    compiled = make(name, compile=True)
    compiled.trainer.fit()
    assert len(graphs) > 0
    for key, value in plain.method.state_dict().items():
        torch.testing.assert_close(compiled.method.state_dict()[key], value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", quick_every(4, sorted(METHODS.keys() - set(WHOLE))))
def test_a_method_that_looks_inside_the_backbone_refuses(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", name, "--dataset", "digits", "--preset", "digits", "--compile", "--out", str(tmp_path / "run")]
    assert main(words) == 2
    assert f"--compile: {name} uses intermediate layers of the backbone" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
