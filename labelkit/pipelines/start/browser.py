"""``start --serve``, and ``label --serve`` on output of ``start``: label in the browser, then update the tables.

"Predict again" runs ``start`` in a separate process, so that the page and the tables show the same predictions.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from labelkit.commands.common.results import CommandResult
from labelkit.data.tables import read_labeled_rows
from labelkit.errors import StoreError
from labelkit.options.base import build_command_words
from labelkit.pipelines.start.given import GIVEN_CSV, SKIPPED, TableLabel
from labelkit.pipelines.start.options import StartConfig
from labelkit.pipelines.start.record import BROWSER_STEP, StartRecord
from labelkit.progress import current_progress
from labelkit.store.embeddings import open_store
from labelkit.store.results import Result, find_free_name, list_results, read_result
from labelkit.studio.label.asking import BackgroundPredictor
from labelkit.studio.label.browser import find_newest_session
from labelkit.studio.label.label import check_server, read_session_labels, serve_labels
from labelkit.studio.label.options import LabelConfig


def start_in_browser(
    config: StartConfig, run_start: Callable[[StartConfig], CommandResult], label_config: LabelConfig | None = None
) -> CommandResult:
    """Run ``start``, serve the labeling page until interrupted, and run ``start`` again.

    Labels are immediately saved in a result of the store: if the process is killed, the next run reads them.

    Args:
        config: options of ``start``.
        run_start: function that runs ``start`` without a browser.
        label_config: options of ``label --serve``, if this command was run.
    """
    check_server()
    config = config.model_copy(update={"serve": False})
    first: Any = run_start(config).to_json()
    for sentence in first["sentences"]:
        current_progress().message(sentence)
    folder, store = Path(first["out"]), Path(first["store"])
    given = folder / GIVEN_CSV
    served: dict[str, Any] = {
        "index": store,
        "result": find_free_name(open_store(store), "labels"),
        "from_": given if given.is_file() and read_labeled_rows(given) else None,
        "label_column": None,
        "dataset": str(config.photos),
        "conflicts": "new",
        "own_labels": False,
    }
    if (folder / SKIPPED).is_file():
        served["skip"] = folder / SKIPPED
    label = (label_config or LabelConfig(index=store, serve=True)).model_copy(update=served)
    noted = {"store": store.name, "session": label.result}
    # given.csv already contains the labels of --labels, nobody can answer questions, and each name changes the number
    said = StartRecord.read(folder).rounds[-1].get("new_classes", "auto")
    later = said if said in ("auto", "none") else "some"
    changes = {"out": folder, "labels": None, "label_column": None, "new_classes": later}
    again = build_command_words(config.model_copy(update=changes))

    def predict(asking: BackgroundPredictor) -> Result:
        asking.run_command(*again)
        last = StartRecord.read(folder).rounds[-1]
        if last["store"] != store.name:
            raise ValueError("photos have been added, changed or removed: press Ctrl-C, then run the command again")
        return read_result(asking.session.store, str(last["answer"] or last["groups"]))

    StartRecord.read(folder).record_step(BROWSER_STEP, "", {}, [], noted)
    done: Any = serve_labels(label, predict).to_json()
    current_progress().message(f"the server has stopped; updating the tables in {folder}, which takes a while")
    return run_start(config.model_copy(update={"new_classes": later if done["actions"] else said}))


def read_start_options(config: LabelConfig) -> StartConfig | None:
    """Read the options of the ``start`` run that created the store of ``label --serve``, to rerun it with new labels.

    Returns ``None`` if there was no such run, or it cannot be repeated: the photos have been moved, another result is
    to be shown, or earlier browser labels are in a session that ``start`` has not read, which is resumed instead.
    """
    folder = config.index.parent
    if not config.serve or not config.own_labels or config.labels or config.result or config.grouping or config.dataset:
        return None
    try:
        record = StartRecord.read(folder)
    except StoreError:  # a file written by another program, or by a later version
        return None
    if not record.call or config.index.name not in [entry["store"] for entry in record.rounds]:
        return None
    call = dict(record.call)
    # keep the paths of the last run if they are still valid, so that the commands of the steps do not change
    photos = Path(call.pop("photos_at"))
    if Path(call["photos"]).resolve() != photos:
        call["photos"] = str(photos)
    out = None if folder.resolve() == photos.with_name(f"{photos.name}-labeled") else folder
    newest = folder / str(record.rounds[-1]["store"])
    if not photos.is_dir() or not newest.is_file():
        return None
    noted = record.steps.get(BROWSER_STEP, {}).get("values", {}).get("session")
    if find_newest_session(open_store(newest)) not in (None, noted):
        return None
    is_table = config.from_ is not None and config.from_.resolve().parent != folder.resolve()
    labels = {"labels": (config.from_,), "label_column": config.label_column} if is_table else {}
    try:
        return StartConfig(**{**call, "out": out, "serve": True, **labels})
    except ValidationError:  # options written by another version
        return None


def read_browser_labels(record: StartRecord) -> tuple[int, list[TableLabel]]:
    """Read the last round of the latest browser session, and its labels unless an earlier run has read them.

    The text of a label is empty if it was removed in the browser, possibly after an earlier run read it.
    """
    noted = record.steps.get(BROWSER_STEP, {}).get("values", {})
    path = record.path.with_name(str(noted.get("store")))
    if not noted or not path.is_file() or noted["session"] not in list_results(store := open_store(path)):
        return 0, []
    last, every, new = read_session_labels(store, noted["session"], noted.get("round"))
    if last == noted.get("round"):
        return last, []
    labels = [TableLabel(*one) for one in new]
    there = {(path, file) for path, _, file in (*every, *new)}
    gone = ((path, file) for path, file in noted.get("taken", []) if (path, file) not in there)
    return last, [*labels, *(TableLabel(path, "", file) for path, file in gone)]


def record_browser_round(record: StartRecord, last_round: int, labels: Sequence[TableLabel]) -> None:
    """Record which round of the latest browser session was read last, and which photos have labels in it."""
    if labels:
        values = record.steps[BROWSER_STEP]["values"]
        gone = {(label.path, label.sha256) for label in labels}
        kept = [one for one in values.get("taken", []) if tuple(one) not in gone]
        values |= {"round": last_round, "taken": kept + [[one.path, one.sha256] for one in labels if one.text]}
