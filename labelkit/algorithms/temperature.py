"""Base class of losses with a softmax temperature."""

from torch import nn


class TemperatureLoss(nn.Module):
    r"""Base class of losses that divide logits by a temperature.

    Args:
        temperature: :math:`\tau > 0`.

    Raises:
        ValueError: the temperature is not positive.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self.temperature = require_positive(temperature, "temperature")


def require_positive(value: float, name: str) -> float:
    """Return the value, or raise a ``ValueError`` with its name if it is not positive."""
    if not value > 0:
        raise ValueError(f"{name} must be > 0, got {value}")
    return value
