"""FlipClass: category discovery in which the teacher's attention is aligned with the student's.

Source: "Flipped Classroom: Aligning Teacher Attention with Student in Generalized Category Discovery" (NeurIPS 2024),
Sec. 4 and App. D.1, on SimGCD's losses. Each step:
    1. weak view = teacher, strong view = student, one network for both
    2. in the aligned blocks, the teacher's keys take one step of gradient descent on the energy between them
       and the student's queries (``algorithms.attention``)                                   Eq. 5-8
    3. contrastive losses on both views, cross-entropy on labeled images
    4. the teacher's sharpened prediction is the student's target                             Eq. 1
    5. the teacher's temperature changes with each epoch
``--align-mode`` replaces step 2 or 4 with one of the paper's baselines, all else being equal (App. D.4).
Departures, for reasons stated in the options: Eq. 8 as printed mixes two spaces, so keys are updated in key space by
default (``--update-space``); the temperatures of the two contrastive losses are those of SimGCD's code, which the text
swaps; the teacher's temperature follows SimGCD's schedule. Evaluation does not align anything.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.views.recipes import strong_view, weak_view
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import ConfigError
from labelkit.methods.discovery.losses import (
    AttentionAlignmentLoss,
    ConfidentPseudoLabelLoss,
    DistributionAlignmentLoss,
)
from labelkit.methods.discovery.options import FlipClassConfig
from labelkit.methods.discovery.recipe import SelfDistilledClassifier
from labelkit.models.frozen_part import FrozenPart
from labelkit.models.paired_attention import KeyUpdateParams
from labelkit.training.method import Phase, StepOutput


class FlipClass(SelfDistilledClassifier[FlipClassConfig]):
    """FlipClass training method: category discovery with the teacher's attention aligned to the student's."""

    def __init__(self, config: FlipClassConfig, data: DataInfo) -> None:
        super().__init__(config, data, symmetric=False)
        depth = self.network.backbone.info.depth
        if config.align_mode == "flip" and any(block >= depth for block in config.align_blocks):
            problem = f"{config.backbone} has {depth} transformer blocks, numbered from 0"
            remedy = "Choose lower numbers." if depth else "Choose a vision transformer, or pass --align-mode none."
            raise ConfigError("--align-blocks", problem, remedy)
        update = KeyUpdateParams(config.alpha, config.beta, config.gamma_update, config.gamma_reg, config.update_space)
        self._update = update if config.align_mode == "flip" else None
        # without alignment, the blocks to align need not exist; a CNN has none
        existing_blocks = tuple(block for block in config.align_blocks if block < depth)
        self._record_blocks = {"all": tuple(range(depth)), "aligned": existing_blocks, "none": ()}[config.log_energy]
        self.pull = AttentionAlignmentLoss(config.align_mode) if config.align_mode in ("l2", "kld", "coral") else None
        if self.pull is not None and config.grad_from_block >= depth:
            problem = f"--align-mode {config.align_mode} requires a trained last block, but all {depth} are frozen"
            raise ConfigError("--grad-from-block", problem, f"Choose at most {depth - 1}.")
        classes, mode, temperature = self.network.num_outputs, config.align_mode, config.student_temperature
        self.aligned_distillation = DistributionAlignmentLoss(classes, temperature) if mode == "da" else None
        self.confident = ConfidentPseudoLabelLoss(temperature) if mode == "fixmatch" else None

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the single training phase: weak and strong views, and half of each batch labeled in expectation."""
        (phase,) = super().phases(rows)
        return (replace(phase, views=self.views) if self.config.align_mode == "sda" else phase,)

    def views(self, epoch: int) -> tuple[ViewSpec, ViewSpec]:
        """Return the teacher's and student's views for an epoch; with ``sda``, the student's become stronger."""
        size, domain, chiral = self.network.input_spec.size, self.config.augmentation, self.data.chiral
        student_view = strong_view if self.config.student_view == "strong" else weak_view
        teacher, student = weak_view(size, domain, chiral=chiral), student_view(size, domain, chiral=chiral)
        if self.config.align_mode == "sda":
            # the strength grows to 1 over the first half of the run
            student = student.with_strength(min(1.0, epoch / (0.5 * self.config.epochs)))
        return teacher, student

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the loss between the student and the aligned teacher for one batch."""
        record: dict[int, dict[str, Tensor]] | None = {} if self.state.log_now and self._record_blocks else None
        pairs: dict[int, tuple[Tensor, Tensor]] = {}
        projections, logits = self.network.forward_pair(
            batch.views[0],
            batch.views[1],
            update=self._update,
            align_blocks=self.config.align_blocks if self._update is not None else (),
            record=record,
            record_blocks=self._record_blocks,
            collect=pairs,
            collect_blocks=(self.network.backbone.info.depth - 1,) if self.pull is not None else (),
        )
        consistency, logs = self._consistency(logits, batch.labels)
        temperature = self._teacher_temperature
        loss, parts = self.loss(
            projections, logits, batch.labels, teacher_temperature=temperature, consistency=consistency
        )
        logs |= parts
        if self.pull is not None:
            ((keys, queries),) = pairs.values()  # of the last block
            pulled = self.pull(keys, queries)
            loss = loss + pulled
            logs["align"] = pulled.detach()
        if record is not None:
            logs["diag/teacher_temperature"] = torch.tensor(temperature)
            for block, values in record.items():
                logs |= {f"diag/block{block}/{name}": value for name, value in values.items()}
        return StepOutput(loss, logs)

    def _consistency(self, logits: Tensor, labels: Tensor) -> tuple[Tensor | None, dict[str, Tensor]]:
        """Return the loss that replaces plain distillation, if any, and the values to log."""
        teacher, student = logits.chunk(2)
        if self.aligned_distillation is not None:
            return self.aligned_distillation(student, teacher, self._teacher_temperature, labels), {}
        if self.confident is not None:
            loss, kept = self.confident(student, teacher, self._teacher_temperature)
            return loss, {"kept": kept}
        return None, {}

    def reuse_frozen(self) -> FrozenPart:
        """Enable caching of the tokens before the teacher's first aligned and the student's first trained block."""
        if self.config.log_energy == "all":
            problem = "the energies of all blocks require all tokens, but the cache of frozen blocks contains only some"
            raise ConfigError("--log-energy all", problem, "Use --log-energy aligned, or remove --reuse-frozen.")
        if self.config.align_mode == "sda":
            problem = "the views of --align-mode sda change with the epoch, so they cannot be cached"
            raise ConfigError("--reuse-frozen", problem, "Remove --reuse-frozen, or pass a different --align-mode.")
        if self.pull is not None and self.config.linear_probe:
            problem = f"--align-mode {self.config.align_mode} requires blocks that --linear-probe freezes"
            remedy = "Remove --reuse-frozen or --linear-probe, or pass a different --align-mode."
            raise ConfigError("--reuse-frozen", problem, remedy)
        part = self.network.reuse_frozen(self.config.align_blocks if self._update is not None else ())
        cached_blocks = {*part.blocks[1], *range(part.blocks[1][-1], self.network.backbone.info.depth)}
        self._record_blocks = tuple(block for block in self._record_blocks if block in cached_blocks)
        return part
