"""``start --serve``: the tables, labeling in the browser, and the tables again with the labels from there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from labelkit.commands.common.results import SimpleResult
from labelkit.commands.table import all_commands
from labelkit.pipelines.start.given import GIVEN, WrittenLabel
from labelkit.pipelines.start.options import StartConfig
from labelkit.pipelines.start.record import Record
from labelkit.progress import current_progress
from labelkit.store.embeddings import open_store
from labelkit.store.results import free_name, list_results
from labelkit.studio.label.label import check_server, session_labels
from labelkit.studio.label.options import LabelConfig

_STEP = "labels of the browser"


def start_in_browser(config: StartConfig, once: Callable[[StartConfig], SimpleResult]) -> SimpleResult:
    """Serve the page for labeling after a call, and call again when it ends.

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
        dataset=str(config.photos),
        conflicts="new",
        own_labels=False,
    )
    noted = {"store": store.name, "session": label.result}
    Record.read(folder).note(_STEP, "", {}, [], noted)
    all_commands()[label.command].run(label)
    # another call may have taken the labels that were there by then
    Record.read(folder).note(_STEP, "", {}, [], noted)
    return once(config)


def browser_labels(record: Record) -> list[WrittenLabel]:
    """Return the labels of the last browser that no call has taken yet."""
    noted = record.steps.get(_STEP, {}).get("values", {})
    store = record.path.with_name(str(noted.get("store")))
    if not noted or not store.is_file() or noted["session"] not in list_results(open_store(store)):
        return []
    return [WrittenLabel(*one) for one in session_labels(open_store(store), noted["session"])]


def forget_browser(record: Record) -> None:
    """Note that its labels are taken."""
    record.steps.pop(_STEP, None)
