"""The server of ``labelkit label --serve``, by an HTTP client: who may ask, what is refused, what is answered."""

import base64
import http.client
import io
import json
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from labelkit.errors import ResourceError
from labelkit.store.embeddings import EmbeddingStore, open_store
from labelkit.store.results import read_result
from labelkit.studio.label.browser import LIKE, BrowsedStore, load_store_for_labeling, open_session
from labelkit.studio.label.options import LabelConfig
from PIL import Image

uvicorn = pytest.importorskip("uvicorn", reason="the extra serve is not installed")
server_module = pytest.importorskip("labelkit.studio.label.server", reason="the extra serve is not installed")

TOKEN = "a-token-of-a-test"


@dataclass
class Client:
    """Asks a server, as a page does unless told otherwise."""

    port: int
    store: EmbeddingStore

    def ask(
        self, method: str, path: str, body: object = None, *, raw: bytes | None = None, **headers: str | None
    ) -> tuple[int, dict[str, str], bytes]:
        """Return (status, headers, body); a header of None is left out."""
        sent = {"Host": f"127.0.0.1:{self.port}", "Authorization": f"Bearer {TOKEN}"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}  # type: ignore[dict-item]
        content = raw if raw is not None else None if body is None else json.dumps(body).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        if content is not None:
            connection.putheader("Content-Length", str(len(content)))
        connection.endheaders(content)
        answer = connection.getresponse()
        found = answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        connection.close()
        return found

    def act(self, *steps: dict[str, Any], client: str = "a", seen: int = 0) -> tuple[int, dict[str, Any]]:
        status, _, body = self.ask(
            "POST", "/api/act", {"kind": "test", "steps": list(steps), "client": client, "seen": seen}
        )
        return status, json.loads(body)


def running(store: EmbeddingStore) -> Iterator[Client]:
    config = LabelConfig(index=store.path, serve=True)
    browsed = load_store_for_labeling(config, store)
    made = server_module.LabelServer(open_session(config, store, browsed.grouping), browsed, by="tester")
    listening = server_module.open_listening_socket("127.0.0.1", 0)
    port = listening.getsockname()[1]
    app = server_module.RequestGuard(made.app(), "127.0.0.1", port, TOKEN)
    server = uvicorn.Server(uvicorn.Config(app, **server_module.SETTINGS))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield Client(port, store)
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture(scope="module")
def client(made: Path) -> Iterator[Client]:
    """Asks a running server that all tests of the file share."""
    yield from running(open_store(made))


def test_the_page_holds_nothing_and_allows_nothing_from_elsewhere(client: Client) -> None:
    status, headers, body = client.ask("GET", "/", Authorization=None)
    policy = headers["content-security-policy"]

    assert status == 200
    assert client.store.sample_ids[0] not in body.decode()
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "set-cookie" not in headers
    assert "server" not in headers


def test_the_session_tells_everything_the_page_shows(client: Client) -> None:
    status, _, body = client.ask("GET", "/api/session")
    told = json.loads(body)

    assert status == 200
    assert told["names"] == list(client.store.sample_ids)
    assert told["work"]["mode"] == "server"
    assert len(told["groups"]) == 4
    suggested = json.loads(client.ask("GET", "/api/suggested")[2])["suggested"]
    assert len({row for row, _ in suggested}) == 30
    skipped = {row for row, _ in suggested[:2]}
    others = json.loads(client.ask("GET", f"/api/suggested?skip={','.join(map(str, skipped))},x")[2])["suggested"]
    assert len(others) == 30
    assert not skipped & {row for row, _ in others}


@pytest.mark.parametrize(
    "path", ["/api/session", "/api/changes?since=0", "/api/thumbnails/0", "/api/images/0", "/api/like/0"]
)
def test_without_the_token_nothing_is_told(client: Client, path: str) -> None:
    for given in (None, "", "Bearer ", "Bearer wrong", f"Bearer {TOKEN}x", f"bearer {TOKEN}", TOKEN):
        status, _, body = client.ask("GET", path, Authorization=given)

        assert status == 401, given
        assert "link is incomplete" in json.loads(body)["problem"]


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1", "127.0.0.1:1", "", None, "localhost.evil.example"]
)
def test_another_host_is_refused(client: Client, host: str | None) -> None:
    status, _, _ = client.ask("GET", "/", Host=host)

    assert status in (400, 421)


@pytest.mark.parametrize(
    "header",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("GET", "/api/session"), ("POST", "/api/act")])
def test_another_origin_is_refused(client: Client, method: str, path: str, header: dict[str, str]) -> None:
    status, _, _ = client.ask(method, path, {} if method == "POST" else None, **header)

    assert status == 403


@pytest.mark.parametrize(
    "path",
    [
        "/api/thumbnails/../../etc/passwd",
        "/api/thumbnails/..%2f..%2fetc%2fpasswd",
        "/api/thumbnails//etc/passwd",
        "/api/images/0/../../../etc/passwd",
        "/api/images/-1",
        "/api/images/99999999999999999999999",
        "/api/images/" + "9" * 5000,
        "/api/parts/" + "9" * 5000,
        "/api/images/0x0",
        "/api/images/1e3",
        "/api/thumbnails/48",
        "/api/images/ant%2f00.png",
        "/../../etc/passwd",
        "/static/work.js",
        "/docs",
        "/openapi.json",
    ],
)
def test_pictures_go_by_row_number_and_nothing_by_path(client: Client, path: str) -> None:
    status, headers, body = client.ask("GET", path)

    assert status == 404
    assert b"root:" not in body
    assert headers["content-type"] == "application/json"


