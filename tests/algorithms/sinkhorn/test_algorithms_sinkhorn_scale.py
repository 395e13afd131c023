"""Balanced assignment of scores that are large, elsewhere, in pieces or in other processes; and of batches."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
import pytest
import torch
from labelkit.algorithms.sinkhorn.batch import batch_assignments
from labelkit.algorithms.sinkhorn.passes import Reduce
from labelkit.algorithms.sinkhorn.products import weighted_sum
from labelkit.algorithms.sinkhorn.scores import LinearScores
from labelkit.algorithms.sinkhorn.solver import SinkhornResult, solve
from torch import Tensor

BATCH = torch.tensor([[0.9, 0.1, 0], [0.8, 0.3, 0.1], [0.7, 0.6, -0.2], [0.2, 0.1, 0.15]], dtype=torch.float64)


def random_scores(n: int, k: int, *, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> Tensor:
    return (scale * torch.randn(n, k, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).to(dtype)


def assert_same(ours: SinkhornResult, theirs: SinkhornResult, tolerance: float) -> None:
    np.testing.assert_allclose(ours.potentials.numpy(), theirs.potentials.numpy(), atol=tolerance)
    assert torch.equal(ours.cluster_ids, theirs.cluster_ids)
    assert ours.cost == pytest.approx(theirs.cost, abs=tolerance)


def in_threads(parts: int, work: Callable[[int, Reduce], SinkhornResult | Tensor]) -> list[SinkhornResult | Tensor]:
    """Run ``work(number, reduce)`` for every part at once; reduce combines over the parts, as processes would."""
    barrier = threading.Barrier(parts)
    given: list[Tensor] = [torch.empty(0)] * parts
    found: list[SinkhornResult | Tensor | None] = [None] * parts

    def one(number: int) -> None:
        def reduce(values: Tensor, how: Literal["sum", "max"]) -> Tensor:
            given[number] = values.clone()
            barrier.wait()
            stacked = torch.stack(given)
            barrier.wait()
            return stacked.sum(dim=0) if how == "sum" else stacked.amax(dim=0)

        found[number] = work(number, reduce)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(parts)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [part for part in found if part is not None]


# --- where the scores are ------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["auto", "kernel", "log"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
def test_a_memory_map_gives_what_memory_gives(
    tmp_path: Path, form: Literal["auto", "kernel", "log"], dtype: str
) -> None:
    scores = random_scores(3000, 7).numpy().astype(dtype)
    np.save(tmp_path / "scores.npy", scores)
    mapped = np.load(tmp_path / "scores.npy", mmap_mode="r")

    # a slice that begins within a page: pages are given back by their own borders
    ours = solve(mapped[1:], 8.0, form=form, dtype=torch.float64, tol=1e-9)
    theirs = solve(scores[1:].astype(np.float64), 8.0, dtype=torch.float64, tol=1e-9)

    assert_same(ours, theirs, 1e-6)
    assert torch.equal(ours.pseudo_labels(mapped[1:]), theirs.cluster_ids)
    np.testing.assert_array_equal(np.asarray(mapped), scores)


def test_a_map_that_may_be_written_loses_nothing(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "scores.dat", dtype=np.float32, mode="w+", shape=(5000, 40))
    mapped[:] = random_scores(5000, 40).numpy()
    expected = np.array(mapped)

    solve(mapped, 2.0)
    private = np.memmap(tmp_path / "scores.dat", dtype=np.float32, mode="c", shape=(5000, 40))
    private[3] = 7
    solve(private, 2.0)

    np.testing.assert_array_equal(np.asarray(mapped), expected)
    assert (np.asarray(private[3]) == 7).all()


def test_a_data_set_of_a_file_gives_what_memory_gives(tmp_path: Path) -> None:
    scores = random_scores(500, 6)
    with h5py.File(tmp_path / "scores.h5", "w") as file:
        file["scores"] = scores.numpy()

        ours = solve(file["scores"], 4.0, dtype=torch.float64, tol=1e-9)

        assert_same(ours, solve(scores, 4.0, dtype=torch.float64, tol=1e-9), 1e-7)
        np.testing.assert_allclose(
            ours.assignments(file["scores"], torch.tensor([7, 3])), ours.assignments(scores, torch.tensor([7, 3]))
        )


@pytest.mark.parametrize("form", ["log", "kernel"])
def test_a_linear_head_gives_what_its_scores_give(form: Literal["log", "kernel"]) -> None:
    features, weight, bias = random_scores(700, 5), random_scores(9, 5), random_scores(1, 9)[0]
    scores = 0.5 * (features @ weight.T + bias)

    ours = solve(LinearScores(features, weight, bias, scale=0.5), 6.0, form=form, dtype=torch.float64, tol=1e-9)

    assert_same(ours, solve(scores, 6.0, dtype=torch.float64, tol=1e-9), 1e-7)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("chunk_rows", [1, 7, 1000, 100_000])
def test_blocks_and_threads_change_no_label(chunk_rows: int, threads: int) -> None:
    # more numbers than one thread is left alone with, and so few rows that single ones are quick
    scores = random_scores(300, 900)
    before = torch.get_num_threads()
    plain = solve(scores, 5.0, dtype=torch.float64, tol=1e-9)
    try:
        torch.set_num_threads(threads)
        ours = solve(scores, 5.0, dtype=torch.float64, tol=1e-9, chunk_rows=chunk_rows)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)

    assert_same(ours, plain, 1e-7)


@pytest.mark.parametrize("form", ["kernel", "log"])
def test_any_number_of_threads_gives_the_same_bits(form: Literal["kernel", "log"]) -> None:
    scores = random_scores(4000, 100, dtype=torch.float32)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3, 3):
            torch.set_num_threads(threads)
            found.append(solve(scores, 20.0, form=form))
    finally:
        torch.set_num_threads(before)

    for other in found[1:]:
        assert torch.equal(other.potentials, found[0].potentials)
        assert torch.equal(other.confidence, found[0].confidence)
        assert other.cost == found[0].cost


def test_in_place_leaves_the_assignments_there() -> None:
    for lam in (2.0, 300.0):
        scores = random_scores(400, 6)
        plain = solve(scores, lam, dtype=torch.float64, tol=1e-8)
        held = scores.clone()

        result = solve(held, lam, dtype=torch.float64, tol=1e-8, overwrite=True)

        assert_same(result, plain, 1e-5)
        np.testing.assert_allclose(held.numpy(), result.assignments(scores).numpy(), atol=1e-9)
        np.testing.assert_allclose(held.sum(dim=1).numpy(), 1, atol=1e-9)


def test_in_place_bears_potentials_that_go_far() -> None:
    # the spread within rows fits the kernel, the potentials' range does not
    scores = random_scores(300, 4, dtype=torch.float32) * 0.1
    scores[:, 0] -= 20
    held = scores.clone()

    result = solve(held, 6.0, overwrite=True, tol=1e-5)

    assert result.converged
    assert float(result.potentials.max() - result.potentials.min()) > 80
    np.testing.assert_allclose(held.numpy(), result.assignments(scores).numpy(), atol=1e-4)
    assert result.cost == pytest.approx(solve(scores, 6.0, tol=1e-5, dtype=torch.float64).cost, rel=1e-4)


def test_scores_are_not_changed_unless_asked() -> None:
    scores = random_scores(50, 4, dtype=torch.float32)
    before = scores.clone()

    solve(scores, 500.0)

    assert torch.equal(scores, before)


# --- processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("borders", [(0, 500, 1001), (0, 17, 1001), (0, 0, 400, 1001)])
@pytest.mark.parametrize("solver", ["sinkhorn", "auto", "newton"])
@pytest.mark.parametrize("form", ["kernel", "log"])
def test_shards_of_any_size_agree_with_the_whole(
    borders: tuple[int, ...], solver: Literal["sinkhorn", "auto", "newton"], form: Literal["kernel", "log"]
) -> None:
    scores = random_scores(1001, 6, scale=2)
    weights = torch.linspace(1, 3, 1001)

    def one(number: int, reduce: Reduce | None) -> SinkhornResult:
        rows = slice(borders[number], borders[number + 1]) if reduce else slice(None)
        return solve(
            scores[rows],
            4.0,
            sample_weights=weights[rows],
            tol=1e-9,
            solver=solver,
            form=form,
            dtype=torch.float64,
            reduce=reduce,
        )

    whole = one(0, None)
    parts = in_threads(len(borders) - 1, one)

    assert len(parts) == len(borders) - 1
    for part in parts:
        assert isinstance(part, SinkhornResult)
        np.testing.assert_allclose(part.potentials.numpy(), whole.potentials.numpy(), atol=1e-10)
        assert part.cost == pytest.approx(whole.cost, abs=1e-12)
        assert part.num_iterations == whole.num_iterations
    ids = torch.cat([part.cluster_ids for part in parts if isinstance(part, SinkhornResult)])
    assert torch.equal(ids, whole.cluster_ids)


def test_scores_that_are_not_finite_stop_every_process() -> None:
    scores = random_scores(20, 3)
    scores[15, 0] = float("nan")

    def one(number: int, reduce: Reduce) -> Tensor:
        with pytest.raises(ValueError, match=("another process", "row 5")[number]):
            solve(scores[10 * number : 10 * number + 10], 1.0, reduce=reduce)
        return torch.ones(1)

    assert len(in_threads(2, one)) == 2


def test_different_numbers_of_clusters_are_refused() -> None:
    def one(number: int, reduce: Reduce) -> Tensor:
        with pytest.raises(ValueError, match="3 to 4 over all processes"):
            solve(random_scores(10, 3 + number), 1.0, reduce=reduce)
        return torch.ones(1)

    assert len(in_threads(2, one)) == 2


TWO_PROCESSES = """
import sys
import torch
import torch.distributed as dist
from labelkit.algorithms.sinkhorn.solver import solve

