"""``start --serve``: the tables, labeling in the browser, and the tables again with the labels from there.

"Ask again" is a call of ``start`` in a process of its own, so that page and tables show the same predictions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from labelkit.commands.common.results import SimpleResult
from labelkit.options.base import command_words
from labelkit.pipelines.start.given import GIVEN, SKIPPED, WrittenLabel
from labelkit.pipelines.start.options import StartConfig
from labelkit.pipelines.start.record import Record
from labelkit.progress import current_progress
from labelkit.store.embeddings import open_store
from labelkit.store.results import Result, free_name, list_results, read_result
from labelkit.studio.label.asking import BackgroundPredictor
from labelkit.studio.label.label import check_server, serve_labels, session_labels
from labelkit.studio.label.options import LabelConfig

_STEP = "labels of the browser"


def start_in_browser(config: StartConfig, once: Callable[[StartConfig], SimpleResult]) -> SimpleResult:
    """Run ``start``, serve the labeling page, and run ``start`` again when the page is closed.

    Labels are in a result of the store as soon as they are given: if this is killed, the next call takes them.

    Args:
        config: of the command.
        once: a call without a browser.

    Raises:
        ConfigError: Starlette or uvicorn is not installed.
        LabelkitError: what ``start`` and ``label --serve`` raise.
    """
    check_server()
    config = config.model_copy(update={"serve": False})
    first: Any = once(config).to_json()
    for sentence in first["sentences"]:
        current_progress().message(sentence)
    folder, store = Path(first["out"]), Path(first["store"])
    given = folder / GIVEN
    label = LabelConfig(
        index=store,
        serve=True,
        result=free_name(open_store(store), "labels"),
        from_=given if given.is_file() else None,
        skip=folder / SKIPPED if (folder / SKIPPED).is_file() else None,
        dataset=str(config.photos),
        conflicts="new",
        own_labels=False,
    )
    noted = {"store": store.name, "session": label.result}
    # given.csv holds the labels of --labels by now, and nobody answers a question; a number changes with each name
    said = Record.read(folder).rounds[-1].get("new_classes", "auto")
    said = said if said in ("auto", "none") else "some"
    changes = {"out": folder, "labels": None, "label_column": None, "new_classes": said}
    again = command_words(config.model_copy(update=changes))

    def predict(asking: BackgroundPredictor) -> Result:
        asking.run_command(*again)
        last = Record.read(folder).rounds[-1]
        if last["store"] != store.name:
            raise ValueError("photos were added, changed or removed: stop with Ctrl-C, and run the command again")
        return read_result(asking.session.store, str(last["answer"] or last["groups"]))

    Record.read(folder).note(_STEP, "", {}, [], noted)
    serve_labels(label, predict)
    return once(config)


def browser_labels(record: Record) -> tuple[int, list[WrittenLabel]]:
    """Return the last round of the last browser session, and its labels unless a call has read this round already.

    The text of a label is empty if it was removed there: by hand, or since an earlier call read it.
    """
    noted = record.steps.get(_STEP, {}).get("values", {})
    path = record.path.with_name(str(noted.get("store")))
    if not noted or not path.is_file() or noted["session"] not in list_results(store := open_store(path)):
        return 0, []
    last, found = session_labels(store, noted["session"])
    if last == noted.get("round"):
        return last, []
    labels = [WrittenLabel(*one) for one in found]
    there = {(label.path, label.file) for label in labels}
    gone = ((path, file) for path, file in noted.get("taken", []) if (path, file) not in there)
    return last, [*labels, *(WrittenLabel(path, "", file) for path, file in gone)]


def note_browser(record: Record, last_round: int, labels: Sequence[WrittenLabel]) -> None:
    """Note up to which round the labels of the last browser session are read."""
    if labels:
        taken = [[label.path, label.file] for label in labels if label.text]
        record.steps[_STEP]["values"] |= {"round": last_round, "taken": taken}
