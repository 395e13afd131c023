"""Pseudo-labels for a network's training images: one table per head, updated by balanced optimal transport.

All state is in buffers, so that checkpoints include labels, potentials and the position in the schedule. Each
process solves for the images it visited and exchanges only sums the size of a head; labels are gathered by row.
Source: SeLa (``yukimasano/self-label``), specification 3.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.algorithms.sinkhorn import LinearScores, Reduce, solve_assignment, sort_prior_by_cluster_size
from labelkit.data.keyed_random import keyed_generator
from labelkit.errors import CheckpointError, CheckpointMismatch
from labelkit.methods.sela.options import SeLaConfig
from labelkit.progress import current_progress
from labelkit.training.checkpoint import MODEL, load_checkpoint, load_model_state
from labelkit.training.inputs import MethodInputs
from labelkit.training.method import TrainState
from labelkit.training.run_dir import IMAGES_SHA256, read_split

SLOW_ERROR, SLOW_ITERATIONS = 0.1, 100
_CHUNK = 4096


def optimization_warnings(record: Mapping[str, Any], tolerance: float) -> dict[str, str]:
    """Return warnings about a label optimization, keyed by kind; ``tolerance`` is the requested marginal error."""
    found, head = {}, record["head"]
    reached = f"marginal error {record['marginal_error']:.2g} after {record['iterations']} passes"
    if record["empty_clusters"]:
        found["empty"] = f"head {head} has {record['empty_clusters']} empty clusters: lower --num-clusters"
    if record["marginal_error"] > SLOW_ERROR and record["iterations"] >= SLOW_ITERATIONS:
        found["far"] = f"the labels of head {head} are far from balanced ({reached}): lower --lam"
    elif not record["converged"]:
        found["not converged"] = (
            f"the labels of head {head} are not quite balanced ({reached}, target {tolerance:g}), but used unchanged"
        )
    return found


def compute_optimization_times(kind: str, epochs: int, count: int) -> tuple[float, ...]:
    """Compute the times, in epochs, at which labels are optimized.

    Args:
        kind: specification 3.12; ``uniform``: ``E k / n``; ``quadratic``: ``E (k / (n - 1))^2``; ``official-uniform``:
            ``(E + 1.0001) k / (n - 1)``; ``official-quadratic``: ``(E + 1.01) (k / (n - 1))^2``.
        epochs: length of the run in epochs, E.
        count: number of optimizations, n; a single one takes place at time 0.

    Returns:
        n increasing times, starting at 0; the last may lie at or beyond the end of the run and is then never reached.
    """
    if count == 1:
        return (0.0,)
    formulas: dict[str, Callable[[int], float]] = {
        "uniform": lambda k: epochs * k / count,
        "quadratic": lambda k: epochs * (k / (count - 1)) ** 2,
        "official-uniform": lambda k: (epochs + 1.0001) * k / (count - 1),
        "official-quadratic": lambda k: (epochs + 1.01) * (k / (count - 1)) ** 2,
    }
    return tuple(formulas[kind](k) for k in range(count))


class SelfLabels(nn.Module):
    """Pseudo-labels of each head, and the state of their optimization.

    Args:
        num_samples: number of images in the dataset, n.
        num_clusters: number of clusters of each head.
        times: increasing times of the optimizations, in epochs.
        refresh: optimize ``all`` heads each time, or ``one`` head in turn.

    Attributes:
        pseudo_labels: (h, n) int32, -1 = the image cannot be read.
        num_optimizations: () int64, number of optimizations so far.
        next_time: () int64, index in ``times`` of the next optimization.
        num_solves: (h,) int64, number of optimizations of each head so far.
    """

    #: Names of the buffers, which are equal on all processes, since each computes them from the same sums.
    buffer_names: tuple[str, ...]

    def __init__(
        self,
        num_samples: int,
        num_clusters: Sequence[int],
        *,
        times: Sequence[float] = (),
        refresh: Literal["all", "one"] = "all",
    ) -> None:
        super().__init__()
        self.num_clusters = tuple(num_clusters)
        self.times = tuple(times)
        self.refresh = refresh
        heads = len(self.num_clusters)
        self.pseudo_labels: Tensor = nn.Buffer(torch.full((heads, num_samples), -1, dtype=torch.int32))
        self.num_optimizations: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.next_time: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))
        self.num_solves: Tensor = nn.Buffer(torch.zeros(heads, dtype=torch.int64))
        for head, k in enumerate(self.num_clusters):
            self.register_buffer(f"potentials_{head}", torch.zeros(k, dtype=torch.float64))
            self.register_buffer(f"prior_{head}", torch.full((k,), 1 / k, dtype=torch.float64))
        self.buffer_names = tuple(name for name, _ in self.named_buffers())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move only integer buffers: the solver's potentials stay on the CPU, in a precision some devices lack."""
        kept = {name: value for name, value in self._buffers.items() if value is not None and value.is_floating_point()}
        for name in kept:
            del self._buffers[name]
        try:
            super()._apply(fn, recurse)  # type: ignore[no-untyped-call] # untyped in torch
            return self
        finally:
            self._buffers.update(kept)

    def potentials(self, head: int) -> Tensor:
        """Return the log cluster weights (k,) float64 from a head's last optimization, with maximum 0."""
        return self.get_buffer(f"potentials_{head}")

    def prior(self, head: int) -> Tensor:
        """Return a head's target cluster fractions (k,) float64, which its first optimization reorders."""
        return self.get_buffer(f"prior_{head}")

    def assign_random_labels(self, rows: NDArray[np.int64], seed: int) -> None:
        """Assign balanced random labels to the readable images: each head's cluster sizes differ by at most one."""
        for head, k in enumerate(self.num_clusters):
            order = keyed_generator(seed, f"initial labels {head}").permutation(len(rows))
            self.pseudo_labels[head, torch.from_numpy(rows)] = torch.from_numpy((order % k).astype(np.int32))

    def pop_due_heads(self, epoch: float) -> tuple[int, ...]:
        """Return the heads whose labels must be optimized now, and advance the schedule past any missed times."""
        passed = sum(time <= epoch for time in self.times)
        if passed <= int(self.next_time):
            return ()
        self.next_time.fill_(passed)
        counter = int(self.num_optimizations)
        self.num_optimizations += 1
        heads = range(len(self.num_clusters))
        return tuple(heads) if self.refresh == "all" else (counter % len(heads),)

    @torch.no_grad()
    def optimize_head(
        self,
        head: int,
        features: Tensor,
        rows: NDArray[np.int64],
        layer: nn.Module,
        config: SeLaConfig,
        state: TrainState,
    ) -> dict[str, Any]:
        """Optimize the labels of one head.

        Args:
            head: number of the head.
            features: (m, d) float, features of the images that this process visited.
            rows: (m,) dataset rows of these images; across all processes, each readable row occurs once.
            layer: the head's ``Linear`` layer, with k outputs.
            config: options of the solver.
            state: communicates with the other processes.

        Returns:
            Values for the log: ``head``; ``iterations``, passes over the scores; ``marginal_error``, sum of absolute
            differences between actual and requested proportions; ``converged``, whether it is below the tolerance;
            ``cost``, mean -log p of the new labels in nats; ``churn``, share of labels that changed; ``min_count`` and
            ``max_count``, sizes of the smallest and largest clusters; and ``empty_clusters``, their number.
        """
        weight, bias = layer.weight, layer.bias
        assert isinstance(weight, Tensor)
        assert isinstance(bias, Tensor)
        weight, bias = weight.float(), bias.float()
        features = features.to(weight.device) if len(features) else weight.new_zeros((0, weight.shape[1]))
        prior = self.prior(head)
        if int(self.num_solves[head]) == 0:
            shares = _cluster_shares(features, weight, bias, config.lam, state.combine)
            prior.copy_(sort_prior_by_cluster_size(prior, shares))
        scores = LinearScores(features, weight, bias)
        result = solve_assignment(
            scores,
            config.lam,
            prior=prior,
            tol=config.solver_tolerance,
            max_iterations=config.solver_max_iterations,
            initial=self.potentials(head),
            reduce=state.combine,
        )
        self.potentials(head).copy_(result.potentials)
        # labels + 1, since rows that no process visited are gathered as 0
        table = state.gather_rows(result.cluster_ids + 1, torch.from_numpy(rows), self.pseudo_labels.shape[1]) - 1
        listed = table >= 0
        churn = (table[listed] != self.pseudo_labels[head].cpu()[listed]).double().mean()
        counts = torch.bincount(table[listed], minlength=self.num_clusters[head])
        self.pseudo_labels[head] = table.to(torch.int32).to(self.pseudo_labels.device)
        self.num_solves[head] += 1
        return {
            "head": head,
            "iterations": result.num_iterations,
            "marginal_error": result.marginal_error,
            "converged": result.converged,
            "cost": result.cost,
            "churn": float(churn),
            "min_count": int(counts.min()),
            "max_count": int(counts.max()),
            "empty_clusters": int((counts == 0).sum()),
        }


