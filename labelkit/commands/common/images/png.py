"""Write a picture as PNG."""

from __future__ import annotations

import io
from pathlib import Path

from PIL.Image import Image
from PIL.PngImagePlugin import PngInfo

from labelkit.commands.common.outputs import PNG_MARK
from labelkit.store.commit import commit_bytes


def write_png(path: Path, picture: Image) -> None:
    """Write a picture with the mark of labelkit; the same picture gives the same bytes.

    Raises:
        ResourceError: it cannot be written.
    """
    notes = PngInfo()
    notes.add_text("Software", PNG_MARK)
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", pnginfo=notes)
    commit_bytes(path, buffer.getvalue())
