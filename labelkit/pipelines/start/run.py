"""From a folder of photos to a table of labels: embed, group, predict, suggest, check and report, each by a command.

A change of photos, labels or options starts a new round. A round has its own results, so that an interrupted round
continues with the same files, and its groups keep the ids of the previous round.
"""

import contextlib
import re
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from labelkit.algorithms.unlabeled_classes import estimate_from_suggestions
from labelkit.commands.common.results import Cell, CommandResult, Table, to_json_types
from labelkit.commands.common.stable_ids import find_images_in_other_store
from labelkit.commands.discover.options import DiscoverAnswerConfig, DiscoverCategoriesConfig
from labelkit.commands.find.options import FindDuplicatesConfig, FindMislabeledConfig, FindNovelConfig, FindOddConfig
from labelkit.commands.suggest.options import SuggestConfig
from labelkit.commands.table import all_commands
from labelkit.data.datasets import ImageDataset
from labelkit.data.path_rule import escape_path
from labelkit.data.registry import load_dataset
from labelkit.errors import BusyError, ConfigError, DatasetError, LabelkitError
from labelkit.files import missing_path_remedy
from labelkit.models.weights.published import find_recorded_weights
from labelkit.options.base import BaseConfig, build_command_words, to_flag
from labelkit.options.embed import EmbedConfig
from labelkit.pipelines.start.background import run_in_background
from labelkit.pipelines.start.browser import read_browser_labels, record_browser_round, start_in_browser
from labelkit.pipelines.start.given import (
    CHECK,
    FILLED,
    GIVEN_CSV,
    LABELS,
    NEXT,
    NOVEL,
    RULED_OUT,
    SEEN,
    SKIPPED,
    CollectedLabels,
    GeneratedTables,
    collect_labels,
    count_moved_images,
    find_skipped_photos,
    write_labels,
)
from labelkit.pipelines.start.options import StartConfig
from labelkit.pipelines.start.record import (
    CHECK_STEP,
    NOVEL_STEP,
    StartRecord,
    find_last_finished_round,
    remove_confirmed_labels,
)
from labelkit.pipelines.start.summary import REPORT, find_corrected_labels, write_summary
from labelkit.progress import Progress, current_progress, use_progress
from labelkit.store.commit import json_digest, translate_os_errors
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.parts import hold_lock
from labelkit.store.plans import embedding_run_folder
from labelkit.studio.label.label import read_ruled_out_classes
from labelkit.studio.report.options import ReportConfig

DUPLICATES, ODD, NOVEL_SHEET, NEXT_SHEET = "duplicates.csv", "odd.csv", "novel.png", "next.png"

_TIMED_PHOTOS = 16
#: steps that only need the embeddings, and minimum number of photos to run them in a separate process
_BACKGROUND_STEPS, _MIN_FOR_PROCESS = ("duplicates", "odd"), 1000
#: maximum number of new photos without a time estimate, which would take longer than embedding them
_FEW_LATER = 100
#: maximum number of photos for a t-SNE map on the page, which takes up to 6 CPU seconds
_MAX_BY_TSNE = 2000
#: maximum number of photos whose thumbnails are cached for the next search for duplicates, in up to 120 MB
_MAX_CACHED = 30_000
_NOVEL_PHOTOS = 50
#: minimum number of new photos to compare with the earlier ones
_MIN_LATER = 10
#: maximum fraction of unreadable photos: they are listed, and the user still gets results for the others
_MAX_UNREADABLE = 0.5
_NOT_REMEMBERED = ("labels", "label_column", "out", "other_photos", "serve", "dry_run")
_OPTIONS = ("backbone", "num_classes", "new_classes", "min_confidence", "seed")


