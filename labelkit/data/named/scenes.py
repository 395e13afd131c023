"""Generated scenes with masks: textured shapes, digits and short videos, each drawn from only four numbers.

The shape determines the class; every object has random colors, so that raw pixels reveal little about it.

Source: the demonstration data of our CoTAP specification, section 2.5. Every quantity is one draw of
``Generator(PCG64(SeedSequence([seed, split, source, index])))``, in the order of that section, so that an image
depends only on these four numbers and can be reproduced anywhere.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

SIDE: Final = 64
NUM_FRAMES: Final = 8
SPLITS: Final = ("train", "val", "probe")
OBJECTS: Final = 0
SCENES: Final = 1
VIDEOS: Final = 2
DIGITS: Final = 3
SHAPES: Final = ("striped disc", "checked square", "dotted triangle", "shaded ring", "rippled cross", "speckled star")

_FINE: Final = 2 * SIDE
_ATTEMPTS: Final = 20
_DIGIT_SIDE: Final = 24
_NOISE: Final = 0.02
_STROKES: Final = (6, 13)
# Limits of a stroke: x, y, length, angle, half width, three color offsets.
_STROKE_LOW: Final = np.array([0, 0, 10, 0, 0.5, -0.25, -0.25, -0.25])
_STROKE_HIGH: Final = np.array([SIDE, SIDE, 40, np.pi, 1, 0.25, 0.25, 0.25])

Floats = NDArray[np.float64]


class Scene(NamedTuple):
    """Generated image with its class mask and instance mask.

    Attributes:
        image: (64, 64, 3) uint8.
        mask: (64, 64) uint8, class + 1, 0 = background.
        instance: (64, 64) uint8, number of the object in the order of placement, 0 = background.
    """

    image: NDArray[np.uint8]
    mask: NDArray[np.uint8]
    instance: NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Shape:
    """One object, with lengths in pixels and angles in radians."""

    label: int
    radius: float
    x: float
    y: float
    angle: float
    light: Floats  # (3,) color P
    dark: Floats  # (3,) color Q
    period: float  # in units of the radius
    phase: Floats  # (2,)
    bits: NDArray[np.bool_]  # (7, 7)


def build_scene_generator(seed: int, split: int, source: int, index: int) -> np.random.Generator:
    """Build the random number generator for one generated image."""
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, split, source, index])))


def draw_scene(seed: int, split: int, source: int, index: int) -> Scene:
    """Draw one image of textured shapes or digits, with its masks.

    Args:
        seed: seed of the dataset, >= 0.
        split: position in ``SPLITS``.
        source: ``OBJECTS`` (one large object), ``SCENES`` (one to four) or ``DIGITS`` (one to three digits).
        index: number of the image, >= 0.
    """
    generator = build_scene_generator(seed, split, source, index)
    canvas = _draw_background(generator)
    if source == DIGITS:
        return _with_digits(_downsample(canvas), generator, split)
    shapes = _draw_shapes(generator, source)
    mask, instance = _paint(canvas, shapes)
    return Scene(_add_noise(_downsample(canvas), generator), mask, instance)


def find_scene_label(seed: int, split: int, index: int) -> int:
    """Find the class in [0, 6) of an image from the source ``OBJECTS`` without drawing the image."""
    generator = build_scene_generator(seed, split, OBJECTS, index)
    # skip the draws of the background, one number per quantity: two colors and a grid, then strokes
    generator.random(6 + 16)
    generator.random(len(_STROKE_LOW) * int(generator.integers(*_STROKES)))
    return int(generator.integers(len(SHAPES)))


def draw_video(seed: int, split: int, index: int) -> list[Scene]:
    """Draw a video of objects that move and rotate in front of a static background.

    Returns:
        ``NUM_FRAMES`` frames; an object has the same ``instance`` in all of them.
    """
    generator = build_scene_generator(seed, split, VIDEOS, index)
    background = _draw_background(generator)
    shapes = _draw_shapes(generator, SCENES)
    motions = [(generator.uniform(-2, 2, 2), generator.uniform(-0.15, 0.15)) for _ in shapes]
    speeds = [speed for speed, _ in motions]
    frames = []
    for number in range(NUM_FRAMES):
        if number:
            for i, shape in enumerate(shapes):
                shapes[i], speeds[i] = _move(shape, speeds[i], motions[i][1])
        canvas = background.copy()
        mask, instance = _paint(canvas, shapes)
        frames.append(Scene(_add_noise(_downsample(canvas), generator), mask, instance))
    return frames


def _move(shape: _Shape, speed: Floats, spin: float) -> tuple[_Shape, Floats]:
    """Return the object and its speed one frame later; it bounces off the border like a ball."""
    low, high = 0.5 * shape.radius, SIDE - 0.5 * shape.radius
    place = np.array([shape.x, shape.y]) + speed
    bounced = np.where(place < low, 2 * low - place, np.where(place > high, 2 * high - place, place))
    moved = replace(shape, x=float(bounced[0]), y=float(bounced[1]), angle=shape.angle + spin)
    return moved, np.where(bounced == place, speed, -speed)


def hsv_to_rgb(hue: float, saturation: float, value: float) -> Floats:
    """Convert hue (modulo 1), saturation and value to an RGB color (3,) in [0, 1]."""
    sector = (hue % 1.0) * 6 + np.array([5.0, 3.0, 1.0])
    k = np.mod(sector, 6)
    return np.asarray(value * (1 - saturation * np.clip(np.minimum(k, 4 - k), 0, 1)))


def _draw_background(generator: np.random.Generator) -> Floats:
    """Draw steps 1 and 2: two colors mixed by a smooth map, and strokes; (128, 128, 3) in [0, 1]."""
    bounds = ((0, 1), (0, 0.5), (0.25, 0.75)) * 2
    numbers = [generator.uniform(low, high) for low, high in bounds]
    colors = np.stack([hsv_to_rgb(*numbers[:3]), hsv_to_rgb(*numbers[3:])])
    grid = generator.uniform(0, 1, (4, 4))
    weights = _build_corner_aligned_weights()
    mix = (weights @ grid @ weights.T)[..., None]
    canvas: Floats = colors[0] * (1 - mix) + colors[1] * mix
    strokes = generator.uniform(_STROKE_LOW, _STROKE_HIGH, (int(generator.integers(*_STROKES)), len(_STROKE_LOW)))
    for x, y, length, angle, half_width, *offset in strokes:
        rows, columns, dx, dy = _window(x, y, np.hypot(length / 2, half_width))
        along = dx * np.cos(angle) + dy * np.sin(angle)
        across = dy * np.cos(angle) - dx * np.sin(angle)
        canvas[rows, columns][(np.abs(along) <= length / 2) & (np.abs(across) <= half_width)] += offset
    np.clip(canvas, 0, 1, out=canvas)
    return canvas


@cache
def _build_corner_aligned_weights() -> Floats:
    """Return the weights (128, 4) that interpolate four values linearly over 128 places, with the ends aligned."""
    place = np.linspace(0, 3, _FINE)[:, None]
    return np.asarray(np.maximum(0, 1 - np.abs(place - np.arange(4))))


def _window(x: float, y: float, reach: float) -> tuple[slice, slice, Floats, Floats]:
    """Return the rows and columns of the fine grid within reach of a point, and their distances x, y in pixels."""
    slices, distances = [], []
    for center in (y, x):
        # sub-pixel i lies at (i + 0.5) / 2
        first = max(0, int(np.floor(2 * (center - reach) - 0.5)))
        last = min(_FINE, int(np.ceil(2 * (center + reach) - 0.5)) + 1)
        slices.append(slice(first, max(first, last)))
        distances.append((np.arange(first, max(first, last)) + 0.5) / 2 - center)
    return slices[0], slices[1], distances[1][None, :], distances[0][:, None]


def _draw_shapes(generator: np.random.Generator, source: int) -> list[_Shape]:
    count = 1 if source == OBJECTS else int(generator.integers(1, 5))
    shapes: list[_Shape] = []
    for _ in range(count):
        label = int(generator.integers(len(SHAPES)))
        radius = SIDE * float(generator.uniform(*((0.30, 0.42) if source == OBJECTS else (0.17, 0.28))))
        span = (0.4 * SIDE, 0.6 * SIDE) if source == OBJECTS else (0.7 * radius, SIDE - 0.7 * radius)
        center = _draw_center(generator, radius, span, [(shape.x, shape.y, shape.radius) for shape in shapes])
        if center is None:
            continue
        angle = generator.uniform(0, 2 * np.pi)
        hue = generator.uniform(0, 1)
        light = hsv_to_rgb(hue, generator.uniform(0.4, 1), generator.uniform(0.6, 1))
        dark = hsv_to_rgb(hue + generator.uniform(0.25, 0.75), generator.uniform(0.3, 1), generator.uniform(0.05, 0.45))
        period = generator.uniform(3.5, 5) / radius
        phase = generator.uniform(0, 2 * np.pi, 2)
        bits = generator.uniform(0, 1, (7, 7)) < 0.5
        shapes.append(_Shape(label, radius, *center, angle, light, dark, period, phase, bits))
    return shapes


def _draw_center(
    generator: np.random.Generator, radius: float, span: tuple[float, float], placed: list[tuple[float, float, float]]
) -> tuple[float, float] | None:
    """Return the first center drawn that is far enough from all placed ones; ``None`` after 20 failures."""
    for _ in range(_ATTEMPTS):
        x, y = generator.uniform(*span), generator.uniform(*span)
        if all(np.hypot(x - other_x, y - other_y) >= 0.7 * (radius + other) for other_x, other_y, other in placed):
            return float(x), float(y)
    return None


def _paint(canvas: Floats, shapes: list[_Shape]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Paint objects over a canvas in place, and return their masks: classes + 1, and object numbers."""
    mask = np.zeros((_FINE, _FINE), dtype=np.uint8)
    instance = np.zeros_like(mask)
    for number, shape in enumerate(shapes, start=1):
        # the corners of the cross are the farthest points of all shapes
        rows, columns, dx, dy = _window(shape.x, shape.y, 1.2 * shape.radius)
        u = (dx * np.cos(shape.angle) + dy * np.sin(shape.angle)) / shape.radius
        v = (dy * np.cos(shape.angle) - dx * np.sin(shape.angle)) / shape.radius
        inside = _INSIDE[shape.label](u, v)
        texture = np.asarray(_TEXTURE[shape.label](u[inside], v[inside], shape), dtype=np.float64)[:, None]
        canvas[rows, columns][inside] = shape.light * (1 - texture) + shape.dark * texture
        mask[rows, columns][inside] = shape.label + 1
        instance[rows, columns][inside] = number
    return np.ascontiguousarray(mask[::2, ::2]), np.ascontiguousarray(instance[::2, ::2])


