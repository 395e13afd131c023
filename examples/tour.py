"""A tour of labelkit in Python: from digits to a store, groups, classes, scores, and images to label next.

You can run the whole script, or cell by cell (``# %%``). It writes to the folder ``tour`` and takes about a minute. To
be fast, it clusters raw pixels, and trains a network only at the end, for two epochs.
"""

# %% Every command is a function; its options are the keyword arguments.
from pathlib import Path

import labelkit

folder = Path("tour")
folder.mkdir(exist_ok=True)
index = folder / "digits.h5"

# %% Create a store: one row per image. Half of the images of 0 to 4 keep their labels; 5 to 9 have none.
print(labelkit.embed(dataset="digits", backbone="pixels", image_size=8, out=index, overwrite=True))

# %% Cluster the embeddings. Labeled images of the same class stay together.
labelkit.cluster.ss_kmeans(index=index, num_clusters=10, overwrite=True)

# %% How many classes are there?
classes = labelkit.discover.categories(index=index, overwrite=True)
print("estimated number of classes:", classes["num_classes"])

# %% How good are the groups? `values` contains the JSON output; `print` shows the table.
scores = labelkit.evaluate.clustering(index=index)
print(scores)
best = max(scores["scores"], key=lambda score: score["nmi"])
print("best:", best["result"])

# %% Known, new or unsure? Each image gets a prediction with a confidence.
print(labelkit.discover.answer(index=index, grouping="ss-kmeans", min_confidence=0.8, overwrite=True))

# %% Which images are most similar to image 1000?
print(labelkit.retrieve(index=index, query_rows=1000, k=10, sheet=folder / "hits.png", overwrite=True))

# %% Which images should be labeled next?
print(labelkit.suggest(index=index, out=folder / "next.csv", num_images=10, overwrite=True))

# %% Arrays, and a table of the images (the table needs pandas).
with labelkit.open_store(index) as store:
    print(store.embeddings.shape, store.ids[0], store.results)
    print(store.frame("ss-kmeans").head())

# %% Everything on one page.
page = labelkit.report(index=index, out=folder / "report.html", max_images=200, overwrite=True)
print("open", page.paths[0])

# %% Learn a representation. Two epochs only show that it works: the network learns next to nothing, as the log says.
# Omit `epochs` to train for the 40 epochs of the preset: this takes two minutes, and the groups are better.
print(labelkit.train.flipclass(dataset="digits", epochs=2, out=folder / "run", overwrite=True))
labelkit.embed(dataset="digits", checkpoint=folder / "run", out=folder / "learned.h5", overwrite=True)

# %% Errors state where, what, and what to do.
try:
    labelkit.cluster.k_means(index=index, num_clusters=0)
except labelkit.errors.ConfigError as error:
    print(error)
