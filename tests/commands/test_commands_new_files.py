"""No output of any command replaces what is read, what labelkit keeps, or a file of another kind."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from labelkit.commands.common.outputs import KIND_NAMES, check_outputs
from labelkit.commands.find.options import FindOddConfig
from labelkit.commands.table import all_commands
from labelkit.errors import LabelkitError
from labelkit.options.base import BaseConfig, read_field_extra, to_flag
from PIL import Image
from tests.copies import copy_store

COMMANDS = all_commands()
OUTPUTS = {
    f"{' '.join(words)} {to_flag(name)}": (command.load_config_class(), name)
    for words, command in COMMANDS.items()
    for name, field in command.load_config_class().model_fields.items()
    if read_field_extra(field, "makes") not in (None, "folder") and words[0] != "train"
}


def _options_with_paths() -> Iterator[tuple[str, str, object, object]]:
    for words, command in COMMANDS.items():
        for name, field in command.load_config_class().model_fields.items():
            if Path in (field.annotation, *get_args(field.annotation)):
                yield " ".join(words), name, read_field_extra(field, "makes"), read_field_extra(field, "panel")


def test_every_option_that_names_an_output_says_what_it_makes() -> None:
    for command, name, makes, panel in _options_with_paths():
        is_output = panel == "Output" or name in ("out", "csv", "sheet", "plot", "map", "keep", "confusion")
        assert (makes in {*KIND_NAMES, "folder"}) == is_output, f"{command} {name}"


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory, embedded: Path, labelkit: Any) -> dict[str, Path]:
    """What must stay, and a store by other names."""
    folder = tmp_path_factory.mktemp("targets")
    store = copy_store(embedded, folder / "photos.h5")
    assert labelkit("cluster", "k-means", "--index", store, "--num-clusters", 2).code == 0
    os.link(store, folder / "hard link")
    (folder / "symlink").symlink_to(store)
    (folder / "dangling").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe")
    Image.new("L", (8, 8)).save(folder / "photo.png")
    (folder / "notes.md").write_text("# Notes\n\none, two\n")
    found = {path.name: path for path in folder.iterdir()}
    results = folder / "photos.h5.results"
    return found | {"result": results / "k-means.h5", "beside a result": results / "new"}


def _config(kind: type[BaseConfig], name: str, target: object, store: Path) -> BaseConfig:
    given: dict[str, Any] = {"overwrite": True}
    given |= {"index": store} if "index" in kind.model_fields else {}
    given[name] = target
    empty = {key: None for key, field in kind.model_fields.items() if field.is_required()}
    return kind.model_construct(**{**empty, **given})


NAMES = ("photos.h5", "hard link", "symlink", "dangling", "pipe", "photo.png", "notes.md", "result", "beside a result")


@pytest.mark.parametrize("name", NAMES)
def test_a_table_takes_the_place_of_nothing_else(targets: dict[str, Path], name: str) -> None:
    with pytest.raises(LabelkitError) as caught:
        check_outputs(_config(FindOddConfig, "out", targets[name], targets["photos.h5"]))

    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("kind", "name"), OUTPUTS.values(), ids=OUTPUTS.keys())
def test_a_new_name_and_an_empty_file_are_no_obstacle(
    tmp_path: Path, targets: dict[str, Path], kind: type[BaseConfig], name: str
) -> None:
    suffix = ".npz" if read_field_extra(kind.model_fields[name], "makes") == "export" else ""
    check_outputs(_config(kind, name, tmp_path / f"new{suffix}", targets["photos.h5"]))
    (tmp_path / "empty").touch()
    check_outputs(_config(kind, name, tmp_path / "empty", targets["photos.h5"]))


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("sign", [",", ";", "\t"])
def test_a_table_that_a_spreadsheet_saved_is_a_table(
    tmp_path: Path, targets: dict[str, Path], encoding: str, sign: str
) -> None:
    lines = ["path,label", *(f"ä{number}.png,Kätzchen" for number in range(400))]
    out = tmp_path / "odd.csv"
    out.write_bytes("\r\n".join(lines).replace(",", sign).encode(encoding))
    check_outputs(_config(FindOddConfig, "out", out, targets["photos.h5"]))


def test_two_outputs_of_one_command_are_two_files(labelkit: Any, index: Path) -> None:
    out = index.with_name("x.csv")
    answer = labelkit("suggest", "--index", index, "--out", out, "--sheet", out)
    assert answer.code == 2
    assert "Choose another name" in answer.err