@dataclass(frozen=True)
class _Round:
    """Inputs and outputs of a round.

    Attributes:
        folder: output folder.
        entry: entry of the round in ``start.json``.
        keep_group_ids_of: entry of the round whose group ids are kept; ``None`` if there is none.
        copy_embeddings_from: store whose embeddings are copied; ``None`` if there is none.
        labels: labels by position of the photo in the listing.
        num_photos: number of photos in the listing.
        skipped: paths of photos that the user could not label, which are suggested last.
        seen: paths of photos that the user left empty in ``novel.csv``, which are listed last there.
        confirmed: labels by path that the user has confirmed.
        ruled_out: SHA-256 of photos, each with a class to which it does not belong according to the user.
        last_predictions: store and predictions for ``changed.csv`` and label weights; ``None``: none, or this round has
            none.
        compare_new_photos_with: store without the photos added since; ``None``: none, or not yet determined.
    """

    folder: Path
    entry: dict[str, Any]
    keep_group_ids_of: dict[str, Any] | None
    copy_embeddings_from: Path | None
    labels: dict[int, str]
    num_photos: int
    skipped: Sequence[str]
    seen: Sequence[str]
    confirmed: Mapping[str, str]
    ruled_out: Set[tuple[str, str]]
    last_predictions: tuple[Path, str] | None
    compare_new_photos_with: Path | None = None

    @property
    def store(self) -> Path:
        """Path of the store that contains the embeddings of a round's photos."""
        return self.folder / str(self.entry["store"])


