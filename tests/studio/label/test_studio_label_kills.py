"""The server of ``labelkit label --serve``, killed at random moments: nothing that was acknowledged is lost."""

import http.client
import json
import random
import signal
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from labelkit.store.embeddings import open_store
from labelkit.store.results import read_result
from tests.studio.label.serving import Serving

pytest.importorskip("uvicorn", reason="the extra serve is not installed")


def label_all(link: str, rows: range, seen: int, acknowledged: list[int]) -> None:
    """Label one row after the other, as fast as the server answers, until nobody does."""
    page = urllib.parse.urlsplit(link)
    headers = {"Authorization": f"Bearer {page.fragment}", "Content-Type": "application/json"}
    for row in rows:
        steps = [{"do": "label", "rows": [row], "name": f"row {row}"}]
        body = json.dumps({"kind": "test", "steps": steps, "client": "a", "seen": seen}).encode()
        request = urllib.request.Request(f"http://{page.netloc}/api/act", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as answer:
                seen = json.load(answer)["actions"][-1]["round"]
        except (OSError, http.client.HTTPException):
            return
        acknowledged.append(row)


@pytest.mark.parametrize(
    "kills", [pytest.param(3, marks=pytest.mark.slow), pytest.param(40, marks=pytest.mark.torture)]
)
@pytest.mark.timeout(1200)
def test_no_acknowledged_action_is_lost(kills: int, grouped: Path) -> None:
    chance, seen = random.Random(0), 0
    for _ in range(kills):
        served, acknowledged = Serving(grouped), list[int]()
        client = threading.Thread(target=label_all, args=(served.link, range(48), seen, acknowledged))
        client.start()
        while not acknowledged and client.is_alive():
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.06))
        served.stop(signal.SIGKILL)
        client.join()

        result = read_result(open_store(grouped), "labels-1")
        labels, seen = result.arrays["labels"], result.params["round"]
        assert acknowledged
        assert [result.arrays["class_names"][labels[row]] for row in acknowledged] == [
            f"row {row}" for row in acknowledged
        ]
