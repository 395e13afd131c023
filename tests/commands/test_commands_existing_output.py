"""What is to be written and is there already: one exit code and one sentence, whatever is made."""

from pathlib import Path
from typing import Any

import pytest

# what makes it, what asks for other content under the same name, the output, and the option that names another
OUTPUTS = {
    "store": (
        "embed --dataset {photos} --backbone pixels --image-size 8 --out {tmp}/x.h5",
        "embed --dataset {photos} --backbone pixels --image-size 4 --out {tmp}/x.h5",
        "x.h5",
        "--out",
    ),
    "result": (
        "cluster k-means --index {index} --num-clusters 2",
        "cluster k-means --index {index} --num-clusters 3",
        "photos.h5.results/k-means.h5",
        "--result",
    ),
    "page": (
        "report --index {index} --out {tmp}/x.html",
        "report --index {index} --out {tmp}/x.html",
        "x.html",
        "--out",
    ),
}


@pytest.mark.parametrize(("make", "again", "name", "option"), OUTPUTS.values(), ids=OUTPUTS.keys())
def test_output_that_is_there_is_told_in_the_same_words_with_exit_code_2(
    labelkit: Any, tmp_path: Path, index: Path, photos: Path, make: str, again: str, name: str, option: str
) -> None:
    names = {"tmp": tmp_path, "index": index, "photos": photos}
    made = labelkit(*make.format(**names).split())
    assert made.code == 0, made.err
    path = index.parent / name if name.startswith("photos.h5") else tmp_path / name
    before = path.read_bytes() if path.is_file() else None

    answer = labelkit(*again.format(**names).split())

    assert answer.code == 2, answer.err
    assert f"{path}: already exists" in answer.err
    assert "--overwrite to replace it, " in answer.err
    assert f"or another {option}." in answer.err
    assert before is None or path.read_bytes() == before


TEXTS = {
    "prose for a table": ("letter.csv", "Dear Ann\n", "export --index {index} --out {out}"),
    "a table for a page": ("page.html", "path,label\na.jpg,cat\n", "report --index {index} --out {out}"),
    "somebody's page": ("page.html", "<!doctype html><p>mine</p>\n", "report --index {index} --out {out}"),
}


@pytest.mark.parametrize(("name", "text", "words"), TEXTS.values(), ids=TEXTS.keys())
def test_a_text_of_another_kind_is_not_replaced_though_it_was_asked_for(
    labelkit: Any, tmp_path: Path, index: Path, name: str, text: str, words: str
) -> None:
    out = tmp_path / name
    out.write_text(text)

    answer = labelkit(*words.format(index=index, out=out).split(), "--overwrite")

    assert answer.code == 2
    assert "exists, but is not a" in answer.err
    assert out.read_text() == text
