"""CSV as every table of labelkit is written: read back as it was, whatever is in a cell."""

import csv
import io

from labelkit.store.csv_table import csv_bytes, csv_text


def test_cells_come_back_as_they_were() -> None:
    rows = [["a,b", 'say "x"', "two\nlines"], ["", "ä", "\t"]]

    text = csv_text(["one", "two", "three"], rows)

    assert list(csv.reader(io.StringIO(text, newline=""))) == [["one", "two", "three"], *rows]
    assert text.startswith("one,two,three\n")
    assert csv_bytes(["one", "two", "three"], rows) == text.encode()


def test_a_table_without_rows_is_its_header() -> None:
    assert csv_text(["path", "label"], []) == "path,label\n"


def test_bytes_that_are_no_text_become_escapes() -> None:
    name = b"caf\xe9.png".decode("utf-8", "surrogateescape")

    assert csv_bytes(["path"], [[name]]) == b"path\ncaf\\udce9.png\n"
