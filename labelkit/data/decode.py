"""Image decoding: turns an image file into a uint8 array, or reports briefly why it cannot.

Files are untrusted: only regular files and a few decoders are allowed, and sizes are checked before memory for
pixels is allocated. Every file is decoded to its end, since a truncated file may have an intact header.
"""

import hashlib
import threading
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Final, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

# AVIF and WebP register themselves.
from PIL import AvifImagePlugin, Image, PngImagePlugin, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin  # noqa: F401

from labelkit.files import read_bytes
from labelkit.formatting import to_one_line

Channels = Literal[1, 3]
T = TypeVar("T")

Image.preinit()  # BMP, GIF, JPEG, PNG and PPM; Pillow's own lazy registration is not safe between threads
ALLOWED_FORMATS: Final = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM")
IMAGE_SUFFIXES: Final = frozenset(
    ".jpg .jpeg .jpe .jfif .png .webp .gif .bmp .tif .tiff .avif .ppm .pgm .pbm .pnm".split()
)
#: Photos from phones; Pillow reads them with a plugin from another package.
HEIF_SUFFIXES: Final = frozenset((".heic", ".heif", ".hif"))
HEIF_REMEDY: Final = "readable only with pillow-heif (pip install pillow-heif)"
_HEIF_BRANDS: Final = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
# Limit on width times height, checked before pixels are decoded.
MAX_PIXELS: Final = 250e6
# Larger images are reduced where full resolution is not needed, which limits the memory of workers.
_WHOLE_PIXELS: Final = 64e6
# Largest range of pixel values (out of 255) at which an image counts as empty.
_FLAT: Final = 16
MAX_FILE_BYTES: Final = 1 << 30
# Pixels do not depend on the text chunks of a PNG, so large chunks are no reason to reject a file.
PngImagePlugin.MAX_TEXT_CHUNK = PngImagePlugin.MAX_TEXT_MEMORY = 1 << 28

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
_BITS_PER_SAMPLE_TAG: Final = 258
_PHOTOMETRIC_TAG: Final = 262

# warnings.catch_warnings changes global state, so only one thread at a time may use it.
_open_lock = threading.Lock()


class BadImageError(Exception):
    """Raised for a file that cannot be decoded as an image; ``reason`` briefly says why."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


def image_suffixes() -> frozenset[str]:
    """Return the supported image file suffixes in lower case, including HEIC only if pillow-heif is installed."""
    return IMAGE_SUFFIXES | HEIF_SUFFIXES if find_spec("pillow_heif") is not None else IMAGE_SUFFIXES


@cache
def _heif_format() -> str:
    """Enable Pillow to open HEIC and return the format's name; ``BadImageError``: pillow-heif is not installed."""
    if find_spec("pillow_heif") is None:
        raise BadImageError(f"HEIC, {HEIF_REMEDY}")
    import_module("pillow_heif").register_heif_opener(thumbnails=False)
    return "HEIF"


def read_image_file(path: Path) -> bytes:
    """Read the content of a regular file that does not exceed the size limit.

    Raises:
        BadImageError: not a regular file (a FIFO would block forever), empty, above 1 GiB, or unreadable.
    """
    try:
        content = read_bytes(path, MAX_FILE_BYTES)
    except FileNotFoundError as error:
        raise BadImageError("the file no longer exists") from error
    except OSError as error:
        raise BadImageError(f"cannot be read: {error.strerror or error}") from error
    if not content:
        raise BadImageError("empty file")
    return content


