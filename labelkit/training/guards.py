"""Detection of failing training, which warns or ends the run and keeps the last good checkpoint.

The checks cost next to nothing. They use the loss at logged steps, where it is read anyway; the features of a fixed,
small sample of images after an epoch (not every epoch for small datasets); and the number of clusters in use.

A sign of failure counts only if it persists for several checks, since an untrained network cannot yet tell images apart
and a single batch may be unusual. Weights that are not finite end every run, whatever the mode.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
from torch import Tensor, nn

from labelkit.errors import DivergenceError
from labelkit.formatting import join_first_few

GuardMode = Literal["none", "warn", "stop"]

#: Number of training images between two checks of the features, so that checks take less than 1% of the training.
IMAGES_PER_CHECK: Final = 8192
#: Number of images whose features are checked: enough to measure their spread, few compared with an epoch.
SAMPLE_SIZE: Final = 64
#: Consecutive occurrences of a sign that end a run; the occurrence before that triggers a warning.
MAX_SIGNS, MAX_CLUSTER_SIGNS = 3, 5
#: Minimum duration of a collapse in steps: new networks cannot tell images apart, and small datasets have short epochs.
MIN_COLLAPSED_STEPS: Final = 200
#: Multiple of the first step's loss, or of 1, above which a loss has exploded; in the measured presets, it is below 10.
LOSS_RATIO: Final = 100
#: Relative spread of features below which they have collapsed; in the measured presets, it is above 0.01.
MIN_SPREAD: Final = 1e-4
_SIGNS: Final = ("loss", "features", "clusters")


@dataclass
class TrainingGuard:
    """Detects training failures: warns once about each sign of failure, and stops the run if a sign persists.

    Args:
        mode: ``stop``, ``warn`` only, or ``none`` (no checks).
        show_message: shows a message to the user.
    """

    mode: GuardMode
    show_message: Callable[[str], None]
    good_step: int = 0  # step of the last checkpoint written without any sign of failure; 0 = none yet
    _first_loss: float | None = None
    _seen: dict[str, list[int]] = field(default_factory=dict)  # consecutive occurrences, and the step of the first
    _warned: set[str] = field(default_factory=set)
    _last_check: int = 0

    def check_loss_explosion(self, loss: float, step: int) -> None:
        """Check that the loss has not exploded compared with the first step.

        Raises:
            DivergenceError: it has exploded.
        """
        if self._first_loss is None:
            self._first_loss = loss
            return
        problem = (
            f"the loss rose from {self._first_loss:.4g} at the first step to {loss:.4g}, so training is diverging",
            "Lower --lr, set --clip-grad-norm, or train with a warm-up.",
        )
        exploded = abs(loss) > LOSS_RATIO * max(1.0, abs(self._first_loss))
        self._count("loss", problem if exploded else None, step, MAX_SIGNS, lasting=0)

    def is_feature_check_due(self, step: int, batch_size: int) -> bool:
        """Return whether enough images have been used since the last feature check to check again."""
        return self.mode != "none" and (step - self._last_check) * batch_size >= IMAGES_PER_CHECK

    def check_feature_spread(self, spread: float, step: int) -> None:
        """Check that the features of a few images have not collapsed, given their ``feature_spread`` after an epoch.

        Raises:
            DivergenceError: the features have been nearly equal for too long.
        """
        self._last_check = step
        problem = (
            f"the features of all images are nearly equal (relative spread {spread:.1e}): training has collapsed",
            "Lower --lr or the weights of additional losses, or raise weights that separate images (--entropy-weight).",
        )
        self._count("features", None if spread >= MIN_SPREAD else problem, step, MAX_SIGNS, lasting=MIN_COLLAPSED_STEPS)
        if not self._seen:
            self.good_step = step

    def check_cluster_use(self, used: float, step: int) -> None:
        """Check that a monitor has assigned images to more than one cluster.

        Raises:
            DivergenceError: only one cluster has been in use for too long.
        """
        problem = (
            "only one cluster is in use: training has collapsed",
            "Pass --clip-grad-norm 1, lower --lr or raise --entropy-weight.",
        )
        self._count("clusters", problem if used == 1 else None, step, MAX_CLUSTER_SIGNS, lasting=MIN_COLLAPSED_STEPS)

    def _count(self, name: str, sign: tuple[str, str] | None, step: int, times: int, *, lasting: int) -> None:
        """Count consecutive occurrences of a sign (problem and remedy); warn or stop the run if it persists."""
        if sign is None or self.mode == "none":
            self._seen.pop(name, None)
            return
        problem, remedy = sign
        counted = self._seen.setdefault(name, [0, step])
        counted[0] += 1
        if self.mode == "stop" and counted[0] >= times and step - counted[1] >= lasting:
            problem += f"; the earlier checkpoint of step {self.good_step} is kept" if self.good_step else ""
            raise DivergenceError(f"step {step}", problem, f"{remedy} To continue anyway, pass --guard warn.")
        if counted[0] >= times - 1 and name not in self._warned:
            self._warned.add(name)
            self.show_message(f"warning: step {step}: {problem}. {remedy}")

    def extra_state(self) -> dict[str, Any]:
        """Return the JSON values that a resumed run needs."""
        return {
            "good_step": self.good_step,
            "first_loss": self._first_loss,
            "seen": self._seen,
            "looked_at": self._last_check,
        }

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by ``extra_state``."""
        self.good_step, self._first_loss = int(state["good_step"]), state["first_loss"]
        # earlier versions counted more signs
        self._seen = {name: list(state["seen"][name]) for name in _SIGNS if name in state["seen"]}
        self._last_check = int(state["looked_at"])


def feature_spread(features: Tensor) -> float:
    """Compute the standard deviation of features (n, d) divided by their root mean square; 0 if not finite."""
    values = features.double()
    length = values.square().mean().sqrt()
    spread = (values - values.mean(dim=0)).square().mean().sqrt() / length
    return float(spread) if bool(torch.isfinite(spread)) else 0.0


def check_weights(module: nn.Module, where: str) -> None:
    """Check that all weights and running statistics are finite.

    Raises:
        DivergenceError: some are not; the message names the first ones.
    """
    named: dict[str, Tensor] = dict(module.named_parameters())
    named |= {name: value for name, value in module.named_buffers() if name.endswith(("running_mean", "running_var"))}
    # one copy for all, since each copy waits for the GPU
    finite = torch.stack([value.detach().isfinite().all() for value in named.values()]).tolist()
    broken = [name for name, is_finite in zip(named, finite, strict=True) if not is_finite]
    if broken:
        remedy = "The last checkpoint is not affected. Lower --lr, set --clip-grad-norm, or use --precision float32."
        raise DivergenceError(where, f"weights are not finite: {join_first_few(broken)}", remedy)