def test_a_row_is_its_image(client: Client) -> None:
    status, headers, body = client.ask("GET", "/api/images/3")
    small, _, _ = client.ask("GET", "/api/thumbnails/3")

    assert (status, small) == (200, 200)
    assert headers["content-type"] == "image/webp"
    assert Image.open(io.BytesIO(body)).size == tuple(client.store.image_sizes[3][::-1])


def test_what_is_like_an_image_is_told_nearest_first(client: Client) -> None:
    _, _, body = client.ask("GET", "/api/like/0")
    images = json.loads(body)["images"]

    assert len(images) == client.store.n - 1
    assert 0 not in [one["image"] for one in images]
    assert [one["score"] for one in images] == sorted((one["score"] for one in images), reverse=True)


def test_a_port_in_use_is_named_once(client: Client) -> None:
    expected = rf"^127.0.0.1:{client.port}: cannot listen on this address \(Address already in use\)\. Pass"
    with pytest.raises(ResourceError, match=expected):
        server_module.open_listening_socket("127.0.0.1", client.port)


@pytest.mark.parametrize("metric", ["cosine", "l2"])
def test_what_is_like_an_image_is_found_without_a_copy_of_the_features(metric: str, rng: np.random.Generator) -> None:
    features = rng.normal(size=(20_000, 256)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True) if metric == "cosine" else 1
    directed = np.arange(20_000) != 7
    browsed: Any = SimpleNamespace(
        images=SimpleNamespace(features=features, directed=directed), store=SimpleNamespace(metric=metric)
    )
    tracemalloc.start()
    found = BrowsedStore.find_similar_images(browsed, 5)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    apart = np.linalg.norm(features.astype(np.float64) - features[5], axis=1)
    apart[[5, 7]] = np.inf
    nearest = np.sort(apart)[:LIKE]
    scores = nearest if metric == "l2" else 1 - nearest**2 / 2
    assert not {5, 7} & {one["image"] for one in found}
    np.testing.assert_allclose([one["score"] for one in found], scores, rtol=1e-4, atol=1e-6)
    assert peak < features.nbytes


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"", "Expecting value"),
        (b"[]", "an object with"),
        (b"{" * 100_000, ""),
        (b'{"kind": "x", "steps": [], "client": "a", "seen": 0}', "a list of 1 to"),
        (b'{"kind": "x", "steps": [{"do": "label", "rows": [0], "name": "x"}], "client": "a"}', "an object with"),
        (b'{"kind": "x", "steps": [{"do": "label", "rows": [0], "name": "x"}], "client": "a", "seen": -1}', "seen"),
        (b'{"kind": 5, "steps": [{"do": "label", "rows": [0], "name": "x"}], "client": "a", "seen": 0}', "kind"),
        (
            b'{"kind": "x", "steps": [{"do": "label", "rows": [0], "name": "\\ud800"}], "client": "a", "seen": 0}',
            "name",
        ),
        (b"\xff\xfe", ""),
    ],
)
def test_what_is_no_action_is_refused_and_changes_nothing(client: Client, raw: bytes, problem: str) -> None:
    before = client.ask("GET", "/api/changes?since=0")[2]
    status, _, body = client.ask("POST", "/api/act", raw=raw)

    assert status == 400
    assert problem in json.loads(body)["problem"]
    assert client.ask("GET", "/api/changes?since=0")[2] == before


def test_an_action_is_on_the_disk_when_it_is_answered_and_undone_by_its_number(made: Path) -> None:
    for client in running(open_store(made)):
        status, told = client.act({"do": "label", "rows": [1, 2], "name": "<b>cup</b>"})
        first = told["actions"][-1]["round"]
        result = read_result(client.store, "labels-1")
        assert status == 200
        assert [result.arrays["class_names"][result.arrays["labels"][row]] for row in (1, 2)] == ["<b>cup</b>"] * 2
        assert told["actions"][-1]["by"] == "tester"

        status, told = client.act({"do": "label", "rows": [2], "name": "dog"}, client="b")
        assert (status, told["rows"], told["theirs"][0]["by"]) == (409, [2], "tester")
        status, _, body = client.ask("POST", "/api/undo", {"round": first, "client": "a", "seen": first})
        assert (status, json.loads(body)["actions"][0]["undoes"]) == (200, first)
        assert not read_result(client.store, "labels-1").arrays["labeled"][2]


def test_a_group_parts_where_the_tree_of_its_images_does(client: Client) -> None:
    status, _, body = client.ask("GET", "/api/parts/0")
    session = json.loads(client.ask("GET", "/api/session")[2])
    groups = np.frombuffer(base64.b64decode(session["work"]["state"]["groups"]), dtype="<i4")
    large, small = json.loads(body)["parts"]
    rows = np.asarray(client.store.embeddings, dtype=np.float64)

    def inertia(part: list[int]) -> float:
        return float(((rows[part] - rows[part].mean(axis=0)) ** 2).sum())

    assert status == 200
    assert sorted(large + small) == np.flatnonzero(groups == 0).tolist()
    assert len(large) >= len(small) >= 1
    assert inertia(large) + inertia(small) < inertia(large + small)
