"""Options for ``labelkit prototypes``."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from labelkit.options.base import panel
from labelkit.options.shared import OverwriteOption

_OUTPUT = panel("Output", preset=False)

SHARPEST_T = 32768.0


class PrototypesConfig(OverwriteOption):
    """Options for ``labelkit prototypes``."""

    command: ClassVar[tuple[str, ...]] = ("prototypes",)

    num_classes: int = Field(..., ge=2, le=100_000, description="Number of prototypes, one per class.")
    embed_dim: int = Field(..., ge=2, le=100_000, description="Dimension of the prototypes.")
    method: Literal["auto", "optimize"] = Field(
        "auto",
        description="How to compute the prototypes. auto: in closed form if possible (up to twice as many classes as "
        "dimensions, or two dimensions), otherwise optimize; optimize: always minimize the loss.",
    )
    t: float = Field(2.0, gt=0, le=1e6, description="Sharpness of the loss (t in Eq. 5; the paper's code uses 2).")
    sharpest_t: float | None = Field(
        SHARPEST_T,
        gt=0,
        le=1e9,
        description="Final sharpness of the loss. After minimizing the loss, its sharpness is increased to this value "
        "step by step, until only the largest cosine matters; none: only minimize the loss of the paper.",
    )
    max_iterations: int = Field(200, ge=1, description="Maximum number of iterations per sharpness value.")
    num_inits: int = Field(
        1,
        ge=1,
        description="Number of random initializations, of which the best is kept; several help if there are few "
        "classes.",
    )
    seed: int = Field(
        0, ge=0, description="Random seed for the initializations, or for the rotation and order in closed form."
    )
    device: Literal["cpu", "cuda"] = Field(
        "cpu", description="Compute device; cuda is faster for about 2,000 classes or more."
    )
    cache: bool = Field(
        True, description="Load prototypes from the user's cache if available, and save new ones to it."
    )
    out: Path | None = _OUTPUT(None, "File to write. Default: prototypes-CLASSESxDIM.h5.", makes="prototypes")
