"""Simulate annotators with different strategies, and count the correct labels after a number of actions.

    python examples/label_person.py --index grocery.h5 --out examples/results/grocery_label_person.json

The annotator knows the true labels, but makes a mistake in 3% of the answers. An action is one label, one group name,
one skipped group, one image marked as wrong, or the key that removes the marked images.

    random        label images drawn at random
    suggested     label the images suggested by `labelkit suggest`, which is rerun after every 10
    groups        name the groups of `discover categories`, the largest first, by 12 of their images (a group in which
                  no class has 9 of these is passed over); then the suggested images
    fine groups   the same with more groups than classes: the square root of the number of images
    fine, marked  the same, and of the 24 images nearest to the mean of each group mark those that are wrong

Images without a label are scored by the class that logistic regression predicts. It is trained on the labels of single
images and, in each named group, on the images from which `labelkit label --serve` learns. Suggestions are based on the
same labels, so an image that only has the name of its group may be suggested. "again": the same, but images whose only
label is the name of their group are also scored by the regression.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from labelkit.algorithms.few_label_classifier import RefittableClassifier
from labelkit.commands.common.embeddings import load_finite_embeddings, normalize_embeddings
from labelkit.commands.common.labels import UsableLabels
from labelkit.commands.discover.categories import discover_categories
from labelkit.commands.discover.options import DiscoverCategoriesConfig
from labelkit.commands.suggest.options import SuggestConfig
from labelkit.commands.suggest.suggest import choose_rows_to_label
from labelkit.errors import DatasetError
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import read_result
from labelkit.studio.label.actions import EditStep, LabelingState, choose_training_labels

WAYS = ("random", "suggested", "groups", "fine groups", "fine, marked")
CHECKED = (10, 20, 50, 100, 200)
SLIPS, SHOWN, AGREE, LOOKED_AT, PER_ROUND = 0.03, 12, 0.75, 24, 10


class Person:
    """One annotator who labels one store with one strategy.

    Args:
        store: store with all labels, which are used only for the annotator's answers.
        features: (n, d) unit vectors.
        groups: (n,) group of each image.
        seed: seed for mistakes and random choices.
    """

    def __init__(self, store: EmbeddingStore, features: np.ndarray, groups: np.ndarray, seed: int) -> None:
        self.store, self.features, self.groups, self.seed = store, features, groups, seed
        self.truth = np.asarray(store.labels, dtype=np.int64)
        self.chance = np.random.default_rng(seed)
        count = int(groups.max()) + 1
        none = np.full(store.n, -1, dtype=np.int64)
        names = [f"group {number}" for number in range(count)]
        self.work = LabelingState(
            list(store.class_names), none, np.zeros(store.n, bool), groups.copy(), names, [-1] * count
        )
        self.order = {number: self._nearest(number) for number in range(count)}

    def _nearest(self, group: int) -> np.ndarray:
        """Return the images of a group, nearest to its mean first."""
        members = np.flatnonzero(self.groups == group)
        mean = self.features[members].mean(axis=0)
        return members[np.argsort(-(self.features[members] @ mean), kind="stable")]

    def says(self, label: int) -> str:
        """Return the annotator's answer when the true class is ``label``."""
        if self.chance.random() < SLIPS:
            label = int(self.chance.choice(np.delete(np.arange(len(self.store.class_names)), label)))
        return self.store.class_names[label]

    def label(self, image: int) -> None:
        """Label one image (one action)."""
        self.work.apply([EditStep("label", rows=(image,), name=self.says(int(self.truth[image])))])

    def actions(self, way: str) -> Iterator[None]:
        """Label with a strategy, and yield after every action."""
        if way == "random":
            for image in self.chance.permutation(self.store.n):
                self.label(int(image))
                yield
        if "fine" in way or way == "groups":
            sizes = np.bincount(self.groups)
            for group in np.argsort(-sizes, kind="stable").tolist():
                yield from self._group(group, marking="marked" in way)
        while True:
            images = self._suggested()
            for image in images:
                self.label(image)
                yield
            if not images:
                return

    def _group(self, group: int, *, marking: bool) -> Iterator[None]:
        shown = self.truth[self.order[group][:SHOWN]]
        label, times = Counter(shown.tolist()).most_common(1)[0]
        if times < AGREE * len(shown):
            yield  # skipped
            return
        name = self.says(label)
        self.work.apply([EditStep("name", group=group, name=name)])
        yield
        if not marking:
            return
        named = self.store.class_names.index(name)
        looked = self.order[group][:LOOKED_AT]
        wrong = [int(row) for row in looked if (self.truth[row] != named) != (self.chance.random() < SLIPS)]
        if len(wrong) > len(looked) / 2:  # the name of the group was wrong
            self.work.apply([EditStep("name", group=group, name=self.store.class_names[label])])
            yield
            return
        for _ in wrong:
            yield
        if wrong:
            self.work.apply(
                [EditStep("not", rows=tuple(wrong), name=name), EditStep("group", rows=tuple(wrong), group=-1)]
            )
            yield

    def _suggested(self) -> list[int]:
        given = UsableLabels(
            choose_training_labels(self.work, self.features),
            np.full(self.store.n, -1),
            tuple(self.work.classes),
            "labels",
            {},
        )
        rows = np.arange(self.store.n)
        config = SuggestConfig(index=self.store.path, out=Path("next.csv"), num_images=PER_ROUND, seed=self.seed)
        try:
            return [int(row) for row in choose_rows_to_label(config, self.store, rows, given).places]
        except DatasetError:  # nothing is left
            return []

    def right(self, judge: RefittableClassifier) -> tuple[int, int]:
        """Return the number of correct labels over all images, with and without the group names."""
        labels, by_group = self.work.labels()
        learned = choose_training_labels(self.work, self.features)
        classes = np.unique(learned[learned >= 0])
        if not len(classes):
            return 0, 0
        guess = classes[judge.regression_probabilities(learned, classes).argmax(axis=1)]
        with_names = np.where(labels >= 0, labels, guess)
        return int((with_names == self.truth).sum()), int((np.where(by_group, guess, with_names) == self.truth).sum())


