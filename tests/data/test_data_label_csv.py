from __future__ import annotations

from pathlib import Path

import pytest
from labelkit.data.tables import read_label_csv
from labelkit.errors import DatasetError


def test_labels_are_read_by_path_and_empty_ones_left_out(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("kind,path,label\nunsure,b/2.png,cat\nnew,a.png, dog \nunsure,c.png,\nnew,a.png,dog\n")
    assert read_label_csv(path) == {"b/2.png": "cat", "a.png": "dog"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na.png,cat\na.png,dog\n", "line 3: 'a.png' is 'cat' in an earlier line and 'dog' here"),
        ("path,label\na.png,\n", "no row has a label"),
        ("path,class\na.png,cat\n", "no column 'label'"),
    ],
)
def test_file_that_gives_no_clear_labels_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(DatasetError) as caught:
        read_label_csv(path)
    assert caught.value.where == str(path)
    assert message in caught.value.problem


def test_missing_file_is_an_error_of_the_data(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="cannot be read"):
        read_label_csv(tmp_path / "none.csv")