def start(config: StartConfig) -> CommandResult:
    """Turn a folder of photos into a table of labels by running all unfinished steps, and report the results.

    Raises:
        DatasetError: there are no photos, or labels match none of them.
        ConfigError: the output is not a folder, or is inside the photo folder; fewer classes than labeled classes.
        BusyError: another run is using this output folder.
        ResourceError: the disk is full, permission is denied, ...
        LabelkitError: a step failed; the results of earlier steps are kept.
    """
    if config.serve and not config.dry_run:
        return start_in_browser(config, start)
    dataset = _list_photos(config)
    photos = config.photos.resolve()
    folder = config.out or photos.with_name(f"{photos.name}-labeled")
    if folder.exists() and not folder.is_dir():
        raise ConfigError("--out", f"{folder} is a file", "Choose a folder.")
    if photos in (folder.resolve(), *folder.resolve().parents):
        raise ConfigError("--out", f"{folder} is inside the photo folder", "Choose a folder outside it.")
    with contextlib.nullcontext() if config.dry_run else _lock_folder(folder):
        return _start(config, dataset, folder)


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder, and remove the folder if it remains empty."""
    with translate_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder) as is_there:
        if not is_there:
            problem = "another `labelkit start` has just finished in this folder"
            raise BusyError(str(folder), problem, "Run the command again.")
        try:
            yield
        finally:
            with translate_os_errors(folder):
                (folder / "lock").unlink()
                if not any(folder.iterdir()):
                    folder.rmdir()


def _start(config: StartConfig, dataset: ImageDataset, folder: Path) -> CommandResult:
    record = StartRecord.read(folder)
    stores = [open_store(path) for path in _list_stores(record)]
    names = chain(dataset.sample_ids, *(store.sample_ids for store in stores))
    run = _StartRun(config, dataset, record, GeneratedTables(folder, record.tables, record.write, names), stores)
    shares_no_photos = bool(stores) and _count_remaining_photos(config, folder, dataset, stores[0]) == 0
    known = run.collect_labels()
    _check_labels(config, dataset, known.by_position)
    run.config = _ask_about_new_classes(config, dataset, known.by_position)
    run.choose_round(known, shares_no_photos=shares_no_photos)
    steps = _build_steps(run.config, run.round)
    minutes = run.announce(steps)
    if config.dry_run:
        return _describe_dry_run(dataset, known.by_position, minutes, steps)
    run.write_inputs(known)
    return run.run_steps(steps["embed"], known)


@dataclass
class _StartRun:
    """A run of ``start``: options, photos, record, tables, and the stores of earlier rounds, newest first."""

    config: StartConfig
    dataset: ImageDataset
    record: StartRecord
    tables: GeneratedTables
    stores: Sequence[EmbeddingStore]
    round: _Round = field(init=False)  # set by choose_round

    def collect_labels(self) -> CollectedLabels:
        """Collect the user's labels, and record which of them the user has confirmed."""
        record, tables, stores = self.record, self.tables, self.stores
        self.listing, self.browser = _digest_listing(self.dataset), read_browser_labels(record)
        last = record.rounds[-1] if record.rounds else {}
        doubtful = record.steps.get(CHECK_STEP, {}).get("values", {}).get("doubtful", [])
        checked = {one["path"]: one["label"] for one in doubtful}
        corrected = find_corrected_labels(tables, record.rounds, record.tables.get(LABELS))
        known = collect_labels(
            tables,
            self.config.labels or (),
            self.dataset,
            self.config.label_column,
            stores,
            superseded_labels=record.superseded_labels,
            checked=checked,
            corrected=corrected,
            browser_labels=self.browser[1],
            same_photos=bool(stores) and (last["store"], last["photos"]) == (stores[0].path.name, self.listing),
        )
        confirmed = {one.path for one in corrected} | (checked.keys() if tables.is_edited_by_user(CHECK) else set())
        record.confirmed |= {path: text for path, text in known.by_path.items() if path in confirmed}
        return known

    def choose_round(self, known: CollectedLabels, *, shares_no_photos: bool) -> None:
        """Continue the last round, or start a new one if photos, labels or options have changed.

        The groups of a round that ``shares_no_photos`` with the last one do not continue earlier groups.
        """
        record, folder, now, names = self.record, self.tables.folder, known.by_path, self.dataset.sample_ids
        ruled_out = read_ruled_out_classes(self.stores)
        entry = self._choose_entry(known.by_position, ruled_out, shares_no_photos=shares_no_photos)
        # if the last run was interrupted
        record.record_suggested_photos(record.steps.get("suggest", {}).get("values", {}))
        entry["suggestions"] = estimate_from_suggestions(record.suggested, now, len(names))
        earlier = [one for one in record.rounds if one is not entry]
        others = [one for one in earlier if one["store"] != entry["store"] and one["backbone"] == entry["backbone"]]
        copies = (path for one in reversed(others) if (path := folder / str(one["store"])).is_file())
        last = find_last_finished_round([one for one in earlier if one["answer"]], folder, "answer")
        can_compare = entry["answer"] is not None and not entry.get("alone")
        skipped, seen = (find_skipped_photos(self.tables, a, b, now) for a, b in ((NEXT, SKIPPED), (NOVEL, SEEN)))
        hashes = {escape_path(names[position]): digest for position, digest in known.files.items()}
        self.round = _Round(
            folder=folder,
            entry=entry,
            keep_group_ids_of=None if entry.get("alone") else find_last_finished_round(earlier, folder, "groups"),
            copy_embeddings_from=next(copies, None),
            labels=known.by_position,
            num_photos=len(names),
            skipped=skipped,
            seen=seen,
            confirmed=record.update_confirmed_labels(now, hashes),
            ruled_out=ruled_out,
            last_predictions=(folder / str(last["store"]), str(last["answer"])) if last and can_compare else None,
        )

    def _choose_entry(
        self, labels: Mapping[int, str], ruled_out: Set[tuple[str, str]], *, shares_no_photos: bool
    ) -> dict[str, Any]:
        config, rounds = self.config, self.record.rounds
        options = {name: value for name, value in config.to_yaml_dict().items() if name in _OPTIONS}
        corrections = {"ruled_out": sorted(ruled_out)} if ruled_out else {}
        inputs = json_digest({"photos": self.listing, "labels": sorted(labels.items()), **options, **corrections})
        last = rounds[-1] if rounds else {}
        if last.get("inputs") == inputs:
            return last
        suffix = f"-{len(rounds) + 1}" if rounds else ""
        goes_on = (last.get("photos"), last.get("backbone")) == (self.listing, config.backbone)
        # a single label is not informative, and if every photo is labeled, there is nothing to predict
        can_answer = 1 < len(labels) < len(self.dataset)
        return {
            "inputs": inputs,
            "photos": self.listing,
            "backbone": config.backbone,
            "new_classes": config.new_classes,
            "store": str(last["store"]) if goes_on else f"photos{suffix}.h5",
            "groups": f"groups{suffix}",
            "answer": f"answer{suffix}" if can_answer else None,
            **({"alone": True} if shares_no_photos else {}),
        }

    def announce(self, steps: Mapping[str, BaseConfig]) -> float | None:
        """Show the photos, the steps and the estimated time; return the minutes, or ``None`` if they are not known."""
        config, record, progress = self.config, self.record, current_progress()
        _report_photos(config, self.dataset, self.round.labels)
        if record.call.get("num_classes") is not None and config.num_classes is None and config.new_classes == "auto":
            progress.message(
                f"the last run had --num-classes {record.call['num_classes']}; now the number is estimated, because "
                "this option is not passed"
            )
        if not config.dry_run:
            self._announce_steps(steps)
        is_embedded = bool(self._read_finished_values("embed", steps["embed"]))
        minutes = None if is_embedded else _estimate_time(steps["embed"], self.round, self.dataset, record)
        if minutes is not None and minutes >= 0.05:  # less would be shown as 0.0
            text = f"embedding the photos will take about {minutes:.1f} minutes, plus time for the other steps"
            progress.message(text)
        for note in self.dataset.notes if config.dry_run or is_embedded else ():  # `embed` shows them otherwise
            progress.message(note)
        return minutes

    def _announce_steps(self, steps: Mapping[str, BaseConfig]) -> None:
        """Show the steps of the first run with their commands, or which steps a later run repeats."""
        progress = current_progress()
        if not self.record.rounds:
            for number, (name, step) in enumerate(steps.items(), 1):
                progress.message(f"{number}. {name}: {build_command_line(step)}")
            return
        waiting = [name for name, step in steps.items() if self._read_finished_values(name, step) is None]
        if waiting:
            waiting += [] if "report" in waiting else ["report"]  # it shows their results
            progress.message(f"steps to rerun: {', '.join(waiting)} (--dry-run shows their commands)")

    def write_inputs(self, known: CollectedLabels) -> None:
        """Write the record and the tables of labels and skipped photos, before any step runs."""
        config, record, tables = self.config, self.record, self.tables
        if self.round.entry not in record.rounds:
            record.rounds.append(self.round.entry)
        record.superseded_labels = known.superseded_labels
        record.call = {name: value for name, value in config.to_yaml_dict().items() if name not in _NOT_REMEMBERED}
        record.call["photos_at"] = str(config.photos.resolve())
        record.write()
        write_labels(tables, self.dataset, known)
        record_browser_round(record, *self.browser)
        record.write()
        if known.num_moved:
            # their paths are outdated; their labels are in the tables that were just written
            tables.remove(*FILLED)
        for name, paths in ((SKIPPED, self.round.skipped), (SEEN, self.round.seen)):
            if paths:
                tables.write(name, ("path", "label"), ([path, ""] for path in paths))
            else:
                tables.remove(name)

    def run_steps(self, embed: BaseConfig, known: CollectedLabels) -> CommandResult:
        """Embed the photos, run the unfinished steps on the embeddings, and summarize the results of all steps."""
        record, tables, folder, names = self.record, self.tables, self.tables.folder, self.dataset.sample_ids
        step_values = {"embed": self.do_step("embed", embed, {})}
        for other in {str(entry["store"]) for entry in record.rounds} - {self.round.store.name}:
            shutil.rmtree(embedding_run_folder(folder / other), ignore_errors=True)  # left by an interrupted run
        embedded = open_store(self.round.store)
        self._write_ruled_out_classes(embedded)
        unread = {name for name, _ in embedded.skipped}
        if unread:
            readable = {position: text for position, text in known.by_position.items() if names[position] not in unread}
            if len(readable) < len(known.by_position):
                write_labels(tables, self.dataset, known, unread)
            self.round = replace(self.round, labels=readable, num_photos=len(names) - len(unread))
            if not 1 < len(readable) < self.round.num_photos:
                self.round.entry["answer"] = None
        old = [path for path in _list_stores(record) if path != self.round.store]
        self.round = _link_earlier_round(self.round, old, self.dataset)
        if (earlier := self.round.compare_new_photos_with) is not None:
            current_progress().message(f"novel photos: comparing photos added since {earlier.name} with earlier ones")
        steps = _build_steps(self.config, self.round)
        apart: dict[str, BaseConfig] = {}
        if len(names) >= _MIN_FOR_PROCESS:
            waiting = [name for name in _BACKGROUND_STEPS if self._read_finished_values(name, steps[name]) is None]
            apart = {name: _with_temporary_table(steps[name]) for name in waiting}
        del steps["embed"]
        with run_in_background(_run, apart) as running:
            step_values |= {name: self.do_step(name, step, running) for name, step in steps.items()}
        for undone, files in (("suggest", (NEXT, NEXT_SHEET)), (NOVEL_STEP, (NOVEL, NOVEL_SHEET))):
            if undone not in steps:  # left by an earlier run; their labels are in given.csv
                tables.remove(*files)
        entry, last = self.round.entry, self.round.last_predictions
        result = write_summary(self.config, self.round.store, old, entry, step_values, last, tables)
        record.record_suggested_photos(step_values.get("suggest", {}))
        record.write()
        return result

    def _write_ruled_out_classes(self, store: EmbeddingStore) -> None:
        texts: dict[str, list[str]] = {}
        for digest, text in sorted(self.round.ruled_out):
            texts.setdefault(digest, []).append(text)
        if not texts:
            self.tables.remove(RULED_OUT)
            return
        photos = zip(store.sample_ids, store.sha256, strict=True)
        lines = [(name, text) for name, digest in photos for text in texts.get(digest.tobytes().hex(), ())]
        self.tables.write(RULED_OUT, ("path", "label"), lines)

    def do_step(
        self, name: str, config: BaseConfig, running: Mapping[str, Callable[[], CommandResult]]
    ) -> dict[str, Any]:
        """Run a step unless it is finished, or wait for it if it runs in the background; return the reported values."""
        progress = current_progress()
        found = self._read_finished_values(name, config)
        if found is not None:
            progress.message(f"{name}: already done")
            return found | ({"already_done": True} if name == "embed" else {})
        started = time.monotonic()
        beside = _with_temporary_table(config)
        out, made = (Path(getattr(one, "out", "")) for one in (config, beside))
        result = running[name]() if name in running else _run(beside)
        values = to_json_types(result.to_json())
        assert isinstance(values, dict)
        if name == CHECK_STEP:
            remove_confirmed_labels(made, values, self.round.confirmed)
        files = [out if path == made else path for path in result.paths if path.exists()]
        if made != out:
            values["csv"] = str(out)
            if not self.tables.replace(out, made):
                return values
        if name != "report":
            self.record.steps.pop("report", None)  # the page shows the results of this step
        self.record.record_step(*_describe_step(self.round, name, config), files, values)
        took = "done in the background" if name in running else f"{time.monotonic() - started:.0f} s"
        progress.message(f"{name}: {took}")
        return values

    def _read_finished_values(self, name: str, config: BaseConfig) -> dict[str, Any] | None:
        return self.record.read_finished_values(*_describe_step(self.round, name, config))


