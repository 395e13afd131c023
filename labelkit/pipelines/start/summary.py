"""Write the output of ``start``: the table of labels, the table of changes, and a summary in a few sentences."""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.common.stored_predictions import StoredPredictions, read_stored_predictions
from labelkit.data.path_rule import escape_path
from labelkit.data.tables import to_class_name
from labelkit.errors import StoreError
from labelkit.files import sha256_file
from labelkit.formatting import join_first_few
from labelkit.pipelines.start.given import GIVEN_CSV, LABELS, NEXT, GeneratedTables, TableLabel
from labelkit.pipelines.start.options import StartConfig
from labelkit.pipelines.start.record import CHECK_STEP, NOVEL_STEP
from labelkit.progress import current_progress
from labelkit.store.csv_table import csv_bytes
from labelkit.store.embeddings import EmbeddingStore, match_rows_by_file, open_store
from labelkit.store.results import read_result

COLUMNS = ("path", "label", "kind", "confidence", "best_class", "best_confidence", "group", "new_chance")
"""Columns of ``labels.csv``. kind: given (your label), known (a labeled class), new (an unnamed group), unsure (the
label is a guess). confidence: probability that the label is correct, in [0, 1]; empty if unknown. The other columns are
independent of the label: best_class and best_confidence, the most probable labeled class and its probability; group,
the group of the photo; new_chance, the total probability of all unlabeled groups."""
CHANGED = "changed.csv"
CHANGED_COLUMNS = ("path", "label_before", "kind_before", "label", "kind", "confidence")
"""Columns of ``changed.csv``: photos whose label or kind has changed; the last three are those of ``labels.csv``."""
REPORT = "report.html"
_ANSWERED = ("known", "new")
_SHOWN = 5
# minimum number of earlier photos per new photo for which it is meaningful that new photos are closer to each other
_FEW_LATER = 4
# maximum ratio of the largest to the smallest plausible number of classes at which the number is reported
_WIDEST = 2
# minimum number of labels of a class for reporting that no other photo is predicted as this class
_SOME_LABELS = 3
# total fraction of photos in unlabeled classes below which the test for such classes detects at most half of them
_OFTEN_MISSED = 0.1
# fraction of photos in unlabeled classes that confidences allow for, up to which it is not mentioned
_FEW_OTHERS = 0.05
# minimum number of new photos that are closer to each other for reporting a new class
_MIN_OF_A_CLASS = 3


def write_summary(
    config: StartConfig,
    store_path: Path,
    old_stores: Sequence[Path],
    this_round: Mapping[str, Any],
    step_values: Mapping[str, Mapping[str, Any]],
    last_predictions: tuple[Path, str] | None,
    tables: GeneratedTables,
) -> CommandResult:
    """Write ``labels.csv`` and ``changed.csv``, and return the summary that ``start`` prints.

    Args:
        config: options of the command.
        store_path: the store.
        old_stores: remaining stores of earlier runs.
        this_round: entry of the round in ``start.json``.
        step_values: values reported by each step, by name.
        last_predictions: store and predictions of the last run that had any; ``None``: none, or this run has none.
        tables: tables written by ``start``.
    """
    folder = tables.folder
    made = (folder / LABELS, folder / NEXT, folder / REPORT)
    store = open_store(store_path)
    result = read_result(store, str(this_round["answer"] or this_round["groups"]))
    found = read_stored_predictions(result)
    rows = _rows(store, found)
    tables.write(LABELS, COLUMNS, rows)
    changed, since = (
        (None, None) if last_predictions is None else _compare_with_earlier_result(store, rows, *last_predictions)
    )
    if changed is None:
        tables.remove(CHANGED)
    else:
        tables.write(CHANGED, CHANGED_COLUMNS, changed)
    counts = {kind: sum(row[2] == kind for row in rows) for kind in ("given", "known", "new", "unsure")}
    answered, guesses = found.expected_correct(("known", "new")), found.expected_correct(("unsure",))
    right = None if answered is None or guesses is None else (answered, guesses)
    found_table = _found_table(step_values, rows, counts, right, [name for name, _ in store.skipped])
    sentences = [_classes_sentence(config, step_values["groups"], rows, this_round.get("suggestions"))]
    if since is not None:
        sentences.append(_since_sentence(since, folder / CHANGED))
        sentences += _fewer_sentence(since, len(rows), None if right is None else counts["given"] + sum(right))
    sentences += [*_unused_sentence(rows), *_next_sentences(step_values, counts, made)]
    for name, reason in store.skipped[:5]:
        current_progress().warning(f"{name}: skipped, {reason}")
    values: dict[str, object] = {
        "out": folder,
        "store": store_path,
        "old_stores": list(old_stores),
        "labels": made[0],
        "result": result.name,
        "photos": len(rows),
        "classes": len({row[1] for row in rows}),
        "counts": counts,
        "copies": step_values["duplicates"]["spare_images"],
        "odd": step_values["odd"]["odd_images"],
        "since": since,
        "described_now": 0 if step_values["embed"]["already_done"] else len(rows) - step_values["embed"]["reused"],
        "skipped": [{"path": name, "reason": reason} for name, reason in store.skipped],
        "sentences": sentences,
    }
    there = tuple(file for file in (store_path, *made) if file.exists())
    shown = (found_table, Table("", ["what next"], [[sentence] for sentence in sentences]))
    return CommandResult(values, (folder, *there), shown)