def simulate(person: Person, way: str, judge: RefittableClassifier) -> list[tuple[int, int]]:
    """Return the number of correct labels after each number of actions in ``CHECKED``."""
    found, done = [], 0
    for _ in person.actions(way):
        done += 1
        if done in CHECKED:
            found.append(person.right(judge))
        if done == CHECKED[-1]:
            break
    return found + [person.right(judge)] * (len(CHECKED) - len(found))


def main() -> None:
    """Run all strategies with all seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--index", type=Path, required=True, help="store whose labels are all known")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        index = Path(shutil.copyfile(options.index, Path(folder) / options.index.name))
        store = open_store(index)
        features = normalize_embeddings(load_finite_embeddings(store, np.arange(store.n)))
        judge = RefittableClassifier(features, np.asarray(store.labels))
        for seed in range(options.seeds):
            grouped = {}
            for number in (None, round(store.n**0.5)):
                made = discover_categories(
                    DiscoverCategoriesConfig(
                        index=index,
                        result=f"groups-{number or 'found'}-{seed}",
                        own_labels=False,
                        num_classes=number,
                        seed=seed,
                    )
                )
                result = read_result(store, str(made.values["result"]))
                grouped[number is not None] = np.asarray(result.arrays["pseudo_labels"])
            for way in WAYS:
                groups = grouped["fine" in way]
                found = simulate(Person(store, features, groups, seed), way, judge)
                right, again = ([one[place] for one in found] for place in (0, 1))
                rows.append({"way": way, "seed": seed, "groups": int(groups.max()) + 1, "right": right, "again": again})
                print(json.dumps(rows[-1]), flush=True)
    table = [
        {
            "way": way,
            **{
                f"{kind} after {count}%": round(
                    100 * statistics.mean(row[kind][place] for row in rows if row["way"] == way) / store.n, 1
                )
                for kind in ("right", "again")
                for place, count in enumerate(CHECKED)
            },
        }
        for way in WAYS
    ]
    words = ["--index", options.index.name, "--seeds", str(options.seeds), "--out", str(options.out)]
    command = shlex.join(["python", "examples/label_person.py", *words])
    told = {"command": command, "store": options.index.name, "images": store.n, "classes": len(store.class_names)}
    if options.out is not None:
        options.out.write_text(json.dumps({**told, "actions": CHECKED, "runs": rows, "mean": table}, indent=1) + "\n")
    for line in table:
        print(line)


if __name__ == "__main__":
    main()
