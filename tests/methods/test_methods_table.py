"""What holds for every row of the table of methods."""

import ast
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import labelkit
import numpy as np
import pytest
import torch
from labelkit.commands.common.training_data import PreparedData
from labelkit.data.batch import DataInfo
from labelkit.methods.registry import METHODS
from labelkit.options.presets import list_presets
from labelkit.options.training import StepTrainConfig
from labelkit.training.checkpoint import load_checkpoint
from labelkit.training.method import Method
from tests.short_runs import EACH_FAMILY, EACH_LIGHT, EACH_METHOD
from tests.tiers import quick_every

Make = Callable[..., Any]
MAX_LINES = 400  # with the helpers that the method alone uses
STEPS_PER_EPOCH = 4  # 64 images in batches of 16


def _assert_equal_weights(first: torch.nn.Module, second: torch.nn.Module) -> None:
    other = second.state_dict()
    assert first.state_dict().keys() == other.keys()
    for name, value in first.state_dict().items():
        assert torch.equal(value, other[name]), name


def _metrics(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds", None)
    return lines


@dataclass
class Whole:
    """A run of a method that nothing stopped."""

    method: Method[Any]
    fit: Any
    path: Path


@pytest.fixture(scope="module")
def trained() -> dict[str, Whole]:
    return {}


@pytest.fixture
def whole(make: Make, trained: dict[str, Whole], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """Return a function: a method to such a run. It is trained once, and tests must not change it."""

    def train(name: str) -> Whole:
        if name not in trained:
            path = tmp_path_factory.mktemp("whole") / name
            setup = make(name, path, log_every_steps=3)
            trained[name] = Whole(setup.method, setup.trainer.fit(), path)
        return trained[name]

    return train


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_one_short_file_named_like_it(name: str) -> None:
    module, _, class_name = METHODS[name].target.partition(":")
    spec = find_spec(module)
    assert spec.origin is not None
    family, _, file = module.removeprefix("labelkit.methods.").partition(".")
    assert (family.isidentifier(), file) == (True, name.replace("-", "_"))
    assert len(Path(spec.origin).read_text().splitlines()) <= MAX_LINES
    loaded = METHODS[name].load()
    assert loaded.__name__ == class_name
    assert issubclass(loaded, Method)
    others = {METHODS[other].load() for other in METHODS if other != name}
    assert not others & set(loaded.__mro__)  # methods share parts, none is another one


def test_a_method_runs_under_its_own_name_with_its_own_config() -> None:
    found = {name: (spec.config.command, spec.config.__module__.rpartition(".")[0]) for name, spec in METHODS.items()}
    family = {name: str(spec.target).partition(":")[0].rpartition(".")[0] for name, spec in METHODS.items()}
    assert found == {name: (("train", name), family[name]) for name in METHODS}


def test_every_method_has_a_preset_for_digits() -> None:
    assert [name for name, spec in METHODS.items() if "digits" not in list_presets(spec.config)] == []


@cache
def _config_reads(path: Path) -> set[str]:
    """Names of attributes that a file reads, also by ``getattr``, but for those in checks of options."""
    tree = ast.parse(path.read_text())
    checks = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and any("validator" in ast.dump(d) for d in function.decorator_list)
        for node in ast.walk(function)
    }
    by_name = {
        str(node.args[1].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and isinstance(node.args[1], ast.Constant)
    }
    return by_name | {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node not in checks}


@pytest.mark.parametrize("name", METHODS)
def test_every_option_of_a_method_is_read_where_it_can_act(name: str) -> None:
    # losses, models, metrics, store and algorithms see no config; other families of methods do not count
    package = Path(labelkit.__file__).parent
    family = METHODS[name].target.split(".")[2]
    files = [*(package / "methods" / family).glob("*.py"), *(package / "methods").glob("*.py")]
    for layer in ("options", "data", "training", "commands", "pipelines", "studio", "cli"):
        files += (package / layer).rglob("*.py")
    read = set().union(*map(_config_reads, files))
    assert [field for field in METHODS[name].config.model_fields if field not in read] == []


@pytest.mark.parametrize("name", EACH_LIGHT)
def test_a_few_steps_lower_the_loss(make: Make, name: str) -> None:
    # Constant teacher: a sharper target would change the loss of unchanged weights.
    # a target that is not sharpened meanwhile, for methods that have one
    steady = {"teacher_warmup_epochs": 0} if "teacher_warmup_epochs" in METHODS[name].config.model_fields else {}
    if "unlabeled_weight" in METHODS[name].config.model_fields:
        steady |= {"unlabeled_weight": 0}  # it grows from 0
    if "center_decay" in METHODS[name].config.model_fields:
        steady |= {"center_decay": 0.99, "freeze_last_layer_steps": 0}  # the center works against the loss
    if name == "gcd":
        # at the rate for all digits, 64 of them become alike on some processors and stay so
        steady |= {"lr": 2e-4, "seed": 1}
    if "term_gradients" in METHODS[name].config.model_fields:
        steady |= {"term_gradients": "network"}  # the whole loss falls if all of it trains all of the network
    history = make(name, epochs=8, **steady).trainer.fit().history
    assert math.isfinite(history[-1]["loss"])
    assert history[-1]["loss"] < 0.95 * history[0]["loss"]


@pytest.mark.parametrize("name", EACH_METHOD)
def test_every_trainable_parameter_gets_a_gradient_and_no_other(make: Make, name: str) -> None:
    setup = make(name)
    # some have to know before a batch can be drawn
    setup.method.on_epoch_start(setup.trainer._state(log_now=False))
    setup.method(next(setup.batches())).loss.backward()
    for key, parameter in setup.method.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
        else:
            assert parameter.grad is None, key


@pytest.mark.parametrize("name", EACH_FAMILY)
def test_a_run_stopped_and_resumed_equals_an_uninterrupted_one(
    tmp_path: Path, make: Make, whole: Callable[[str], Whole], name: str
) -> None:
    expected = whole(name)
    options = {"log_every_steps": 3}
    assert not make(name, tmp_path / "cut", **options, stop_after_steps=3).trainer.fit().finished
    # stopped inside an epoch, then between two
    for stop_at in (STEPS_PER_EPOCH, None):
        resumed = make(name, tmp_path / "cut", resume=True, **options, stop_after_steps=stop_at)
        resumed.trainer.restore(load_checkpoint(tmp_path / "cut"))
        assert resumed.trainer.fit().finished == (stop_at is None)
    _assert_equal_weights(expected.method, resumed.method)
    assert _metrics(expected.path) == _metrics(tmp_path / "cut")


@pytest.mark.parametrize("name", EACH_FAMILY)
def test_another_seed_gives_another_run(make: Make, whole: Callable[[str], Whole], name: str) -> None:
    setup = make(name, seed=1, stop_after_steps=2)
    setup.trainer.fit()
    with pytest.raises(AssertionError):
        _assert_equal_weights(whole(name).method, setup.method)


@pytest.mark.parametrize("name", EACH_METHOD)
def test_the_truth_of_unlabeled_images_changes_no_bit_of_training(
    make: Make,
    whole: Callable[[str], Whole],
    prepared: PreparedData,
    few: PreparedData,
    name: str,
    rng: np.random.Generator,
) -> None:
    """T21 of the specification: the monitor sees the truth, training does not."""
    if issubclass(METHODS[name].config, StepTrainConfig):
        prepared = few
    scrambled = prepared.dataset.labels.copy()
    hidden = prepared.labels < 0
    scrambled[hidden] = rng.integers(0, 10, int(hidden.sum()))
    lied_to = replace(prepared, dataset=replace(prepared.dataset, labels=scrambled))

    honest, misled = whole(name), make(name, data=lied_to, log_every_steps=3)
    first, second = honest.fit, misled.trainer.fit()

    _assert_equal_weights(honest.method, misled.method)
    assert [epoch["loss"] for epoch in first.history] == [epoch["loss"] for epoch in second.history]
    scores = [{name: value for name, value in fit.metrics.items() if name != "seconds"} for fit in (first, second)]
    assert scores[0] != scores[1]  # the lie did arrive


def test_a_method_is_told_nothing_about_unlabeled_images(prepared: PreparedData) -> None:
    info = prepared.build_data_info(0)
    hidden = prepared.labels < 0
    assert (info.labels[hidden] == -1).all()
    assert set(DataInfo.__dataclass_fields__) == {
        "num_samples", "labels", "class_names", "class_order", "num_old_classes", "num_known_classes",
        "in_channels", "image_size", "chiral", "photographic", "num_objects", "row_dim", "row_center", "num_row_views",
    }  # fmt: skip


@pytest.mark.parametrize("name", EACH_FAMILY)
def test_evaluation_views_have_no_randomness(make: Make, name: str) -> None:
    setup = make(name)
    network = setup.method.network
    first = setup.trainer.full_pass(network.embed)
    assert first.shape == (64, network.embed_dim)
    assert torch.equal(first, setup.trainer.full_pass(network.embed))


def replaceable() -> list[tuple[str, str, str]]:
    """Methods and attributes that the guide of own methods lists, and the value of --loss that it names."""
    guide = (Path(labelkit.__file__).parents[1] / "docs" / "guides" / "own-method.md").read_text()
    rows = [line.split("|") for line in guide.partition("## What can be replaced")[2].splitlines() if line[:3] == "| `"]
    return [
        (name, re.findall(r"`([^`]+)`", row[2])[0], "".join(re.findall(r"`--loss ([^`]+)`", row[2])))
        for row in rows
        for name in re.findall(r"`([^`]+)`", row[1])
    ]


@pytest.mark.parametrize(("name", "attribute", "loss"), quick_every(3, replaceable()))
def test_a_loss_that_the_guide_lets_replace_is_called(make: Make, name: str, attribute: str, loss: str) -> None:
    setup = make(name, **({"loss": loss} if loss else {}))
    *above, last = attribute.split(".")
    holder = setup.method.get_submodule(".".join(above))
    replaced, called = getattr(holder, last), []

    class Watched(torch.nn.Module):
        def forward(self, *values: Any, **named: Any) -> Any:
            called.append(len(values))
            return replaced(*values, **named)

    setattr(holder, last, Watched())
    setup.method.on_epoch_start(setup.trainer._state(log_now=False))
    setup.method(next(setup.batches()))

    assert called
