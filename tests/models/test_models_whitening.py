"""ZCA against numpy and scipy; contrast by hand; what the module adds in training."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from labelkit.models.backbones.registry import build_backbone
from labelkit.models.whitening import Whitening, normalize_contrast, zca
from scipy.linalg import fractional_matrix_power


def test_contrast_of_three_rows_by_hand() -> None:
    rows = torch.tensor([[1.0, 2.0, 3.0], [5.0, 5.0, 5.0], [0.0, 0.0, 3.0]], dtype=torch.float64)
    expected = [[-55 / math.sqrt(2), 0, 55 / math.sqrt(2)], [0, 0, 0], [-55 / 6**0.5, -55 / 6**0.5, 110 / 6**0.5]]
    torch.testing.assert_close(normalize_contrast(rows), torch.tensor(expected, dtype=torch.float64))


def test_zca_is_the_inverse_root_of_the_covariance() -> None:
    rows = np.random.RandomState(0).randn(5000, 6) @ np.random.RandomState(1).randn(6, 6) + 3
    center, matrix = zca(torch.from_numpy(rows))
    np.testing.assert_allclose(center.numpy(), rows.mean(0), atol=1e-12)
    np.testing.assert_allclose(
        matrix.numpy(), fractional_matrix_power(np.cov(rows.T) + 0.1 * np.eye(6), -0.5), atol=1e-10
    )


def test_images_are_whitened_and_get_noise_in_training_alone() -> None:
    pixels = torch.rand(300, 2, 3, 3, generator=torch.Generator().manual_seed(0))
    mean, std = (0.5, 0.2), (0.3, 0.4)
    images = (pixels - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    whitening = Whitening((2, 3, 3), mean, std, noise=0.5)
    torch.testing.assert_close(
        whitening.contrast_rows(images), normalize_contrast(pixels.flatten(1)), rtol=1e-4, atol=1e-3
    )
    whitening.set_statistics(*zca(whitening.contrast_rows(images)))
    plain = whitening.eval()(images)
    raw = pixels.flatten(1).double().numpy()
    raw = raw - raw.mean(1, keepdims=True)
    raw *= 55 / np.linalg.norm(raw, axis=1, keepdims=True)
    expected = (raw - raw.mean(0)) @ fractional_matrix_power(np.cov(raw.T) + 0.1 * np.eye(18), -0.5)
    np.testing.assert_allclose(plain.flatten(1).numpy(), expected, atol=2e-3)
    torch.manual_seed(0)
    noise = whitening.train()(images) - plain
    assert float(noise.std()) == pytest.approx(0.5, rel=0.05)
    assert abs(float(noise.mean())) < 0.02


def test_a_backbone_sees_whitened_images_wherever_it_is_asked() -> None:
    plain, whitened = (build_backbone("wrn10_1", image_size=16, seed=0).eval() for _ in range(2))
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    whitened.whitening = Whitening((3, 16, 16), (0.5,) * 3, (0.5,) * 3).eval()
    with torch.no_grad():
        changed = whitened.whitening(images)
        assert torch.equal(whitened(images), plain(changed))
        assert torch.equal(whitened.patch_features(images), plain.patch_features(changed))
        assert not torch.allclose(whitened(images), plain(images), atol=1e-3)
