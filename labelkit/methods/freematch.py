"""FreeMatch: what the network is sure of for a weakly changed image, it learns on a strongly changed one.

Sources: Y. Wang et al., "FreeMatch: Self-adaptive Thresholding for Semi-supervised Learning" (ICLR 2023) and
``microsoft/Semi-supervised-learning``; with ``--fixed-threshold 0.95 --fairness-weight 0`` K. Sohn et al., "FixMatch"
(NeurIPS 2020).
Each step, on labeled images and several times as many others:
    1. cross-entropy of the labeled images, weakly changed
    2. thresholds move toward the mean confidence, and for each class with its share of the predictions
    3. cross-entropy of strongly changed images with the class of the weakly changed one, if above its threshold
    4. the published term on the mix of classes, with a small weight
    5. the average moves toward the network; it is the one that is judged and embeds
Departures: RandAugment's geometric operations come before the others; the average fits to short runs
(``--no-ema-horizon``); statistics are taken anew before an evaluation.
"""

from __future__ import annotations

from labelkit.config.methods.freematch import FreeMatchConfig
from labelkit.data.batch import DataInfo
from labelkit.engine.averaged_student import ObjectiveStudent
from labelkit.engine.few_labels import student_views
from labelkit.engine.student_objectives import freematch_objective


class FreeMatch(ObjectiveStudent[FreeMatchConfig]):
    """Needs at least one label of each class."""

    def __init__(self, config: FreeMatchConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        views = student_views(config, data, self.network.input_spec.size)
        self.objective = freematch_objective(config, views, self.num_classes)
