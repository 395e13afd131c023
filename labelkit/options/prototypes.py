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
    sharpest_t: float | None = OPTION(
        SHARPEST_T,
        "Final sharpness of the loss. After minimizing the loss, its sharpness is increased to this value "
        "step by step, until only the largest cosine matters; none: only minimize the loss of the paper.",
        gt=0,
        le=1e9,
    )
    seed: int = OPTION(0, "Random seed for the initializations, or for the rotation and order in closed form.", ge=0)
    device: Literal["cpu", "cuda"] = OPTION("cpu", "Compute device; cuda is faster for about 2,000 classes or more.")
    out: Path | None = OUTPUT(None, "File to write. Default: prototypes-CLASSESxDIM.h5.", makes="prototypes")
