"""Made-up photos: pictures with structure at every scale, no two alike."""

import numpy as np
from PIL import Image

SIZE = (160, 120)


def photo(seed: int) -> Image.Image:
    """A colored picture of 160 x 120 pixels."""
    generator = np.random.default_rng(seed)
    values = np.zeros((SIZE[1], SIZE[0], 3))
    for cells in (3, 6, 12, 24, 48):
        for channel in range(3):
            noise = Image.fromarray(generator.normal(size=(cells, cells)).astype(np.float32))
            values[:, :, channel] += np.asarray(noise.resize(SIZE, Image.Resampling.BICUBIC)) * (3 / cells) ** 0.5
    return Image.fromarray(np.clip(128 + 35 * values, 0, 255).astype(np.uint8))
