"""CoTAP: fine-tune a vision transformer so that its patch features group by object, without labels.

Source: "Semantic Concentration for Self-Supervised Dense Representations Learning".
A student learns from its own moving average, the target, which sees two large views of each image:
    1. image alignment: class tokens of all views agree with balanced assignments of the target's     Eq. 5
    2. patch alignment: the same for patches, where two views overlap                           Eq. 5
    3. image concentration: class tokens also agree with those of a precomputed nearest neighbor        Eq. 7
    4. patch ranking: similarities of the patches of two images are ordered like the target's         Eq. 12
    5. an object-aware filter after the backbone, whose prototypes each choose few images             Eq. 16 to 19
Scenes with several objects are used only in 2 and 4. Stage 1 (from scratch) uses 1 and 2 without the filter; stage 2
starts from stage 1, or from a checkpoint of DINO, iBOT, Mugs or Leopart.

Departures, where the paper is ambiguous or suggests otherwise:
    - 4 ranks the aligned cells of an overlap (49 by 49 similarities), not whole maps (196 by 196 for images of 224
      pixels); ``--ranking-views same`` ranks whole maps, of one view that both networks see. On generated scenes both
      are equally good, and whole maps take twice the time (3 seeds)
    - the filter follows the last LayerNorm of the backbone, and its prototypes are scaled to a fixed length
    - the class token passes the filter as if its neighborhood were constant
    - 1, 3 and 5 are averaged over single-object images only, 2 and 4 over all images
    - the learning-rate warm-up differs from DINO's (``training.schedules``)
Others are given in the descriptions of the options (``labelkit.methods.dense.options``).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.algorithms.neighbors import knn
from labelkit.data.batch import Batch, DataInfo
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.views.spec import PairPlan
from labelkit.errors import ConfigError, Mismatch
from labelkit.methods.dense.cotap_network import DenseNetwork
from labelkit.methods.dense.objective import CoTAPObjective
from labelkit.methods.dense.options import CoTAPConfig
from labelkit.methods.dense.recipe import EMATargetMethod, check_sizes
from labelkit.models.weights.files import fingerprint, load_weights_file
from labelkit.store.array_files import NeighborFile, read_neighbors, write_neighbors
from labelkit.training.distributed import count_processes
from labelkit.training.inputs import MethodInputs
from labelkit.training.method import Phase, StepOutput, TrainState
from labelkit.training.run_dir import IMAGES_SHA256

#: Minimum overlap, as a share of the image, of the two large views, and of a small view with each large one.
MIN_OVERLAP = (0.02, 0.01)


class CoTAP(EMATargetMethod[CoTAPConfig, DenseNetwork]):
    """CoTAP training method: dense representation learning without labels; scene images enter only the patch terms."""

    never_decayed = "filter.prototypes"
    starts_from_scratch = "the filter starts"
    equal_buffers = ("neighbors",)
    retired_tensors = frozenset({"objective.queue", "objective.queued"})

    def __init__(self, config: CoTAPConfig, data: DataInfo) -> None:
        network = DenseNetwork(config, data)
        # otherwise, processes would wait for gradients of parameters that no term affects
        if not any((config.image_alignment, config.patch_alignment, config.image_concentration, config.patch_ranking)):
            network.requires_grad_(False)
        if network.filter is not None:
            network.filter.prototypes.requires_grad_(config.prototype_entropy > 0)
        missing = "the hub's weights file" if config.pretrained else ""
        if config.weights is not None:
            where = str(config.weights)
            missing = "" if network.load_projector_from_state(load_weights_file(config.weights), where) else where
        super().__init__(config, data, network)
        if missing:
            self._notes = [f"warning: {missing} contains no projection, so the projector starts from scratch"]
        check_sizes(config, network)
        if config.patch_ranking and config.batch_size // count_processes() < 2:
            problem = "each process needs at least two images for --patch-ranking"
            raise ConfigError("--batch-size", problem, "Raise --batch-size, or pass --patch-ranking 0.")
        if config.image_concentration and config.num_neighbors >= self._num_objects:
            problem = f"{config.num_neighbors} neighbors per image require more than {self._num_objects} images"
            raise ConfigError("--num-neighbors", problem, "Lower --num-neighbors.")
        self.objective = CoTAPObjective(config, patch_size=network.patch_size, image_size=network.input_spec.size)
        shape = (self._num_objects if config.image_concentration else 0, config.num_neighbors)
        self.neighbors: Tensor = nn.Buffer(torch.full(shape, -1, dtype=torch.int32))
        self._rows = np.zeros(0, dtype=np.int64)
        self._dataset_digest, self._writes = "", False
        self._images_digest: Callable[[NDArray[np.int64]], str] = lambda rows: ""
        self._table: NDArray[np.int32] | None = None

    def attach(self, inputs: MethodInputs) -> None:
        """Store the digests that a neighbor file must match, and whether this process may write files."""
        self._dataset_digest, self._writes = inputs.digest(), inputs.writes
        self._images_digest = inputs.images_digest

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the single training phase, which mixes both datasets in each batch."""
        self._rows = rows
        pairing = NeighborPairing(self._neighbor_table) if len(self.neighbors) else None
        views = self.views(MIN_OVERLAP)
        if len(self.neighbors):
            # the view of a neighbor: the first view's transform with an independent mirror flip
            views = (*views, replace(views[0], partner=True, mirror_as=len(views)))
        return (self.mixed_phase(rows, views, pairing),)

    def on_train_start(self, state: TrainState) -> None:
        """Find the nearest neighbors of all single-object images with the initial target network."""
        super().on_train_start(state)
        if not len(self.neighbors):
            return
        rows = self._rows[self._rows < self._num_objects]
        table = load_or_compute_neighbors(
            state,
            lambda images: self.target.tokens(images).image,
            rows,
            self._num_objects,
            self.config.num_neighbors,
            identity={
                "dataset_digest": self._dataset_digest,
                IMAGES_SHA256: self._images_digest(rows),
                "weights_fingerprint": fingerprint(self.target.backbone),
            },
            path=self.config.neighbors,
            save=self._writes,
        )
        self.neighbors.copy_(table)

    def on_epoch_start(self, state: TrainState) -> None:
        """Clear the cached copy of the neighbor table."""
        self._table = None

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the weighted sum of the loss terms."""
        objects = batch.indices_where(batch.on_host.sample_index < self._num_objects)
        output: StepOutput = self.objective(batch, self.network, self.target, objects, self.state)
        self.warn_of_collapse(output.logs)
        return output

    def on_backbone_loaded(self) -> None:
        """Load the projector stored with the backbone, and copy the student to the target."""
        source = self.config.init_from
        if source is not None and source.is_file():
            self.network.load_projector_from_state(load_weights_file(source), str(source))
        self.target.load_state_dict(self.network.state_dict())

    def _neighbor_table(self) -> NDArray[np.int32]:
        """Return the neighbors on the CPU, copied once per epoch."""
        if self._table is None:
            self._table = self.neighbors.cpu().numpy()
        return self._table


def load_or_compute_neighbors(
    state: TrainState,
    network: Callable[[Tensor], Tensor],
    rows: NDArray[np.int64],
    num_rows: int,
    k: int,
    *,
    identity: Mapping[str, str],
    path: Path | None = None,
    save: bool = True,
) -> Tensor:
    """Return each image's nearest neighbors, read from a file if it exists, otherwise computed and saved.

    Args:
        state: embeds images and communicates with the other processes.
        network: maps images (b, c, h, w) to features (b, d).
        rows: (m,) increasing rows of the images; neighbors are among these.
        num_rows: length of the table.
        k: number of neighbors of each image.
        identity: identity of data and network, which the file must match.
        path: the file, or ``None``.
        save: whether to save computed neighbors.

    Returns:
        (num_rows, k) int32 on the CPU, equal on all processes; -1 for other rows.

    Raises:
        StoreError: the file is damaged, or belongs to other images or another network.
    """
    recipe = {**identity, "metric": "cosine", "num_images": len(rows)}
    table = np.full((num_rows, k), -1, dtype=np.int32)
    found = _read_neighbors(path, recipe, rows, k) if state.is_main and path is not None and path.exists() else None
    # the main process decides; otherwise, some processes would wait for an exchange that others never start
    if int(state.combine(torch.tensor([int(found is not None)]), "max")[0]) == 0:
        features = state.full_pass(network, rows)
        if state.is_main:
            scores, places = knn(features.numpy(), features.numpy(), k, exclude_self=True)
            found = NeighborFile(rows, rows[places], scores, recipe)
            if path is not None and save:
                write_neighbors(path, found)
    if found is not None:
        table[rows] = found.neighbor_rows[:, :k]
    shared = torch.from_numpy(table if state.is_main else np.zeros_like(table))
    return state.combine(shared, "sum")


def _read_neighbors(path: Path, recipe: dict[str, object], rows: NDArray[np.int64], k: int) -> NeighborFile:
    """Read a neighbor file, which must contain at least k neighbors for each of the rows."""
    found = read_neighbors(path)
    # earlier versions did not store the digest of the image files
    known = {key: value for key, value in recipe.items() if key != IMAGES_SHA256 or key in found.recipe}
    faults = [key for key, value in known.items() if found.recipe.get(key) != value]
    if not faults and not np.array_equal(found.query_rows, rows):
        faults = ["the images that can be read"]
    if not faults and found.neighbor_rows.shape[1] < k:
        faults = [f"only {found.neighbor_rows.shape[1]} neighbors per image instead of {k}"]
    if faults:
        problem = f"contains neighbors that were computed with a different setup ({', '.join(faults)})"
        remedy = "To compute the neighbors again, pass another file as --neighbors, or remove this file."
        raise Mismatch(str(path), problem, remedy)
    return found


class NeighborPairing:
    """Pairing of each image with one of its nearest neighbors, drawn at random each time.

    See ``labelkit.data.views.spec.Pairing``. ``table`` returns the (n, k) rows of neighbors, -1 = the image itself.
    """

    def __init__(self, table: Callable[[], NDArray[np.int32]]) -> None:
        self._table = table

    def plan(self, rows: NDArray[np.int64], keys: NDArray[np.int64], *, seed: int, epoch: int) -> PairPlan:
        """Draw a neighbor for each image of a batch."""
        table = self._table()
        u = KeyedRNG(seed, epoch, keys).uniform(0, "neighbor", 1)[:, 0]
        known = rows < len(table)
        shown = rows.copy()
        places = (u[known] * table.shape[1]).astype(np.int64)
        chosen = table[rows[known], places]
        shown[known] = np.where(chosen >= 0, chosen, rows[known])
        return PairPlan(shown, np.full(len(rows), -1, dtype=np.int64), np.tile([-1.0, -1, 1, 1], (len(rows), 2, 1)))
