"""Products of matrices in place of operations whose order of additions a GPU does not keep."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from labelkit.engine.devices import named_nondeterminism
from labelkit.engine.fixed_order import FixedOrder, resized, running_sums
from torch import Tensor


def _resize(images: Tensor, height: int, width: int) -> Tensor:
    return F.interpolate(images, size=(height, width), mode="bicubic", antialias=True)


@pytest.mark.parametrize("size", [(3, 3), (7, 5), (4, 6), (12, 9), (1, 1)])
def test_positions_are_resized_as_torch_does(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ours = torch.randn(1, 8, 4, 6, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    weights = torch.randn(1, 8, *size)
    one, other = resized(ours, *size), _resize(theirs, *size)
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    (one * weights).sum().backward()
    (other * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("length", [1, 2, 255, 256, 257, 1000, 70_000])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_running_sums_are_those_of_torch(length: int, dim: int) -> None:
    torch.manual_seed(0)
    shape = [2, 2, 2]
    shape[dim] = length
    ours = torch.rand(shape, dtype=torch.float64, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    one, other = running_sums(ours, dim), torch.cumsum(theirs, dim)
    torch.testing.assert_close(one, other)
    weights = torch.rand(shape, dtype=torch.float64)
    (one * weights).sum().backward()
    (other * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_only_what_has_no_fixed_order_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from labelkit.engine import fixed_order

    asked: list[str] = []
    monkeypatch.setattr(fixed_order, "resized", lambda images, *size: asked.append(f"resized {size}"))
    monkeypatch.setattr(fixed_order, "running_sums", lambda values, dim: asked.append(f"sums {dim}"))
    trained, plain = torch.rand(1, 2, 4, 4, requires_grad=True), torch.rand(1, 2, 4, 4)
    with FixedOrder():
        _resize(trained, 3, 3)
        F.interpolate(trained, 5, mode="bicubic", antialias=True)
        torch.cumsum(plain, 1)
        plain.cumsum(dim=2)
        assert asked == ["resized (3, 3)", "resized (5, 5)", "sums 1", "sums 2"]
        _resize(plain, 3, 3)  # images: nothing is added to them
        F.interpolate(trained, (3, 3), mode="bilinear")
        torch.arange(3).cumsum(0)
        assert (plain + 1).shape == plain.shape
    assert len(asked) == 4


def test_it_is_on_where_the_same_bits_are_asked_for() -> None:
    trained = torch.rand(1, 2, 4, 4, requires_grad=True)
    with named_nondeterminism():
        usual = _resize(trained, 3, 3).grad_fn
    torch.use_deterministic_algorithms(True)
    try:
        with named_nondeterminism():
            fixed = _resize(trained, 3, 3).grad_fn
    finally:
        torch.use_deterministic_algorithms(False)
    assert "Bicubic" in type(usual).__name__
    assert "Bicubic" not in type(fixed).__name__
