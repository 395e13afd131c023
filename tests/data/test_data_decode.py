"""Decoding: what pixels come out of odd files, and why others are refused."""

import io
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from labelkit.data.decode import BadImageError, EncodedImage, read_image_file
from PIL import Image, ImageCms, PngImagePlugin


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def png_chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png_header(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + png_chunk(b"IDAT", b"\0") + png_chunk(b"IEND", b"")


@pytest.fixture
def photo() -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    return Image.fromarray(values)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF"])
def test_lossless_files_give_the_pixels_they_were_made_of(photo: Image.Image, kind: str) -> None:
    assert np.array_equal(EncodedImage(encode(photo, kind)).decode(3), np.asarray(photo))


def test_jpeg_may_be_decoded_smaller_while_both_sides_stay_long_enough(photo: Image.Image) -> None:
    large = photo.resize((400, 300), Image.Resampling.BICUBIC)
    assert EncodedImage(encode(large, "JPEG")).decode(3, min_side=64).shape == (75, 100, 3)
    assert EncodedImage(encode(large, "JPEG")).decode(1, min_side=151).shape == (300, 400, 1)
    assert EncodedImage(encode(large, "PNG")).decode(3, min_side=64).shape == (300, 400, 3)
    whole = np.asarray(large.resize((100, 75), Image.Resampling.BOX), dtype=int)
    assert np.abs(EncodedImage(encode(large, "JPEG", quality=95)).decode(3, min_side=64) - whole).mean() < 4


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_smaller_decoding_tells_the_full_size_as_it_is_shown(photo: Image.Image, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encode(photo.resize((401, 300), Image.Resampling.BICUBIC), "JPEG", exif=exif)
    for kept in (None, 64, 200):
        pixels, full = EncodedImage(content).decode_reduced(3, min_side=kept)
        assert full == EncodedImage(content).decode(3).shape[:2]
        assert [round(a / b) for a, b in zip(full, pixels.shape[:2], strict=True)] == [4 if kept == 64 else 1] * 2
    assert EncodedImage(encode(photo, "PNG")).decode_reduced(3, min_side=1)[1] == (photo.height, photo.width)


def test_a_lab_image_is_not_called_damaged(photo: Image.Image) -> None:
    lab = ImageCms.profileToProfile(
        photo.convert("RGB"), ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB"
    )
    assert lab is not None
    for channels in (1, 3):
        with pytest.raises(BadImageError, match="unsupported color mode LAB"):
            EncodedImage(encode(lab, "TIFF")).decode(channels)


def test_content_decides_and_not_the_suffix(photo: Image.Image, tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(encode(photo, "PNG"))
    assert np.array_equal(EncodedImage(read_image_file(path)).decode(3), np.asarray(photo))


def test_one_channel_is_the_luma_of_itu_r_601() -> None:
    pixels = EncodedImage(encode(Image.new("RGB", (2, 2), (200, 100, 50)), "PNG")).decode(1)
    assert pixels.shape == (2, 2, 1)
    assert np.all(pixels == round(0.299 * 200 + 0.587 * 100 + 0.114 * 50))


def test_16_bit_gray_is_scaled_and_not_cut() -> None:
    values = np.array([[0, 257, 32767, 65535]], dtype=np.uint16)
    assert EncodedImage(encode(Image.fromarray(values), "PNG")).decode(1)[0, :, 0].tolist() == [0, 1, 127, 255]


def test_16_bit_gray_tiff_whose_zero_is_white_is_inverted() -> None:
    values = np.array([[0, 65535]], dtype=np.uint16)
    content = encode(Image.fromarray(values), "TIFF", tiffinfo={262: 0})
    assert EncodedImage(content).decode(1)[0, :, 0].tolist() == [255, 0]


def test_palette_becomes_its_colors_and_a_transparent_entry_white() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    assert EncodedImage(encode(image, "PNG")).decode(3).tolist() == [[[10, 20, 30], [40, 50, 60]]]
    assert EncodedImage(encode(image, "GIF", transparency=0)).decode(3).tolist() == [[[255, 255, 255], [40, 50, 60]]]


@pytest.mark.parametrize(("alpha", "expected"), [(0, 255), (255, 100), (51, 224)])
def test_alpha_is_laid_over_white(alpha: int, expected: int) -> None:
    content = encode(Image.new("LA", (1, 1), (100, alpha)), "PNG")
    assert EncodedImage(content).decode(1).item() == expected
    assert EncodedImage(content).decode(3).tolist() == [[[expected] * 3]]


def test_cmyk_jpeg_becomes_rgb() -> None:
    content = encode(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=95)
    assert np.abs(EncodedImage(content).decode(3).astype(int) - [255, 0, 0]).max() <= 4


@pytest.mark.parametrize(
    ("orientation", "expected"),
    [
        (1, [[0, 1, 2], [3, 4, 5]]),
        (2, [[2, 1, 0], [5, 4, 3]]),
        (3, [[5, 4, 3], [2, 1, 0]]),
        (4, [[3, 4, 5], [0, 1, 2]]),
        (5, [[0, 3], [1, 4], [2, 5]]),
        (6, [[3, 0], [4, 1], [5, 2]]),
        (7, [[5, 2], [4, 1], [3, 0]]),
        (8, [[2, 5], [1, 4], [0, 3]]),
    ],
)
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_orientation_is_applied_once(orientation: int, expected: list[list[int]], kind: str) -> None:
    image = Image.fromarray(np.arange(6, dtype=np.uint8).reshape(2, 3))
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encode(image, kind, exif=exif)
    assert EncodedImage(content).decode(1)[..., 0].tolist() == expected


def test_an_animation_gives_its_first_frame() -> None:
    frames = [Image.new("RGB", (4, 4), color) for color in ((255, 0, 0), (0, 255, 0))]
    pixels = EncodedImage(encode(frames[0], "GIF", save_all=True, append_images=frames[1:])).decode(3)
    assert np.all(pixels == [255, 0, 0])


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF"])
@pytest.mark.parametrize("share", [0.3, 0.9])
def test_truncated_files_are_refused(photo: Image.Image, kind: str, share: float) -> None:
    content = encode(photo, kind)
    with pytest.raises(BadImageError):
        EncodedImage(content[: int(share * len(content))]).decode(3)


def test_text_called_jpg_is_not_an_image(tmp_path: Path) -> None:
    path = tmp_path / "notes.jpg"
    path.write_text("these are notes\n" * 20)
    with pytest.raises(BadImageError, match="not an image"):
        EncodedImage(read_image_file(path)).decode(3)


@pytest.mark.parametrize("side", [16_000, 100_000])
def test_a_bomb_is_refused_by_its_header(side: int) -> None:
    with pytest.raises(BadImageError, match="exceed the limit of 250,000,000"):
        EncodedImage(png_header(side, side)).decode(1)


@pytest.mark.parametrize(("kind", "orientation"), [("JPEG", 1), ("PNG", 6)])
def test_an_image_above_64_megapixels_is_shrunk_by_2_and_tells_its_full_size(kind: str, orientation: int) -> None:
    tags = Image.Exif()
    tags[0x0112] = orientation
    content = encode(Image.new("L", (10_001, 6_500), 120), kind, exif=tags)

    pixels, full = EncodedImage(content).decode_reduced(1, min_side=None)

    assert (pixels.shape[:2], full) == (
        ((3250, 5001), (6500, 10_001)) if orientation == 1 else ((5001, 3250), (10_001, 6500))
    )
    assert abs(int(pixels.mean()) - 120) <= 1


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_texts_of_a_png_that_are_too_large_for_pillow_do_not_matter(
    photo: Image.Image, before: bool, packed: bool
) -> None:
    long = "x" * (3 << 20)
    texts = PngImagePlugin.PngInfo()
    for _ in range(1 if packed else 23):  # 69 MB in all
        texts.add_text("workflow", long, zip=packed)
    content = encode(photo, "PNG", pnginfo=texts)
    if not before:
        whole = encode(photo, "PNG")
        start = 8 + 25
        end = start + len(content) - len(whole)
        assert content[start + 4 : start + 8] in (b"zTXt", b"tEXt")
        content = whole[:-12] + content[start:end] + whole[-12:]

    assert np.array_equal(EncodedImage(content).decode(3), np.asarray(photo))


def drawn_on_transparent(gray: int) -> Image.Image:
    values = np.full((32, 32, 4), gray, dtype=np.uint8)
    values[..., 3] = 0
    values[8:16, :, 3] = 255
    return Image.fromarray(values)


TWELVE_BITS = Image.fromarray(np.linspace(0, 4095, 1024).astype(np.uint16).reshape(32, 32))


@pytest.mark.parametrize(
    ("image", "kind", "reason"),
    [
        (drawn_on_transparent(255), "PNG", "white on transparent"),
        (drawn_on_transparent(255), "WEBP", "white on transparent"),
        (drawn_on_transparent(255).convert("LA"), "PNG", "white on transparent"),
        (TWELVE_BITS, "PNG", "16-bit values"),
        (TWELVE_BITS, "TIFF", "16-bit values"),
    ],
)
def test_an_image_that_loses_its_content_says_how(image: Image.Image, kind: str, reason: str) -> None:
    content = encode(image, kind, **({"lossless": True} if kind == "WEBP" else {}))
    assert reason in (EncodedImage(content).explain_lost_content(EncodedImage(content).decode(3)) or "")


def test_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    path = tmp_path / "pipe.png"
    os.mkfifo(path)
    with pytest.raises(BadImageError, match="not a regular file"):
        read_image_file(path)


def test_a_heic_photo_is_turned_as_its_orientation_says(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    top_left = np.full((32, 64, 3), 255, dtype=np.uint8)
    top_left[:16, :32] = 0
    exif = Image.Exif()
    exif[0x0112] = 6  # the stored left side is shown on top, the stored top at the right
    file = tmp_path / "IMG_0001.HEIC"
    pillow_heif.from_pillow(Image.fromarray(top_left)).save(file, exif=exif.tobytes(), quality=95)

    shown = EncodedImage(read_image_file(file)).decode(1)[..., 0]

    assert shown.shape == (64, 32)
    assert shown[:28, 20:].max() < 20
    assert shown[36:].min() > 235