def _is_triangle(u: Floats, v: Floats) -> NDArray[np.bool_]:
    normals = np.array([1, 3, 5]) * np.pi / 3
    return np.asarray(np.max([u * np.cos(a) + v * np.sin(a) for a in normals], axis=0) <= 0.5)


def _is_cross(u: Floats, v: Floats) -> NDArray[np.bool_]:
    return (np.minimum(np.abs(u), np.abs(v)) <= 0.35) & (np.maximum(np.abs(u), np.abs(v)) <= 0.95)


_INSIDE: Final[tuple[Callable[[Floats, Floats], NDArray[np.bool_]], ...]] = (
    lambda u, v: np.hypot(u, v) <= 1,
    lambda u, v: np.maximum(np.abs(u), np.abs(v)) <= 0.8,
    _is_triangle,
    lambda u, v: (np.hypot(u, v) >= 0.45) & (np.hypot(u, v) <= 1),
    _is_cross,
    lambda u, v: np.hypot(u, v) <= 0.72 + 0.28 * np.cos(5 * np.arctan2(v, u)),
)


def _is_dotted(u: Floats, v: Floats, shape: _Shape) -> NDArray[np.bool_]:
    axes = zip((u, v), shape.phase, strict=True)
    across, down = (np.mod(axis / shape.period + phase, 1) - 0.5 for axis, phase in axes)
    return np.asarray(np.hypot(across, down) <= 0.28)


