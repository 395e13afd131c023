"""Mean Teacher: a student learns from a few labels, and from its own average on all images.

Source: A. Tarvainen, H. Valpola, "Mean teachers are better role models" (NeurIPS 2017) and its released code.
Each step, on a batch of labeled and unlabeled images in two views:
    1. cross-entropy of the labeled images of the first view
    2. squared difference between the student's prediction for the first view and the teacher's for the second,
       with a weight that grows at the start
    3. the teacher moves toward the student
The teacher runs in training mode, with statistics of its own. It is the network that is judged and embeds.
Departures: decays fit to short runs (``--no-ema-horizon``), statistics are taken anew before an evaluation
(``--no-bn-recalibration``), weight normalization and ZCA whitening are left out.
"""

from __future__ import annotations

from labelkit.config.methods.mean_teacher import MeanTeacherConfig
from labelkit.data.batch import DataInfo
from labelkit.engine.averaged_student import ObjectiveStudent
from labelkit.engine.few_labels import mean_teacher_objective, student_views


class MeanTeacher(ObjectiveStudent[MeanTeacherConfig]):
    """Needs at least one label of each class."""

    def __init__(self, config: MeanTeacherConfig, data: DataInfo) -> None:
        ramp = config.consistency_ramp * config.steps
        super().__init__(config, data, num_heads=config.num_heads, ramp_steps=ramp)
        weak, _ = student_views(config, data, self.network.input_spec.size)
        self.objective = mean_teacher_objective(config, config, weak)
