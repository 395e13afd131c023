"""DINO: a student predicts what its own moving average outputs for other views of the image, without labels.

Source: M. Caron et al., "Emerging Properties in Self-Supervised Vision Transformers" (ICCV 2021), a baseline in CoTAP's
Fig. 7 and 10. Each step, on two large views of every image and some small ones:
    1. the target assigns class tokens of the large views to its outputs, centered by their running mean      Sec. 3.1
    2. the student learns these assignments from all other views                                           Eq. 1 to 3
    3. the target moves toward the student, and the running mean toward this batch's                            Eq. 4
Images of several objects are used like all others, for training on both kinds (CoTAP, Sec. 5.5).
Training continues from a full checkpoint with both networks, their heads and the running mean.

Departures: the temperature of the target grows at each step, while the released code changes it once per epoch; the
warm-up of the learning rate differs (``training.schedules``); optimizer moments are not taken from a checkpoint.
"""

import torch

from labelkit.data.batch import Batch
from labelkit.methods.dense.distillation import DistilledStudent
from labelkit.methods.dense.options import DINOConfig
from labelkit.training.method import StepOutput


class DINO(DistilledStudent[DINOConfig]):
    """DINO training method: self-distillation of class tokens across views, without labels."""

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the mean distillation loss over all pairs of different views."""
        large, small = batch.views[:2], batch.views[2:]
        with torch.no_grad():
            targets = self.image_targets(self.target.embed(torch.cat(large)))
        # views of one size run together, and the head sees all at once
        tokens = [self.network.embed(torch.cat(views)) for views in (large, small) if views]
        outputs = self.network.outputs(torch.cat(tokens))
        loss = self.loss(outputs.chunk(len(batch.views)), targets.chunk(2))
        return StepOutput(loss, self.collapse_diagnostics(targets, outputs[: len(targets)]))