def find_corrected_labels(
    tables: GeneratedTables, rounds: Sequence[Mapping[str, Any]], written_digest: str | None
) -> list[TableLabel]:
    """Find the labels that the user has changed in ``labels.csv``; empty if its original content is unknown.

    Args:
        tables: tables written by ``start``.
        rounds: rounds of the record, tried from the newest.
        written_digest: SHA-256 of the table as it was written.

    Raises:
        DatasetError: the table cannot be read.
    """
    path = tables.folder / LABELS
    now = sha256_file(path) if path.is_file() else None
    if written_digest is None or now in (None, written_digest):
        return []
    for entry in reversed(rounds):
        try:
            store = open_store(tables.folder / str(entry["store"]))
            found = read_stored_predictions(read_result(store, str(entry["answer"] or entry["groups"])))
        except StoreError:  # an unfinished run, or an old store that was removed
            continue
        rows = _rows(store, found)
        made = hashlib.sha256(csv_bytes(COLUMNS, rows)).hexdigest()
        if made == now:  # written by a run that was interrupted before recording it
            tables.read(path)
            return []
        if made != written_digest:
            continue
        before = {escape_path(row[0]): to_class_name(row[1]) or "" for row in rows}
        given = {escape_path(row[0]) for row in rows if row[2] == "given"}
        labels = tables.read(path)
        if emptied := sum(not text and name in given for name, text in tables.read_with_empty(path).items()):
            current_progress().warning(
                f"{path}: {emptied} of your labels {'was' if emptied == 1 else 'were'} emptied, but "
                f"{'is' if emptied == 1 else 'are'} kept; to remove a label, delete its line in "
                f"{tables.folder / GIVEN_CSV}"
            )
        changed = [one for one in labels if before.get(one.path, one.text) != one.text]
        counts = Counter((before[one.path], one.text) for one in changed)
        shown = ", ".join(f"{count} from {old!r} to {new!r}" for (old, new), count in counts.most_common(_SHOWN))
        if changed:
            current_progress().message(f"{path}: {len(changed)} labels corrected: {shown}")
        return changed
    return []


def _rows(store: EmbeddingStore, found: StoredPredictions) -> list[tuple[str, ...]]:
    """Return the values of ``COLUMNS`` for each photo, in the order of the store."""
    confidences, best, new = (
        ["" if np.isnan(value) else f"{value:.4f}" for value in values]
        for values in (found.confidence, found.best_confidence, found.new_chance)
    )
    answers = zip(found.labels, found.kinds, confidences, found.best_classes, best, found.groups, new, strict=True)
    return [(name, *answer) for name, answer in zip(store.sample_ids, answers, strict=True)]


