"""Who guides the student of LMCS through a block: the master of the block before, or its average as it was then."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelkit.methods.few_labels.composed_networks import ComposedNetwork
from labelkit.methods.few_labels.composition import MasterDiet, MasterRules, MasterTraining
from labelkit.methods.few_labels.lmcs_options import LMCSConfig
from labelkit.methods.few_labels.students import StudentNetwork
from labelkit.models.ema import EMATeacher
from labelkit.models.inference import InferenceNetwork
from labelkit.training.method import TrainState


def master_rules(config: LMCSConfig, num_classes: int) -> MasterRules:
    """How a master is trained, from options."""
    return MasterRules(
        steps=config.steps_of_master,
        lr=config.master_lr,
        decay=config.master_decay,
        weight=config.unlabeled_weight,
        supervised=config.master_supervised,
        mixup_alpha=config.mixup_alpha,
        discrimination=None if config.discrimination == "none" else config.discrimination,
        num_centroids=num_classes,
        recalibrate=config.bn_recalibration,
        seed=config.seed,
    )


class Guide(nn.Module):
    """The frozen network that guides the student through a block.

    Args:
        config: the options.
        student: the network that it is made of versions of.

    Attributes:
        is_ready: a block has ended.
    """

    def __init__(self, config: LMCSConfig, student: StudentNetwork) -> None:
        super().__init__()
        self._rules = master_rules(config, student.num_outputs)
        self.master = ComposedNetwork(student, config.compose_at) if config.guide == "composed" else None
        self.snapshot = EMATeacher(student, 0.0) if config.guide == "average" else None
        self.is_ready = False

    @property
    def network(self) -> InferenceNetwork:
        """The guiding network."""
        if self.master is not None:
            return self.master
        assert self.snapshot is not None
        network = self.snapshot.module
        assert isinstance(network, InferenceNetwork)
        return network

    def renew(
        self, student: StudentNetwork, teacher: StudentNetwork, diet: MasterDiet, state: TrainState
    ) -> dict[str, float]:
        """Make the guide of the next block; return metrics.

        Args:
            student: with statistics to be judged with.
            teacher: likewise.
            diet: what a master is trained on.
            state: at the end of a block.
        """
        first, self.is_ready = not self.is_ready, True
        if self.snapshot is not None:
            self.snapshot.module.load_state_dict(teacher.state_dict())
            return {}
        assert self.master is not None
        record = MasterTraining(self.master, self._rules, diet, state, state.epoch).run(student, teacher, first=first)
        return {f"master/{name}": value for name, value in record.to_dict().items()}

    @torch.no_grad()
    def logits(self, images: Tensor) -> Tensor:
        """What the guide says of images: (b, c, h, w) to (b, k)."""
        return self.network.classify(self.network.embed(images))