def _is_speckled(u: Floats, v: Floats, shape: _Shape) -> NDArray[np.bool_]:
    across, down = (np.clip(np.floor(7 * (axis + 1) / 2).astype(np.int64), 0, 6) for axis in (u, v))
    return shape.bits[across, down]


def _wave(value: Floats, phase: float, shape: _Shape) -> Floats:
    return np.asarray(np.sin(2 * np.pi / shape.period * value + phase))


# Functions from the (m,) points inside a shape to the weight of the dark color at each, (m,) in [0, 1].
_TEXTURE: Final[tuple[Callable[[Floats, Floats, _Shape], NDArray[np.bool_] | Floats], ...]] = (
    lambda u, v, shape: _wave(u, shape.phase[0], shape) > 0,
    lambda u, v, shape: _wave(u / 2, shape.phase[0], shape) * _wave(v / 2, shape.phase[1], shape) > 0,
    _is_dotted,
    lambda u, v, shape: 0.5 + 0.5 * np.sin(shape.phase[0] + np.arctan2(v, u)),
    lambda u, v, shape: _wave(np.hypot(u, v), shape.phase[0], shape) > 0,
    _is_speckled,
)


def _downsample(canvas: Floats) -> Floats:
    return np.asarray(canvas.reshape(SIDE, 2, SIDE, 2, 3).mean(axis=(1, 3)))