def _compare_with_earlier_result(
    store: EmbeddingStore, rows: Sequence[tuple[str, ...]], then: Path, result: str
) -> tuple[list[tuple[str, ...]], dict[str, Any]] | tuple[None, None]:
    """Compare the rows of ``labels.csv`` with an earlier result; ``None`` if it shares no photo or is damaged."""
    try:
        store_then = open_store(then)
        found_then = read_stored_predictions(read_result(store_then, result))
        rows_then = _rows(store_then, found_then)
    except StoreError as error:
        current_progress().warning(f"cannot show changes since the last run: {error}")
        return None, None
    changed, counts = compare_predictions(
        store, [row[1:4] for row in rows], store_then, [row[1:4] for row in rows_then]
    )
    expected = found_then.expected_correct(("given", *_ANSWERED, "unsure"))
    return (changed, {**counts, "expected_right_then": expected}) if counts["photos"] else (None, None)


def _found_table(
    step_values: Mapping[str, Mapping[str, Any]],
    rows: Sequence[tuple[str, ...]],
    counts: Mapping[str, int],
    right: tuple[int, int] | None,
    skipped: Sequence[str],
) -> Table:
    """Return the table of counts, with one line per finding."""
    answered = counts["known"] + counts["new"]
    of_answered, of_guesses = (
        ("", "") if right is None else (f"; about {one:,} expected to be correct" for one in right)
    )
    classes = len({row[1] for row in rows if row[2] == "given"})
    yours = f"in {classes} {'class' if classes == 1 else 'classes'}"
    if step_values.get(CHECK_STEP, {}).get("doubtful_labels"):
        yours += "; check.csv lists those to check first: correct wrong labels, and delete the other lines"
    lines: list[list[Cell]] = [["labeled by you", counts["given"], yours]]
    if "answer" in step_values:
        sure = f"{counts['known']:,} in your classes, {counts['new']:,} new{of_answered if answered else ''}"
        guessed = f"labels.csv contains the best guess for each{of_guesses if counts['unsure'] else ''}"
        lines += [["predicted", answered, sure], ["unsure", counts["unsure"], guessed]]
    elif counts["given"] < len(rows):
        number = len({row[1] for row in rows if row[2] != "given"})
        lines.append(["grouped", len(rows) - counts["given"], f"in {number} groups"])
    novel = step_values.get(NOVEL_STEP, {})
    if novel.get("in_new_groups"):
        count = len(novel["new_groups"])
        unsure = novel["unsure_in_new_groups"]
        where = f"{novel['in_new_groups'] - unsure:,} predicted, {unsure:,} unsure, in {count} unlabeled "
        where += f"{'group' if count == 1 else 'groups'} (novel.csv)"
        lines.append(["likely of a new class", novel["in_new_groups"], where])
    lines.append(["to check", *_count_images_to_check(step_values, len(rows))])
    if skipped:
        lines.append(["skipped", len(skipped), f"unreadable: {join_first_few(skipped, _SHOWN)}"])
    total = "" if right is None else f", about {counts['given'] + sum(right):,} of them labeled correctly"
    if total and step_values["groups"]["all_classes_labeled"] and not _allowed_photos(step_values["groups"], rows):
        total += ", if you have labeled photos of every class"
    return Table(f"{len(rows):,} photos{total}", ["", "photos", ""], lines)


def _count_images_to_check(step_values: Mapping[str, Mapping[str, Any]], photos: int) -> tuple[int, str]:
    """Count copies, pairs of one scene, and outliers; if there are more pairs than photos, only mention them."""
    scene, scenes = "of photos of the same scene", step_values["duplicates"]["pairs"].get("same_scene", 0)
    alike, scenes = (0, scenes) if scenes <= photos else (scenes, 0)
    found = [
        (step_values["duplicates"]["spare_images"], "copy", "copies", "duplicates.csv"),
        (scenes, f"pair {scene}", f"pairs {scene}", "duplicates.csv"),
        (step_values["odd"]["odd_images"], "outlier", "outliers", "odd.csv"),
    ]
    parts = [f"{count:,} {one if count == 1 else many} ({table})" for count, one, many, table in found if count]
    if alike:
        parts.append(f"not counted: {alike:,} pairs {scene}, which is unreliable if all photos look alike")
    return sum(count for count, *_ in found), ", ".join(parts)