def _check_labels(config: StartConfig, dataset: ImageDataset, labels: Mapping[int, str]) -> None:
    """Reject labels, options and numbers of photos that leave nothing to distinguish."""
    num_named = len(set(labels.values()))
    if config.num_classes is not None and config.num_classes < num_named:
        problem = f"{config.num_classes} is less than {num_named}, the number of labeled classes"
        raise ConfigError("--num-classes", problem, "Choose a larger number, or remove --num-classes.")
    if config.new_classes == "none" and len(labels) < len(dataset) and num_named == 1:
        problem = f"none, but all labels are {next(iter(labels.values()))!r}, so there are no classes to distinguish"
        raise ConfigError("--new-classes", problem, "Label photos of other classes, or remove --new-classes.")
    if len(labels) == len(dataset) and num_named == 1:
        problem = f"all {len(dataset)} photos have the label {labels[0]!r}, so there are no classes to distinguish"
        raise DatasetError(str(config.photos), problem, "Remove the labels, or add photos of other classes.")
    # to estimate the number, each half of the photos must be able to show one more than the minimum number of classes
    estimated = config.num_classes is None and config.new_classes in ("auto", "some")
    fewest = 2 * max(2, num_named) + 2 if estimated else 4
    if len(labels) < len(dataset) < fewest:
        problem = f"{len(dataset)} photos are too few to distinguish classes; at least {fewest} are required"
        raise DatasetError(str(config.photos), problem, "Add photos, or label every photo.")


