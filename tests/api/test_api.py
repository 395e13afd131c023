"""The door for Python: names, options, results, errors and stores, and the stub that editors read."""

import inspect
import json
import logging
import subprocess
import sys
from multiprocessing.spawn import get_preparation_data
from pathlib import Path

import labelkit
import numpy as np
import pytest
from labelkit.api import to_python_name
from labelkit.cli.main import main
from labelkit.commands.common.results import CommandResult
from labelkit.commands.table import all_commands
from labelkit.data.exit_with_parent import hide_main_module
from labelkit.errors import ConfigError, GateError
from labelkit.progress import current_progress

from stub import STUB, render_stub

COMMANDS = all_commands()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("door") / "digits.h5"
    labelkit.embed(dataset="digits", backbone="pixels", image_size=8, max_images=200, out=path)
    return path


def function_of(words: tuple[str, ...]) -> object:
    found: object = labelkit
    for word in words:
        found = getattr(found, to_python_name(word))
    return found


def test_processes_do_not_run_the_script_again() -> None:
    main_module = sys.modules["__main__"]
    with hide_main_module():
        assert not {"init_main_from_name", "init_main_from_path"} & set(get_preparation_data("worker"))
    assert sys.modules["__main__"] is main_module


@pytest.mark.slow
def test_a_script_needs_no_main_guard(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    embed = (
        "labelkit.embed(dataset='digits', backbone='pixels', image_size=8, max_images=40, num_workers=1, out='x.h5')"
    )
    script.write_text(f"print('begun')\nimport labelkit\n{embed}\nlabelkit.retrieve(index='x.h5', query_rows=[0])\n")

    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=250)

    assert (done.returncode, done.stdout.count("begun")) == (0, 1), done.stderr


def test_importing_labelkit_loads_nothing_else_and_a_function_neither_torch_nor_numpy_before_it_is_called() -> None:
    code = (
        "import importlib, sys; before = set(sys.modules) | sys.stdlib_module_names; import labelkit;"
        "print([name for name in sys.modules if name not in before]);"
        "labelkit.embed; labelkit.train.flipclass; labelkit.evaluate.clustering;"
        "print([name for name in ('torch', 'numpy', 'sklearn', 'h5py', 'typer') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.split() == ["['labelkit']", "[]"]


def test_every_command_is_a_function_with_its_options() -> None:
    for words, command in COMMANDS.items():
        function = function_of(words)
        fields = command.load_config_class().model_fields
        parameters = inspect.signature(function).parameters  # type: ignore[arg-type]  # found by name

        assert set(parameters) == {*fields, "preset", "config"}, words
        assert {name for name, one in parameters.items() if one.default is one.empty} == {
            name for name, field in fields.items() if field.is_required()
        }, words
        assert str(function.__doc__).startswith(command.text), words
    packages = {path.stem for path in Path(labelkit.__file__).parent.iterdir()}
    assert packages & {to_python_name(words[0]) for words in COMMANDS} == set()  # which a function would hide


def test_the_stub_is_what_is_generated() -> None:
    assert STUB.read_text(encoding="utf-8") == render_stub(), "run python docs/stub.py"


def test_a_result_holds_what_json_prints(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = labelkit.cluster.k_means(index=store, num_clusters=10, overwrite=True)
    assert main(["cluster", "k-means", "--index", str(store), "--num-clusters", "10", "--overwrite", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)

    assert {**result.to_json(), "seconds": None} == {**printed, "seconds": None}
    assert result["num_clusters"] == result.values["num_clusters"] == 10
    assert dict(result) == result.values
    assert "nmi" not in result
    assert [str(path) for path in result.paths] == printed["made"]
    assert result.tables[0].rows
    assert repr(result).splitlines()[-1] == f"made {result.paths[0]}"
    with pytest.raises(GateError) as caught:  # an error about scores holds the scores
        labelkit.evaluate.clustering(index=store, rows="all", fail_under="nmi=1.0")
    assert isinstance(caught.value.result, labelkit.Result)
    assert 0 < caught.value.result["scores"][0]["nmi"] < 1


def test_a_preset_works_as_on_the_command_line(tmp_path: Path) -> None:
    preset = tmp_path / "few.yaml"
    preset.write_text("# labelkit cluster k-means\nnum_inits: 0\n")

    with pytest.raises(ConfigError, match=r"num_inits: input should be greater than or equal to 1 \(value 0\)"):
        labelkit.cluster.k_means(index="none.h5", num_clusters=2, preset=preset)


def test_warnings_of_a_stage_reach_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    command = COMMANDS["status",]

    def look(config: object) -> CommandResult:
        current_progress().warning("half of it is gone")
        return CommandResult({})

    records: list[logging.LogRecord] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    monkeypatch.setattr("labelkit.commands.store_files.status.report_status", look)
    handler, logger = Kept(), logging.getLogger("labelkit")
    logger.addHandler(handler)
    try:
        labelkit.status(index="a.h5")
    finally:
        logger.removeHandler(handler)

    assert command.function == "labelkit.commands.store_files.status:report_status"
    assert [(record.levelno, record.getMessage()) for record in records] == [(logging.WARNING, "half of it is gone")]


def test_a_group_lists_its_commands() -> None:
    assert list(labelkit.discover) == ["categories", "head", "answer", "snowball", "lmcs"]
    with pytest.raises(AttributeError, match=r"labelkit\.discover has no attribute 'groups'; choose from categories"):
        labelkit.discover.groups  # noqa: B018 - to see it fail


def test_a_store_gives_arrays_and_a_frame(store: Path) -> None:
    pytest.importorskip("pandas")
    labelkit.cluster.k_means(index=store, num_clusters=10, overwrite=True)

    with labelkit.open_store(store) as opened:
        frame = opened.frame("k-means")
        clusters = opened.result("k-means").arrays["cluster_ids"]

        assert opened.embeddings.shape == (200, 64)
        assert opened.ids == opened.sample_ids
        assert "k-means" in opened.results
    assert frame["path"].tolist() == list(opened.ids)
    assert frame["label"].tolist() == [opened.class_names[label] for label in opened.labels]
    assert np.array_equal(frame["k-means.cluster_ids"], clusters)
