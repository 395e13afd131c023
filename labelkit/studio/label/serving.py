"""``labelkit label --serve``: open store and session, serve pages until interrupted, and say what was labeled."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path

import numpy as np

from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.errors import BusyError, ConfigError, Interrupted
from labelkit.progress import current_progress
from labelkit.store.embeddings import open_store
from labelkit.store.results import results_folder
from labelkit.store.run_folder import locked, remove_leftovers
from labelkit.studio.label.browser import open_browsed, open_session
from labelkit.studio.label.options import LabelConfig
from labelkit.studio.label.session import Session


def serve_labels(config: LabelConfig) -> SimpleResult:
    """Let people label in the browser.

    Raises:
        ConfigError: Starlette or uvicorn is not installed.
        StoreError: the store or a result cannot be used.
        BusyError: another server works on this store.
        ResourceError: it cannot listen there.
    """
    try:
        from labelkit.studio.label.server import LabelServer, serve
    except ImportError as error:
        problem = f"needs Starlette and uvicorn, and {error.name} is not installed"
        raise ConfigError("--serve", problem, "pip install starlette uvicorn.") from error
    store = open_store(config.index)
    results_folder(store.path).mkdir(exist_ok=True)
    with contextlib.ExitStack() as held:
        _hold(held, results_folder(store.path))
        browsed = open_browsed(config, store)
        session = open_session(config, store, browsed.grouping)
        server = LabelServer(session, browsed, by=config.by)
        progress = current_progress()

        def say(link: str) -> None:
            progress.message(f"label in the browser: {link}")
            progress.message(f"every action is kept in {session.name} at once; Ctrl-C ends the server")

        try:
            serve(server, config.host, config.port, opened=config.open, say=say)
        except Interrupted as interrupted:
            if interrupted.signum != signal.SIGINT:
                raise
        finally:
            server.asking.stop()
    return _summary(config, session)


def _hold(held: contextlib.ExitStack, folder: Path) -> None:
    """Take the lock of a folder of results, and remove what servers left that were killed.

    Raises:
        BusyError: another server works on this store.
    """
    try:
        held.enter_context(locked(folder))
    except BusyError as error:
        problem = "another `labelkit label --serve` works on this store"
        raise BusyError(str(folder), problem, "Use its link, or end it with Ctrl-C first.") from error
    remove_leftovers(folder)


def _summary(config: LabelConfig, session: Session) -> SimpleResult:
    labels, by_group = session.work.labels()
    counts = np.bincount(labels[labels >= 0], minlength=len(session.work.classes))
    cells: list[list[Cell]] = [
        [name, int(count)] for name, count in zip(session.work.classes, counts, strict=True) if count
    ]
    path = results_folder(session.store.path) / f"{session.name}.h5"
    values: dict[str, object] = {
        "index": config.index,
        "result": session.name,
        "path": path if session.log else None,
        "actions": len(session.log),
        "labels": int(counts.sum()),
        "by_group": int(by_group.sum()),
        "rows": session.store.n,
        "classes": [{"class": cell[0], "images": cell[1]} for cell in cells],
    }
    return SimpleResult(
        values, (path,) if session.log else (), (Table("labels of each class", ["class", "images"], cells),)
    )
