r"""Energy-based attention updates, and keypoint masks.

Source: "Flipped Classroom: Aligning Teacher Attention with Student in Generalized Category
Discovery", Eq. 5, 7, 8; the update in token space follows "Energy-Based Cross Attention"
(EnergyAttention/Energy-Based-CrossAttention). For one image and one head, with keys
:math:`k_i` (rows of K) and queries :math:`q_j` (rows of Q), unscaled:

.. math::
    E_\text{align} &= \tfrac{\alpha}{2} \sum_i \|k_i\|^2
        - \sum_i \tfrac{1}{\beta} \log \sum_j \exp(\beta\, q_j \cdot k_i) \\
    E_\text{prior} &= \log \sum_i \exp(\tfrac12 \|k_i\|^2) \\
    A &= \text{softmax}_j(\beta K Q^T), \quad r = \text{softmax}_i(\tfrac12 \|k_i\|^2) \\
    G &= A Q - \gamma_\text{reg} (\alpha + r) \odot K, \quad K' = K + \gamma_\text{update} G

With ``gamma_reg = 1``, G is the negative gradient of the sum of both energies.

Departures: Eq. 7 prints ``softmax(Q K^T) Q``, whose shapes do not match; Eq. 8 multiplies by the
key projection, which belongs to an update of the tokens (space ``token``), not of the keys.
"""

from typing import Literal

import torch
from torch import Tensor

from labelkit.algorithms.homographies import cell_centers
from labelkit.algorithms.precision import promote, without_autocast

UpdateSpace = Literal["key", "token", "literal"]


def attention_update(
    keys: Tensor,
    queries: Tensor,
    *,
    alpha: float,
    beta: float,
    gamma_update: float,
    gamma_reg: float,
    space: UpdateSpace = "key",
    w_k: Tensor | None = None,
) -> Tensor:
    r"""Update the keys by one gradient-descent step on the alignment and prior energies defined in this module.

    Args:
        keys: ``(b, h, t, d)`` float, t key tokens of h heads of width d.
        queries: ``(b, h, s, d)`` float; s may differ from t.
        alpha: weight of the key norms in the energy, >= 0.
        beta: inverse temperature of A, >= 0; at 0, every key moves toward the mean query.
        gamma_update: step size; 0 returns the keys unchanged.
        gamma_reg: weight of the key regularization, >= 0.
        space: ``"key"``: the formula. ``"token"``: the step is applied to the tokens X with
            K = X W_K, so all heads mix: K' = K + gamma_update G W_K^T W_K. ``"literal"``:
            K + gamma_update G W_K^T, as the paper prints it; it mixes two spaces.
        w_k: ``(h d, f)`` float for ``"token"``, ``(h d, h d)`` for ``"literal"``: weight of the
            key projection with one output per row, as in ``torch.nn.Linear``. No gradient.

    Returns:
        ``(b, h, t, d)`` in the dtype of ``keys``. Half precision is promoted to float32 inside. The increment is a
        constant: gradients reach the keys only through the identity, and never the queries.

    Raises:
        ValueError: shapes do not match, ``w_k`` is missing, or ``beta < 0``.
    """
    _check_pair(keys, queries)
    if beta < 0:
        raise ValueError(f"beta must be >= 0, got {beta}")
    if space not in ("key", "token", "literal"):
        raise ValueError(f"space must be 'key', 'token' or 'literal', got {space!r}")
    if space != "key":
        _check_projection(keys, w_k, square=space == "literal")
    with without_autocast(keys):
        keys_full = promote(keys)
        with torch.no_grad():
            increment = _descent_direction(keys_full, promote(queries), alpha, beta, gamma_reg)
            if w_k is not None and space != "key":
                increment = _apply_key_projection(increment, promote(w_k.detach()), space)
        return torch.add(keys_full, increment, alpha=gamma_update).to(keys.dtype)


def alignment_energy(queries: Tensor, keys: Tensor, *, alpha: float, beta: float) -> Tensor:
    """Compute the alignment energy E_align defined in this module, which is low if every key has a close query.

    Args:
        queries: ``(b, h, s, d)`` float.
        keys: ``(b, h, t, d)`` float.
        alpha: weight of the key norms.
        beta: inverse temperature, > 0.

    Returns:
        ``(b, h)`` in at least float32: a sum over the t keys, of any sign, unbounded below.
        With ``alpha = 0`` and all-zero queries, it is ``-t log(s) / beta``.

    Raises:
        ValueError: shapes do not match, or beta is not positive.
    """
    _check_pair(keys, queries)
    if beta <= 0:
        raise ValueError(f"beta must be > 0, got {beta}")
    with without_autocast(keys):
        keys, queries = promote(keys), promote(queries)
        scores = torch.logsumexp(beta * (keys @ queries.transpose(-2, -1)), dim=-1) / beta  # (b, h, t)
        return alpha / 2 * keys.square().sum(dim=(-2, -1)) - scores.sum(dim=-1)


