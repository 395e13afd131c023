"""Turn one image file into a uint8 array, or say in a few words why it cannot be.

Files are untrusted: only regular files, only a few decoders, sizes checked before pixels are
made. Every file is decoded to its end, since headers of truncated files look healthy.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

# The plugins register themselves; Pillow's own lazy registration is not safe between threads.
from PIL import (
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from labelkit.reading import NotRegularError, open_regular

Channels = Literal[1, 3]

_PLUGINS: Final = (
    JpegImagePlugin.JpegImageFile,
    PngImagePlugin.PngImageFile,
    WebPImagePlugin.WebPImageFile,
    GifImagePlugin.GifImageFile,
    BmpImagePlugin.BmpImageFile,
    TiffImagePlugin.TiffImageFile,
    AvifImagePlugin.AvifImageFile,
)
ALLOWED_FORMATS: Final = tuple(plugin.format for plugin in _PLUGINS)
IMAGE_SUFFIXES: Final = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".avif")
)
#: photos of phones; Pillow reads them by the plugin of another package
HEIF_SUFFIXES: Final = frozenset((".heic", ".heif", ".hif"))
HEIF_REMEDY: Final = "which pillow-heif reads (pip install pillow-heif)"
_HEIF_BRANDS: Final = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
MAX_PIXELS: Final = 64e6
MAX_FILE_BYTES: Final = 1 << 30

_ORIENTATION_TAG: Final = 0x0112
_TRANSPOSE: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_TURNS: Final = frozenset(
    (
        Image.Transpose.TRANSPOSE,
        Image.Transpose.ROTATE_270,
        Image.Transpose.TRANSVERSE,
        Image.Transpose.ROTATE_90,
    )
)
_BITS_PER_SAMPLE_TAG: Final = 258
_PHOTOMETRIC_TAG: Final = 262

# warnings.catch_warnings swaps global state, so only one thread may be inside at a time.
_open_lock = threading.Lock()


class BadImage(Exception):  # noqa: N818 - a finding about one file, not an error of the run
    """This file gives no image; ``reason`` says why in a few words."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def image_suffixes() -> frozenset[str]:
    """Suffixes, in lower case, of the files that can be decoded here; those of HEIC with pillow-heif alone."""
    return IMAGE_SUFFIXES | HEIF_SUFFIXES if find_spec("pillow_heif") is not None else IMAGE_SUFFIXES


@cache
def _heif_format() -> str:
    """Let Pillow open HEIC; return its name of the format.

    Raises:
        BadImage: pillow-heif is not installed.
    """
    if find_spec("pillow_heif") is None:
        raise BadImage(f"HEIC, {HEIF_REMEDY}")
    import_module("pillow_heif").register_heif_opener(thumbnails=False)
    return "HEIF"


def read_image_file(path: Path) -> bytes:
    """Read a regular file whole.

    Raises:
        BadImage: no regular file (a FIFO would block for ever), empty, above 1 GiB, unreadable.
    """
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_FILE_BYTES:
                raise BadImage(f"file of {size:,} bytes is above the limit of {MAX_FILE_BYTES:,}")
            content = file.read(MAX_FILE_BYTES + 1)
    except (IsADirectoryError, NotRegularError) as error:
        raise BadImage("not a regular file") from error
    except FileNotFoundError as error:
        raise BadImage("the file is gone") from error
    except PermissionError as error:
        raise BadImage("no permission to read the file") from error
    except OSError as error:
        raise BadImage(f"cannot be read: {error.strerror or error}") from error
    if not content:
        raise BadImage("empty file")
    return content


def decode_image(
    source: Path | bytes, channels: Channels, *, max_pixels: float = MAX_PIXELS, least_side: int | None = None
) -> NDArray[np.uint8]:
    """Decode an image whole, whatever its suffix says.

    Orientation is applied, palettes and CMYK become RGB, 16-bit values are scaled to 8 bits, alpha
    is laid over white, animations give their first frame. Damaged metadata that does not touch the
    pixels is ignored.

    Args:
        source: a path, or the bytes of a file.
        channels: 1 (luma of ITU-R 601) or 3 (RGB).
        max_pixels: width times height allowed, checked before pixels are decoded.
        least_side: let the JPEG decoder shrink by 2, 4 or 8 while both sides stay at least this long, which is
            several times as fast; ``None``: full size.

    Returns:
        (h, w, channels) uint8 in ``[0, 255]``.

    Raises:
        BadImage: not a regular file, not an allowed format, too large, truncated or damaged, float
            or 32-bit pixels.
    """
    return decode_reduced(source, channels, max_pixels=max_pixels, least_side=least_side)[0]