def _fewer_sentence(since: Mapping[str, Any], photos: int, expected: int | None) -> list[str]:
    """Return a sentence that explains why fewer labels are expected to be correct than in the last run, if so."""
    then = since["expected_right_then"]
    if then is None or expected is None or expected >= then or since["photos"] != photos:
        return []
    return [
        f"About {expected:,} labels are expected to be correct, after {then:,} in that run. This does not mean that "
        "they got worse: the estimate depends on your labels, and new labels of difficult photos lower it."
    ]


def _since_sentence(since: Mapping[str, Any], changes: Path) -> str:
    said = (
        f"Since the last run with predictions, {since['other_label']:,} of {since['photos']:,} labels or guesses have "
        f"changed ({changes}); {since['now_answered']:,} photos are no longer unsure, {since['now_unsure']:,} now are."
    )
    if since["guessed_right"]:
        photos = "photo" if since["labeled"] == 1 else "photos"
        right = since["guessed_right"]
        said += f" You labeled {since['labeled']} {photos} of known classes: {right} had been guessed correctly."
    return said


def _unused_sentence(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Return a sentence that lists labeled classes as which no other photo is predicted, if there are any."""
    predicted = {row[1] for row in rows if row[2] != "given"}
    counts = Counter(row[1] for row in rows if row[2] == "given" and row[1] not in predicted)
    names = [repr(name) for name, count in counts.most_common() if count >= _SOME_LABELS]
    if not names or not predicted:
        return []
    more = f" and {len(names) - _SHOWN} more classes" if len(names) > _SHOWN else ""
    return [
        f"No other photo is predicted as {', '.join(names[:_SHOWN])}{more}, although you labeled at least "
        f"{_SOME_LABELS} photos: if there are others, label one of them."
    ]


def _next_sentences(
    step_values: Mapping[str, Mapping[str, Any]], counts: Mapping[str, int], made: Sequence[Path]
) -> list[str]:
    """Return sentences about what limits the predictions, if anything, and what to do next."""
    table, following, page = made
    look = f'Open {page}: "Groups" shows all photos of each class. The label of each photo is in {table}.'
    if "suggest" not in step_values:
        return ["Every photo is already labeled: there is nothing left to predict.", look]
    said = []
    if not counts["given"]:
        said.append("No photo is labeled yet: groups are only numbered, and their reliability is unknown.")
    elif "answer" not in step_values:
        said.append("A single label cannot distinguish classes: photos are grouped, but have no predictions.")
    elif not step_values["answer"]["calibration"]["labels"]:
        said.append("No class has two labels yet: every photo has a best guess, but its reliability is unknown.")
    said += _later_sentence(step_values.get(NOVEL_STEP, {}), table.parent)
    suggested = step_values["suggest"]
    like_them, wrong = suggested["like_them"], suggested["like_them_wrong"]
    why = ""
    if like_them and suggested["labels"]:
        why = f" ({like_them:,} others resemble them"
        why += ")" if wrong is None else f", and about {round(wrong):,} of the guesses for those are wrong)"
    said.append(look)
    said.append(
        f"Next: fill in the label column of {following} for its {len(suggested['images'])} photos{why}, and run "
        "the same command again."
    )
    return said


def _later_sentence(novel: Mapping[str, Any], folder: Path) -> list[str]:
    """Return a sentence on whether photos added later belong to a new class, if any were added."""
    if novel.get("earlier") is None:
        return []
    first = f"are listed first in {folder / 'novel.csv'}"
    # the larger the fraction of new photos, the more of them are closer to each other by chance
    few = _FEW_LATER * novel["images"] <= novel["earlier"]
    if few and novel["nearer_to_each_other"] < _MIN_OF_A_CLASS:
        return [
            f"None of the {novel['images']} new photos seems to belong to a new class; the most likely ones {first}."
        ]
    text = f"{novel['nearer_to_each_other']} of the" if few else "Of the"
    text += f" {novel['images']} new photos"
    text += " are closer to each other than to all earlier photos: those that" if few else ", those that"
    return [f"{text} most likely belong to a new class {first}."]


def _classes_sentence(
    config: StartConfig,
    groups: Mapping[str, Any],
    rows: Sequence[tuple[str, ...]],
    suggestions: Mapping[str, int] | None = None,
) -> str:
    used = len({row[1] for row in rows})
    if all(row[2] == "given" for row in rows):
        return f"{len(rows):,} photos in {used} classes, as you labeled them."
    if config.num_classes is not None:
        return f"{len(rows):,} photos in {used} groups, as requested."
    if config.new_classes not in ("auto", "some"):
        return f"{len(rows):,} photos in {used} classes, as specified by --new-classes {config.new_classes}."
    if suggestions is not None:
        alone, labels, number = (suggestions[name] for name in ("alone", "labels", "classes"))
        return (
            f"{len(rows):,} photos in {used} classes: {alone} of the last {labels} suggested photos are the only "
            f"labeled ones of their class, so about {number} other classes are expected. If you know their number, "
            "pass --new-classes N, or none."
        )
    if groups["all_classes_labeled"]:
        allowed = _allowed_photos(groups, rows)
        allowance = f"The confidences allow for about {allowed} photos of such classes; if there are none, pass "
        allowance = f"{allowance}--new-classes none. " if allowed else ""
        return (
            f"{len(rows):,} photos in {used} classes: no other class was found, but classes with fewer than about "
            f"{round(_OFTEN_MISSED * len(rows))} photos in total are often missed. {allowance}To check this, look at "
            "novel.csv, which lists the photos least like the labeled ones; if there are other classes, pass "
            "--new-classes some."
        )
    low, high = groups["interval"]
    more = ", or larger if you labeled the most frequent classes" if any(row[2] == "given" for row in rows) else ""
    if high > _WIDEST * low:
        return (
            f"{len(rows):,} photos in {used} groups; the number of classes cannot be determined yet. Label two photos "
            "of each class that you know of, name and merge groups on the page, or pass --num-classes if you know it."
        )
    likely = f"{low}" if low == high else f"between {low} and {high}"
    return f"{len(rows):,} photos in {used} classes; the true number is likely {likely}{more}."


def _allowed_photos(groups: Mapping[str, Any], rows: Sequence[tuple[str, ...]]) -> int:
    """Return the number of photos assumed to be of classes without labels; 0 if there are few."""
    share = groups["new_share"] or 0.0
    return round(share * sum(row[2] != "given" for row in rows)) if share > _FEW_OTHERS else 0


def compare_predictions(
    store: EmbeddingStore,
    predictions: Sequence[tuple[str, ...]],
    earlier_store: EmbeddingStore,
    earlier_predictions: Sequence[tuple[str, ...]],
) -> tuple[list[tuple[str, ...]], dict[str, int]]:
    """Compare the label, kind and confidence of each photo with those in an earlier store; files must be identical.

    Returns:
        Rows of ``changed.csv``, in the order of the store; and the numbers of ``photos`` in both stores, of photos
        whose label or kind changed (``changed``, the rows), whose label or guess changed (``other_label``), that are no
        longer unsure (``now_answered``), that have become unsure (``now_unsure``), that have been ``labeled`` since
        with a class that had labels then, and how many of these had been ``guessed_right``.
    """
    found = match_rows_by_file([earlier_store], store.sample_ids, [digest.tobytes() for digest in store.sha256])
    rows = zip(store.sample_ids, found[:, 1].tolist(), predictions, strict=True)
    both = [(name, earlier_predictions[row], now) for name, row, now in rows if row >= 0]
    labeled_then = {label for label, kind, _ in earlier_predictions if kind == "given"}
    named = [
        (before[0], now[0])
        for _, before, now in both
        if now[1] == "given" and before[1] != "given" and now[0] in labeled_then
    ]
    changed = [(name, *before[:2], *now) for name, before, now in both if before[:2] != now[:2]]
    return changed, {
        "photos": len(both),
        "changed": len(changed),
        "other_label": sum(before[0] != now[0] for _, before, now in both),
        "now_answered": sum(before[1] == "unsure" and now[1] in _ANSWERED for _, before, now in both),
        "now_unsure": sum(before[1] in _ANSWERED and now[1] == "unsure" for _, before, now in both),
        "labeled": len(named),
        "guessed_right": sum(guess == label for guess, label in named),
    }
