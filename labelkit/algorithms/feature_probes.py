"""Measure how well features predict classes, by nearest-neighbor voting and by linear classifiers.

Source of the voting: Z. Wu et al., "Unsupervised Feature Learning via Non-Parametric Instance Discrimination"
(CVPR 2018), as in ``yukimasano/self-label:cifar_utils.py``.
"""

import math
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch.nn.utils import vector_to_parameters

from labelkit.algorithms.neighbors import ExactSearch
from labelkit.algorithms.row_blocks import StoredRows, iterate_blocks


def knn_probabilities(
    queries: ArrayLike | StoredRows,
    gallery: ArrayLike | StoredRows,
    labels: ArrayLike,
    *,
    num_classes: int,
    k: int = 10,
    temperature: float = 0.1,
    self_indices: ArrayLike | None = None,
) -> NDArray[np.float64]:
    """Predict class probabilities of queries from their k nearest neighbors, weighted by ``exp(cosine / temperature)``.

    Args:
        queries: (q, d) of any norm.
        gallery: (g, d) of any norm; all-zero rows have no direction and do not vote.
        labels: (g,) integers in ``[0, num_classes)``.
        num_classes: c.
        k: number of neighbors that vote; the whole gallery if it is smaller.
        temperature: > 0.
        self_indices: (q,) index of each query in the gallery, so that it does not vote for itself; -1 = none.

    Returns:
        (q, c) float64, rows sum to 1; uniform for all-zero queries and queries without neighbors.

    Raises:
        ValueError: shapes do not match, a label or number is out of range, or the gallery is empty.
    """
    query_rows, gallery_rows = _as_float32(queries), _as_float32(gallery)
    classes = np.asarray(labels, dtype=np.int64)
    if classes.shape != (len(gallery_rows),):
        raise ValueError(f"labels must have shape ({len(gallery_rows)},), got {classes.shape}")
    if len(classes) and not (0 <= classes.min() and classes.max() < num_classes):
        raise ValueError(f"labels must be in [0, {num_classes}), got values from {classes.min()} to {classes.max()}")
    if not temperature > 0 or k < 1:
        raise ValueError(f"temperature and k must be positive, got {temperature} and {k}")
    selves = None if self_indices is None else np.asarray(self_indices, dtype=np.int64)
    if selves is not None and selves.shape != (len(query_rows),):
        raise ValueError(f"self_indices must have shape ({len(query_rows)},), got {selves.shape}")
    votes = np.full((len(query_rows), num_classes), 1 / num_classes)
    usable = np.concatenate(
        [part.any(axis=1) for _, part in iterate_blocks(gallery_rows)] or [np.zeros(0, dtype=np.bool_)]
    )
    if not usable.any():
        raise ValueError("all rows of the gallery are zero")
    if not usable.all():
        places = np.flatnonzero(usable)
        gallery_rows, classes = (
            gallery_rows.subset(places) if isinstance(gallery_rows, StoredRows) else gallery_rows[places],
            classes[places],
        )
        if selves is not None:
            moved = np.cumsum(usable) - 1
            selves = np.where((selves >= 0) & usable[selves], moved[selves], -1)
    search = ExactSearch(gallery_rows, metric="cosine")
    for where, part in iterate_blocks(query_rows):
        seen = np.flatnonzero(part.any(axis=1))
        found, rows = search.search(part[seen], min(k if selves is None else k + 1, len(gallery_rows)))
        scores = found.astype(np.float64)
        if selves is not None:
            itself = rows == selves[where.start + seen, None]
            # one extra neighbor was requested; it is dropped if the query itself was not found
            itself[:, k:] |= ~itself.any(axis=1, keepdims=True)
            scores[itself] = -np.inf
        best = scores.max(axis=1, keepdims=True)
        named = np.isfinite(best[:, 0])
        # scaling the nearest to weight 1 does not change the result and avoids overflow at small temperatures
        weights = np.exp((scores[named] - best[named]) / temperature)
        counted = np.zeros((len(weights), num_classes))
        np.add.at(counted, (np.arange(len(weights))[:, None], classes[rows[named]]), weights)
        votes[where.start + seen[named]] = counted / counted.sum(axis=1, keepdims=True)
    return votes


def _as_float32(x: ArrayLike | StoredRows) -> NDArray[np.float32] | StoredRows:
    return x if isinstance(x, StoredRows) else np.asarray(x, dtype=np.float32)