def decode_reduced(
    source: Path | bytes, channels: Channels, *, max_pixels: float = MAX_PIXELS, least_side: int | None
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    """Decode as ``decode_image``; return the pixels, and height and width that the image has in full."""
    content = read_image_file(source) if isinstance(source, Path) else source
    if not content:
        raise BadImage("empty file")
    with _told_bad(max_pixels):
        return _decode(content, channels, max_pixels, least_side)


def image_size(content: bytes, *, max_pixels: float = MAX_PIXELS) -> tuple[int, int]:
    """Return height and width of an image as ``decode_image`` gives it, from its header alone.

    Raises:
        BadImage: not an allowed format, too large, or a damaged header.
    """
    with _told_bad(max_pixels), _open_checked(content, max_pixels) as image:
        # Pillow turns the size of a TIFF when it opens it, of others never
        turned = not isinstance(image, TiffImagePlugin.TiffImageFile)
        turned = turned and _TRANSPOSE.get(image.getexif().get(_ORIENTATION_TAG, 1)) in _TURNS
        width, height = image.size[::-1] if turned else image.size
    return height, width


@contextmanager
def _told_bad(max_pixels: float) -> Iterator[None]:
    """Say of whatever Pillow trips over that the image is bad."""
    try:
        yield
    except (BadImage, MemoryError):
        raise
    except Exception as error:
        raise _bad_image(error, max_pixels) from error


def _bad_image(error: Exception, max_pixels: float) -> BadImage:
    """Say what Pillow tripped over."""
    if isinstance(error, UnidentifiedImageError):
        return BadImage("not an image (JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF)")
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return BadImage(f"more than {max_pixels:,.0f} pixels")
    # Pillow's decoders raise whatever a damaged file makes them trip over: OSError,
    # SyntaxError, struct.error, IndexError, zlib.error, OverflowError and more.
    text = " ".join(str(error).split())[:120]
    return BadImage(f"damaged: {text or type(error).__name__}")


def _open_checked(content: bytes, max_pixels: float) -> Image.Image:
    """Open an image of an allowed format and size; its pixels are not decoded yet."""
    with _open_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        is_heif = content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS
        formats = (_heif_format(),) if is_heif else ALLOWED_FORMATS
        image: Image.Image = Image.open(BytesIO(content), formats=formats)
    width, height = image.size
    if width < 1 or height < 1:
        raise BadImage("no pixels")
    if width * height > max_pixels:
        raise BadImage(f"{width} x {height} is more than {max_pixels:,.0f} pixels")
    return image


def decode_mask(content: bytes, *, max_pixels: float = MAX_PIXELS) -> NDArray[np.uint8]:
    """Decode an image whose values are numbers of classes or objects, as they are stored: palettes stay numbers.

    Args:
        content: the bytes of a file, PNG as a rule.
        max_pixels: as for ``decode_image``.

    Returns:
        (h, w) uint8.

    Raises:
        BadImage: as for ``decode_image``; or it is compressed with loss, has colors, or more than 8 bits per pixel.
    """
    with _told_bad(max_pixels), _open_checked(content, max_pixels) as image:
        if image.format == "JPEG":
            raise BadImage("JPEG changes values, which makes classes of other classes")
        if image.mode not in ("L", "P", "1"):
            raise BadImage(f"pixels are {image.mode}, not numbers of classes in 8 bits")
        image.load()
        return np.array(image, dtype=np.uint8)


def _decode(
    content: bytes, channels: Channels, max_pixels: float, least_side: int | None
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    with _open_checked(content, max_pixels) as image:
        if image.mode == "F":
            raise BadImage("float pixels have no fixed range")
        if image.mode == "I":
            raise BadImage("32-bit pixels have no fixed range")
        full = image.size
        if least_side is not None:
            image.draft(None, (least_side, least_side))
        shrunk = image.size != full
        image.load()
        # After load(): PNG may store the tag behind the pixels, and TIFF is turned by Pillow itself.
        orientation = _TRANSPOSE.get(image.getexif().get(_ORIENTATION_TAG, 1))
        pixels = _scale_16_bit(image) if image.mode.startswith("I;16") else image
        pixels = _over_white(pixels)
        if orientation is not None:
            pixels = pixels.transpose(orientation)
        array = np.array(pixels.convert("L" if channels == 1 else "RGB"), dtype=np.uint8)
    height, width = array.shape[:2]
    if shrunk:
        width, height = full[::-1] if orientation in _TURNS else full
    return array.reshape(array.shape[0], array.shape[1], channels), (height, width)


def _scale_16_bit(image: Image.Image) -> Image.Image:
    """Scale by the full range; Pillow's own conversion saturates at 255."""
    values = np.asarray(image).astype(np.uint32)
    full = 65535
    white_is_zero = False
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = image.tag_v2.get(_BITS_PER_SAMPLE_TAG, (16,))[0]
        full = (1 << int(bits)) - 1
        white_is_zero = image.tag_v2.get(_PHOTOMETRIC_TAG) == 0
    scaled = np.minimum((values * 255 + full // 2) // full, 255)
    if white_is_zero:
        scaled = 255 - scaled
    key = image.info.get("transparency")
    if isinstance(key, int):
        scaled[values == key] = 255
    return Image.fromarray(scaled.astype(np.uint8))


def _over_white(image: Image.Image) -> Image.Image:
    has_alpha = image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or image.info.get("transparency") is not None
    if not has_alpha:
        return image
    if image.mode in ("La", "RGBa"):
        image = image.convert("LA" if image.mode == "La" else "RGBA")
    image = image.convert("RGBA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image).convert("RGB")
