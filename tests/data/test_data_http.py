"""Images of a server that speaks HTTP: a page of links, and archives that are read in parts."""

import re
import tarfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
from labelkit.data.registry import load_dataset
from PIL import Image

pytest.importorskip("aiohttp", reason="needs the extra remote")


class Handler(SimpleHTTPRequestHandler):
    """Serves a folder, and parts of files where they are asked for."""

    def log_message(self, format: str, *words: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            super().do_GET()
            return
        content = Path(self.translate_path(self.path)).read_bytes()
        start, last = int(asked[1]), min(int(asked[2]), len(content) - 1)
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        self.send_header("Content-Length", str(last + 1 - start))
        self.end_headers()
        self.wfile.write(content[start : last + 1])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        for number in range(4):
            path = tmp_path / "photos" / kind / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
    with tarfile.open(tmp_path / "all.tar", "w") as archive:
        archive.add(tmp_path / "photos", "photos")
    return tmp_path


@pytest.fixture
def address(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("name", ["photos", "all.tar"])
def test_images_over_http_are_those_of_this_machine(folder: Path, address: str, name: str) -> None:
    here, there = (load_dataset(f"{root}/{name}", data_root=Path("nowhere")) for root in (folder, address))

    assert there.sample_ids == here.sample_ids
    assert there.digest() == here.digest()
    assert [there.source.read(row).sha256 for row in range(8)] == [here.source.read(row).sha256 for row in range(8)]