def prior_energy(keys: Tensor) -> Tensor:
    """Compute the prior energy E_prior defined in this module, which is about half the largest squared key norm.

    Args:
        keys: ``(b, h, t, d)`` float.

    Returns:
        ``(b, h)`` in at least float32, >= log t; equal to log t when all keys are 0.
    """
    with without_autocast(keys):
        return torch.logsumexp(0.5 * promote(keys).square().sum(dim=-1), dim=-1)


def attention_entropy(keys: Tensor, queries: Tensor, *, beta: float) -> Tensor:
    """Compute the entropy of the attention weights that each key assigns to the s queries, divided by log s.

    Args:
        keys: ``(b, h, t, d)`` float.
        queries: ``(b, h, s, d)`` float, s >= 2.
        beta: inverse temperature, >= 0.

    Returns:
        ``()`` in at least float32, the mean over images, heads and keys, in [0, 1]: 1 if all
        queries get the same weight, near 0 if A is one-hot.

    Raises:
        ValueError: shapes do not match, or there is only one query.
    """
    _check_pair(keys, queries)
    num_queries = queries.shape[-2]
    if num_queries < 2:
        raise ValueError(f"the entropy requires at least 2 queries, got {num_queries}")
    with without_autocast(keys):
        log_weights = torch.log_softmax(beta * (promote(keys) @ promote(queries).transpose(-2, -1)), dim=-1)
        entropy = -(log_weights.exp() * log_weights).sum(dim=-1)
        return entropy.mean() / torch.log(entropy.new_tensor(num_queries))


def _descent_direction(keys: Tensor, queries: Tensor, alpha: float, beta: float, gamma_reg: float) -> Tensor:
    """Return G of the module's formula, (b, h, t, d)."""
    attended = torch.softmax(beta * (keys @ queries.transpose(-2, -1)), dim=-1) @ queries
    if gamma_reg == 0:
        return attended
    r = torch.softmax(0.5 * keys.square().sum(dim=-1, keepdim=True), dim=-2)  # (b, h, t, 1)
    return torch.addcmul(attended, r + alpha, keys, value=-gamma_reg)


def _apply_key_projection(descent: Tensor, w_k: Tensor, space: UpdateSpace) -> Tensor:
    """Return G W_K^T W_K or G W_K^T, with all heads side by side; ``w_k`` is W_K^T."""
    b, h, t, d = descent.shape
    moved = descent.transpose(1, 2).reshape(b, t, h * d) @ w_k
    if space == "token":
        moved = moved @ w_k.T
    return moved.reshape(b, t, h, d).transpose(1, 2)


def _check_pair(keys: Tensor, queries: Tensor) -> None:
    fits = keys.ndim == 4 and queries.ndim == 4 and keys.shape[:2] == queries.shape[:2]
    if not fits or keys.shape[-1] != queries.shape[-1]:
        raise ValueError(
            "keys (b, h, t, d) and queries (b, h, s, d) must have the same b, h and d, "
            f"got {tuple(keys.shape)} and {tuple(queries.shape)}"
        )


def _check_projection(keys: Tensor, w_k: Tensor | None, *, square: bool) -> None:
    width = keys.shape[1] * keys.shape[3]
    if w_k is None:
        raise ValueError("update spaces other than 'key' require w_k")
    if w_k.ndim != 2 or w_k.shape[0] != width or (square and w_k.shape[1] != width):
        raise ValueError(f"w_k must have {width} rows{' and columns' if square else ''}, got {tuple(w_k.shape)}")


def keypoint_heatmaps(keypoints: Tensor, present: Tensor, size: tuple[int, int]) -> Tensor:
    r"""Render heatmaps with a Gaussian of peak value 1 at each keypoint.

    .. math:: \Gamma(u, v) = \min\left(1, \sum_i \exp\left(-\frac{(u - u_i)^2 + (v - v_i)^2}{2}\right)\right)

    with u and v in cells: a keypoint in normalized coordinates lies at :math:`u_i = ((x_i + 1) w - 1) / 2`.

    Args:
        keypoints: ``(b, k, 2)`` x and y in normalized coordinates.
        present: ``(b, k)`` bool; keypoints that are False are padding.
        size: height and width of the masks.

    Returns:
        ``(b, h, w)`` float in [0, 1].

    Source:
        TAC-CCL, Eqs. 4.4 and 4.5. The Gaussian width of one cell and the limit of 1 are our additions: without the
        limit, keypoints close together would add up to unbounded weights.
    """
    height, width = size
    scale = keypoints.new_tensor([width, height]) / 2
    cells = cell_centers(height, width, keypoints) * scale  # (h w, 2)
    squares = (cells[None, :, None] - (keypoints * scale)[:, None]).square().sum(dim=-1)  # (b, h w, k)
    hills = torch.exp(-squares / 2) * present[:, None].to(squares.dtype)
    return hills.sum(dim=-1).reshape(-1, height, width).clamp(max=1)
