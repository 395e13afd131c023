"""iBOT: DINO, with a student that also predicts its moving average's outputs for patches masked in its input.

Source: J. Zhou et al., "iBOT: Image BERT Pre-Training with Online Tokenizer" (ICLR 2022), a baseline in CoTAP's Fig. 7
and 10. Each step, on two large views of every image and some small ones:
    1. mask random blocks of patches in the large views; the student sees a mask token in their place        Sec. 3.1
    2. the target, which sees all, assigns class tokens and patches to its outputs, centered by their running means
    3. class tokens: the student learns the assignments from all other views                                    Eq. 3
    4. masked patches: it learns the assignments of the same patches of the same view                           Eq. 2
    5. update the target (EMA of the student) and the running means
Images of several objects are treated like all others, for training on both kinds (CoTAP, Sec. 5.5).
Training can continue from a full checkpoint with both networks, their heads, the mask token and the running means.

Departures: those of DINO (``methods.dense.dino``); masks depend only on seed, step and image, not on workers.
"""

import math
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit.data.batch import Batch, DataInfo, move_arrays_to_device
from labelkit.data.keyed_random import keyed_generator
from labelkit.methods.dense.distillation import DistillationMethod, MaskedPatchLoss, centered_targets, temperature_ramp
from labelkit.methods.dense.options import IBOTConfig
from labelkit.training.method import StepOutput

#: Initial temperature of the target network for patches, if there is a warm-up.
PATCH_TEMPERATURE_START: Final = 0.04
#: Mask ratios and their spreads; each view draws one pair and varies the ratio up or down by at most the spread.
MASK_RATIOS: Final = ((0.0, 0.0), (0.3, 0.2))
#: Maximum number of attempts to place a block before the mask is final.
_TRIES: Final = 10
#: Minimum ratio of a block's height to its width; the maximum is its inverse.
SMALLEST_ASPECT: Final = 0.3


class IBOT(DistillationMethod[IBOTConfig]):
    """iBOT training method: self-distillation of class tokens and masked patches, without labels."""

    def __init__(self, config: IBOTConfig, data: DataInfo) -> None:
        super().__init__(config, data, hides_patches=True)
        self.patch_loss = MaskedPatchLoss(config.student_temperature)
        self._patch_temperature = temperature_ramp(
            PATCH_TEMPERATURE_START, config.patch_temperature, config.teacher_warmup_steps
        )

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the sum of the class token loss and the masked patch loss."""
        large, small = batch.views[:2], batch.views[2:]
        hidden = self.draw_patch_masks(batch)  # (2 b, rows, columns)
        on_host = (hidden, np.flatnonzero(hidden), np.nonzero(hidden)[0])
        masks, places, owners = move_arrays_to_device(on_host, batch.labels.device)
        with torch.no_grad():
            visible = self.target.tokens(torch.cat(large))
            image_targets = self.image_targets(visible.image)
            patch_outputs = self.target.outputs(visible.patches.flatten(0, 2))
            center, temperature = self.center("patch"), self._patch_temperature(self.state.step)
            center.collect(patch_outputs)
            patch_targets = centered_targets(patch_outputs[places], center.value, temperature)
        tokens = self.network.masked_tokens(torch.cat(large), masks)
        class_tokens = [tokens.image, *([self.network.embed(torch.cat(small))] if small else [])]
        outputs = self.network.outputs(torch.cat(class_tokens))
        named = self.network.outputs(tokens.patches.flatten(0, 2)[places])
        image = self.loss(outputs.chunk(len(batch.views)), image_targets.chunk(2))
        patches = self.patch_loss(named, patch_targets, owners, len(hidden))
        logs = {"image": image.detach(), "patches": patches.detach(), "hidden": masks.float().mean()}
        logs |= self.collapse_diagnostics(image_targets, outputs[: len(image_targets)])
        return StepOutput(image + patches, logs)

    def draw_patch_masks(self, batch: Batch) -> NDArray[np.bool_]:
        """Draw the patch masks (2 b, rows, columns) of both large views, with all first views first."""
        config, side = self.config, self.network.input_spec.size // self.network.patch_size
        images = batch.on_host.sample_index
        masks = np.zeros((2 * len(images), side, side), dtype=np.bool_)
        for i, (view, image) in enumerate((v, image) for v in (0, 1) for image in images):
            purpose = f"hidden patches of view {view}"
            generator = keyed_generator(config.seed, purpose, self.state.step, int(image))
            masks[i] = draw_block_mask(side, side, draw_mask_ratio(generator), generator)
        return masks


def draw_mask_ratio(generator: np.random.Generator) -> float:
    """Draw a mask ratio: a random ratio from ``MASK_RATIOS``, varied uniformly within its spread."""
    ratio, spread = MASK_RATIOS[int(generator.integers(len(MASK_RATIOS)))]
    return float(ratio + spread * generator.uniform(-1, 1))


def draw_block_mask(rows: int, columns: int, ratio: float, generator: np.random.Generator) -> NDArray[np.bool_]:
    """Draw a bool mask (rows, columns) of random rectangles that cover at most ``ratio``, in [0, 1), of the patches.

    The area of a rectangle is uniform between a ninth of the shorter side's square and the area still to be masked;
    height over width is log-uniform in [0.3, 1 / 0.3]. A rectangle that would mask too many patches, or no new one, is
    drawn again, at most 10 times; then the mask is final. The ratio is never exceeded, and often not reached.

    Source:
        H. Bao et al., "BEiT" (ICLR 2022), Alg. 1, with the limits of iBOT (J. Zhou et al., ICLR 2022): no minimum block
        of 16 patches, and a ratio that is never exceeded.
    """
    mask = np.zeros((rows, columns), dtype=np.bool_)
    wanted, smallest = ratio * rows * columns, (min(rows, columns) // 3) ** 2
    while True:
        left = wanted - mask.sum()
        if left < 1 or not _add_block(mask, smallest, left, generator):
            return mask


def _add_block(mask: NDArray[np.bool_], smallest: float, left: float, generator: np.random.Generator) -> bool:
    rows, columns = mask.shape
    bound = math.log(SMALLEST_ASPECT)
    for _ in range(_TRIES):
        area = smallest + (left - smallest) * generator.random()
        aspect = math.exp(generator.uniform(bound, -bound))
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if not (0 < height < rows and 0 < width < columns):
            continue
        top, start = int(generator.integers(rows - height + 1)), int(generator.integers(columns - width + 1))
        block = mask[top : top + height, start : start + width]
        if 0 < (~block).sum() <= left:
            block[:] = True
            return True
    return False
