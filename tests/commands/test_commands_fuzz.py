"""Whatever is given as a query, as sizes of groups or as labels, a command ends in success or an explanation."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from tests.fuzzing import ends_well, fuzzed

KINDS = ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("fuzz") / "digits.h5"
    words = ["embed", "--dataset", "digits", "--backbone", "pixels", "--image-size", "8", "--max-images", "60", "-q"]
    assert ends_well(*words, "--out", str(out)) == 0
    return out


def image_bytes(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(buffer, kind)
    return buffer.getvalue()


@pytest.mark.slow
@fuzzed(quick=6, slow=600)
def test_a_query_of_any_bytes_is_looked_up_or_explained(examples: settings, store: Path, tmp_path: Path) -> None:
    query = tmp_path / "query.bin"

    @examples
    @given(st.sampled_from(KINDS), st.lists(st.tuples(st.integers(0, 2000), st.binary(min_size=1, max_size=4))))
    @example("PNG", [])
    def check(kind: str, changes: list[tuple[int, bytes]]) -> None:
        content = bytearray(image_bytes(kind))
        for place, values in changes:
            content[place % len(content) : place % len(content) + len(values)] = values
        query.write_bytes(content)
        ends_well("retrieve", "--index", str(store), "--query", str(query), "-k", "3", "-q")

    check()


@pytest.mark.parametrize("name", ["x" * 300, "*", "missing/*.png", "empty", "nothing.png", "[", "a\nb"])
def test_a_query_that_is_not_there_is_explained(name: str, store: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing.png").write_bytes(b"")
    assert ends_well("retrieve", "--index", str(store), "--query", str(tmp_path / name), "-q") == 3


@fuzzed(quick=3, slow=500)
def test_labels_of_any_text_are_taken_or_explained(examples: settings, store: Path, tmp_path: Path) -> None:
    labels = tmp_path / "few.csv"
    cells = st.text(max_size=8) | st.sampled_from(["digits/0000.png", "digits/0030.png", "0", "9" * 5000, '"', "\0"])

    @examples
    @given(st.lists(st.tuples(cells, cells), max_size=4))
    def check(rows: list[tuple[str, str]]) -> None:
        text = "path,label\n" + "".join(f"{path},{label}\n" for path, label in rows)
        labels.write_text(text, encoding="utf-8", errors="replace")
        words = ["discover", "snowball", "--index", str(store), "--labels", str(labels), "--overwrite", "-q"]
        ends_well(*words, "--missing-class", "skip", "--count", "2")

    check()
