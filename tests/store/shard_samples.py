"""Small stores in shards, and ways to damage them."""

import h5py
from labelkit.store.embeddings import open_store
from labelkit.store.reader import VIRTUAL_NAME, shards_folder
from labelkit.store.writing import EmbeddingRun
from store_samples import make_plan, write_part

BAD = {1: "broken", 4: "empty"}


def make_sharded(out, plan=None, *, shards=None, bad=None, overwrite=False):
    run = EmbeddingRun.open(out, plan or make_plan(), overwrite)
    for part in run.pending_parts():
        write_part(run, part, bad)
    run.publish(0.5, shards or 3)
    return open_store(out)


def shard_paths(out):
    return sorted(path for path in shards_folder(out).iterdir() if path.name != VIRTUAL_NAME)


def flip(path, offset):
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def rows_offset(path):
    with h5py.File(path) as file:
        return file["embeddings"].id.get_offset()