def _ask_about_new_classes(config: StartConfig, dataset: ImageDataset, labels: Mapping[int, str]) -> StartConfig:
    """In a terminal, ask the user whether there are new classes, which ``--new-classes auto`` can only estimate."""
    classes, said = len(set(labels.values())), config.num_classes is not None or config.new_classes != "auto"
    if said or config.dry_run or len(labels) == len(dataset) or classes < 2:
        return config
    answer = current_progress().ask(
        f"Does every photo belong to one of your {classes} classes? Press Enter to estimate this, type none if there "
        "are no other classes, or type some or the number of other classes"
    )
    try:
        return config if not answer else StartConfig(**(config.model_dump() | {"new_classes": answer}))
    except ValidationError:
        current_progress().message(f"{answer!r} is not none, some or a number; estimating the number instead")
        return config


def _report_photos(config: StartConfig, dataset: ImageDataset, labels: Mapping[int, str]) -> None:
    progress, named = current_progress(), len(set(labels.values()))
    classes = f"{len(labels)} of them labeled, in {named} {'class' if named == 1 else 'classes'}"
    progress.message(f"{len(dataset)} photos in {config.photos}, {classes if labels else 'none of them labeled'}")
    if len(labels) == len(dataset) and config.num_classes not in (None, named):
        progress.message(f"every photo is labeled, so --num-classes is ignored: there are {named} classes")
    if not labels and len(dataset.class_names) > 1:
        some = " and ".join(dataset.class_names[:2])
        progress.message(f"to use folder names (such as {some}) as labels, pass --labels folders")


