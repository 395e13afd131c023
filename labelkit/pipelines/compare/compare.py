"""Compare the features learned by methods of all kinds on the same split with the same time budget.

Every method gets the same training images, with the labels that its kind needs; every network is evaluated in the same
ways on the same held-out images. Raw pixels and untrained networks are included as baselines.
"""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labelkit.commands.common.results import Cell, CommandResult, Table, to_json_types
from labelkit.commands.common.training_data import has_own_splits, list_with_holdout, parse_old_classes
from labelkit.commands.evaluate.dense import format_percent_and_std, mean_and_std
from labelkit.errors import ConfigError, DatasetError, InputError, LabelkitError, ResourceError
from labelkit.formatting import percent
from labelkit.methods import OWN_METHODS_VARIABLE
from labelkit.methods.registry import METHODS
from labelkit.options.base import closest_name, format_value
from labelkit.options.data import DataConfig
from labelkit.pipelines.compare.options import CompareConfig
from labelkit.pipelines.compare.runs import (
    JUDGES,
    DatasetInfo,
    FailedRunError,
    embed_for_evaluation,
    evaluate_store,
    method_config,
    read_stored_record,
    train_and_evaluate,
)
from labelkit.pipelines.own_code import check_code_digest
from labelkit.progress import current_progress
from labelkit.store.commit import commit_json, json_digest, translate_os_errors
from labelkit.store.parts import hold_lock

_ABOUT = "comparison.json"
_PIXELS = "pixels"
_SHOWN_SCORES = (*JUDGES, "own_accuracy")


@dataclass
class MethodRow:
    """Runs and failures of one method, summarized as a row of the comparison table."""

    name: str  # name of the method, or of an untrained baseline
    kind: str = "none"  # labels used: few, some, all, none
    network: str | None = None
    runs: list[dict[str, Any]] = field(default_factory=list)  # records of finished runs
    failures: dict[int, str] = field(default_factory=dict)  # reason for each failed seed

    def summarize(self, key: str) -> dict[str, object] | None:
        """Return the mean, standard deviation and values of one result over the runs; ``None`` if no run has it."""
        values = [float(run[key]) for run in self.runs if key in run]
        return mean_and_std(values) if values else None

    def scores(self) -> dict[str, dict[str, object]]:
        """Return the mean and standard deviation of each evaluation score over the runs."""
        names = dict.fromkeys(name for run in self.runs for name in run["scores"])
        every = [run["scores"] for run in self.runs]
        return {name: mean_and_std([float(one[name]) for one in every if name in one]) for name in names}

    def describe_label_count(self) -> str:
        """Describe how many labels the method used for training."""
        if not self.runs or self.kind == "none":
            return self.kind
        labels, classes = self.runs[0]["labels"], self.runs[0]["labeled_classes"]
        return f"all {labels:,}" if self.kind == "all" else f"{labels:,} of {classes} classes"

    def to_dict(self) -> dict[str, object]:
        """Convert this row of the comparison to a dictionary for JSON."""
        return {
            "method": self.name,
            "labels": self.describe_label_count(),
            "network": self.network,
            "scores": self.scores(),
            "minutes": self.summarize("minutes"),
            "peak_memory_mib": self.summarize("peak_memory_mib"),
            "runs": self.runs,
            "failures": {str(seed): reason for seed, reason in self.failures.items()},
        }


def compare_methods(config: CompareConfig) -> CommandResult:
    """Train and evaluate several methods on one dataset, and report which runs failed and why.

    Raises:
        ConfigError: unknown method or old class, incompatible options, or a folder with runs of other options.
        DatasetError: images lack the labels required for evaluation.
        InputError: not a single run finished.
        ResourceError: the disk is full, ...
        Interrupted: a signal stopped the comparison; finished runs are in ``--keep``.
    """
    names = _choose_methods(config.methods)
    data, images, data_digest, config = _prepare_data(config)
    with _open_runs_folder(config, data_digest) as folder:
        rows = _evaluate_untrained_networks(names, config, data, folder)
        rows += _train_methods(names, config, data, folder)
    values: dict[str, object] = {
        "measured": f"features of {len(names)} methods on {data.test_split} of {config.dataset}",
        "images": images,
        "budget_seconds": config.budget_seconds,
        "seeds": list(range(config.seeds)),
        "options": config.to_yaml_dict(),
        "rows": [row.to_dict() for row in rows],
    }
    made: tuple[Path, ...] = ()
    if config.out is not None:
        commit_json(config.out, to_json_types(values))
        made = (config.out,)
    trained = [row for row in rows if row.name in names]
    if not any(row.runs for row in trained):
        reasons = "; ".join(f"{row.name}: {next(iter(row.failures.values()))}" for row in trained)
        raise InputError("compare", f"no run finished ({reasons})", "Fix these problems, or raise --budget.")
    return CommandResult(values, made, _tables(config, data, images, rows))


