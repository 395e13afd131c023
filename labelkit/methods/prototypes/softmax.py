"""Softmax, the baseline of DL2PA: a linear classifier trained with the network (PSC in the paper).

Source: "Hyperspherical Classification with Dynamic Label-to-Prototype Assignment" (CVPR 2024), Sec. 2 and Table 8.
Each step:
    1. embed the images and multiply by the class vectors                (b, d), (b, c)
    2. cross-entropy                                                     Eq. 10 of its supplement
    3. ``--uniformity-weight``: spread the directions of the class vectors, Eq. 5 (PSC* in Table 8)
It is not an option of ``dl2pa``, since it has none of that method's state: no fixed prototypes, no
class means, no assignment. Network, data and views are the same.
Departure: the baseline in the released code normalizes embeddings and class vectors without a temperature; the paper's
text does not, and we follow the text.
"""

from torch import nn

from labelkit.data.batch import Batch, DataInfo
from labelkit.methods.prototypes.losses import UniformityLoss, WeightedCrossEntropy
from labelkit.methods.prototypes.options import SoftmaxConfig
from labelkit.methods.prototypes.recipe import SupervisedClassifierMethod
from labelkit.models.headed import ClassifierNetwork
from labelkit.training.method import StepOutput


class Softmax(SupervisedClassifierMethod[SoftmaxConfig]):
    """Softmax training method: a linear classifier with learned class weight vectors."""

    network: ClassifierNetwork[nn.Linear]

    def __init__(self, config: SoftmaxConfig, data: DataInfo) -> None:
        super().__init__(config, data, lambda num_classes, dim: nn.Linear(dim, num_classes))
        self.loss = WeightedCrossEntropy()
        self.uniformity = UniformityLoss()

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the cross-entropy and, if enabled, the uniformity loss of the class weight vectors."""
        mixed = self.mix_batch(batch)
        logits = self.network.classify(self.network.embed(mixed.images))
        weights = self.class_weights(mixed.labels)
        loss = logits.new_zeros(())
        for labels, share in ((mixed.labels, mixed.share), (mixed.other_labels, 1 - mixed.share)):
            if share > 0:
                loss = loss + share * self.loss(logits, labels, None if weights is None else weights[labels])
        if self.config.uniformity_weight == 0:
            return StepOutput(loss)
        uniformity = self.uniformity(self.network.head.weight)
        total = loss + self.config.uniformity_weight * uniformity
        return StepOutput(total, {"cross_entropy": loss.detach(), "uniformity": uniformity.detach()})
