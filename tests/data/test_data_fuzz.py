"""Whatever a table holds, the outcome is data or an explanation."""

import csv
import io
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from labelkit.commands.common.images.read import open_single_image
from labelkit.data.datasets import natural_sort_key
from labelkit.data.tables import load_csv, read_label_csv
from labelkit.errors import DatasetError
from tests.fuzzing import fuzzed

HEADERS = [
    "path,label",
    "path,label,split",
    "label,path",
    "PATH , Label",
    "path",
    "path,label,label",
    "",
    '"path,label',
]
CELLS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(["a.png", "b.png", "../a.png", "/", ".", "..", "~", "-1", "9" * 5000, "x" * 300, "x" * 5000, "\0"]),
    st.sampled_from(['"', '""', "'", "1/2", "a\rb", "a\nb", "\u202e", "\x1a", "٣", "²", "é", " a.png "]),
)
TABLES = st.tuples(st.sampled_from(HEADERS), st.lists(st.lists(CELLS, min_size=1, max_size=4), max_size=6))


def table_bytes(header: str, rows: list[list[str]]) -> bytes:
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows(rows)
    return (header + "\n" + buffer.getvalue()).encode("utf-8", "surrogatepass")


def tables_read_or_explained(path: Path) -> None:
    for read in (load_csv, read_label_csv):
        with suppress(DatasetError):
            read(path)


@fuzzed(quick=120, slow=10_000)
def test_a_table_of_any_cells_is_read_or_explained(examples: settings, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"")

    @examples
    @given(TABLES)
    @example(("path,label", [["a.png", "9" * 5000]]))
    @example(("path,label", [["x" * 5000, "1"]]))
    def check(table: tuple[str, list[list[str]]]) -> None:
        path.write_bytes(table_bytes(*table))
        tables_read_or_explained(path)

    check()


def test_a_label_of_thousands_of_digits_has_a_place_in_the_order() -> None:
    assert natural_sort_key("9" * 4999) < natural_sort_key("9" * 5000) < natural_sort_key("a")
    assert natural_sort_key("class" + "1" * 4999) < natural_sort_key("class" + "1" * 5000)


def test_a_name_too_long_for_a_file_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\n" + "x" * 5000 + ",1\n")
    with pytest.raises(DatasetError, match="no file"):
        load_csv(tmp_path / "labels.csv")
    with pytest.raises(DatasetError, match="does not exist"):
        open_single_image(tmp_path / ("x" * 300))