def _cluster_shares(features: Tensor, weight: Tensor, bias: Tensor, lam: float, combine: Reduce) -> Tensor:
    """Return each cluster's share of the images before balancing, (k,) float64, over all processes."""
    shares = torch.zeros(len(weight) + 1, dtype=torch.float64, device=weight.device)  # the last one counts images
    for chunk in torch.split(features, _CHUNK):
        scores = lam * torch.nn.functional.linear(chunk, weight, bias).double()
        shares[:-1] += scores.softmax(1).sum(0)
        shares[-1] += len(chunk)
    shares = combine(shares, "sum")
    return shares[:-1] / shares[-1]


_LABELS = "labels."


def copy_pseudo_labels(labels: SelfLabels, source: Path, inputs: MethodInputs) -> None:
    """Copy the pseudo-labels from a finished run on the same images.

    Raises:
        CheckpointError: the folder contains no run with pseudo-labels.
        CheckpointMismatch: the run was trained on other images or has other heads.
    """
    checkpoint = load_checkpoint(source, show_message=current_progress().message)
    if checkpoint is None:
        problem = "contains no checkpoint"
        raise CheckpointError(str(source), problem, "Pass the --out folder of a `labelkit train sela` run.")
    found = {name: value for name, value in checkpoint.tensors(MODEL).items() if name.startswith(_LABELS)}
    if not found:
        problem = "contains no pseudo-labels"
        raise CheckpointError(str(source), problem, "Pass the --out folder of a `labelkit train sela` run.")
    saved = read_split(source)
    same = saved.get("dataset_digest") == inputs.digest()
    if same and IMAGES_SHA256 in saved:  # earlier versions did not store it
        same = saved[IMAGES_SHA256] == inputs.images_digest(np.arange(len(inputs.sample_ids)))
    if not same:
        raise CheckpointMismatch(str(source), "was trained on other images", "Pass the data options of that run.")
    load_model_state(labels, {name.removeprefix(_LABELS): value for name, value in found.items()}, str(source))
    current_progress().message(f"using the pseudo-labels from {checkpoint.folder}, which remain fixed")
