"""``evaluate --fail-under`` and ``--fail-over``: exit 10 exactly where a limit is not kept."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.cli.config_classes import CONFIG_CLASSES
from labelkit.commands.common.gate import check_score_limits, collect_scores_by_name, find_matching_scores
from labelkit.commands.common.results import CommandResult
from labelkit.commands.evaluate.options import EvaluateClusteringConfig
from labelkit.options.gate import GateConfig
from labelkit.store.results import write_result
from tests.tiers import quick_every

EVALUATE = ("evaluate", "clustering", "--rows", "all", "--bootstrap", "0")


@pytest.fixture
def grouped(make_store: Any) -> Path:
    """Four rows of two classes; ``guess`` has three of four right."""
    store = make_store(np.eye(4), labels=[0, 0, 1, 1])
    for name, ids in (("guess", [0, 0, 1, 0]), ("perfect", [1, 1, 0, 0])):
        write_result(store, name, kind="clusters", arrays={"cluster_ids": np.array(ids)}, params={}, stage="test")
    path: Path = store.path
    return path


def gated(values: dict[str, Any], **options: Any) -> tuple[dict[str, Any], Any]:
    """JSON and error of a made-up result under a gate."""
    config = EvaluateClusteringConfig(index="made.h5", **options)
    result, error = check_score_limits(config, CommandResult(values))
    return result.to_json(), error


@pytest.mark.parametrize(("limit", "code"), quick_every(3, [(0.74, 0), (0.75, 0), (0.76, 10)]))
def test_a_score_below_its_limit_exits_with_10(
    grouped: Path, labelkit: Callable[..., Any], limit: float, code: int
) -> None:
    answer = labelkit(
        *EVALUATE, "--index", grouped, "--results", "guess", "--fail-under", f"all_accuracy={limit}", "--json"
    )

    assert answer.code == code
    # three of four rows are right
    assert answer.json["gate"]["checks"][0]["value"] == 0.75
    assert answer.json["gate"]["passed"] is (code == 0)
    assert ("guess/all/all_accuracy 0.75 is below 0.76" in answer.err) is (code == 10)


def test_a_name_that_no_score_has_is_an_option_that_cannot_be_used(grouped: Path, labelkit: Callable[..., Any]) -> None:
    typed = labelkit(*EVALUATE, "--index", grouped, "--fail-under", "all_acuracy=0.9")
    elsewhere = labelkit(*EVALUATE, "--index", grouped, "--fail-under", "knn_accuracy=0.9")

    assert (typed.code, elsewhere.code) == (2, 2)
    assert "Did you mean `all_accuracy`?" in typed.err
    assert typed.out == ""
    # the scores are not lost
    assert "guess" in elsewhere.out
    assert "guess/all/all_accuracy" in elsewhere.err


def test_a_limit_that_is_no_number_is_refused(grouped: Path, labelkit: Callable[..., Any]) -> None:
    for text in ("all_accuracy", "all_accuracy=much", "all_accuracy=nan", "=0.5"):
        assert labelkit(*EVALUATE, "--index", grouped, "--fail-under", text).code == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--fail-under", "all_accuracy=75"), "Did you mean `all_accuracy=0.75`?"),
        (("--fail-under", "recall.1=1.5"), "Did you mean `recall.1=0.015`?"),
        (("--fail-under", "nmi=-0.1"), "nmi must be between 0 and 1"),
        (("--fail-under", "ari=-2"), "ari must be between -1 and 1"),
        (("--fail-over", "after.ece=5"), "Did you mean `after.ece=0.05`?"),
    ],
)
def test_a_limit_that_the_score_cannot_reach_is_refused_with_what_was_likely_meant(
    grouped: Path, labelkit: Callable[..., Any], words: tuple[str, ...], said: str
) -> None:
    answer = labelkit(*EVALUATE, "--index", grouped, *words)
    assert answer.code == 2
    assert said in " ".join(answer.err.split())
    assert labelkit(*EVALUATE, "--index", grouped, "--results", "guess", "--fail-under", "ari=-0.5,nmi=0").code == 0


def test_less_is_better_for_errors() -> None:
    assert gated({"after": {"ece": 0.05}}, fail_over=("after.ece=0.04",))[1].exit_code == 10
    assert gated({"after": {"ece": 0.05}}, fail_over=("after.ece=0.06",))[1] is None
    # what is undefined does not pass
    assert gated({"nmi": float("nan")}, fail_under=("nmi=0",))[1].exit_code == 10


def test_scores_are_named_as_in_the_json_and_means_stand_for_seeds() -> None:
    values = {
        "rows": 7,
        "recall": {"1": 0.5},
        "mean_iou": {"mean": 0.4, "sd": 0.1, "values": [0.3, 0.5]},
        "per_class": {"accuracy": 0.1},
        "by_k": [{"k": 1, "knn_accuracy": 0.2}],
        "scores": [{"result": "head", "split": "test", "rows": 3, "nmi": 0.7}],
    }

    assert collect_scores_by_name(values) == {"recall.1": 0.5, "mean_iou": 0.4, "head/test/nmi": 0.7}
    # the bare name means all classes
    scores = {"all/accuracy": 0.9, "few/accuracy": 0.2}
    assert find_matching_scores("accuracy", scores) == ["all/accuracy"]
    assert find_matching_scores("few/accuracy", scores) == ["few/accuracy"]


def test_every_evaluate_command_has_the_gate() -> None:
    found = [config for config in CONFIG_CLASSES if config.command[:1] == ("evaluate",)]
    assert len(found) == 12
    assert all(issubclass(config, GateConfig) for config in found)
