"""Numbers T1 to T8 of the FlipClass specification, gradients by autograd, symmetries, precision."""

import math

import pytest
import torch
from labelkit.algorithms.attention import alignment_energy, attention_entropy, attention_update, prior_energy
from torch import Tensor

KEYS = torch.tensor([[[[1.0, 0.0], [0.0, 2.0]]]], dtype=torch.float64)
QUERIES = torch.tensor([[[[1.0, 1.0], [0.0, -1.0], [2.0, 0.0]]]], dtype=torch.float64)
W_K = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=torch.float64)  # one output per row
PAPER = {"alpha": 0.0, "beta": 1.0, "gamma_update": 0.1, "gamma_reg": 0.5}


def random_pair(*shape: int, queries: int | None = None, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    b, h, t, d = shape
    keys = torch.randn(b, h, t, d, generator=generator, dtype=torch.float64) * scale
    return keys, torch.randn(b, h, queries or t, d, generator=generator, dtype=torch.float64) * scale


def near(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def assert_near(actual: Tensor, expected: object, tolerance: float = 1e-6) -> None:
    expected = expected if isinstance(expected, Tensor) else near(expected)
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


def test_update_and_energies_of_the_worked_example() -> None:
    moved = attention_update(KEYS, QUERIES, **PAPER)

    assert_near(moved[0, 0], [[1.148400, 0.015470], [0.110143, 2.003336]])
    assert_near((moved - KEYS)[0, 0] / 0.1, [[1.483998, 0.154698], [1.101434, 0.033363]])
    assert_near(alignment_energy(QUERIES, KEYS, alpha=0, beta=1), [[-4.550538]])
    assert_near(alignment_energy(QUERIES, moved, alpha=0, beta=1), [[-4.916067]])
    assert_near(prior_energy(KEYS), [[2.201413]])
    assert_near(prior_energy(moved), [[2.242592]])


@pytest.mark.parametrize(
    ("alpha", "beta", "expected"),
    [
        (0.3, 0.5, [[0.837731, 0.120872], [1.154698, -1.659939]]),
        (0.0, 1.0, [[1.392785, 0.154698], [1.101434, -0.784212]]),
    ],
)
def test_increment_is_minus_the_gradient_of_both_energies(alpha: float, beta: float, expected: object) -> None:
    keys = KEYS.clone().requires_grad_()
    energy = alignment_energy(QUERIES, keys, alpha=alpha, beta=beta).sum() + prior_energy(keys).sum()
    (gradient,) = torch.autograd.grad(energy, keys)

    moved = attention_update(KEYS, QUERIES, alpha=alpha, beta=beta, gamma_update=1, gamma_reg=1)

    assert_near((moved - KEYS)[0, 0], expected)
    assert_near(moved - KEYS, -gradient, 1e-12)


def test_update_in_token_space_is_an_update_of_the_tokens() -> None:
    projection = W_K.T  # K = X W_K
    tokens = near([[1.0, 0.0], [-2.0, 2.0]])

    moved = attention_update(KEYS, QUERIES, **PAPER, space="token", w_k=W_K)

    gradient = (attention_update(KEYS, QUERIES, **PAPER) - KEYS)[0, 0] / 0.1
    assert_near(tokens @ projection, KEYS[0, 0])
    assert_near(moved[0, 0], [[1.312269, 0.163870], [0.223623, 2.113480]])
    assert_near(moved[0, 0], (tokens + 0.1 * gradient @ projection.T) @ projection, 1e-12)


def test_token_space_mixes_heads_through_the_projection() -> None:
    keys, queries = random_pair(1, 2, 3, 2)
    w_k = torch.randn(4, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    per_head = attention_update(keys, queries, **PAPER) - keys  # gamma_update G^h
    blocks = [w_k[:2], w_k[2:]]  # (W_K^h)^T

    moved = attention_update(keys, queries, **PAPER, space="token", w_k=w_k)

    for head in range(2):
        expected = sum(per_head[0, other] @ blocks[other] @ blocks[head].T for other in range(2))
        assert_near((moved - keys)[0, head], expected, 1e-12)


def test_beta_goes_from_the_mean_query_to_the_closest_query() -> None:
    keys, queries = random_pair(1, 1, 4, 3, queries=5)
    closest = queries[0, 0][(keys[0, 0] @ queries[0, 0].T).argmax(dim=1)]

    soft = attention_update(keys, queries, alpha=0, beta=0, gamma_update=1, gamma_reg=0)
    hard = attention_update(keys, queries, alpha=0, beta=1e6, gamma_update=1, gamma_reg=0)

    assert_near(soft - keys, queries.mean(dim=2, keepdim=True).expand_as(keys), 1e-12)
    assert_near((hard - keys)[0, 0], closest, 1e-12)


def test_stopped_gradient_is_the_identity_for_keys_and_nothing_for_queries() -> None:
    keys, queries = (value.requires_grad_() for value in random_pair(1, 1, 3, 2))
    weights = near([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])

    (attention_update(keys, queries, **PAPER) * weights).sum().backward()

    assert_near(keys.grad[0, 0], weights)
    assert queries.grad is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_single_precision_and_cast_back(dtype: torch.dtype) -> None:
    keys, queries = (value.to(dtype) for value in random_pair(1, 2, 6, 8, scale=8.0))  # k.k beyond exp's half range

    moved = attention_update(keys, queries, **PAPER)

    assert moved.dtype == dtype
    assert torch.equal(moved, attention_update(keys.float(), queries.float(), **PAPER).to(dtype))
    assert torch.isfinite(moved).all()
    assert alignment_energy(queries, keys, alpha=0, beta=1).dtype == torch.float32


def test_energies_in_closed_form() -> None:
    keys, _ = random_pair(2, 3, 5, 4)
    queries = torch.zeros(2, 3, 7, 4).double()

    assert_near(alignment_energy(queries, keys, alpha=0, beta=2), [[-5 * math.log(7) / 2] * 3] * 2)
    assert_near(prior_energy(torch.zeros(2, 3, 5, 4).double()), [[math.log(5)] * 3] * 2)


def test_entropy_is_one_for_even_attention_and_zero_for_one_hot_attention() -> None:
    keys, queries = random_pair(1, 2, 5, 4, queries=6)

    assert_near(attention_entropy(keys, queries, beta=0.0), 1.0)
    assert_near(attention_entropy(keys, queries, beta=1e6), 0.0)
