import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from labelkit.data.tables import read_label_csv, to_class_name
from labelkit.errors import DatasetError
from labelkit.progress import use_progress
from tests.running import Heard

COCO = {
    "images": [{"id": 1, "file_name": "a.png"}, {"id": 2, "file_name": "b/c.png"}, {"id": 3, "file_name": "d.png"}],
    "annotations": [{"image_id": one, "category_id": one} for one in (2, 1, 2)],
    "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
}
COCO_FAULT = "the image 'a.png' has 2 labels: cat, dog"


def task(path: str, *choices: str) -> dict[str, object]:
    """A task of Label Studio with a canceled answer, and one per choice."""
    chosen = [{"type": "choices", "value": {"choices": [choice]}} for choice in choices]
    drawn = {"type": "brushlabels", "value": {"format": "rle"}}
    canceled = {"was_cancelled": True, "result": [{"type": "choices", "value": {"choices": ["emu"]}}]}
    return {"id": 7, "data": {"image": path}, "annotations": [canceled, {"result": [drawn, *chosen]}]}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(COCO),
        '{"classes": ["dog", "cat"], "labels": {"a.png": 1, "b/c.png": 0, "d.png": null}}',
        '{"a.png": "cat", "b/c.png": "dog", "d.png": null}',
        json.dumps([task("a.png", "cat"), task("b/c.png", "dog", "dog"), task("d.png")]),
        '[{"id": 1, "image": "a.png", "choice": "cat"}, {"image": "b/c.png", "choice": {"choices": ["dog"]}}]',
        '{"file_name": "a.png", "label": "cat"}\n\n{"label": ["dog"], "file_name": "b/c.png", "size": [3, 2]}\n',
        "filename, cat, dog\na.png, 1, 0\nb/c.png, 0, 1.0\nd.png, 0, 0\n",
        "filename,cat,dog\na.png,True,False\nb/c.png,False,True\nd.png,False,False\n",  # pandas.get_dummies
    ],
)
def test_labels_of_other_programs_are_understood(tmp_path: Path, text: str) -> None:
    path = tmp_path / "labels"
    path.write_text(text)
    assert read_label_csv(path) == {"a.png": "cat", "b/c.png": "dog"}