rank, port = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)


def reduce(values, how):
    values = values.clone()
    dist.all_reduce(values, dist.ReduceOp.SUM if how == "sum" else dist.ReduceOp.MAX)
    return values


scores = torch.randn(1001, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
whole = solve(scores, 9.0, dtype=torch.float64, tol=1e-9)
rows = slice(0, 400) if rank == 0 else slice(400, None)
part = solve(scores[rows], 9.0, dtype=torch.float64, tol=1e-9, reduce=reduce)
assert float((part.potentials - whole.potentials).abs().max()) < 1e-10
assert torch.equal(part.cluster_ids, whole.cluster_ids[rows])
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TWO_PROCESSES)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen([sys.executable, str(script), str(rank), str(port)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors


# --- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_domain", [False, True])
@pytest.mark.parametrize(
    ("num_iterations", "expected"),
    [
        (
            1,
            [
                [0.961038, 0.000050, 0.038912],
                [0.309434, 0.006522, 0.684044],
                [0.015658, 0.983708, 0.000634],
                [0.000001, 0.000064, 0.999935],
            ],
        ),
        (
            3,
            [
                [0.975619, 0.000090, 0.024291],
                [0.417256, 0.015521, 0.567223],
                [0.008936, 0.990842, 0.000222],
                [0.000002, 0.000184, 0.999814],
            ],
        ),
    ],
)
def test_batches_have_the_worked_assignments(
    num_iterations: int, expected: list[list[float]], log_domain: bool
) -> None:
    ours = batch_assignments(BATCH, num_iterations=num_iterations, log_domain=log_domain)

    np.testing.assert_allclose(ours.numpy(), expected, atol=1e-6)


def test_many_iterations_of_a_batch_reach_the_plan_of_the_solver() -> None:
    ours = batch_assignments(BATCH, num_iterations=4_000)

    expected = solve(BATCH, 20.0, dtype=torch.float64, tol=1e-12, solver="newton").assignments(BATCH)
    np.testing.assert_allclose(ours.numpy(), expected.numpy(), atol=1e-3)
    np.testing.assert_allclose(ours[0].numpy(), [0.981225, 0.002245, 0.016530], atol=1e-3)


@pytest.mark.parametrize("log_domain", [False, True])
def test_batches_of_several_processes_may_differ_in_size(log_domain: bool) -> None:
    scores = random_scores(12, 5).clamp(-1, 1)

    def one(number: int, reduce: Reduce) -> Tensor:
        part = scores[:3] if number == 0 else scores[3:]
        return batch_assignments(part, log_domain=log_domain, reduce=reduce)

    parts = [part for part in in_threads(2, one) if isinstance(part, Tensor)]

    np.testing.assert_allclose(
        torch.cat(parts).numpy(), batch_assignments(scores, log_domain=log_domain).numpy(), atol=1e-12
    )


def test_logarithms_bear_scores_without_bounds() -> None:
    ours = batch_assignments(random_scores(16, 4, scale=1000, dtype=torch.float32), epsilon=0.01, log_domain=True)

    assert ours.dtype == torch.float32
    np.testing.assert_allclose(ours.sum(dim=1).numpy(), 1, atol=1e-6)


def test_batches_have_no_gradient() -> None:
    assert not batch_assignments(BATCH.clone().requires_grad_()).requires_grad


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        (BATCH, {"epsilon": 0.0}, "epsilon: 0.0"),
        (BATCH, {"num_iterations": 0}, "num_iterations: 0"),
        (BATCH[0], {}, "not shape"),
        (BATCH.half(), {}, "float16"),
        (BATCH * float("nan"), {}, "NaN"),
    ],
)
def test_batches_that_cannot_be_assigned_are_refused(scores: Tensor, options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch_assignments(scores, **options)  # type: ignore[arg-type] # on purpose


@pytest.mark.parametrize("count", [0, 5, 256, 200_001])
def test_sums_of_millions_of_rows_on_a_gpu_have_the_digits_of_single_precision(count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    rows, weights = torch.rand(count, 3, generator=generator), torch.rand(count, generator=generator)
    exact = (rows.double() * weights.double()[:, None]).sum(dim=0)
    torch.testing.assert_close(weighted_sum(rows, weights), exact, rtol=5e-7, atol=0)
    torch.testing.assert_close(weighted_sum(rows.T.contiguous().T, weights), exact, rtol=5e-7, atol=0)
