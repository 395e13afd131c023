"""Code shared by methods with cosine schedules and an EMA target: hooks, parameter groups, initial weights."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Generic, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import DataInfo
from labelkit.data.samplers import ImageStream, StreamSampler
from labelkit.data.views.recipes import multi_crop_views
from labelkit.data.views.spec import Pairing, ViewSpec
from labelkit.errors import ConfigError
from labelkit.methods.backbone import RepresentationMethod
from labelkit.methods.dense.networks import TokenNetwork
from labelkit.methods.dense.options import EMATargetConfig
from labelkit.models.ema import EMATeacher
from labelkit.training.checkpoint import load_model_state
from labelkit.training.distributed import check_divisible
from labelkit.training.method import Phase, TrainState
from labelkit.training.schedules import cosine_schedule

SlowTargetConfigT = TypeVar("SlowTargetConfigT", bound=EMATargetConfig)
TokenNetworkT = TypeVar("TokenNetworkT", bound=TokenNetwork)

_BRANCHES = ("network.", "teacher.module.")
COLLAPSED_COSINE = 0.98
COLLAPSED_ENTROPY = 0.1


class EMATargetMethod(RepresentationMethod[SlowTargetConfigT], Generic[SlowTargetConfigT, TokenNetworkT]):
    """Base class for methods that train a student against its own EMA target.

    Attributes:
        never_decayed: name suffix of parameters without weight decay, besides biases and other one-dimensional ones.
        remedy: remedy for a collapse, besides a lower learning rate.
        starts_from_scratch: what a similar run does not contain, with its verb.
    """

    runs_whole_backbone = False
    never_decayed: ClassVar[str] = ""
    remedy: ClassVar[str] = ""
    starts_from_scratch: ClassVar[str]
    network: TokenNetworkT

    def __init__(self, config: SlowTargetConfigT, data: DataInfo, network: TokenNetworkT) -> None:
        super().__init__(config, data)
        self._num_objects = data.num_samples if data.num_objects is None else data.num_objects
        self.network = network
        self.teacher = EMATeacher(network, decay=0.0)
        self._ema_decay = cosine_schedule(config.ema_start, config.ema_end, config.steps)
        self._notes: list[str] = []
        self._warned: set[str] = set()

    @property
    def target(self) -> TokenNetworkT:
        """Return the target network, an exponential moving average of the student."""
        return cast(TokenNetworkT, self.teacher.module)

    def views(self, min_overlap: tuple[float, float] | None = None) -> tuple[ViewSpec, ...]:
        """Return the large and small views of each image."""
        config: Any = self.config  # each method has its own augmentations
        return multi_crop_views(
            (self.network.input_spec.size, config.local_size),
            config.num_local_views,
            config.augmentation,
            global_scale=config.global_scale,
            local_scale=config.local_scale,
            min_overlap=min_overlap,
            chiral=self.data.chiral,
            photographic=self.data.photographic,
        )

    def mixed_phase(
        self, rows: NDArray[np.int64], views: tuple[ViewSpec, ...], pairing: Pairing | None = None
    ) -> Phase:
        """Return a phase whose batches contain fixed numbers of images from each dataset, equal on every process.

        ``rows`` are the readable images; images of a single object come first in the dataset.
        """
        config = self.config
        objects, batches = config.objects_per_batch, min(config.eval_every_steps, config.steps)
        streams = [
            ImageStream("objects", rows[rows < self._num_objects], objects),
            ImageStream("scenes", rows[rows >= self._num_objects], config.batch_size - objects),
        ]
        return Phase(
            math.ceil(config.steps / config.eval_every_steps),
            views,
            StreamSampler(streams, steps=batches, seed=config.seed),
            steps=config.steps,
            lr=cosine_schedule(config.lr, config.lr_final, config.steps, config.lr_warmup_steps),
            weight_decay=cosine_schedule(config.weight_decay, config.weight_decay_final, config.steps),
            pairing=pairing,
        )

    def on_train_start(self, state: TrainState) -> None:
        """Warn about parts of the networks that the initial weights lack."""
        for note in self._notes:
            state.warn(note)

    def on_step_end(self, state: TrainState) -> None:
        """Update the target network."""
        self.teacher.decay = self._ema_decay(state.step)
        self.teacher.update(self.network)

    def warn_of_collapse(self, logs: Mapping[str, Tensor]) -> None:
        """Warn once if features or assignments have collapsed."""
        cosine, entropy = logs.get("diag/patch_cosine"), logs.get("diag/assignment_entropy")
        if cosine is not None and float(cosine) > COLLAPSED_COSINE:
            problem = f"patches have a mean cosine of {float(cosine):.3f}: the features are collapsing"
        elif entropy is not None and float(entropy) < COLLAPSED_ENTROPY:
            problem = f"assignments have {float(entropy):.3f} of the maximum entropy: the assignments are collapsing"
        else:
            return
        kind = problem.split(":")[-1]
        if kind not in self._warned:  # the log has every number
            self._warned.add(kind)
            self.state.warn(f"{problem}; try {self.remedy}a lower --lr or another --seed")

    def load_matching_tensors(self, tensors: Mapping[str, Tensor], where: str) -> str | None:
        """Load the backbones and projectors of both networks from a CoTAP, DINO or iBOT run.

        All other weights of the target are copied from the student.

        Raises:
            CheckpointMismatch: the backbones differ.
            ConfigError: the projectors differ.
        """
        if not all(any(name.startswith(f"{branch}projector.") for name in tensors) for branch in _BRANCHES):
            return None
        self.target.load_state_dict(self.network.state_dict())
        for branch, module in zip(_BRANCHES, (self.network, self.target), strict=True):
            own = {name.removeprefix(branch): value for name, value in tensors.items() if name.startswith(branch)}
            layers = {name.removeprefix("projector."): v for name, v in own.items() if name.startswith("projector.")}
            kept = {name.removeprefix("backbone."): v for name, v in own.items() if name.startswith("backbone.")}
            load_model_state(module.backbone, kept, where)
            module.load_projector(layers, where)
        return f"both backbones and projectors; {self.starts_from_scratch} from scratch"

    def main_network(self) -> TokenNetworkT:
        """Return the student or the target, as selected in the options."""
        return self.target if self.config.branch == "target" else self.network

    def parameter_groups(self) -> Iterator[dict[str, Any]]:
        """Yield parameter groups for backbone and head, each with and without weight decay."""
        groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
        for name, parameter in self.named_parameters():
            if parameter.requires_grad:
                is_decayed = parameter.ndim >= 2 and not (self.never_decayed and name.endswith(self.never_decayed))
                groups.setdefault((name.startswith("network.backbone."), is_decayed), []).append(parameter)
        for (_, is_decayed), parameters in groups.items():
            weight_decay = self.config.weight_decay if is_decayed else 0.0
            yield {"params": parameters, "weight_decay": weight_decay, "is_decayed": is_decayed}


@torch.no_grad()
def assignment_entropy(outputs: Tensor, temperature: float) -> Tensor:
    """Compute the normalized entropy of the mean prediction for outputs (n, k); 0 if all predictions are the same."""
    mean = torch.softmax(outputs.float() / temperature, dim=1).mean(dim=0)
    entropy: Tensor = torch.special.entr(mean).sum()
    return entropy / math.log(outputs.shape[1])


def check_sizes(config: EMATargetConfig, network: TokenNetwork) -> None:
    """Check that small views consist of whole patches, and that batches divide evenly among processes.

    Raises:
        ConfigError: they do not; the message names the option.
    """
    size, patch = config.local_size, network.patch_size
    if size % patch:
        problem = f"{size} pixels are not a multiple of the patch size of {config.backbone} ({patch} pixels)"
        raise ConfigError("--local-size", problem, f"Try --local-size {max(size // patch, 1) * patch}.")
    for count in (config.objects_per_batch, config.batch_size):
        check_divisible("--batch-size", count)
