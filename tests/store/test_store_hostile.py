"""Files that are damaged, newer, or made to do harm are named and refused."""

import io
import os

import h5py
import numpy as np
import pytest
from labelkit.errors import Damaged, Mismatch, NotAStore, Refused, VersionError
from labelkit.store.embeddings import open_store
from labelkit.store.reader import CheckedFile
from labelkit.store.schema import FORMAT_STORE
from labelkit.store.writer import FileContents, StreamedDataset, encode_strings
from store_samples import contents_of, make_store
from tests.running import flip_bit


@pytest.fixture
def path(tmp_path):
    return make_store(tmp_path / "s.h5", bad={1: "broken"}).path


def changed(path, change):
    """Write a store again with other contents."""
    contents = contents_of(path)
    change(contents)
    path.write_bytes(contents.sealed().to_bytes())
    return path


def refusal(path, error):
    with pytest.raises(error) as caught:
        open_store(path)
    assert type(caught.value) is error
    assert caught.value.remedy
    return f"{caught.value.where}: {caught.value.problem}".removeprefix(str(path))


def test_a_shortened_file_is_said_to_be_cut_off(path):
    path.write_bytes(path.read_bytes()[:-1])
    assert refusal(path, Damaged) == ": is incomplete: it was truncated"


def content(data):
    """What a reader takes from a file, or the error it is refused with."""
    with CheckedFile(io.BytesIO(data), "s.h5", FORMAT_STORE) as file:
        return file.content_digest, {name: file.read(name).tobytes() for name in file.datasets}


def test_a_flipped_bit_in_each_dataset_is_found(path):
    with h5py.File(path) as file:
        places = {}
        file.visititems(lambda name, item: places.update({name: item}) if isinstance(item, h5py.Dataset) else None)
        offsets = [item.id.get_offset() for item in places.values()]
    data = path.read_bytes()
    assert len(offsets) == 14
    for offset in offsets:
        changed = bytearray(data)
        changed[offset] ^= 1
        with pytest.raises(Damaged):
            content(bytes(changed))


@pytest.fixture
def blocked(path):
    """The same store with a digest per two rows of embeddings."""
    path.write_bytes(contents_of(path).sealed(24).to_bytes())
    return path


def test_damaged_rows_are_named_when_they_are_first_used(blocked):
    flip_bit(blocked, "embeddings", 3 * 12)
    store = open_store(blocked)
    with pytest.raises(Damaged) as caught:
        _ = store.embeddings
    assert caught.value.where == f"{blocked}:/embeddings rows 2-3"


def test_damaged_labels_are_named_when_the_store_is_opened(blocked):
    flip_bit(blocked, "labels", 6 * 8)
    assert refusal(blocked, Damaged).startswith(":/labels rows 6-6: digest differs")


@pytest.mark.parametrize(
    ("attribute", "value", "error"),
    [
        ("format_version", "2.0", VersionError),
        ("format_version", "1", None),
        ("format_version", "1.7", None),
        ("format_version", "one", Refused),
        ("requires", "compression", VersionError),
        ("format", "labelkit.result", NotAStore),
        ("format", "other", NotAStore),
        ("kind", "patches", NotAStore),
    ],
)
def test_versions_features_and_kinds_are_checked(path, attribute, value, error):
    changed(path, lambda contents: contents.set_attributes("", **{attribute: value}))
    if error is None:
        assert open_store(path).n == 7
    else:
        refusal(path, error)


def test_what_is_unknown_but_harmless_is_ignored(path):
    contents = contents_of(path)
    contents.set_attributes("future", note="hello", number=3)
    contents.datasets["future/rows"] = np.arange(5)
    contents.datasets["ranks"] = np.arange(7)
    path.write_bytes(contents.sealed().to_bytes())
    assert open_store(path).n == 7


def test_an_hdf5_file_of_another_program_is_no_store(path):
    with h5py.File(path, "w") as file:
        file["embeddings"] = np.zeros((2, 2))
    assert refusal(path, NotAStore) == ": expected format labelkit.store, found nothing"


def without(name):
    return lambda contents: contents.datasets.pop(name)


def with_array(name, change):
    return lambda contents: contents.datasets.update({name: change(contents.datasets[name])})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (without("sha256"), Refused, ":/sha256: is missing"),
        (with_array("labels", lambda a: a[:-1]), Mismatch, ":/labels: 6 rows, but /embeddings has 7"),
        (with_array("sha256", lambda a: a[:, :-1]), Mismatch, ":/sha256: 31 rows, but the format has 32"),
        (with_array("old_classes", lambda a: a[:-1]), Mismatch, ":/old_classes: 2 rows, but /class_names has 3"),
        (with_array("labels", lambda a: a + 1), Refused, ":/labels row 3: is 3, expected -1 to 2"),
        (with_array("labels", lambda a: a - 1), Refused, ":/labels row 5: is -2, expected -1 to 2"),
        (with_array("splits", lambda a: a + 9), Refused, ":/splits row 0: is "),
        (lambda contents: contents.attributes[""].pop("metric"), Refused, ":/@metric: is missing"),
        (with_array("labels", lambda a: a.astype("i4")), Refused, ":/labels: type int32"),
        (with_array("embeddings", lambda a: a.astype("f8")), Refused, ":/embeddings: type float64"),
        (with_array("embeddings", lambda a: a[0]), Refused, ":/embeddings: type float32 of shape (3,)"),
        (with_array("sample_ids", lambda a: a[::-1]), Refused, ":/sample_ids row 1"),
        (with_array("sample_ids", lambda a: a[[0, 0, 1, 2, 3, 4, 5]]), Refused, ":/sample_ids row 1"),
        (with_array("sample_ids", lambda a: np.array([b"../a", *a[1:]])), Refused, ":/sample_ids row 0"),
        (with_array("sample_ids", lambda a: np.array([b"/etc/a", *a[1:]])), Refused, ":/sample_ids row 0"),
        (with_array("skipped/reasons", lambda a: a[[0, 0]]), Mismatch, ":/skipped/reasons: 2 rows, but"),
    ],
)
def test_contents_that_do_not_fit_are_named(path, change, error, message):
    assert refusal(changed(path, change), error).startswith(message)


def test_nothing_is_read_through_links_and_outside_storage(path, tmp_path):
    fifo = tmp_path / "fifo"  # opening it would wait for ever
    os.mkfifo(fifo)
    with h5py.File(path, "r+") as file:
        file["a_link"] = h5py.ExternalLink(str(fifo), "/x")
    assert "a soft or external link" in refusal(path, Refused)


def test_memory_and_stream_give_the_same_bytes(tmp_path, rng):
    rows = rng.random((1000, 30)).astype("<f4")
    contents = FileContents()
    contents.set_attributes("", format="labelkit.store", format_version="1.0")
    contents.datasets = {"embeddings": rows, "sample_ids": encode_strings(map(str, range(1000)))}
    streamed = FileContents(dict(contents.datasets), contents.attributes)
    streamed.datasets["embeddings"] = StreamedDataset(rows.dtype, rows.shape, lambda start, stop: rows[start:stop])
    whole = contents.sealed(1 << 12)
    path = tmp_path / "streamed.h5"
    with path.open("w+b") as file:
        streamed.sealed(1 << 12).write(file)
    assert path.read_bytes() == whole.to_bytes()
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["embeddings"][:], rows)
        assert file["digests/embeddings"].shape == (-(-1000 // (4096 // 120)), 32)