def _choose_methods(methods: tuple[str, ...]) -> list[str]:
    for name in methods:
        if name not in METHODS:
            guess = closest_name(name, METHODS)
            hint = f"Did you mean `{guess}`? " if guess else ""
            known = f"{', '.join(METHODS)}; add your own with {OWN_METHODS_VARIABLE}"
            raise ConfigError("--methods", f"there is no method {name!r}", f"{hint}Choose from: {known}.")
    return list(dict.fromkeys(methods or METHODS))


def _prepare_data(config: CompareConfig) -> tuple[DatasetInfo, dict[str, int], str, CompareConfig]:
    """Return the shared dataset, its numbers of images, its digest, and the options with names of ``--old-classes``."""
    given = DataConfig(
        dataset=config.dataset, data_root=config.data_root, label_split="given", **config.listing_kwargs()
    )
    listing, _ = list_with_holdout(given)
    holdout = None if has_own_splits(listing) else config.holdout
    if holdout is not None:
        listing, _ = list_with_holdout(given.model_copy(update={"holdout": holdout, "split_seed": config.split_seed}))
    test_split = next((name for name in ("test", "val") if name in listing.split_names), None)
    if test_split is None or "train" not in listing.split_names:
        names = ", ".join(listing.split_names)
        raise DatasetError(
            config.dataset, f"has no train split or no test split (splits: {names})", "Use another dataset."
        )
    used = np.isin(listing.splits, [listing.split_names.index(name) for name in ("train", test_split)])
    if (listing.labels[used] < 0).any():
        problem = f"{(listing.labels[used] < 0).sum()} images are unlabeled, but a comparison requires true labels"
        raise DatasetError(config.dataset, problem, "Pass class folders, or a CSV with labels for all images.")
    images = {name: len(listing.rows_in_split(name)) for name in ("train", test_split)}
    if config.old_classes is not None:
        # a file may have changed by the time the comparison is resumed
        old = parse_old_classes(config.old_classes, listing.class_names)
        config = config.model_copy(update={"old_classes": tuple(listing.class_names[label] for label in old)})
    digest = json_digest([listing.digest(), list(listing.split_names), listing.splits.tolist()])
    return DatasetInfo(len(listing.class_names), test_split, holdout), images, digest, config


@contextmanager
def _open_runs_folder(config: CompareConfig, data_digest: str) -> Iterator[Path]:
    """Provide the folder for runs: ``--keep``, locked, or a temporary folder.

    Raises:
        ConfigError: the folder was created with other options or data.
        BusyError: another comparison is using the folder.
    """
    if config.keep is None:
        with tempfile.TemporaryDirectory(prefix="labelkit-compare-") as scratch:
            yield Path(scratch)
        return
    now = {name: value for name, value in config.to_yaml_dict().items() if name not in CompareConfig.resumable_fields}
    about = config.keep / _ABOUT
    with translate_os_errors(config.keep):
        existing = {path.name for path in config.keep.iterdir()} if config.keep.is_dir() else set()
        # a lock without other files was left by a comparison that was stopped at its start
        if existing - {"lock"} and _ABOUT not in existing:
            raise ConfigError("--keep", f"{config.keep} is not a comparison folder", "Choose a new folder.")
        config.keep.mkdir(parents=True, exist_ok=True)
    with hold_lock(config.keep):
        if about.exists():
            then = read_stored_record(about)
            differing = [
                f"--{name.replace('_', '-')} {format_value(then.get(name))} (now {format_value(now[name])})"
                for name in now
                if then.get(name) != now[name]
            ]
            if differing:
                problem = f"{config.keep} contains runs with {', '.join(differing)}"
                raise ConfigError("--keep", problem, "Pass the same options, or choose another folder.")
            if then.get("data", data_digest) != data_digest:
                problem = (
                    f"the images, labels or splits of {config.dataset} have changed since the runs in {config.keep}"
                )
                raise ConfigError("--keep", problem, "Restore the dataset, or choose another folder.")
        else:
            commit_json(about, {**now, "data": data_digest})
        for name in _choose_methods(config.methods):
            remedy = f"Delete {name}-s* and {name}.* from this folder, or choose another folder."
            check_code_digest(config.keep / f"{name}.code.json", name, remedy)
        yield config.keep


