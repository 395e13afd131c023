"""No option of a training method is taken in vain: each one changes a short run, or is refused."""

from pathlib import Path

import pytest
from labelkit.methods.registry import METHODS
from tests.option_contexts import CONTEXTS, REFUSED, UNSEEN, VALUES, prepare
from tests.option_effects import Trials, effects


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("options")
    prepare(path)
    return path


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("method", METHODS)
def test_every_option_of_a_method_acts_or_is_refused(folder: Path, method: str) -> None:
    assert [(option, how) for option, what, how in effects(method, folder) if what == "does nothing"] == []


@pytest.mark.slow
@pytest.mark.parametrize(("schedule", "expected"), [("constant", "does nothing"), ("cosine", "acts under others")])
def test_an_option_is_seen_to_act_where_it_does(folder: Path, schedule: str, expected: str) -> None:
    # the last rate of a cosine
    assert Trials("softmax", folder).trial("lr_final_ratio", {"lr_schedule": schedule})[0] == expected


@pytest.mark.slow
def test_a_value_that_is_refused_is_no_proof_of_an_effect(folder: Path) -> None:
    what, how = Trials("softmax", folder).trial("num_classes", {"dataset": "{folder}/other"})
    assert what == "does nothing"
    assert "under its context" in how


def test_the_tables_name_options_that_there_are() -> None:
    there = {f"{method}.{option}" for method, spec in METHODS.items() for option in spec.config.model_fields}
    there |= {name.partition(".")[2] for name in there}
    lists = [*(options for _, _, options in CONTEXTS), *UNSEEN.values(), REFUSED, " ".join(VALUES)]
    assert {name for names in lists for name in names.split()} - there == set()
    assert {name for _, context, _ in CONTEXTS for name in context} - there == set()
