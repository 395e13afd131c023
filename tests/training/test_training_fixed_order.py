"""Products of matrices in place of an operation whose order of additions a GPU does not keep."""

import pytest
import torch
import torch.nn.functional as F
from labelkit.training.devices import DeterministicResize, explain_nondeterminism, resize_bicubic
from torch import Tensor


def _resize(images: Tensor, height: int, width: int) -> Tensor:
    return F.interpolate(images, size=(height, width), mode="bicubic", antialias=True)


@pytest.mark.parametrize("size", [(3, 3), (7, 5), (4, 6), (12, 9), (1, 1)])
def test_positions_are_resized_as_torch_does(size: tuple[int, int]) -> None:
    torch.manual_seed(0)
    ours = torch.randn(1, 8, 4, 6, requires_grad=True)
    theirs = ours.detach().clone().requires_grad_()
    weights = torch.randn(1, 8, *size)
    one, other = resize_bicubic(ours, *size), _resize(theirs, *size)
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    (one * weights).sum().backward()
    (other * weights).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-5, rtol=1e-5)


def test_half_precision_of_the_network_is_not_that_of_positions() -> None:
    torch.manual_seed(0)
    images = torch.rand(1, 4, 7, 7, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16), DeterministicResize():
        small = _resize(images, 3, 3)
    assert small.dtype == torch.float32
    torch.testing.assert_close(small, _resize(images, 3, 3), atol=1e-5, rtol=1e-5)


def test_a_look_at_features_before_training_leaves_nothing_that_training_cannot_use() -> None:
    images = torch.rand(1, 2, 11, 11, requires_grad=True)
    with DeterministicResize():
        with torch.inference_mode():
            looked = _resize(images, 4, 4)
        _resize(images, 4, 4).sum().backward()
    torch.testing.assert_close(looked, _resize(images.detach(), 4, 4))


def test_only_what_has_no_fixed_order_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    from labelkit.training import devices as fixed_order

    asked: list[str] = []
    monkeypatch.setattr(fixed_order, "resize_bicubic", lambda images, *size: asked.append(f"resized {size}"))
    trained, plain = torch.rand(1, 2, 4, 4, requires_grad=True), torch.rand(1, 2, 4, 4)
    with DeterministicResize():
        _resize(trained, 3, 3)
        F.interpolate(trained, 5, mode="bicubic", antialias=True)
        assert asked == ["resized (3, 3)", "resized (5, 5)"]
        _resize(plain, 3, 3)  # images: nothing is added to them
        F.interpolate(trained, (3, 3), mode="bilinear")
        assert (plain + 1).shape == plain.shape
    assert len(asked) == 2


def test_it_is_on_where_the_same_bits_are_asked_for() -> None:
    trained = torch.rand(1, 2, 4, 4, requires_grad=True)
    with explain_nondeterminism():
        usual = _resize(trained, 3, 3).grad_fn
    torch.use_deterministic_algorithms(True)
    try:
        with explain_nondeterminism():
            fixed = _resize(trained, 3, 3).grad_fn
    finally:
        torch.use_deterministic_algorithms(False)
    assert "Bicubic" in type(usual).__name__
    assert "Bicubic" not in type(fixed).__name__