def _evaluate_untrained_networks(
    names: Sequence[str], config: CompareConfig, data: DatasetInfo, folder: Path
) -> list[MethodRow]:
    wanted: dict[str, tuple[str, dict[str, Any]]] = {_PIXELS: ("pixels", {"backbone": "pixels", "image_size": 32})}
    for name in names:
        try:
            options: Any = method_config(name, config, data, 0)
        except LabelkitError:
            continue  # reported in its own row
        start: dict[str, Any] = {"backbone": options.backbone, "image_size": options.image_size}
        if options.weights is not None:
            start["weights"] = options.weights
        else:
            start["pretrained" if options.pretrained else "random_weights"] = True
        wanted.setdefault(f"{options.backbone}, before training", (options.backbone, start))
    rows = []
    for number, (label, (network, model)) in enumerate(wanted.items()):
        row = MethodRow(label, network=network)
        for seed in range(config.seeds):
            record, store = folder / f"reference-{label.split(',')[0]}-s{seed}.json", folder / f"reference-{number}.h5"
            try:
                if not record.exists():
                    seeded = model if label == _PIXELS else model | {"seed": seed}
                    embed_for_evaluation(config, data, store, **seeded)
                    found = evaluate_store(config, data, store, seed=seed, output_kind="nothing")
                    commit_json(record, {"method": label, "seed": seed, "scores": found})
                row.runs.append(read_stored_record(record))
            except LabelkitError as error:
                # pixels need almost no space: if they cannot be stored, nothing can be
                if label == _PIXELS and isinstance(error, ResourceError):
                    raise
                row.failures[seed] = str(error)
                break
            finally:
                store.unlink(missing_ok=True)
                shutil.rmtree(store.with_name(f"{store.name}.results"), ignore_errors=True)
        _report_row(row)
        rows.append(row)
    return rows


def _train_methods(names: Sequence[str], config: CompareConfig, data: DatasetInfo, folder: Path) -> list[MethodRow]:
    rows = []
    with current_progress().task("compare", total=len(names)) as task:
        for name in names:
            row = MethodRow(name)
            for seed in range(config.seeds):
                try:
                    options: Any = method_config(name, config, data, seed)
                    row.kind, row.network = options.label_kind, options.backbone
                    record = train_and_evaluate(name, config, data, folder, seed)
                except (FailedRunError, LabelkitError) as error:
                    row.failures[seed] = str(error).strip()
                    continue
                row.runs.append(record | {"minutes": record["seconds"] / 60})
            _report_row(row)
            rows.append(row)
            task.advance()
    return rows


def _report_row(row: MethodRow) -> None:
    scores = row.scores()
    names = [name for name in _SHOWN_SCORES if name in scores]
    shown = ", ".join(f"{name.replace('_', ' ')} {format_percent_and_std(scores[name])}%" for name in names)
    if row.runs:
        current_progress().message(f"{row.name}: {shown}")
    for seed, reason in row.failures.items():
        current_progress().warning(f"{row.name}, seed {seed} failed: {reason}")


def _tables(
    config: CompareConfig, data: DatasetInfo, images: dict[str, int], rows: Sequence[MethodRow]
) -> tuple[Table, ...]:
    lines: list[list[Cell]] = []
    for row in rows:
        scores, minutes, memory = row.scores(), row.summarize("minutes"), row.summarize("peak_memory_mib")
        spread = f" ± {minutes['sd']:.2f}" if minutes and minutes["sd"] is not None else ""
        lines.append(
            [
                row.name,
                row.describe_label_count(),
                row.network if row.name in METHODS else None,
                format_training_length(row),
                *(format_percent_and_std(scores[name]) if name in scores else None for name in _SHOWN_SCORES),
                f"{minutes['mean']:.2f}{spread}" if minutes else None,
                round(float(str(memory["mean"]))) if memory else None,
                len(row.runs),
            ]
        )
    split = f"{images['train']:,} training images, {images[data.test_split]:,} evaluation images ({data.test_split})"
    title = f"{config.dataset}: {split}; training for at most {config.budget}; scores in %, mean ± standard deviation"
    columns = [
        "method", "labels", "network", "length", f"{config.neighbors}-NN", "k-means", "R@1", "own", "minutes", "MiB",
        "runs",
    ]  # fmt: skip
    failures: list[list[Cell]] = [[row.name, *failure] for row in rows for failure in sorted(row.failures.items())]
    failed = (Table("failed runs", ["method", "seed", "reason"], failures),) if failures else ()
    return Table(title, columns, lines), *failed


def format_training_length(row: MethodRow) -> str | None:
    """Describe the training length, with its fraction of the preset's length and a note if over budget."""
    if not row.runs or "length" not in row.runs[0]:
        return None
    first = row.runs[0]
    text = ", ".join(
        f"{value:,} {name.replace('_', ' ').removesuffix('s' if value == 1 else '')}"
        # larger units first; a record read from a file has them in alphabetical order
        for name, value in sorted(first["length"].items(), key=lambda item: len(item[0]))
    )
    if first["share_of_preset"] < 1:
        text += f" ({percent(first['share_of_preset'])}%)"
    return text + (", over budget" if any(run["over_budget"] for run in row.runs) else "")