class EncodedImage:
    """One image in its stored form: the bytes of a file, or the pixels of an array.

    Args:
        content: bytes of an image file, or (h, w, c) uint8 pixels with c = 1 or 3.
    """

    def __init__(self, content: bytes | NDArray[np.uint8]) -> None:
        self._content = content

    @property
    def sha256(self) -> bytes:
        """Return the SHA-256 digest (32 bytes) of the file, or of the pixels in C order."""
        content = self._content
        return hashlib.sha256(content if isinstance(content, bytes) else content.tobytes()).digest()

    @property
    def size(self) -> int:
        """Return the size in bytes of the file, or of the pixels if the image is an array."""
        return len(self._content) if isinstance(self._content, bytes) else self._content.nbytes

    def decode(self, channels: Channels, *, min_side: int | None = None) -> NDArray[np.uint8]:
        """Decode the image to uint8 pixels; the file suffix does not matter.

        Orientation is applied, palettes and CMYK become RGB, 16-bit values are scaled to 8 bits, transparent
        images are composited over white, and animations yield their first frame. Damaged metadata that does
        not affect the pixels is ignored.

        Args:
            channels: 1 (luma of ITU-R 601) or 3 (RGB).
            min_side: let the JPEG decoder shrink by 2, 4 or 8 while both sides stay at least this long, which is
                several times faster; ``None``: full size.

        Returns:
            (h, w, channels) uint8 in ``[0, 255]``.

        Raises:
            BadImageError: format not allowed, image too large, truncated or damaged, or float or 32-bit pixels.
        """
        return self.decode_reduced(channels, min_side, max_pixels=MAX_PIXELS)[0]

    def decode_reduced(
        self, channels: Channels, min_side: int | None = None, *, max_pixels: float = _WHOLE_PIXELS
    ) -> tuple[NDArray[np.uint8], tuple[int, int]]:
        """Decode the image like ``decode``, but shrink images above ``max_pixels`` by a power of 2.

        Returns:
            The pixels, and the height and width of the image at full size.
        """
        stored = self._content
        if isinstance(stored, bytes):
            return _read(stored, lambda image: _decode(image, channels, min_side, max_pixels))
        if channels == stored.shape[2]:
            pixels = stored.copy()
        elif channels == 3:
            pixels = np.repeat(stored, 3, axis=2)
        else:
            pixels = np.array(Image.fromarray(stored).convert("L"), dtype=np.uint8)[:, :, None]
        return pixels, pixels.shape[:2]

    def explain_lost_content(self, pixels: NDArray[np.uint8]) -> str | None:
        """Return why decoding to ``pixels`` lost almost all content; ``None`` if it did not, or for an empty image."""
        content = self._content
        if not isinstance(content, bytes) or any(np.ptp(part) > _FLAT for part in (pixels[::8, ::8], pixels)):
            return None  # tests a subset first, which is fast

        def find_reason(image: Image.Image) -> str | None:
            image.load()
            if _is_transparent(image) and np.ptp(np.asarray(image.convert("RGBA"))[..., 3]) > _FLAT:
                return "white on transparent, which becomes white on white: put them on a darker background"
            bits = content[24] if image.format == "PNG" else 16 if image.mode.startswith("I") else 8
            if isinstance(image, TiffImagePlugin.TiffImageFile):
                bits = image.tag_v2.get(_BITS_PER_SAMPLE_TAG, (8,))[0]
            if bits == 16 and np.ptp(np.asarray(image)) > 0:
                return "16-bit values that use less than a sixteenth of their range: scale them to the full range"
            return None

        return _read(content, find_reason)


def _read(content: bytes, work: Callable[[Image.Image], T]) -> T:
    """Open an image and return ``work(image)``, converting any Pillow error to :class:`BadImageError`."""
    if not content:
        raise BadImageError("empty file")
    try:
        with _open_checked(content) as image:
            return work(image)
    except (BadImageError, MemoryError):
        raise
    except UnidentifiedImageError as error:
        raise BadImageError("not an image (JPEG, PNG, WebP, GIF, BMP, TIFF, AVIF or PPM)") from error
    except Exception as error:
        # On damaged files, Pillow's decoders raise many kinds of errors: OSError, SyntaxError,
        # struct.error, IndexError, zlib.error, OverflowError and more.
        raise BadImageError(f"damaged: {to_one_line(error, 120)}") from error


def _open_checked(content: bytes) -> Image.Image:
    """Open an image of an allowed format and size; its pixels are not decoded yet."""
    with _open_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        is_heif = content[4:8] == b"ftyp" and content[8:12] in _HEIF_BRANDS
        formats = (_heif_format(),) if is_heif else ALLOWED_FORMATS
        pillows, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None  # our own limit is checked below
        try:
            image: Image.Image = Image.open(BytesIO(content), formats=formats)
        finally:
            Image.MAX_IMAGE_PIXELS = pillows
    width, height = image.size
    if width < 1 or height < 1:
        raise BadImageError("no pixels")
    if width * height > MAX_PIXELS:
        raise BadImageError(f"{width} x {height} pixels exceed the limit of {MAX_PIXELS:,.0f}")
    return image


