"""Old and new classes of registered datasets, as defined by published benchmarks.

The lists are JSON files in ``class_lists/``, one per dataset, each with its source.
"""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from labelkit.errors import DatasetError


@dataclass(frozen=True)
class BenchmarkClasses:
    """Old and new classes of one dataset, as defined by a published benchmark.

    Attributes:
        source: where the list comes from.
        num_classes: total number of classes.
        old_classes: classes with labels, in published order: training class i is the i-th of them.
        new_classes: the other classes, continuing that order.
        folder_names: name of the folder of each class, if it is fixed (ImageNet); else empty.
    """

    source: str
    num_classes: int
    old_classes: tuple[int, ...]
    new_classes: tuple[int, ...]
    folder_names: tuple[str, ...]

    def check_num_classes(self, name: str, num_classes: int) -> None:
        """Raise an error if the number of classes in the data differs from that of the benchmark.

        Raises:
            DatasetError: the numbers differ.
        """
        if num_classes != self.num_classes:
            raise DatasetError(
                name,
                f"the class list of this benchmark does not match the data: expected {self.num_classes:,} classes, "
                f"found {num_classes:,}",
                f"See `labelkit datasets --dataset {name}`. For a subset of the benchmark, use --label-split none, "
                "or choose old classes with --num-old-classes or --old-classes.",
            )


@cache
def read_benchmark_classes(name: str) -> BenchmarkClasses:
    """Read the published lists of old and new classes of a registered dataset.

    Raises:
        FileNotFoundError: there is no list for this dataset.
    """
    path = files("labelkit.data.named").joinpath("class_lists", f"{name}.json")
    record = json.loads(path.read_text(encoding="utf-8"))
    folder_names = tuple(record.get("folder_names", ()))
    if "imagenet_classes" in record:
        whole = read_benchmark_classes("imagenet_1k").folder_names
        folder_names = tuple(whole[i] for i in record["imagenet_classes"])
    return BenchmarkClasses(
        source=record["source"],
        num_classes=record["num_classes"],
        old_classes=_numbers(record["old_classes"]),
        new_classes=_numbers(record["new_classes"]),
        folder_names=folder_names,
    )


def _numbers(record: list[int] | dict[str, int]) -> tuple[int, ...]:
    """Return the numbers of a list, or all numbers from ``first`` to ``last``."""
    return tuple(range(record["first"], record["last"] + 1)) if isinstance(record, dict) else tuple(record)
