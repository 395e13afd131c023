"""Sizes as users write them."""

import pytest
from labelkit.commands.cluster.options import KMeansConfig
from labelkit.commands.evaluate.options import EvaluateRetrievalConfig
from labelkit.options.memory import parse_size
from pydantic import ValidationError


@pytest.mark.parametrize(
    ("text", "size"),
    [("500MB", 500_000_000), ("1.5", 3 * 1024**3 // 2), ("64 kib", 65536), ("7B", 7)],
)
def test_a_size_means_what_its_unit_says(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert KMeansConfig(index="a.h5", num_clusters=2, max_memory=text).max_memory_bytes == size


@pytest.mark.parametrize("text", ["", "much", "-1GiB", "0", "1e9", "2 parsecs", "inf", "nan", "9" * 400])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        KMeansConfig(index="a.h5", num_clusters=2, max_memory=text)


def test_a_bound_comes_back_from_a_saved_config() -> None:
    config = EvaluateRetrievalConfig(index="a.h5", max_memory=0.25)
    assert config.max_memory_bytes == 2**28
    assert EvaluateRetrievalConfig.model_validate(config.to_yaml_dict()) == config
