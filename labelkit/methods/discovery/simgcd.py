"""SimGCD: contrastive learning with a self-distilled cosine classifier over old and new classes.

Source: X. Wen, B. Zhao, X. Qi, "Parametric Classification for Generalized Category Discovery: A Baseline Study"
(ICCV 2023) and its released code.
Each step, on two views of every image (labeled or not):
    1. backbone, projector, classifier over both views            (2b, p), (2b, c)
    2. contrastive losses: unsupervised on all images, supervised on labeled images
    3. each view's sharpened prediction is the other view's target; the mean prediction is kept close to uniform
    4. cross-entropy on labeled images
Departure: ``--views weak-strong --no-symmetric`` uses FlipClass's views and direction without its alignment.
"""

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.views.recipes import simgcd_view, strong_view, weak_view
from labelkit.data.views.spec import ViewSpec
from labelkit.methods.backbone import embedding_views
from labelkit.methods.discovery.options import SimGCDConfig
from labelkit.methods.discovery.recipe import SelfDistilledClassifier
from labelkit.models.frozen_part import FrozenPart
from labelkit.training.method import StepOutput


class SimGCD(SelfDistilledClassifier[SimGCDConfig]):
    """SimGCD training method: contrastive learning with a self-distilled cosine classifier."""

    def __init__(self, config: SimGCDConfig, data: DataInfo) -> None:
        super().__init__(config, data, symmetric=config.symmetric)

    def views(self, epoch: int) -> tuple[ViewSpec, ViewSpec]:
        """Return the two views, which are the same in every epoch."""
        size, domain, chiral = self.network.input_spec.size, self.config.augmentation, self.data.chiral
        of_rows = embedding_views(self.config, self.data)
        if of_rows is not None:
            return of_rows[1], of_rows[1]
        if self.config.views == "simgcd":
            return simgcd_view(size, domain, chiral=chiral), simgcd_view(size, domain, chiral=chiral)
        return weak_view(size, domain, chiral=chiral), strong_view(size, domain, chiral=chiral)

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the loss of both views for one batch."""
        projections, logits = self.network.forward_pair(batch.views[0], batch.views[1])
        loss, parts = self.loss(projections, logits, batch.labels, teacher_temperature=self._teacher_temperature)
        return StepOutput(loss, parts)

    def reuse_frozen(self) -> FrozenPart:
        """Enable caching of the outputs of the blocks before the first trained block."""
        return self.network.reuse_frozen()
