"""CoTAP: fine-tune a vision transformer so that its patches group by object, without labels.

Source: "Semantic Concentration for Self-Supervised Dense Representations Learning".
A student learns from its own moving average, the target, which sees two large views of each image:
    1. image alignment: class tokens of all views agree with balanced assignments of the target's     Eq. 5
    2. patch alignment: so do patches, where two views show the same place                           Eq. 5
    3. image concentration: class tokens also agree with those of a near image, found before           Eq. 7
    4. patch ranking: similarities of the patches of two images are ordered like the target's         Eq. 12
    5. an object-aware filter behind the backbone, whose prototypes each choose few images             Eq. 16 to 19
Scenes of several objects take part in 2 and 4 alone. Stage 1 (from scratch) is 1 and 2 without filter; stage 2 starts
from it, or from a checkpoint of DINO, iBOT, Mugs or Leopart.

Departures, where the text is open or would be read otherwise:
    - 4 ranks the aligned cells of an overlap (49 by 49 similarities), not whole maps (196 by 196 for images of 224
      pixels); ``--ranking-views same`` ranks whole maps, of one view that both networks see. On generated scenes both
      are equally good, and whole maps take twice the time (3 seeds)
    - the filter stands behind the last LayerNorm of the backbone, and its prototypes are scaled to a fixed length
    - the class token passes the filter as if its neighborhood were constant
    - 1, 3 and 5 are averaged over images of one object only, 2 and 4 over all images
    - the warm-up of the learning rate is not DINO's (``engine.schedules``)
Others stand in the descriptions of the options, ``labelkit.methods.dense.cotap_options``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.batch import Batch, DataInfo
from labelkit.data.views.recipes import crop_views, plain_view
from labelkit.data.views.spec import ViewSpec
from labelkit.methods.dense.cotap_network import (
    DenseNetwork,
    build_dense_network,
    check_dense_run,
    neighbor_view,
    take_dense_parts,
)
from labelkit.methods.dense.cotap_options import CoTAPConfig
from labelkit.methods.dense.diagnostics import collapse
from labelkit.methods.dense.neighbor_images import NeighborPairing, NeighborPlace, find_neighbors
from labelkit.methods.dense.objective import DenseObjective
from labelkit.methods.dense.recipe import (
    backbone_and_head_groups,
    backbone_and_head_rates,
    cosine_pace,
    mixed_phase,
    target_decay,
)
from labelkit.models.ema import EMATeacher
from labelkit.models.weights.files import fingerprint
from labelkit.training.inputs import MonitorInputs, RunInputs
from labelkit.training.method import Method, Monitor, Phase, StepOutput, TrainState
from labelkit.training.monitors.representation import RepresentationMonitor
from labelkit.training.timing import GroupRates, Pace, RunSize, Scheduled

#: Smallest share of the image that the two large views have in common, and that a small view shares with each.
MIN_OVERLAP = (0.02, 0.01)


class CoTAP(Method[CoTAPConfig]):
    """Needs no label; with scenes alone, only the terms on patches."""

    runs_whole_backbone = False
    network: DenseNetwork
    #: Where neighbors are kept, if anywhere.
    neighbor_place: NeighborPlace | None = None
    equal_buffers = ("neighbors",)
    retired_tensors = frozenset({"objective.queue", "objective.queued"})

    def __init__(self, config: CoTAPConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        self._num_objects = data.num_samples if data.num_objects is None else data.num_objects
        self.network, self._notes = build_dense_network(config, data)
        check_dense_run(config, self.network, self._num_objects)
        self.teacher = EMATeacher(self.network, decay=0.0)
        size = self.network.input_spec.size
        self.objective = DenseObjective(config, patch_size=self.network.patch_size, image_size=size)
        shape = (self._num_objects if config.image_concentration else 0, config.num_neighbors)
        self.neighbors: Tensor = nn.Buffer(torch.full(shape, -1, dtype=torch.int32))
        self._ema_decay = target_decay(config)
        self._state: TrainState | None = None
        self._rows = np.zeros(0, dtype=np.int64)
        self._table: NDArray[np.int32] | None = None

    @property
    def target(self) -> DenseNetwork:
        """The moving average of the student."""
        assert isinstance(self.teacher.module, DenseNetwork)
        return self.teacher.module

    def attach(self, inputs: RunInputs) -> None:
        """Keep neighbors where the options say, or in the run."""
        kept = self.config.neighbors
        path = kept or inputs.folder / "neighbors.h5"
        self.neighbor_place = NeighborPlace(path, inputs.digest(), chosen=kept is not None, writes=inputs.writes)

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """One phase: both sets again and again, in shares that every process gets alike."""
        self._rows = rows
        pairing = NeighborPairing(self._neighbor_table) if len(self.neighbors) else None
        return (mixed_phase(self.config, rows, self._num_objects, self._views(), pairing),)

    @classmethod
    def paces(cls, config: CoTAPConfig, size: RunSize) -> tuple[Pace, ...]:
        """One phase."""
        return (cosine_pace(config),)

    @classmethod
    def group_rates(cls, config: CoTAPConfig) -> GroupRates:
        """Backbone and head."""
        return backbone_and_head_rates(config)

    @classmethod
    def scheduled(cls, config: CoTAPConfig, size: RunSize) -> Mapping[str, Scheduled]:
        """Decay of the target."""
        decay = target_decay(config)
        return {"ema_decay": lambda now: decay(now.step)}

    def on_train_start(self, state: TrainState) -> None:
        """Find the neighbors with the target as it is before the first step."""
        for note in self._notes:
            state.warn(note)
        if not len(self.neighbors):
            return
        table = find_neighbors(
            state,
            lambda images: self.target.tokens(images).image,
            self._rows[self._rows < self._num_objects],
            self._num_objects,
            self.config.num_neighbors,
            weights_fingerprint=fingerprint(self.target.backbone),
            place=self.neighbor_place,
        )
        self.neighbors.copy_(table)

    def on_epoch_start(self, state: TrainState) -> None:
        """Forget what was copied of an earlier table."""
        self._table = None

    def on_step_start(self, state: TrainState) -> None:
        """Remember where the run is."""
        self._state = state

    def training_step(self, batch: Batch) -> StepOutput:
        """Return the weighted sum of the terms."""
        objects = batch.places(batch.on_host.sample_index < self._num_objects)
        output: StepOutput = self.objective(batch, self.network, self.target, objects, self._state)
        problem = collapse(output.logs)
        if problem is not None and self._state is not None and problem.split(":")[-1] not in self._notes:
            self._notes.append(problem.split(":")[-1])  # once is enough, the log has every number
            self._state.warn(f"warning: {problem}; try a lower --lr or another --seed")
        return output

    def on_step_end(self, state: TrainState) -> None:
        """Move the target."""
        self.teacher.decay = self._ema_decay(state.step)
        self.teacher.update(self.network)

    @property
    def takes_whole_runs(self) -> bool:
        """Unless the projector is to start anew."""
        return self.config.projector_init == "checkpoint"

    def take_parts(self, tensors: Mapping[str, Tensor], where: str) -> str | None:
        """Backbones and projectors of both networks of a run of CoTAP, for a stage with another filter."""
        return take_dense_parts(self.network, self.target, tensors, where, self.config.projector_init == "checkpoint")

    def on_backbone_taken(self) -> None:
        """Take the projector that came with a backbone, and start both networks equal."""
        source = self.config.init_from
        if source is not None and source.is_file() and self.config.projector_init == "checkpoint":
            self.network.take_projector_file(source)
        self.target.load_state_dict(self.network.state_dict())

    def headline(self) -> DenseNetwork:
        """The branch that was asked for."""
        return self.target if self.config.branch == "target" else self.network

    def parameter_groups(self) -> Iterator[dict[str, Any]]:
        """Head and backbone, with and without weight decay; prototypes of the filter have none."""
        return backbone_and_head_groups(self, self.config, never_decayed="filter.prototypes")

    def monitor(self, inputs: MonitorInputs) -> Monitor:
        """Features of held-out images."""
        return RepresentationMonitor.of(inputs, self.config, num_classes=len(self.data.class_names))

    def eval_view(self) -> ViewSpec:
        """The center of the image; all of it if it is small."""
        return plain_view(self.network.input_spec.size)

    def _neighbor_table(self) -> NDArray[np.int32]:
        """The neighbors on the CPU, copied once."""
        if self._table is None:
            self._table = self.neighbors.cpu().numpy()
        return self._table

    def _views(self) -> tuple[ViewSpec, ...]:
        config, data = self.config, self.data
        views = crop_views(
            (self.network.input_spec.size, config.local_size),
            config.num_local_views,
            config.augmentation,
            global_scale=config.global_scale,
            local_scale=config.local_scale,
            min_overlap=MIN_OVERLAP,
            chiral=data.chiral,
            photographic=data.photographic,
        )
        return (*views, neighbor_view(views[0], len(views))) if len(self.neighbors) else views
