"""Kill the server of ``labelkit label --serve`` at random moments, again and again, and look what it lost.

    python -m tests.studio.label.killed_server --index photos.h5 --kills 200

Each server is a fork of this process, which has loaded everything. A client sends actions as fast as they are answered,
undo among them; the server is killed between 0 and 60 ms after a random one. Then the result on the disk is read: every
acknowledged action must be in it, at most one that was not acknowledged may be, and its labels must be what the actions
come to. The next server goes on with it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import read_result, results_folder
from labelkit.studio.label.actions import LabelingState
from labelkit.studio.label.browser import BrowsedStore, open_browsed_store, open_session
from labelkit.studio.label.options import LabelConfig
from labelkit.studio.label.server import SETTINGS, LabelServer, bound_socket, guard_app
from labelkit.studio.label.session import Session

TOKEN, LONGEST_MS = "token", 60


def serve(store: EmbeddingStore, browsed: BrowsedStore, listening: Any) -> None:
    """Be a server, until killed."""
    config = LabelConfig(index=store.path, serve=True)
    server = LabelServer(open_session(config, store, browsed.grouping), browsed)
    port = listening.getsockname()[1]
    uvicorn.Server(uvicorn.Config(guard_app(server, "127.0.0.1", port, TOKEN), **SETTINGS)).run(sockets=[listening])


class Client:
    """Sends actions until the server is gone; remembers those that were acknowledged."""

    def __init__(self, port: int, chance: random.Random, store: EmbeddingStore, seen: int) -> None:
        self.port, self.chance, self.n, self.seen = port, chance, store.n, seen
        self.acknowledged: list[int] = []
        self.undone: set[int] = set()

    def work(self) -> None:
        """Act until nobody answers."""
        try:
            while True:
                self._act()
        except (OSError, http.client.HTTPException, ValueError):
            return

    def _act(self) -> None:
        own = [number for number in self.acknowledged if number not in self.undone]
        body: dict[str, Any] = {"client": "killer", "seen": self.seen}
        path = "/api/act"
        if own and self.chance.random() < 0.2:
            path = "/api/undo"
            body["round"] = own[-1]
        else:
            body |= {"kind": "test", "steps": self._steps()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request("POST", path, json.dumps(body), headers)
        answer = connection.getresponse()
        told = json.loads(answer.read())
        connection.close()
        if answer.status == 400:  # nothing would change
            return
        if answer.status != 200:
            raise AssertionError(told)
        if path == "/api/undo":
            self.undone |= {body["round"], told["actions"][-1]["round"]}
        self.seen = told["actions"][-1]["round"]
        self.acknowledged.append(self.seen)

    def _steps(self) -> list[dict[str, Any]]:
        rows = self.chance.sample(range(self.n), self.chance.randint(1, 5))
        name = self.chance.choice(["umbrella", "dog", "cat", "a name of some length", None])
        group = self.chance.randint(0, 3)
        return [
            self.chance.choice(
                [
                    {"do": "label", "rows": rows, "name": name},
                    {"do": "name", "group": group, "name": name},
                    {"do": "group", "rows": rows, "group": group - 1},
                    {"do": "reject", "rows": rows, "value": name is None},
                ]
            )
        ]


def replayed(store: EmbeddingStore, browsed: BrowsedStore, session: Session) -> list[int]:
    """Labels that the actions of a session come to."""
    assert browsed.grouping is not None
    names = [group.name for group in browsed.grouping.groups]
    none = np.full(store.n, -1, dtype=np.int64)
    fresh = LabelingState(
        list(store.class_names), none, np.zeros(store.n, bool), browsed.grouping.ids.copy(), names, [-1] * len(names)
    )
    for done in session.log:
        fresh.apply(done.steps)
    labels, _ = fresh.labels()
    return [-1 if label < 0 else session.work.classes.index(fresh.classes[label]) for label in labels]


def main() -> None:
    """Kill, look, go on; print the counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--index", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    store = open_store(options.index)
    config = LabelConfig(index=store.path, serve=True)
    browsed = open_browsed_store(config, store)
    chance = random.Random(options.seed)
    counts: Counter[str] = Counter(dict.fromkeys(("kills", "acknowledged", "lost", "wrong labels"), 0))
    last = 0
    for _ in range(options.kills):
        listening = bound_socket("127.0.0.1", 0)
        process = os.fork()
        if not process:
            serve(store, browsed, listening)
            os._exit(0)
        client = Client(listening.getsockname()[1], chance, store, last)
        listening.close()
        thread = threading.Thread(target=client.work)
        thread.start()
        goal = chance.randint(1, 8)
        deadline = time.monotonic() + 60
        while len(client.acknowledged) < goal and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(chance.uniform(0, LONGEST_MS) / 1000)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        thread.join()
        counts["kills"] += 1
        counts["acknowledged"] += len(client.acknowledged)
        session = open_session(config, store, browsed.grouping)
        there = [0, *(done.round for done in session.log)]
        counts["lost"] += len(set(client.acknowledged) - set(there))
        counts["on the disk, not acknowledged"] += there[-1] - (client.acknowledged or [last])[-1]
        if session.log:
            labels = np.asarray(read_result(store, session.name).arrays["labels"]).tolist()
            counts["wrong labels"] += labels != replayed(store, browsed, session)
        last = there[-1]
    folder = results_folder(store.path)
    counts["temporary files left"] = len(list(folder.glob(".tmp*")))
    sys.stdout.write(json.dumps(counts) + "\n")


if __name__ == "__main__":
    main()
