"""A store is given by --store or --index, in every command that reads one."""

import pytest
from labelkit.cli.config_classes import CONFIG_CLASSES
from labelkit.cli.main import main
from labelkit.options.base import list_aliases

LINE = ["config", "cluster", "k-means", "--num-clusters", "3"]


def test_every_store_is_given_by_two_equal_options() -> None:
    fields = [config.model_fields["index"] for config in CONFIG_CLASSES if "index" in config.model_fields]
    assert len(fields) > 20
    assert {list_aliases(field) for field in fields} == {("--store",)}


def test_store_means_index_and_the_key_of_files_and_settings_stays_index(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*LINE, "--set", "store=a.h5"]) == 2
    assert "store" in capsys.readouterr().err

    shown = [
        (main([*LINE, *words, "--json"]), capsys.readouterr().out)
        for words in (("--index", "a.h5"), ("--store", "a.h5"))
    ]
    assert shown[0] == shown[1]
    assert '"a.h5"' in shown[0][1]
    assert main([*LINE, "--set", "index=a.h5"]) == 0