def _add_noise(image: Floats, generator: np.random.Generator) -> NDArray[np.uint8]:
    noisy = image + generator.normal(0, _NOISE, image.shape)
    return np.rint(np.clip(noisy, 0, 1) * 255).astype(np.uint8)


@cache
def _digits(split: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Return silhouettes (m, 24, 24) and values of the digits used in a split."""
    from sklearn.datasets import load_digits

    bundle = load_digits()
    held_out = np.arange(len(bundle.target)) % 5 == 0
    rows = held_out if SPLITS[split] == "val" else ~held_out
    # bilinear with clamped edges: pixel i of 24 lies at (i + 0.5) / 3 - 0.5 of 8
    place = np.clip((np.arange(_DIGIT_SIDE) + 0.5) / 3 - 0.5, 0, 7)[:, None]
    weights = np.maximum(0, 1 - np.abs(place - np.arange(8)))
    silhouettes = np.einsum("ij,njk,lk->nil", weights, bundle.images[rows] / 16, weights) > 0.35
    return silhouettes, np.asarray(bundle.target[rows], dtype=np.int64)


def _with_digits(image: Floats, generator: np.random.Generator, split: int) -> Scene:
    silhouettes, values = _digits(split)
    mask = np.zeros((SIDE, SIDE), dtype=np.uint8)
    instance = np.zeros_like(mask)
    radius = _DIGIT_SIDE / 2
    placed: list[tuple[float, float, float]] = []
    for _ in range(int(generator.integers(1, 4))):
        row = int(generator.integers(len(values)))
        center = _draw_center(generator, radius, (0.7 * radius, SIDE - 0.7 * radius), placed)
        if center is None:
            continue
        placed.append((*center, radius))
        color = hsv_to_rgb(generator.uniform(0, 1), generator.uniform(0.4, 1), generator.uniform(0.6, 1))
        left, top = (round(value) - _DIGIT_SIDE // 2 for value in center)
        y, x = np.nonzero(silhouettes[row])
        y, x = y + top, x + left
        seen = (y >= 0) & (y < SIDE) & (x >= 0) & (x < SIDE)
        place = (y[seen], x[seen])
        image[place] = color
        mask[place] = values[row] + 1
        instance[place] = len(placed)
    return Scene(_add_noise(image, generator), mask, instance)