def _describe_dry_run(
    dataset: ImageDataset, labels: Mapping[int, str], minutes: float | None, steps: Mapping[str, BaseConfig]
) -> CommandResult:
    commands = {name: build_command_line(step) for name, step in steps.items()}
    rows: list[list[Cell]] = [[number, name, command] for number, (name, command) in enumerate(commands.items(), 1)]
    values: dict[str, object] = {
        "photos": len(dataset),
        "labeled": len(labels),
        "embed_minutes": minutes,
        "steps": [{"name": name, "command": command} for name, command in commands.items()],
    }
    return CommandResult(values, (), (Table("plan (nothing was written)", ["step", "what", "command"], rows),))


def _list_photos(config: StartConfig) -> ImageDataset:
    folder = config.photos
    if not folder.is_dir():
        if folder.exists():
            raise DatasetError(str(folder), "is a file", "Pass a folder of photos.")
        raise DatasetError(str(folder), "does not exist", missing_path_remedy(folder))
    dataset = load_dataset(str(folder), data_root=Path("data"), **config.listing_kwargs())
    if len(dataset) < 2:
        problem = "contains only one photo"
        raise DatasetError(str(folder), problem, "Add photos; at least two are required to form groups.")
    return dataset


def _list_stores(record: StartRecord) -> list[Path]:
    """Return the paths of the existing stores of all rounds, newest first."""
    paths = dict.fromkeys(record.path.with_name(str(entry["store"])) for entry in reversed(record.rounds))
    return [path for path in paths if path.is_file()]


def _count_remaining_photos(config: StartConfig, folder: Path, dataset: ImageDataset, store: EmbeddingStore) -> int:
    """Count the photos of the last run that still exist anywhere in the folder."""
    there = set(dataset.sample_ids)
    elsewhere = [row for row, name in enumerate(store.sample_ids) if name not in there]
    left = store.n - len(elsewhere)
    if 2 * left < store.n:
        left += count_moved_images(dataset, store, elsewhere)
    if 2 * left < store.n and not config.other_photos:
        problem = f"{folder} was created from {store.n} photos, of which {config.photos} contains only {left}"
        remedy = "Keep the earlier photos in the folder, pass a different --out, or pass --other-photos to drop them."
        raise ConfigError("--out", problem, remedy)
    return left


def _digest_listing(dataset: ImageDataset) -> str:
    """Return a digest of the names, sizes and times of all files, which identifies the photos."""
    assert dataset.root is not None
    found: list[list[object]] = []
    for name in dataset.sample_ids:
        try:
            status = (dataset.root / name).stat()
        except OSError:  # embed will report why it cannot be read
            found.append([name])
        else:
            found.append([name, status.st_size, status.st_mtime_ns])
    return json_digest(found)


