"""Exponents of the kernel in base 2, with the largest of each row taken out, so that no exponential overflows.

``2^x`` takes half the time of ``e^x`` or less; the factor between both is part of the sharpness.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from labelkit.algorithms.sinkhorn.workers import Scratch

# e^x = 2^(BINARY x)
BINARY = 1 / math.log(2)
# Above this |lam * l| float32 is off by more than 3e-5 in the exponent: it is then taken in float64.
_EXACT_EXPONENT = 512.0
# Logarithm of the largest entry of a row of the kernel: large, so that small entries are far from underflow.
HEADROOM = {torch.float32: 60.0, torch.float64: 300.0}
# Range of u - u0 that products with the kernel bear; in place of the scores more cannot be, else u is absorbed earlier,
# so that what was too small for the kernel stays too small to matter.
BEARABLE_RANGE = {torch.float32: 80.0, torch.float64: 600.0}
ABSORB_RANGE = {torch.float32: 60.0, torch.float64: 500.0}
# Range of lam * l within a row that the kernel keeps without loss, so that its logarithm brings the scores back.
REVERSIBLE_RANGE = {torch.float32: 140.0, torch.float64: 900.0}


def reversible(spread: float, dtype: torch.dtype) -> bool:
    """Tell whether exp keeps exponents that differ by ``spread`` within a row, so that log brings them back."""
    return spread <= REVERSIBLE_RANGE[dtype]


def needs_double(largest: float) -> bool:
    """Tell whether exponents of this size must be taken in float64."""
    return largest > _EXACT_EXPONENT


def shifted(
    block: Tensor,
    lam: float,
    potentials: Tensor,
    dtype: torch.dtype,
    scratch: Scratch,
    *,
    exact: bool,
    unit: float = 1.0,
    headroom: float = 0.0,
    name: str = "values",
) -> tuple[Tensor, Tensor]:
    """Return (``unit * (lam * block + u - top)``, ``top``), ``top`` the row maximum less headroom.

    Args:
        block: (m, k) scores.
        lam: factor.
        potentials: u, (k,) float64 on the CPU.
        dtype: of the result.
        scratch: of this thread; holds the result.
        exact: take the difference in float64; needed where the numbers are large.
        unit: ``BINARY`` for exponents of 2.
        headroom: what the maximum of a row becomes.
        name: of the result in scratch.

    Returns:
        (m, k), and (m,) float64 on the CPU.
    """
    inner = torch.float64 if exact else dtype
    values = scratch.like(block, inner, name + "64" if exact else name)
    if block.dtype != inner:
        block = values.copy_(block)
    torch.add((unit * potentials).to(block.device, inner), block, alpha=unit * lam, out=values)
    top = values.amax(dim=1, keepdim=True)
    # the headroom rides on the maximum: one operation less
    top -= unit * headroom
    values.sub_(top)
    if inner != dtype:
        values = scratch.like(block, dtype, name).copy_(values)
    return values, top.squeeze(1).cpu().double().div_(unit)


def below(
    block: Tensor,
    lam: float,
    largest: Tensor,
    out: Tensor,
    scratch: Scratch,
    *,
    exact: bool,
    headroom: float = 0.0,
) -> Tensor:
    """Exponents of 2 of rows whose largest scores are known, without potentials: one operation.

    Args:
        block: (m, k) scores.
        lam: factor.
        largest: (m,) float64 on the CPU.
        out: (m, k), for the exponents ``BINARY * (lam * block - top)``; may be the block.
        scratch: of this thread.
        exact: take the difference in float64.
        headroom: what the maximum of a row becomes.

    Returns:
        ``top``, (m,) float64 on the CPU: the row maximum less headroom, up to rounding.
    """
    held = scratch.like(block, torch.float64, "exact") if exact else out
    if block.dtype != held.dtype:
        block = held.copy_(block)
    offset = (BINARY * (headroom - lam * largest)).to(held.dtype)
    torch.add(offset.to(block.device)[:, None], block, alpha=BINARY * lam, out=held)
    if exact:
        out.copy_(held)
    return offset.double().div_(-BINARY)
