"""Training the last stages of a convolutional network alone."""

from __future__ import annotations

from pydantic import Field, model_validator

from labelkit.options.base import option
from labelkit.options.frozen_cache import ReuseOptions


class FreezeOptions(ReuseOptions):
    """A method that can leave the first stages of its network as they are."""

    freeze_stages: int = Field(
        0,
        ge=0,
        description="Leave this number of stages of the backbone, and what comes before them, as they are, with the "
        "running statistics of their normalization: of layer1 to layer4 of a ResNet, of blocks.0 to blocks.6 of an "
        "EfficientNet. 0: train all.",
        json_schema_extra={**option("Model"), "before": 0},
    )

    @model_validator(mode="after")
    def _reuses_what_is_frozen(self) -> FreezeOptions:
        if self.reuse_frozen is not None and self.freeze_stages == 0:
            raise ValueError("--reuse-frozen goes with --freeze-stages, which says what is frozen: give both")
        return self