def test_labels_are_read_by_path_and_empty_ones_left_out(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("kind,path,label\nunsure,b/2.png,cat\nnew,a.png, dog \nunsure,c.png,\nnew,a.png,dog\n")
    assert read_label_csv(path) == {"b/2.png": "cat", "a.png": "dog"}


@pytest.mark.parametrize(
    "text",
    [
        "\ufeffpath,label\na.png,cat\n",
        "path;label\na.png;cat\n",
        "path;label\na.png;cat\n;\n;;; \n",
        "path\tlabel\r\na.png\tcat\r\n",
        "Filename,Class\na.png,cat\n",
        "id,image,category\n7,a.png,cat\n",
        "name,labels\na.png,cat\n",
        "url,name,label\nhttp://x/7,a.png,cat\n",
        "path,label,class\na.png,cat,other\n",
        "Nummer;Datei;Label\n7;a.png;cat\n",
    ],
)
def test_usual_columns_and_separators_are_understood(tmp_path: Path, text: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text, encoding="utf-8", newline="")
    assert read_label_csv(path) == {"a.png": "cat"}


@pytest.mark.parametrize(("splits", "told"), [(("train", ""), True), (("", ""), False)])
def test_splits_of_a_table_of_labels_are_said_not_to_be_used(
    tmp_path: Path, splits: tuple[str, str], told: bool
) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(f"path,label,split\na.png,cat,{splits[0]}\nb.png,dog,{splits[1]}\n")
    with use_progress(heard := Heard()):
        read_label_csv(path)
    notes = heard.messages
    assert any("the split column is not used; to use it, pass the file as --dataset" in one for one in notes) == told


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_a_table_in_utf_16_with_its_mark_is_understood(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "labels.csv"
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    path.write_bytes(f"{mark}path\tlabel\r\nä.png\tKätzchen\r\n".encode(encoding))
    assert read_label_csv(path) == {"ä.png": "Kätzchen"}


def test_names_of_columns_may_have_spaces_as_in_a_spreadsheet(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("File name;Class name;Net weight\na.png;cat;1\n", encoding="utf-8-sig")
    assert read_label_csv(path) == {"a.png": "cat"}
    assert read_label_csv(path, label_column="net weight") == {"a.png": "1"}


def test_a_table_may_be_compressed_with_gzip(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv.gz"
    path.write_bytes(gzip.compress(b"path,label\na.png,cat\n"))
    assert read_label_csv(path) == {"a.png": "cat"}
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(DatasetError, match="cannot be read"):
        read_label_csv(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na.png,cat\na.png,dog\n", "line 3: 'a.png' is 'cat' in an earlier line and 'dog' here"),
        ("path,label\na.png,\n", "no rows are labeled"),
        (
            "path,kind\na.png,cat\n",
            "no column 'label' (or labels, class, class_name, category, choice), found path, kind",
        ),
        ("kind,label\na,cat\n", "no path column (path, image_path, "),
        ("path,class,category\na.png,cat,x\n", "2 columns may contain the labels: class, category"),
        ("a.png,cat\nb.png,cat\n", "no path column"),
        ("one,two\na.png,b.png\n", "no path column"),
        ("", "the file is empty"),
        ("\ufeff", "the file is empty"),
        ("path,label\na.png,-1\n", "no rows are labeled"),
        ("path,label,label\na.png,cat,dog\n", "column 'label' occurs twice"),
        ("path,label\na.png,c\0t\n", "line 2: contains a NUL character"),
        ('path,label\na.png,cat\n\nb.png,"dog\nc.png,cat\n', "line 4: a quotation mark is not closed"),
        (
            "path,cat,dog\na.png,1,0\nb.png,1,1\n",
            "line 3 has more than one 1 in the columns cat, dog; only one label",
        ),
        ("path,age,sex\na.png,1,0\nb.png,2,1\n", "no column 'label'"),
        ("path,is_train,is_test\na.png,1,0\nb.png,0,1\n", "no column 'label'"),
        ("PK\3\4...", "is an Excel file or an archive, not a table"),
        ("PAR1...", "is a Parquet file, not a table"),
        ("<?xml version='1.0'?><a/>", "is an XML file, not a table"),
        ('{"a.png": {"regions": []}}', "is not JSON with image labels in a known format"),
        ('{"train": ["a.png", "b.png"]}', "is not JSON with image labels in a known format"),
        ('[{"path": "a.png", "label": "\\ud800"}]', "is not JSON with image labels in a known format"),
        ('{"path": ', "is not JSON with image labels in a known format"),
        ('[{"image": "a.png", "choice": {"choices": ["cat", "dog"]}}]', COCO_FAULT),
        ('[["a.png", "cat"]]', "is not JSON with image labels in a known format"),
        ('[{"path": "a.png", "kind": "cat"}]', "no column 'label'"),
        (json.dumps(COCO | {"annotations": [{"image_id": 1, "category_id": i} for i in (1, 2)]}), COCO_FAULT),
    ],
)
def test_file_that_gives_no_clear_labels_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "labels.csv"
    path.write_text(text)
    with pytest.raises(DatasetError) as caught:
        read_label_csv(path)
    assert caught.value.where == str(path)
    assert message in caught.value.problem


def test_words_for_none_give_no_label_and_spellings_of_one_class_are_joined_which_is_told(tmp_path: Path) -> None:
    labels = ["nan", "-1", "NA", "<NA>", "-1.0", "3", " 3", "3.0", "caf\u00e9", "cafe\u0301", "1.5", "007", "?"]
    labels += ["none", "NONE", "None", "Unlabeled", "unlabelled", "No label", "no_label", "-", "unknown", "- x"]
    path = tmp_path / "labels.csv"
    path.write_text("path,label\n" + "".join(f"{i}.png,{label}\n" for i, label in enumerate(labels)), encoding="utf-8")

    with use_progress(heard := Heard()):
        found = read_label_csv(path)

    told = heard.messages
    assert list(found.values()) == ["3", "3", "3", "caf\u00e9", "caf\u00e9", "1.5", "007", "unknown", "- x"]
    assert len(told) == 2
    assert "labels read as unlabeled: 'nan' (1 of 23), '-1' (1 of 23), 'NA' (1 of 23) and 11 more" in told[0]
    assert "or .0: '3', ' 3', '3.0' are '3'; 'caf\u00e9', 'cafe\u0301' are 'caf\u00e9'" in told[1]


def test_a_label_that_a_list_of_images_would_hide_is_used_with_a_note(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("path,label,labeled\na.png,cat,0\n")
    with use_progress(heard := Heard()):
        assert read_label_csv(path) == {"a.png": "cat"}
    assert "all labels are used; the column labeled hides labels only in" in heard.messages[0]


def test_the_path_column_may_have_any_name_which_is_told(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    path.write_text("Nr;Datei;Etikett\n1;a.png;cat\n")
    with use_progress(heard := Heard()):
        assert read_label_csv(path, "etikett") == {"a.png": "cat"}
    assert heard.messages == [f"{path}: paths read from the column 'Datei', the only one with image file names"]
    with pytest.raises(DatasetError, match=r"no column 'x', found nr, datei, etikett\. Choose one of these"):
        read_label_csv(path, "x")


def test_a_wrong_path_of_a_table_is_named_with_what_to_pass(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\n")
    with pytest.raises(DatasetError, match=r"lables\.csv: does not exist\. Did you mean `.*labels\.csv`"):
        read_label_csv(tmp_path / "lables.csv")
    with pytest.raises(DatasetError, match=r"is a folder\. Pass the CSV"):
        read_label_csv(tmp_path)
    with pytest.raises(DatasetError, match=r"no images\. Add a line for each image"):
        read_label_csv(tmp_path / "labels.csv")


def test_class_names_do_not_differ_by_repeated_spaces() -> None:
    assert to_class_name(" Pink  Lady ") == "Pink Lady"


def test_columns_that_are_not_needed_take_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labelkit.data.tables.MAX_TABLE_BYTES", 1 << 21)  # the size of the buffer
    path = tmp_path / "labels.csv"
    path.write_text("path,label" + ",x" * 200 + "\n" + "".join(f"{i}.png,cat{f',{i / 7}' * 200}\n" for i in range(500)))
    tracemalloc.start()
    assert len(read_label_csv(path)) == 500
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 7 * path.stat().st_size
