"""The console script ``labelkit``, installed as a module with a unique name, ``labelkit_images``.

An unrelated package on the index is also called ``labelkit``. If both are installed and this one is editable
(``pip install -e``), Python would import the other package first.
"""

import json
import sys
from importlib.metadata import PackageNotFoundError, distribution
from urllib.parse import urlparse
from urllib.request import url2pathname


def run() -> None:
    """Start labelkit from the console script, even if another package shadows its name."""
    try:
        from labelkit.__main__ import run as start
    except ImportError:
        folder = find_editable_install()
        if folder is None:
            raise
        for name in [name for name in sys.modules if name.partition(".")[0] == "labelkit"]:
            del sys.modules[name]
        sys.path.insert(0, folder)
        from labelkit.__main__ import run as start
    start()


def find_editable_install() -> str | None:
    """Return the project folder of an editable install, or ``None`` for other installs."""
    try:
        origin = json.loads(distribution("labelkit-images").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    return url2pathname(urlparse(origin["url"]).path) if origin.get("dir_info", {}).get("editable") else None
