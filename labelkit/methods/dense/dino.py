"""DINO: a student predicts its own moving average's outputs for other views of the image, without labels.

Source: M. Caron et al., "Emerging Properties in Self-Supervised Vision Transformers" (ICCV 2021), a baseline in CoTAP's
Fig. 7 and 10. Each step, on two large views of every image and some small ones:
    1. the target assigns class tokens of the large views to its outputs, centered by their running mean      Sec. 3.1
    2. the student learns these assignments from all other views                                           Eq. 1 to 3
    3. update the target (EMA of the student) and the running mean                                              Eq. 4
Images of several objects are treated like all others, for training on both kinds (CoTAP, Sec. 5.5).
Training can continue from a full checkpoint with both networks, their heads and the running mean.

Departures: the target's temperature changes at each step, not once per epoch as in the released code; the
learning-rate warm-up differs (``training.schedules``); optimizer state is not loaded from a checkpoint.
"""

import torch

from labelkit.data.batch import Batch
from labelkit.methods.dense.distillation import DistillationMethod
from labelkit.methods.dense.options import DINOConfig
from labelkit.training.method import StepOutput


class DINO(DistillationMethod[DINOConfig]):
    """DINO training method: self-distillation of class tokens across views, without labels."""

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the mean distillation loss over all pairs of different views."""
        large, small = batch.views[:2], batch.views[2:]
        with torch.no_grad():
            targets = self.image_targets(self.target.embed(torch.cat(large)))
        # views of the same size run together, and the head processes all views at once
        tokens = [self.network.embed(torch.cat(views)) for views in (large, small) if views]
        outputs = self.network.outputs(torch.cat(tokens))
        loss = self.loss(outputs.chunk(len(batch.views)), targets.chunk(2))
        return StepOutput(loss, self.collapse_diagnostics(targets, outputs[: len(targets)]))