def linear_probe(
    features: ArrayLike | StoredRows,
    labels: ArrayLike,
    queries: ArrayLike | StoredRows,
    *,
    num_classes: int,
    epochs: int = 100,
    lr: float = 10.0,
    batch_size: int = 256,
    seed: int = 0,
    optimizer: Literal["sgd", "adamw"] = "sgd",
    rescale: bool = True,
) -> NDArray[np.float32]:
    """Train a linear classifier on frozen features and return its logits for the queries.

    Features are centered and scaled to a mean squared norm of 1 (computed on the training rows), so that the learning
    rate has the same meaning for every dimension; it follows a cosine schedule.

    Args:
        features: (n, d).
        labels: (n,) integers in ``[0, num_classes)``.
        queries: (q, d).
        num_classes: c.
        epochs: number of passes over the rows.
        lr: initial learning rate.
        batch_size: rows per step.
        seed: seed for shuffling.
        optimizer: SGD with momentum 0.9 and no weight decay, or AdamW with a weight decay of 0.01.
        rescale: whether to center and scale the features.

    Returns:
        (q, c) float32.
    """
    rows, classes, query_rows = _to_tensors(features, labels, queries, torch.float32)
    if rescale:
        rows, query_rows = _center_and_scale(rows, query_rows)
    weight = torch.zeros((num_classes, rows.shape[1]), requires_grad=True)
    bias = torch.zeros(num_classes, requires_grad=True)
    moves: torch.optim.Optimizer = (
        torch.optim.SGD([weight, bias], lr=lr, momentum=0.9)
        if optimizer == "sgd"
        else torch.optim.AdamW([weight, bias], lr=lr, weight_decay=0.01)
    )
    generator = torch.Generator().manual_seed(seed)
    for epoch in range(epochs):
        for group in moves.param_groups:
            group["lr"] = lr * 0.5 * (1 + math.cos(math.pi * epoch / epochs))
        order = torch.randperm(len(rows), generator=generator)
        for start in range(0, len(rows), batch_size):
            batch = order[start : start + batch_size]
            losses = torch.nn.functional.cross_entropy(rows[batch] @ weight.T + bias, classes[batch], reduction="sum")
            moves.zero_grad()
            (losses / len(batch)).backward()  # type: ignore[no-untyped-call] # torch has no annotation
            moves.step()
    with torch.no_grad():
        logits: NDArray[np.float32] = (query_rows @ weight.T + bias).numpy()
    return logits


def logistic_regression(
    features: ArrayLike | StoredRows,
    labels: ArrayLike,
    queries: ArrayLike | StoredRows,
    *,
    num_classes: int,
    l2: float = 1e-3,
    max_iter: int = 1000,
    tol: float = 1e-5,
) -> NDArray[np.float64]:
    r"""Fit a logistic regression to frozen features by L-BFGS and return its logits for the queries.

    .. math:: \min_{W,b} \frac1n \sum_i \mathrm{CE}(W x_i + b, y_i) + \frac{l_2}{2} \|W\|^2

    with features x centered and scaled to a mean square of 1 per value.

    Args:
        features: (n, d).
        labels: (n,) integers in ``[0, num_classes)``.
        queries: (q, d).
        num_classes: c.
        l2: regularization strength, >= 0.
        max_iter: maximum number of iterations.
        tol: stop when no gradient component exceeds this.

    Returns:
        (q, c) float64.
    """
    rows, classes, query_rows = _to_tensors(features, labels, queries, torch.float64)
    rows, query_rows = _center_and_scale(rows, query_rows)
    from scipy.optimize import minimize

    width = math.sqrt(rows.shape[1])
    rows, query_rows = rows * width, query_rows * width
    weight = torch.zeros((num_classes, rows.shape[1]), dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(num_classes, dtype=torch.float64, requires_grad=True)

    def objective(parameters: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the loss and its gradient for the optimizer."""
        vector_to_parameters(torch.from_numpy(parameters), [weight, bias])
        weight.grad = bias.grad = None
        losses = torch.nn.functional.cross_entropy(rows @ weight.T + bias, classes, reduction="sum")
        loss = losses / len(rows) + l2 / 2 * weight.square().sum()
        loss.backward()  # type: ignore[no-untyped-call] # torch has no annotation
        assert weight.grad is not None
        assert bias.grad is not None
        return float(loss.detach()), np.concatenate([weight.grad.numpy().ravel(), bias.grad.numpy()])

    options: Any = {"maxiter": max_iter, "maxfun": 2 * max_iter, "gtol": tol, "ftol": 0.0}
    start = np.zeros(weight.numel() + bias.numel())
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options)
    vector_to_parameters(torch.from_numpy(found.x), [weight, bias])
    with torch.no_grad():
        logits: NDArray[np.float64] = (query_rows @ weight.T + bias).numpy()
    return logits


def _to_tensors(
    features: ArrayLike | StoredRows, labels: ArrayLike, queries: ArrayLike | StoredRows, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return features, labels and queries as tensors."""
    sides = [values[:] if isinstance(values, StoredRows) else np.asarray(values) for values in (features, queries)]
    rows, query_rows = (torch.as_tensor(side).to(dtype) for side in sides)
    return rows, torch.as_tensor(np.asarray(labels, dtype=np.int64)), query_rows


def _center_and_scale(rows: torch.Tensor, query_rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Center and scale features and queries so that the features have mean 0 and mean squared norm 1."""
    mean = rows.mean(0, dtype=torch.float64).to(rows.dtype)
    squares = (rows - mean).square().sum(dtype=torch.float64)
    scale = max(math.sqrt(float(squares) / len(rows)), 1e-12)
    return (rows - mean) / scale, (query_rows - mean) / scale
