"""Show the registered datasets: their purpose and source, and which of their images are on this machine."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.datasets.options import DatasetsConfig
from labelkit.data.named.benchmark_classes import read_benchmark_classes
from labelkit.data.named.layouts import DatasetSpec, describe_wrong_counts, format_count
from labelkit.data.registry import DATASETS
from labelkit.errors import ConfigError, DatasetAbsent, DatasetError, DatasetIncomplete
from labelkit.progress import current_progress


@dataclass(frozen=True)
class Inventory:
    """Numbers of images and classes of a dataset on disk, compared with the published numbers.

    Attributes:
        state: ``whole`` if all counts are as published, ``absent`` if nothing was found, else ``incomplete``.
        folder: folder of the dataset, if it has one and can be listed.
        found: number of images per split, and of ``classes``, ``mask_classes`` and ``object_classes``; empty if the
            dataset cannot be listed.
        fault: problem with its remedy; ``None`` if the dataset is complete.
    """

    state: Literal["whole", "incomplete", "absent"]
    folder: Path | None
    found: Mapping[str, int]
    fault: DatasetError | None


def count_dataset_files(spec: DatasetSpec, data_root: Path) -> Inventory:
    """Count the images and classes of a dataset, and compare the counts with the published ones.

    A dataset that is consistent but differs from the published counts can be used, but is ``incomplete`` here.
    """
    try:
        dataset = spec.load(data_root)
    except DatasetError as error:
        return Inventory("absent" if isinstance(error, DatasetAbsent) else "incomplete", None, {}, error)
    found = {name: int((dataset.splits == i).sum()) for i, name in enumerate(dataset.split_names)}
    wrong_counts = describe_wrong_counts(found, spec.num_images)
    problems = [] if wrong_counts is None else [wrong_counts]
    classes = (dataset.class_names, dataset.mask_classes, dataset.object_classes)
    for (key, (what, expected)), names in zip(_list_class_counts(spec).items(), classes, strict=True):
        found[key] = len(names)
        if len(names) != expected:
            problems.append(f"expected {expected:,} {what}, found {len(names):,}")
    if not problems:
        return Inventory("whole", dataset.root, found, None)
    remedy = "To get the published version, download the dataset again; the existing files can be used."
    fault = DatasetIncomplete(str(dataset.root or spec.name), "; ".join(problems), remedy)
    return Inventory("incomplete", dataset.root, found, fault)


def _list_class_counts(spec: DatasetSpec) -> dict[str, tuple[str, int]]:
    return {
        "classes": ("classes", spec.num_classes),
        "mask_classes": ("mask classes", spec.num_mask_classes),
        "object_classes": ("object classes", spec.num_object_classes),
    }


def describe_registered_datasets(config: DatasetsConfig) -> CommandResult:
    """List the registered datasets and their contents on disk, without decoding images.

    Raises:
        ConfigError: there is no dataset with this name.
    """
    if config.dataset is not None and config.dataset not in DATASETS:
        raise ConfigError("--dataset", f"unknown dataset {config.dataset!r}", f"Choose one of: {', '.join(DATASETS)}.")
    specs = list(DATASETS.values()) if config.dataset is None else [DATASETS[config.dataset]]
    rows = []
    with current_progress().task("count", total=len(specs)) as task:
        for spec in specs:
            rows.append((spec, count_dataset_files(spec, config.data_root)))
            task.advance()
    values: dict[str, object] = {"data_root": config.data_root, "datasets": [_build_record(*row) for row in rows]}
    columns = ("name", "state", "images", "expected", "classes", "mask classes", "object classes", "for")
    sources = [(spec.name, spec.source_url, spec.license, spec.layout) for spec, _ in rows]
    faults = [
        (spec.name, found.fault.where, found.fault.problem, found.fault.remedy)
        for spec, found in rows
        if found.state == "incomplete" and found.fault is not None
    ]
    tables = (
        Table(f"datasets in {config.data_root}", columns, [_build_state_row(*row) for row in rows]),
        Table(f"sources, and folders in {config.data_root}", ("name", "source", "license", "layout"), sources),
    )
    if config.dataset is not None:
        return CommandResult(values, shown=tables, fault=rows[0][1].fault)
    wrong = Table("incomplete", ("name", "where", "problem", "what to do"), faults)
    return CommandResult(values, shown=(*tables, wrong) if faults else tables)


def _build_record(spec: DatasetSpec, inventory: Inventory) -> dict[str, object]:
    classes = read_benchmark_classes(spec.name) if spec.num_classes else None
    fault = inventory.fault
    return {
        "name": spec.name,
        "state": inventory.state,
        "summary": spec.summary,
        "purpose": spec.purpose,
        "source": spec.source_url,
        "license": spec.license,
        "layout": spec.layout,
        "folder": inventory.folder,
        "images": {
            split: {
                "expected": count if isinstance(count, int) else [count[0], count[-1]],
                "found": inventory.found.get(split),
            }
            for split, count in spec.num_images.items()
        },
        **{
            key: {"expected": expected, "found": inventory.found.get(key)}
            for key, (_, expected) in _list_class_counts(spec).items()
        },
        "old_classes": None if classes is None else len(classes.old_classes),
        "new_classes": None if classes is None else len(classes.new_classes),
        "class_list_source": None if classes is None else classes.source,
        "fault": None if fault is None else {name: getattr(fault, name) for name in ("where", "problem", "remedy")},
    }


def _build_state_row(spec: DatasetSpec, inventory: Inventory) -> tuple[Cell, ...]:
    images = " + ".join(f"{inventory.found.get(split, 0):,} {split}" for split in spec.num_images)
    return (
        spec.name,
        inventory.state,
        images if inventory.found else None,
        " + ".join(f"{format_count(count)} {split}" for split, count in spec.num_images.items()),
        *(
            f"{found:,} of {expected:,}"
            if (found := inventory.found.get(key, expected)) != expected
            else expected or None
            for key, (_, expected) in _list_class_counts(spec).items()
        ),
        spec.purpose,
    )
