"""Options of DINO: class tokens of all crops of an image, assigned as the average of the network assigns them."""

from __future__ import annotations

from typing import ClassVar

from labelkit.config.self_distillation import SelfDistillationConfig


class DINOConfig(SelfDistillationConfig):
    """``labelkit train dino``."""

    command: ClassVar[tuple[str, ...]] = ("train", "dino")
