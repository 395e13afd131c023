"""A bucket of a server on this machine that speaks S3: a store from it, a query from it, and its faults."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.slow
_REASON = "needs the extra remote-tests"
s3fs = pytest.importorskip("s3fs", reason=_REASON)
moto_server = pytest.importorskip("moto.server", reason=_REASON)

BUCKET = "photos"
Fault = Callable[[dict[str, Any], Any], Iterable[bytes] | None]


class Server:
    """S3 on a free port; ``fault`` may answer a request in its place."""

    def __init__(self) -> None:
        from werkzeug.serving import make_server

        self.fault: Fault | None = None
        self.asked: list[str] = []
        app = moto_server.DomainDispatcherApplication(moto_server.create_backend_app)

        def answer(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
            if environ["REQUEST_METHOD"] in {"GET", "PUT"}:
                self.asked += [environ["PATH_INFO"]] * (environ["REQUEST_METHOD"] == "GET")
                found = None if self.fault is None else self.fault(environ, start)
                if found is not None:
                    return found
            answered: Iterable[bytes] = app(environ, start)
            return answered

        self.server = make_server("127.0.0.1", 0, answer, threaded=True)
        self.thread = Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def environment(self) -> dict[str, str]:
        """What commands need to find it."""
        return {
            **os.environ,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.server_port}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.server.shutdown()
    started.thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        for number in range(10):
            path = tmp_path / "photos" / kind / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    return tmp_path / "photos"


@pytest.fixture(autouse=True)
def _bucket(server: Server, folder: Path) -> None:
    server.fault = None
    system = s3fs.S3FileSystem(
        key="test", secret="test", endpoint_url=server.environment()["AWS_ENDPOINT_URL"], skip_instance_cache=True
    )
    if not system.exists(BUCKET):
        system.mkdir(BUCKET)
    for file in folder.rglob("*.png"):
        system.pipe_file(f"{BUCKET}/{file.relative_to(folder).as_posix()}", file.read_bytes())
    server.asked.clear()


def labelkit(server: Server, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "labelkit", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, env=server.environment(), timeout=200)


def embed(server: Server, dataset: object, out: object) -> subprocess.CompletedProcess[str]:
    words = ("--backbone", "pixels", "--image-size", "8", "--split", "all", "-q", "--out", out)
    return labelkit(server, "embed", "--dataset", dataset, *words)


def test_a_store_from_a_bucket_is_that_of_the_folder_and_answers_a_query(
    server: Server, folder: Path, tmp_path: Path
) -> None:
    assert embed(server, folder, tmp_path / "here.h5").returncode == 0
    done = embed(server, f"s3://{BUCKET}", tmp_path / "there.h5")

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "here.h5").read_bytes() == (tmp_path / "there.h5").read_bytes()
    server.asked.clear()
    words = ("--query-rows", 3, "-k", 2, "--sheet", tmp_path / "hits.png", "--json")
    found = labelkit(server, "retrieve", "--index", tmp_path / "there.h5", *words)
    assert found.returncode == 0, found.stderr
    with Image.open(tmp_path / "hits.png") as sheet:
        assert sheet.width > 16
    # the query and its two hits are read from the bucket again
    assert sum(path.endswith(".png") for path in server.asked) == 3


def busy(environ: dict[str, Any], start: Any) -> Iterable[bytes] | None:
    if not environ["PATH_INFO"].endswith("dog/7.png"):
        return None
    start("503 Slow Down", [("Content-Type", "application/xml")])
    return [b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"]


def forbidden(environ: dict[str, Any], start: Any) -> Iterable[bytes] | None:
    if not environ["PATH_INFO"].endswith("dog/7.png"):
        return None
    start("403 Forbidden", [("Content-Type", "application/xml")])
    return [b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [(busy, "cannot be read"), (forbidden, "access is denied")],
)
def test_a_fault_of_the_server_ends_with_the_name_and_the_next_call_goes_on(
    server: Server, folder: Path, tmp_path: Path, fault: Fault, said: str
) -> None:
    assert embed(server, folder, tmp_path / "here.h5").returncode == 0
    server.fault = fault

    failed = embed(server, f"s3://{BUCKET}", tmp_path / "there.h5")

    assert failed.returncode == 3, failed.stderr
    assert f"s3://{BUCKET}/dog/7.png: " in failed.stderr
    assert said in failed.stderr
    assert "Traceback" not in failed.stderr
    server.fault = None
    assert embed(server, f"s3://{BUCKET}", tmp_path / "there.h5").returncode == 0
    assert (tmp_path / "here.h5").read_bytes() == (tmp_path / "there.h5").read_bytes()


def test_a_bucket_that_is_not_there_or_not_allowed_is_named(server: Server, tmp_path: Path) -> None:
    failed = embed(server, "s3://nosuch-bucket/photos", tmp_path / "none.h5")
    assert failed.returncode == 3
    assert "s3://nosuch-bucket/photos: does not exist or is empty" in failed.stderr

    server.fault = lambda environ, start: forbidden(environ | {"PATH_INFO": "dog/7.png"}, start)
    failed = embed(server, f"s3://{BUCKET}", tmp_path / "none.h5")
    assert failed.returncode == 3
    assert "access is denied" in failed.stderr


def test_a_store_at_an_address_is_that_of_a_folder_and_a_failed_upload_is_repeated(
    server: Server, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(environ: dict[str, Any], start: Any) -> Iterable[bytes] | None:
        wanted = environ["REQUEST_METHOD"] == "PUT" and environ["PATH_INFO"].endswith("k-means.h5")
        return forbidden(environ | {"PATH_INFO": "dog/7.png"}, start) if wanted else None

    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "one"))
    store = f"s3://{BUCKET}/stores/pets.h5"
    assert embed(server, folder, tmp_path / "pets.h5").returncode == 0
    made = embed(server, folder, store)
    assert (made.returncode, made.stdout) == (0, f"{store}\n"), made.stderr
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "two"))

    server.fault = refuse
    words = ("cluster", "k-means", "--num-clusters", 2, "--index", store)
    failed = labelkit(server, *words)
    server.fault = None
    (copy,) = (tmp_path / "two").rglob("pets.h5")
    repeated = labelkit(server, "status", "--index", store)

    assert failed.returncode == 5
    assert f"error: {store}: cannot be uploaded: Access Denied; the complete output is in {copy}." in failed.stderr
    assert f"Nothing must be computed again: `labelkit status --index {store}`" in failed.stderr
    assert repeated.returncode == 0, repeated.stderr
    assert copy.read_bytes() == (tmp_path / "pets.h5").read_bytes()
    monkeypatch.setenv("LABELKIT_CACHE", str(tmp_path / "one"))
    found = labelkit(server, "verify", "--index", store, "--json")
    assert found.returncode == 0, found.stderr
    assert "k-means" in found.stdout
    missing = embed(server, folder, "s3://nosuch-bucket/pets.h5")
    assert missing.returncode == 3
    assert "error: s3://nosuch-bucket/pets.h5: " in missing.stderr
