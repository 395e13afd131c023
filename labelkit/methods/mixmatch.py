"""MixMatch: guess labels for unlabeled images, blend them with labeled ones, fit the blends.

Source: D. Berthelot et al., "MixMatch: A Holistic Approach to Semi-Supervised Learning" (NeurIPS 2019) and its released
code.
Each step, on as many labeled images as others, in two weak views:
    1. the mean prediction for the two views, sharpened, is the guess
    2. every row is blended with another one, image and label alike
    3. cross-entropy of labeled blends, squared error of the others with a weight that grows at the start
    4. the average moves toward the network; it is the one that is judged and embeds
Departures: weight decay (of kernels alone, decoupled) comes just before an update instead of just after it; the average
fits to short runs (``--no-ema-horizon``); statistics are taken anew before an evaluation, as the released code can;
accuracy is the last one, not the median of the last 20.
"""

from __future__ import annotations

from labelkit.config.methods.mixmatch import MixMatchConfig
from labelkit.data.batch import DataInfo
from labelkit.engine.averaged_student import ObjectiveStudent
from labelkit.engine.few_labels import student_views
from labelkit.engine.student_objectives import mixmatch_objective


class MixMatch(ObjectiveStudent[MixMatchConfig]):
    """Needs at least one label of each class."""

    def __init__(self, config: MixMatchConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        weak, _ = student_views(config, data, self.network.input_spec.size)
        self.objective = mixmatch_objective(config, config, weak)