def _link_earlier_round(round_: _Round, stores: Sequence[Path], dataset: ImageDataset) -> _Round:
    """Complete a round whose photos are embedded by the earlier round that it continues."""
    store, labeled = open_store(round_.store), {dataset.sample_ids[position] for position in round_.labels}
    before = round_.keep_group_ids_of
    if before is not None and not find_images_in_other_store(open_store(round_.folder / before["store"]), store).any():
        before = None  # only the names are the same, not the photos
    unlabeled = np.array([name not in labeled for name in store.sample_ids])
    for path in stores if round_.entry["answer"] else ():
        held = find_images_in_other_store(open_store(path), store)
        if held.any() and int((unlabeled & ~held).sum()) >= _MIN_LATER:
            return replace(round_, keep_group_ids_of=before, compare_new_photos_with=path)
    return replace(round_, keep_group_ids_of=before)


def _choose_network(config: StartConfig, described: Path | None) -> tuple[str, Path | None]:
    """Return the network for embedding the photos, and the store from which to copy embeddings.

    ``auto`` continues with the network of the earlier photos, even if a better one has been installed since. If its
    weights no longer exist, all photos are embedded again.
    """
    if config.backbone != "auto" or described is None:
        return config.backbone, described
    model = open_store(described).model
    if all(find_recorded_weights(source) is not None for source in model.source.split(" + ")):
        return model.name, described
    return "auto", None


def _build_steps(config: StartConfig, round_: _Round) -> dict[str, BaseConfig]:
    groups, answer = str(round_.entry["groups"]), round_.entry["answer"]
    folder, before = round_.folder, round_.keep_group_ids_of
    given = folder / GIVEN_CSV if round_.labels else None
    last_store, last_answer = round_.last_predictions or (None, None)
    backbone, described = _choose_network(config, round_.copy_embeddings_from)
    steps: dict[str, BaseConfig] = {
        "embed": EmbedConfig(
            dataset=str(config.photos),
            **config.listing_kwargs(),
            split="all",
            label_split="none",
            backbone=backbone,
            pretrained=backbone not in ("auto", "pixels"),
            max_bad=_MAX_UNREADABLE,
            reuse=None if described is None else (described,),
            out=round_.store,
            seed=config.seed,
        )
    }
    earlier: dict[str, Any] = {}
    if before is not None:
        earlier = {"previous": folder / str(before["store"]), "previous_result": before["groups"]}
        if earlier["previous"] == last_store:
            earlier["previous_answers"] = last_answer
    stored: dict[str, Any] = {"index": round_.store, "overwrite": True}
    shown = {**stored, "dataset": str(config.photos)}
    labeled = {"labels": given, "seed": config.seed}
    # if all photos are labeled, the classes are known
    known = len(set(round_.labels.values())) if len(round_.labels) == round_.num_photos else None
    number = known or config.num_classes
    new = config.new_classes if number is None else "auto"
    if number is None and new in ("auto", "some") and round_.entry["suggestions"] is not None:
        new = str(round_.entry["suggestions"]["classes"])
    steps["groups"] = DiscoverCategoriesConfig(
        split="all", result=groups, num_classes=number, new_classes=new, **stored, **labeled, **earlier
    )
    if answer is not None:
        steps["answer"] = DiscoverAnswerConfig(
            grouping=groups,
            result=str(answer),
            min_confidence=config.min_confidence,
            ruled_out=folder / RULED_OUT if round_.ruled_out else None,
            previous=last_store,
            previous_result=last_answer,
            **stored,
            **labeled,
        )
    if len(round_.labels) < round_.num_photos:
        steps["suggest"] = SuggestConfig(
            result=str(answer or groups),
            out=folder / NEXT,
            sheet=folder / NEXT_SHEET,
            skip=folder / SKIPPED if round_.skipped else None,
            num_images=config.num_suggestions,
            **shown,
            **labeled,
        )
    if answer is not None and new != "none":
        steps[NOVEL_STEP] = FindNovelConfig(
            answer=str(answer),
            previous=round_.compare_new_photos_with,
            skip=folder / SEEN if round_.seen else None,
            out=folder / NOVEL,
            sheet=folder / NOVEL_SHEET,
            num_images=_NOVEL_PHOTOS,
            **shown,
        )
    cache = folder / "duplicates.npz" if round_.num_photos <= _MAX_CACHED else None
    steps["duplicates"] = FindDuplicatesConfig(out=folder / DUPLICATES, cache=cache, **shown)
    steps["odd"] = FindOddConfig(out=folder / ODD, **shown)
    if 1 < len(set(round_.labels.values())) < len(round_.labels):
        steps[CHECK_STEP] = FindMislabeledConfig(labels=given, out=folder / CHECK, **stored)
    steps["report"] = ReportConfig(
        result=str(answer or groups),
        tables=folder,
        out=folder / REPORT,
        projection="tsne" if round_.num_photos <= _MAX_BY_TSNE else "pca",
        **shown,
        **labeled,
    )
    return steps