def decode_mask(content: bytes) -> NDArray[np.uint8]:
    """Decode a mask image to its stored class or object numbers, without applying a palette.

    Args:
        content: the bytes of a file, usually PNG.

    Returns:
        (h, w) uint8.

    Raises:
        BadImageError: as ``EncodedImage.decode``; or lossy compression, color, or more than 8 bits per pixel.
    """

    def values(image: Image.Image) -> NDArray[np.uint8]:
        if image.format == "JPEG":
            raise BadImageError("JPEG changes pixel values, and thus the classes that they represent")
        if image.mode not in ("L", "P", "1"):
            raise BadImageError(f"pixels are {image.mode}, not 8-bit class numbers")
        image.load()
        return np.array(image, dtype=np.uint8)

    return _read(content, values)


def _decode(
    image: Image.Image, channels: Channels, min_side: int | None, max_pixels: float
) -> tuple[NDArray[np.uint8], tuple[int, int]]:
    if image.mode == "F":
        raise BadImageError("float pixels have no fixed range")
    is_16_bit = image.mode.startswith("I;16") or (image.mode == "I" and image.format == "PPM")
    if image.mode == "I" and not is_16_bit:
        raise BadImageError("32-bit pixels have no fixed range")
    full = image.size
    factor = 1
    while full[0] * full[1] > max_pixels * factor**2:
        factor *= 2
    if min_side is not None or factor > 1:
        width, height = (max(1, min(side // factor, min_side or side)) for side in full)
        image.draft(None, (width, height))
    if image.mode == "LAB":
        raise BadImageError("unsupported color mode LAB")
    image.load()
    # After load(): PNG may store the tag after the pixels, and Pillow itself rotates TIFF images.
    orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    pixels = _scale_16_bit(image) if is_16_bit else image
    while pixels.width * pixels.height > max_pixels:
        if pixels.mode not in ("L", "RGB", "RGBA") or pixels.info.get("transparency") is not None:
            pixels = pixels.convert("RGBA" if _is_transparent(pixels) else "RGB")
        pixels = pixels.reduce(2)
    pixels = _blend_with_white(pixels).convert("L" if channels == 1 else "RGB")
    shrunk = pixels.size != full
    if orientation in _TRANSPOSE:
        pixels = pixels.transpose(_TRANSPOSE[orientation])
    array = np.array(pixels, dtype=np.uint8)
    height, width = array.shape[:2]
    if shrunk:
        width, height = full[::-1] if orientation in (5, 6, 7, 8) else full
    return array.reshape(array.shape[0], array.shape[1], channels), (height, width)


def _scale_16_bit(image: Image.Image) -> Image.Image:
    """Scale 16-bit values by their full range; Pillow's own conversion saturates at 255."""
    full = 65535
    white_is_zero = False
    if isinstance(image, TiffImagePlugin.TiffImageFile):
        bits = image.tag_v2.get(_BITS_PER_SAMPLE_TAG, (16,))[0]
        full = (1 << int(bits)) - 1
        white_is_zero = image.tag_v2.get(_PHOTOMETRIC_TAG) == 0
    scaled = np.minimum((np.arange(65536) * 255 + full // 2) // full, 255).astype(np.uint8)
    if white_is_zero:
        scaled = 255 - scaled
    key = image.info.get("transparency")
    if isinstance(key, int):
        scaled[key] = 255
    return Image.fromarray(scaled[np.asarray(image)])


def _is_transparent(image: Image.Image) -> bool:
    return image.mode in ("RGBA", "LA", "PA", "La") or image.info.get("transparency") is not None


def _blend_with_white(image: Image.Image) -> Image.Image:
    if not _is_transparent(image):
        return image
    if image.mode == "La":
        image = image.convert("LA")
    white = Image.new("RGBA", image.size, (255, 255, 255, 255))
    return Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
