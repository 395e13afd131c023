"""``start --serve``: the tables, labeling in the browser, and the tables again with the labels from there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labelkit.commands.common.results import SimpleResult
from labelkit.commands.table import all_commands
from labelkit.pipelines.start.given import GIVEN
from labelkit.pipelines.start.options import StartConfig
from labelkit.pipelines.start.record import Record
from labelkit.progress import current_progress
from labelkit.store.embeddings import open_store
from labelkit.studio.label.browser import newest_session
from labelkit.studio.label.label import check_server
from labelkit.studio.label.options import LabelConfig

_STEP = "labels of the browser"


def start_in_browser(config: StartConfig, once: Callable[[StartConfig], SimpleResult]) -> SimpleResult:
    """Serve the page for labeling after a call, and call again when it ends.

    Labels are in a result of the store as soon as they are given: if this is killed, the next call with ``--serve``
    continues there.

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
    taken = Record.read(folder).steps.get(_STEP, {}).get("values", {}).get("session")
    session = newest_session(open_store(store))
    given = folder / GIVEN
    begin = {"result": session} if session not in (None, taken) else {"from_": given if given.is_file() else None}
    with tempfile.TemporaryDirectory() as scratch:
        table = Path(scratch, "labels.csv")
        label = LabelConfig(
            index=store, serve=True, csv=table, dataset=str(config.photos), conflicts="new", own_labels=False, **begin
        )
        told: Any = all_commands()[label.command].run(label)[0].to_json()
        if not told["actions"]:
            return once(config)
        labels = (*(config.labels or ()), table)
        result = once(config.model_copy(update={"labels": labels}))
    Record.read(folder).note(_STEP, "labelkit label --serve", {}, [], {"session": told["result"]})
    return result
