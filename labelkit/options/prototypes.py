"""Options for ``labelkit prototypes``."""

from pathlib import Path
from typing import ClassVar, Literal

from labelkit.options.base import OPTION, OUTPUT
from labelkit.options.shared import OverwriteOption

SHARPEST_T = 32768.0


class PrototypesConfig(OverwriteOption):
    """Options for ``labelkit prototypes``."""

    command: ClassVar[tuple[str, ...]] = ("prototypes",)

    num_classes: int = OPTION(..., "Number of prototypes, one per class.", ge=2, le=100_000)
    embed_dim: int = OPTION(..., "Dimension of the prototypes.", ge=2, le=100_000)
    method: Literal["auto", "optimize"] = OPTION(
        "auto",
        "How to compute the prototypes. auto: in closed form if possible (up to twice as many classes as "
        "dimensions, or two dimensions), otherwise optimize; optimize: always minimize the loss.",
    )
    t: float = OPTION(2.0, "Sharpness of the loss (t in Eq. 5; the paper's code uses 2).", gt=0, le=1e6)
    sharpest_t: float | None = OPTION(
        SHARPEST_T,
        "Final sharpness of the loss. After minimizing the loss, its sharpness is increased to this value "
        "step by step, until only the largest cosine matters; none: only minimize the loss of the paper.",
        gt=0,
        le=1e9,
    )
    max_iterations: int = OPTION(200, "Maximum number of iterations per sharpness value.", ge=1)
    num_inits: int = OPTION(
        1, "Number of random initializations, of which the best is kept; several help if there are few classes.", ge=1
    )
    seed: int = OPTION(0, "Random seed for the initializations, or for the rotation and order in closed form.", ge=0)
    device: Literal["cpu", "cuda"] = OPTION("cpu", "Compute device; cuda is faster for about 2,000 classes or more.")
    cache: bool = OPTION(True, "Load prototypes from the user's cache if available, and save new ones to it.")
    out: Path | None = OUTPUT(None, "File to write. Default: prototypes-CLASSESxDIM.h5.", makes="prototypes")
