"""Read an embedding store and a result next to it with h5py, numpy, pandas and FAISS; labelkit is not needed.

    python examples/read_store.py digits.h5 --result head --csv rows.csv

You can run the cells (``# %%``) one by one in an editor or as a notebook. Three lines of h5py suffice to read a store.
"""

# %% parse the options
from __future__ import annotations

import argparse
from pathlib import Path

import faiss
import h5py
import numpy as np
import pandas as pd

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("index", type=Path, help="store, NAME.h5")
parser.add_argument("--result", default=None, help="name of a clustering result in NAME.h5.results/")
parser.add_argument("--csv", type=Path, default=None, help="CSV file to write")
options = parser.parse_args()

# %% the store: row i of each array belongs to image i
with h5py.File(options.index) as file:
    embeddings = file["embeddings"][:].astype(np.float32)  # (n, d)
    table = pd.DataFrame({"path": file["sample_ids"].asstr(errors="surrogateescape")[:]})
    if "labels" in file and len(file["class_names"]):
        names = np.array([*file["class_names"].asstr()[:], None])  # -1 = unlabeled
        table["label"] = names[file["labels"][:]]
    if "splits" in file:
        table["split"] = np.array([*file["split_names"].asstr()[:], None])[file["splits"][:]]
    digest = file.attrs["content_digest"]
    print(f"{options.index}: {embeddings.shape[0]} images, {embeddings.shape[1]} dimensions")

# %% a result of the store: groups or classes, and their confidence
if options.result is not None:
    with h5py.File(Path(f"{options.index}.results") / f"{options.result}.h5") as file:
        if file.attrs["store_digest"] != digest:
            raise SystemExit(f"{options.result} belongs to another version of this store")
        key = "pseudo_labels" if "pseudo_labels" in file else "cluster_ids"
        groups = file[key][:]
        named = np.array([*file["names"].asstr()[:], None]) if "names" in file else None
        table["group"] = groups if named is None else named[groups]
        if "confidence" in file:
            table["confidence"] = file["confidence"][:]
    print(table.groupby("group", dropna=False).size().rename("images").to_string())

# %% the nearest other image of each image, by cosine similarity
unit = embeddings / np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
index = faiss.IndexFlatIP(unit.shape[1])
index.add(unit)
scores, neighbors = index.search(unit, 2)
# the image itself comes first, or second if another image is identical
second = np.where(neighbors[:, 0] == np.arange(len(unit)), 1, 0)
rows = np.arange(len(unit))
table["nearest"] = table["path"].to_numpy()[neighbors[rows, second]]
table["cosine"] = scores[rows, second].round(4)

# %% print and write the results
if "label" in table and table["label"].notna().any():
    theirs = table["label"].to_numpy()[neighbors[rows, second]]
    known = table["label"].notna() & pd.notna(theirs)
    same = table["label"].to_numpy() == theirs
    print(
        f"nearest image has the same label: {100 * same[known].mean():.1f}% of {int(known.sum())} where both have one"
    )
print(table.head(5).to_string())
if options.csv is not None:
    table.to_csv(options.csv, index=False)
