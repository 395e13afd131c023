"""ZCA whitening of whole images, as a fixed first step of a network, so that its checkpoints carry it.

Source: ``CuriousAI/mean-teacher:tensorflow/datasets/preprocess_cifar10.py``: contrast of each image normalized to
length 55, then ZCA with 0.1 added to the variances. There whitened images are shifted and mirrored; here images are
shifted and mirrored first, so that the network can be given any image.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast

CONTRAST = 55.0
FILTER_BIAS = 0.1
MAX_VALUES = 4096
_FLAT, _BLOCK = 1e-8, 4096


def normalize_contrast(rows: Tensor) -> Tensor:
    """Center each row and scale it to length 55; a row of equal values becomes 0.

    Args:
        rows: (n, p) float.
    """
    centered = rows - rows.mean(1, keepdim=True)
    lengths = centered.norm(dim=1, keepdim=True) / CONTRAST
    return centered / torch.where(lengths < _FLAT, 1.0, lengths)


def zca(rows: Tensor) -> tuple[Tensor, Tensor]:
    r"""Compute the mean m and the ZCA matrix :math:`W = (C + b I)^{-1/2}` of rows; C the covariance (n - 1), b = 0.1.

    Args:
        rows: (n, p) float, n >= 2.

    Returns:
        (p,) and (p, p) float64.
    """
    center = sum((block.double().sum(0) for block in _blocks(rows)), torch.zeros(())) / len(rows)
    scatter = torch.zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
    for block in _blocks(rows):
        centered = block.double() - center
        scatter += centered.T @ centered
    ridge = FILTER_BIAS * torch.eye(len(scatter), dtype=torch.float64)
    values, vectors = torch.linalg.eigh(scatter / (len(rows) - 1) + ridge)
    return center, (vectors / values.sqrt()) @ vectors.T


def _blocks(rows: Tensor) -> list[Tensor]:
    return [rows[start : start + _BLOCK] for start in range(0, len(rows), _BLOCK)]


class Whitening(nn.Module):
    """Contrast normalization and ZCA whitening of images, with noise in training; no ZCA before `set_statistics`.

    Args:
        shape: channels, height and width of the images.
        mean, std: that images were normalized with, one value per channel.
        noise: standard deviation of normal noise on the whitened values.

    Shape:
        - images: ``(b, c, h, w)`` float, normalized.
        - returns: the same shape, float32.

    Raises:
        ValueError: images of more than 4,096 values, whose matrix would not pay.
    """

    def __init__(
        self, shape: tuple[int, int, int], mean: tuple[float, ...], std: tuple[float, ...], noise: float = 0.0
    ) -> None:
        super().__init__()
        count = shape[0] * shape[1] * shape[2]
        if count > MAX_VALUES:
            raise ValueError(f"images of {shape[1]} x {shape[2]} pixels have {count} values, at most {MAX_VALUES}")
        self.noise = noise
        self.mean: Tensor = nn.Buffer(torch.tensor(mean)[:, None, None], persistent=False)
        self.std: Tensor = nn.Buffer(torch.tensor(std)[:, None, None], persistent=False)
        self.center: Tensor = nn.Buffer(torch.zeros(count))
        self.matrix: Tensor = nn.Buffer(torch.eye(count))

    def contrast_rows(self, images: Tensor) -> Tensor:
        """Flatten images to contrast-normalized rows (b, p), the input of `zca`."""
        return normalize_contrast((promote(images) * self.std + self.mean).flatten(1))

    def set_statistics(self, center: Tensor, matrix: Tensor) -> None:
        """Set the mean (p,) and the matrix (p, p) of the whitening, as computed by `zca`."""
        self.center.copy_(center)
        self.matrix.copy_(matrix)

    def forward(self, images: Tensor) -> Tensor:
        """Return the whitened images, of the same shape."""
        with without_autocast(images):
            rows = (self.contrast_rows(images) - self.center) @ self.matrix
            if self.training and self.noise > 0:
                rows = rows + self.noise * torch.randn_like(rows)
            return rows.reshape(images.shape)
