"""Odd images and names: what each has to become, said without the decoder that is tested."""

import io
import os
import random
import socket
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 16
# top left, top right, bottom left, bottom right
COLORS = ((200, 30, 30), (30, 180, 60), (20, 40, 220), (120, 120, 120))
# Which corner of the stored picture is seen in each corner, by the EXIF standard.
SEEN = {
    1: (0, 1, 2, 3), 2: (1, 0, 3, 2), 3: (3, 2, 1, 0), 4: (2, 3, 0, 1),
    5: (0, 2, 1, 3), 6: (2, 0, 3, 1), 7: (3, 1, 2, 0), 8: (1, 3, 0, 2),
}  # fmt: skip
ORIENTATION = 0x0112

Corners = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Odd:
    """A file.

    Attributes:
        name: its raw name.
        data: its bytes.
        corners: the colors that have to be seen; ``None``: it has to be skipped.
        tolerance: in steps of 255.
        may_be_skipped: skipping is right as well.
        any_color: it may be embedded as whatever it shows now.
    """

    name: bytes
    data: bytes
    corners: Corners | None = COLORS
    tolerance: float = 2
    may_be_skipped: bool = False
    any_color: bool = False


def picture() -> Image.Image:
    """Return 16 x 16 pixels, a color in each corner."""
    pixels: NDArray[np.uint8] = np.zeros((SIDE, SIDE, 3), np.uint8)
    half = SIDE // 2
    for i, color in enumerate(COLORS):
        pixels[half * (i // 2) :, half * (i % 2) :][:half, :half] = color
    return Image.fromarray(pixels)


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return the bytes of an image file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def _gray(corners: Corners = COLORS) -> Corners:
    return tuple((round(0.299 * r + 0.587 * g + 0.114 * b),) * 3 for r, g, b in corners)


def _chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def _png_header(width: int, height: int, data: bytes = b"\0") -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


LOSSY = {"JPEG": 12.0, "WEBP": 14.0, "AVIF": 14.0}
KINDS = ("PNG", "BMP", "TIFF", "GIF", "JPEG", "WEBP", "AVIF")


def _formats() -> Iterator[Odd]:
    base = picture()
    for kind in KINDS:
        options = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {"quality": 95} if kind in LOSSY else {}
        data = encode(base, kind, **options)
        tolerance = LOSSY.get(kind, 2)
        yield Odd(f"format {kind}.{kind.lower()}".encode(), data, tolerance=tolerance)
        yield Odd(f"other suffix {kind}.jpg".encode(), data, tolerance=tolerance)
        for percent in (5, 25, 50, 75, 97):
            cut = data[: len(data) * percent // 100]
            name = f"cut {kind} {percent}.{kind.lower()}".encode()
            # what lies behind the last pixel may be missing
            yield Odd(name, cut, tolerance=tolerance, may_be_skipped=True)
    for kind in ("JPEG", "PNG", "WEBP", "TIFF"):
        for orientation, seen in SEEN.items():
            exif = Image.Exif()
            exif[ORIENTATION] = orientation
            quality = {"quality": 95, "subsampling": 0} if kind == "JPEG" else {"quality": 95} if kind == "WEBP" else {}
            data = encode(base, kind, exif=exif, **quality)
            corners = tuple(COLORS[i] for i in seen)
            yield Odd(f"turned {kind} {orientation}.{kind.lower()}".encode(), data, corners, LOSSY.get(kind, 2))


def _modes() -> Iterator[Odd]:
    base = picture()
    gray = base.convert("L")
    yield Odd(b"gray.png", encode(gray, "PNG"), _gray())
    yield Odd(b"gray.jpg", encode(gray, "JPEG", quality=95), _gray(), 8)
    deep = np.asarray(gray).astype(np.uint16) * 257
    yield Odd(b"gray 16.png", encode(Image.fromarray(deep), "PNG"), _gray())
    yield Odd(b"gray 16.tif", encode(Image.fromarray(deep), "TIFF"), _gray())
    yield Odd(b"float.tif", encode(Image.fromarray(deep.astype(np.float32)), "TIFF"), None)
    yield Odd(b"32 bits.tif", encode(Image.fromarray(deep.astype(np.int32)), "TIFF"), None)
    yield Odd(b"palette.png", encode(base.quantize(16), "PNG"))
    yield Odd(b"palette.gif", encode(base.quantize(16), "GIF"))
    yield Odd(b"palette.bmp", encode(base.quantize(16), "BMP"))
    yield Odd(b"cmyk.jpg", encode(base.convert("CMYK"), "JPEG", quality=100, subsampling=0), tolerance=12)
    yield Odd(b"cmyk.tif", encode(base.convert("CMYK"), "TIFF"), tolerance=4)
    yield Odd(b"ycc.tif", encode(base.convert("YCbCr"), "TIFF"), tolerance=6)
    bits = base.convert("L").point(lambda value: 255 if value > 100 else 0).convert("1", dither=Image.Dither.NONE)
    black_and_white = tuple((255,) * 3 if color[0] > 100 else (0,) * 3 for color in _gray())
    yield Odd(b"bits.png", encode(bits, "PNG"), black_and_white)
    yield Odd(b"bits.tif", encode(bits, "TIFF"), black_and_white)
    for alpha in (0, 51, 255):
        r, g, b = ([round(255 + (color[i] - 255) * alpha / 255) for color in COLORS] for i in range(3))
        mixed = tuple(zip(r, g, b, strict=True))
        layered = base.copy()
        layered.putalpha(alpha)
        yield Odd(f"alpha {alpha}.png".encode(), encode(layered, "PNG"), mixed)
        yield Odd(f"alpha {alpha}.webp".encode(), encode(layered, "WEBP", lossless=True, exact=True), mixed)
    key = encode(base, "PNG", transparency=COLORS[0])
    yield Odd(b"color key.png", key, ((255, 255, 255), *COLORS[1:]))
    transparent = base.quantize(4)
    index = transparent.getpixel((0, 0))
    yield Odd(b"transparent.gif", encode(transparent, "GIF", transparency=index), ((255,) * 3, *COLORS[1:]))
    yield Odd(
        b"palette and alpha.png",
        encode(transparent, "PNG", transparency=bytes(0 if i == index else 255 for i in range(4))),
        ((255, 255, 255), *COLORS[1:]),
    )
    others = [Image.new("RGB", (SIDE, SIDE), "black")] * 3
    for kind in ("GIF", "PNG", "WEBP", "TIFF"):
        options = {"lossless": True} if kind == "WEBP" else {}
        data = encode(base, kind, save_all=True, append_images=others, **options)
        yield Odd(f"frames {kind}.{kind.lower()}".encode(), data)
    for method in ("tiff_lzw", "tiff_deflate", "packbits", "tiff_adobe_deflate"):
        yield Odd(f"{method}.tif".encode(), encode(base, "TIFF", compression=method))
    yield Odd(b"interlaced.png", encode(base, "PNG", optimize=True))
    yield Odd(b"progressive.jpg", encode(base, "JPEG", quality=95, subsampling=0, progressive=True), tolerance=12)
    yield Odd(
        b"broken exif.jpg", encode(base, "JPEG", quality=95, subsampling=0, exif=b"Exif\0\0MM\0*\0\0"), tolerance=12
    )


def _refused() -> Iterator[Odd]:
    base = picture()
    yield Odd(b"empty.png", b"", None)
    yield Odd(b"text.jpg", b"hello\n" * 100, None)
    yield Odd(b"zeros.png", bytes(5000), None)
    yield Odd(b"page.jpg", b"<html><img src='x'></html>", None)
    yield Odd(b"vector.png", b"<svg xmlns='http://www.w3.org/2000/svg'/>", None)
    yield Odd(b"script.jpg", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(w) run\n", None)
    yield Odd(b"archive.png", b"PK\x03\x04" + bytes(60), None)
    yield Odd(b"100 megapixels.png", _png_header(10_000, 10_000), None)
    yield Odd(b"4 billion.png", _png_header(1 << 31, 1 << 31), None)
    yield Odd(b"no width.png", _png_header(0, 5), None)
    yield Odd(b"bomb.png", _png_header(60_000, 60_000, zlib.compress(bytes(1 << 24))), None)
    yield Odd(b"no pixels.png", _png_header(SIDE, SIDE, b""), None)
    for kind in ("TGA", "PCX", "ICO", "JPEG2000"):
        yield Odd(f"not allowed {kind}.png".encode(), encode(base, kind), None)
    chance = random.Random(0)
    for kind in KINDS:
        data = encode(base, kind)
        for number in range(6):
            changed = bytearray(data)
            for _ in range(3):
                changed[chance.randrange(len(changed))] = chance.randrange(256)
            yield Odd(f"changed {kind} {number}.png".encode(), bytes(changed), may_be_skipped=True, any_color=True)


NAMES = (
    b"not utf-8 \xff\xfe.png", "smile \U0001f600.png".encode(), b"line\nend.png", b"carriage\rreturn.png",
    b"quo\"te's.png", b"-dash.png", b"--help.png", b"\x1b[31mred.png", "composed \u00e9.png".encode(),
    "decomposed e\u0301.png".encode(), b" spaces .png", b"tab\t.png", b"percent %s {x} $HOME `id`.png",
    b"comma,semi;.png", b"back\\slash.png", b"..png.png", b"a" * 251 + b".png", "\u00e9".encode() * 125 + b"x.png",
    b"UPPER.PNG", b"star*?[a].png", b"pipe|amp&.png", b"\x7f.png", "\u202etxt.png".encode(), "\ufeffbom.png".encode(),
    b"CON.png", b"nul .png", b"\xc0\xaf.png", b"\xed\xa0\x80.png", "\uff0fwide.png".encode(), b"=1+1.png", b"@x.png",
    b"~.png", b"#.png",
)  # fmt: skip


def odd_files() -> list[Odd]:
    """Return more than two hundred files with what each has to become."""
    data = encode(picture(), "PNG")
    named = [Odd(name, data) for name in NAMES if name[:1] != b"."]
    return [*_formats(), *_modes(), *_refused(), *named]


def put_special(folder: Path) -> list[bytes]:
    """Make what is no regular file, with names of images; return those names that have to be skipped.

    Links to a picture beside the folder and to folders are made too: the first is embedded, the others not listed.
    """
    os.mkfifo(folder / "fifo.png")
    with socket.socket(socket.AF_UNIX) as server:
        place = os.open(folder, os.O_RDONLY)
        try:
            server.bind(f"/proc/self/fd/{place}/socket.png")  # the whole path may be too long for an address
        finally:
            os.close(place)
    (folder / "loop.png").symlink_to("loop.png")
    (folder / "dangling.png").symlink_to("nowhere.png")
    (folder / "device.png").symlink_to("/dev/zero")
    (folder / "cycle").symlink_to(".")
    (folder / "folder.png").mkdir()
    return [b"fifo.png", b"socket.png", b"loop.png", b"dangling.png", b"device.png"]
