"""Whatever a table or an image file holds, the outcome is data or an explanation."""

from __future__ import annotations

import csv
import io
import os
import resource
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from labelkit.data.decode import BadImage, decode_image
from labelkit.data.numbers import read_numbers
from labelkit.data.tables import load_csv, natural_key, read_label_csv
from labelkit.errors import DatasetError, LabelkitError
from labelkit.stages.pictures.files import one_image
from PIL import Image
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
STARTS = [b"", b"\xef\xbb\xbf", b"\xff\xfe", b"path,label\n", b'path,label\n"', b"path,label,split\na.png,1,"]


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


@fuzzed(quick=80, slow=10_000)
def test_a_table_of_any_bytes_is_read_or_explained(examples: settings, tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"

    @examples
    @given(st.sampled_from(STARTS), st.binary(max_size=100))
    @example(b"path,label\n", b"a" * 200_000)
    @example(b"path,label\n", b'"' * 100_001)
    def check(start: bytes, content: bytes) -> None:
        path.write_bytes(start + content)
        tables_read_or_explained(path)

    check()


@fuzzed(quick=60, slow=5000)
def test_a_list_of_numbers_is_read_or_explained(examples: settings, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.arange(3.0))
    whole = buffer.getvalue()

    @examples
    @given(st.integers(0, len(whole) - 1), st.binary(max_size=9), st.sampled_from([".npy", ".txt"]), st.booleans())
    def check(place: int, content: bytes, suffix: str, mutated: bool) -> None:
        path = tmp_path / f"numbers{suffix}"
        path.write_bytes(whole[:place] + content + whole[place + len(content) :] if mutated else content)
        with suppress(DatasetError):
            assert read_numbers(path).ndim == 1

    check()


def images() -> list[bytes]:
    """Small images of every format that is read, plain and odd ones."""
    made = []
    generator = np.random.default_rng(0)
    for mode, channels in (("L", 1), ("RGB", 3), ("RGBA", 4), ("P", 1), ("1", 1), ("I;16", 1), ("CMYK", 4), ("LA", 2)):
        values = generator.integers(0, 256, (9, 7, channels), dtype=np.uint8).squeeze()
        if mode == "I;16":
            image = Image.fromarray(values.astype(np.uint16) * 250)
        elif mode in ("P", "1"):
            image = Image.fromarray(values).convert(mode)
        else:
            image = Image.fromarray(values, mode=None if mode in ("L", "RGB", "RGBA", "LA") else mode)
        for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF"):
            buffer = io.BytesIO()
            try:
                image.save(buffer, kind)
            except (OSError, ValueError, KeyError):
                continue
            made.append(buffer.getvalue())
    frames = io.BytesIO()
    Image.new("P", (5, 5)).save(frames, "GIF", save_all=True, append_images=[Image.new("P", (5, 5), 3)] * 3)
    packed = io.BytesIO()
    Image.new("L", (40, 40)).save(packed, "TIFF", compression="tiff_lzw")
    return [*made, frames.getvalue(), packed.getvalue()]


def decodes_or_says_why(content: bytes) -> None:
    for channels in (1, 3):
        with suppress(BadImage):
            pixels = decode_image(content, channels)  # type: ignore[arg-type] # one of both
            assert pixels.dtype == np.uint8
            assert pixels.shape[2] == channels


@fuzzed(quick=150, slow=20_000)
def test_a_changed_image_is_decoded_or_named_with_a_reason(examples: settings) -> None:
    originals = images()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @examples
    @given(
        st.sampled_from(range(len(originals))),
        st.lists(st.tuples(st.integers(0, 4000), st.binary(min_size=1, max_size=6)), max_size=6),
        st.integers(0, 4000),
        st.binary(max_size=20),
    )
    def check(number: int, changes: list[tuple[int, bytes]], cut: int, tail: bytes) -> None:
        content = bytearray(originals[number])
        for place, values in changes:
            place %= len(content)
            content[place : place + len(values)] = values
        decodes_or_says_why(bytes(content[: max(1, len(content) - cut % 50)]) + tail)

    check()
    # 64 megapixels in a few copies, at the most
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000


@fuzzed(quick=60, slow=5000)
def test_any_bytes_are_no_image_or_one(examples: settings) -> None:
    starts = [b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"BM", b"II*\0", b"MM\0*", b"RIFF\0\0\0\0WEBP"]

    @examples
    @given(st.sampled_from(starts), st.binary(max_size=300))
    def check(start: bytes, content: bytes) -> None:
        decodes_or_says_why(start + content)

    check()


@fuzzed(quick=40, slow=3000)
def test_any_name_of_a_query_is_found_or_explained(examples: settings, tmp_path: Path) -> None:
    names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)

    @examples
    @given(names | st.sampled_from(["x" * 300, "x/" * 3000, "*", "[a", "?", "a*/**", "~", "/dev/null"]))
    @example("x" * 300)
    def check(name: str) -> None:
        if "\0" in name:
            return
        with suppress(LabelkitError):
            one_image(tmp_path / name)

    check()


def test_a_label_of_thousands_of_digits_has_a_place_in_the_order() -> None:
    assert natural_key("9" * 4999) < natural_key("9" * 5000) < natural_key("a")
    assert natural_key("class" + "1" * 4999) < natural_key("class" + "1" * 5000)


def test_numbers_of_a_header_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3.0))
    whole = (tmp_path / "a.npy").read_bytes()
    for place, content in ((42, b"["), (60, b"9" * 12)):
        (tmp_path / "a.npy").write_bytes(whole[:place] + content + whole[place + len(content) :])
        with pytest.raises(DatasetError, match="no list of numbers"):
            read_numbers(tmp_path / "a.npy")


def test_a_name_too_long_for_a_file_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("path,label\n" + "x" * 5000 + ",1\n")
    with pytest.raises(DatasetError, match="no file"):
        load_csv(tmp_path / "labels.csv")
    with pytest.raises(DatasetError, match="does not exist"):
        one_image(tmp_path / ("x" * 300))


def test_a_pipe_is_no_table(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "labels.csv")
    tables_read_or_explained(tmp_path / "labels.csv")
