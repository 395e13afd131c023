"""Carry masks from frame to frame by the similarity of patch features.

Source: A. Jabri et al., "Space-Time Correspondence as a Contrastive Random Walk" (NeurIPS 2020), with the settings of
DINO (``facebookresearch/dino:eval_video_segmentation.py``); our CoTAP specification, section 6.
"""

from __future__ import annotations

import torch
from torch import Tensor


def propagate_masks(
    features: Tensor,
    context: Tensor,
    masks: Tensor,
    *,
    radius: int,
    top_k: int,
    temperature: float,
) -> Tensor:
    """Return the soft masks of a frame from those of earlier frames.

    A patch of the frame takes the mean of the masks of the ``top_k`` patches of all context frames together that are
    most similar to it and at most ``radius`` rows and columns away, with weights exp(cosine / temperature).

    Args:
        features: (rows, cols, d) float, unit vectors.
        context: (f, rows, cols, d) float, unit vectors of f frames.
        masks: (f, rows, cols, o) float, share of each of o objects.
        radius: in patches; 0 = no limit.
        top_k: >= 1.
        temperature: > 0.

    Returns:
        (rows, cols, o) float, sums to 1 where the context's masks do.

    Raises:
        ValueError: shapes that do not fit, or a number out of range.
    """
    rows, columns, width = features.shape
    frames = len(context)
    if context.shape != (frames, rows, columns, width) or masks.shape[:3] != (frames, rows, columns) or not frames:
        shapes = [tuple(values.shape) for values in (features, context, masks)]
        raise ValueError(f"shapes {shapes} of features, context and masks do not fit")
    if radius < 0 or top_k < 1 or not temperature > 0:
        raise ValueError(f"radius {radius}, top_k {top_k} or temperature {temperature} is out of range")
    cosines = context.reshape(-1, width) @ features.reshape(-1, width).T  # (f rows cols, rows cols)
    if radius:
        far = _far_apart(rows, columns, radius, features.device)
        cosines = cosines.view(frames, rows * columns, -1).masked_fill(far, -torch.inf).view(cosines.shape)
    values, sources = cosines.topk(min(top_k, len(cosines)), dim=0)
    # the most similar counts 1, so that small temperatures do not overflow
    weights = ((values - values[:1]) / temperature).exp()
    weights = weights / weights.sum(0)
    shares = masks.reshape(len(cosines), -1)[sources]  # (k, rows cols, o)
    return (weights[..., None] * shares).sum(0).view(rows, columns, -1)


def _far_apart(rows: int, columns: int, radius: int, device: torch.device) -> Tensor:
    """Whether two patches are out of each other's window, (rows cols, rows cols) bool."""
    y, x = (axis.flatten() for axis in torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"))
    far = ((y[:, None] - y).abs() > radius) | ((x[:, None] - x).abs() > radius)
    return far.to(device)


def stretch_shares(shares: Tensor) -> Tensor:
    """Stretch each object's shares (..., o) over all other dimensions to [0, 1]; flat ones stay as they are."""
    flat = shares.flatten(0, -2)
    low, high = flat.min(0).values, flat.max(0).values
    span = high - low
    return torch.where(span > 0, (shares - low) / span.clamp(min=1e-12), shares)
