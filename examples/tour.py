"""The tour of the README from Python: digits become a store, groups, classes, scores, and images to label next.

Run it anywhere, or cell by cell (``# %%``); it writes into the folder ``tour`` and takes less than a minute.
"""

# %% Every command is a function; its options are the keyword arguments.
from pathlib import Path

import labelkit

folder = Path("tour")
folder.mkdir(exist_ok=True)
index = folder / "digits.h5"

# %% Learn: one pass over the images, to see it work. Leave `epochs` out for the length of the preset.
run = labelkit.train.flipclass(dataset="digits", epochs=1, out=folder / "run", overwrite=True)
print(run)

# %% A data set becomes a store: one row per image.
labelkit.embed(dataset="digits", checkpoint=folder / "run", out=index, overwrite=True)

# %% Rows become groups. Labeled rows of a class stay together.
labelkit.cluster.ss_kmeans(index=index, num_clusters=10, overwrite=True)
labelkit.discover.head(index=index, overwrite=True)

# %% How many classes are there?
classes = labelkit.discover.categories(index=index, overwrite=True)
print("estimated number of classes:", classes["num_classes"])

# %% How good are the groups? `values` holds what `--json` prints, `print` shows the table.
scores = labelkit.evaluate.clustering(index=index)
print(scores)
best = max(scores["scores"], key=lambda score: score["nmi"])
print("best:", best["result"])

# %% Which images look like row 1000?
hits = labelkit.retrieve(index=index, query_rows=1000, k=10, sheet=folder / "hits.png", overwrite=True)
print(hits)

# %% Which images should get a label next?
labelkit.suggest(index=index, out=folder / "next.csv", num_images=10, overwrite=True)

# %% Arrays and a table of the rows (the table needs pandas).
with labelkit.open_store(index) as store:
    print(store.embeddings.shape, store.ids[0], store.results)
    print(store.frame("ss-kmeans").head())

# %% Everything in one page.
page = labelkit.report(index=index, out=folder / "report.html", max_images=200, overwrite=True)
print("open", page.paths[0])

# %% What goes wrong says where, what, and what to do.
try:
    labelkit.cluster.k_means(index=index, num_clusters=0)
except labelkit.errors.ConfigError as error:
    print(error)