def build_command_line(config: BaseConfig) -> str:
    """Build the shell command that runs a step of ``start``, with only the options that are not at their defaults."""
    return shlex.join(("labelkit", *build_command_words(config)))


def _with_temporary_table(config: BaseConfig) -> BaseConfig:
    """Let a step write its table next to the existing table, which the user may edit while the step runs."""
    out = Path(getattr(config, "out", ""))
    return config.model_copy(update={"out": out.with_name(f".{out.name}")}) if out.suffix == ".csv" else config


def _describe_step(round_: _Round, name: str, config: BaseConfig) -> tuple[str, str, dict[str, object]]:
    """Return the name, command and inputs under which a step is recorded, independent of the folder's location.

    For embed, it does not matter from which store embeddings were copied. The report page contains links to the photos.
    The inputs are those besides the options: photos, labels, and skipped, seen and confirmed photos.
    """
    inputs: dict[str, object] = {"photos": round_.entry["photos"]}
    if name == "embed":
        return round_.store.name, "embed", inputs
    if name not in _BACKGROUND_STEPS:
        skipped, seen, confirmed = list(round_.skipped), list(round_.seen), sorted(round_.confirmed.items())
        left: dict[str, list[object]] = {"suggest": [skipped], NOVEL_STEP: [seen], CHECK_STEP: [confirmed]}
        mine = [skipped, seen, confirmed] if name == "report" else left.get(name, [])
        inputs = {"round": round_.entry["inputs"], **({"left": mine} if any(mine) else {})}
    if name != "report" and "dataset" in type(config).model_fields:
        config = config.model_copy(update={"dataset": None})
    inside = str(round_.folder / "x")[:-1]
    return name, shlex.join(word.removeprefix(inside) for word in build_command_words(config)), inputs


def _run(config: BaseConfig) -> CommandResult:
    """Run the command of a step; remedies that mention options that ``start`` lacks are removed from errors."""
    try:
        result, fault = all_commands()[config.command].run(config)
    except LabelkitError as error:
        mine = {to_flag(name) for name in StartConfig.model_fields}
        # in start, --backbone NAME uses published weights
        said = re.split(r"(?<=\.) ", error.remedy.replace(" --pretrained", ""))
        kept = [one for one in said if mine.issuperset(re.findall(r"--[a-z][a-z-]+", one))]
        if kept != said and isinstance(config, EmbedConfig):
            kept.append("`--backbone auto` uses the best network on this machine; `--backbone pixels` requires none.")
        error.remedy = " ".join(kept)
        raise
    if fault is not None:
        raise fault
    return result


def _estimate_time(config: BaseConfig, round_: _Round, dataset: ImageDataset, record: StartRecord) -> float | None:
    """Estimate the minutes to embed the remaining photos; ``None`` if there are only a few.

    The speed is that of earlier runs with the same network, or measured on a few photos, for which torch is loaded.
    """
    assert isinstance(config, EmbedConfig)
    there = set() if round_.copy_embeddings_from is None else set(open_store(round_.copy_embeddings_from).sample_ids)
    missing = sum(name not in there for name in dataset.sample_ids)
    if there and missing <= _FEW_LATER:
        return None
    stores = {str(entry["store"]) for entry in record.rounds if entry["backbone"] == round_.entry["backbone"]}
    speeds = [record.steps[name]["values"].get("images_per_second") or 0.0 for name in stores & record.steps.keys()]
    # a run that embedded a few photos was slowed by its start
    if config.reuse is not None and (speed := max(speeds, default=0.0)) > 0:
        return missing / speed / 60
    with use_progress(Progress()):
        result = _run(config.model_copy(update={"dry_run": True, "batch_size": _TIMED_PHOTOS // 2, "reuse": None}))
    found = result.to_json()["estimated_minutes"]
    return found * missing / len(dataset) if isinstance(found, int | float) else None
