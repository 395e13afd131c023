"""SeLa: train on pseudo-labels that are periodically recomputed as a balanced cluster assignment.

Source: Y. M. Asano, C. Rupprecht, A. Vedaldi, "Self-labelling via simultaneous clustering and representation learning"
(ICLR 2020) and its released code.
    1. assign random labels, with equal numbers of images per cluster
    2. at ``--num-optimizations`` scheduled times: compute the features of all images (the label pass), then for each
       head the minimum-cost assignment with the requested cluster proportions (``algorithms.sinkhorn``)
    3. each step: cross-entropy between each head and its labels, averaged over the heads
    4. after the last step: recompute the labels once more
Departures: the label pass uses neither augmentation nor dropout (published: ``--label-pass official``), the schedule
has no off-by-one error (published: ``--optimization-schedule official-*``), and step 4 is added, so that the stored
labels match the network. Stored embeddings are perturbed or replaced by stored views, but not for the label pass.
Second stage, ``--labels-from RUN --rotation``: a new network trained on a finished run's labels and on rotations.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.algorithms.sinkhorn import build_prior
from labelkit.data.batch import Batch, DataInfo
from labelkit.data.samplers import UniformSampler
from labelkit.data.views.recipes import sela_view
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import ConfigError, DatasetError
from labelkit.methods.backbone import RepresentationMethod, backbone_options, embedding_views
from labelkit.methods.sela.options import SeLaConfig
from labelkit.methods.sela.self_labels import (
    SelfLabels,
    compute_optimization_times,
    copy_pseudo_labels,
    optimization_warnings,
)
from labelkit.models.frozen_part import ReusablePart
from labelkit.models.headed import MultiHeadNetwork, rotate_images
from labelkit.training.inputs import MethodInputs
from labelkit.training.method import PassSettings, Phase, StepOutput, TrainState


class MultiHeadCrossEntropy(nn.Module):
    r"""Cross-entropy between each head and its own pseudo-labels, averaged over heads.

    .. math:: L = -\frac{1}{H b} \sum_h \sum_i \log \text{softmax}(\ell^h_i)_{y^h_i}

    In nats, >= 0; equal to the mean of log k over the heads when all logits of a head are equal.

    Shape:
        - logits: H tensors ``(b, k_h)`` float; gradients reach all of them.
        - pseudo_labels: ``(H, b)`` integers in ``[0, k_h)``; images with -1 are excluded from that head's mean.
        - returns: ``()`` float32 (float64 is preserved); a head without labels contributes 0.

    Raises:
        ValueError: the number of pseudo-label rows differs from the number of heads.

    Source:
        ``yukimasano/self-label`` (the mean of the cross-entropy over heads).
    """

    def forward(self, logits: Sequence[Tensor], pseudo_labels: Tensor) -> Tensor:
        """Return the mean cross-entropy over heads."""
        if len(logits) != len(pseudo_labels):
            raise ValueError(f"pseudo_labels must have one row per head ({len(logits)}), got {len(pseudo_labels)}")
        losses = []
        with without_autocast(logits[0]):
            for scores, labels in zip(logits, pseudo_labels, strict=True):
                total = F.cross_entropy(promote(scores), labels.long(), ignore_index=-1, reduction="sum")
                losses.append(total / (labels >= 0).sum().clamp(min=1))
        return torch.stack(losses).mean()


class SeLa(RepresentationMethod[SeLaConfig]):
    """SeLa training method: balanced self-labeling with several clustering heads, without labels."""

    decays_all = True  # as in the released code
    network: MultiHeadNetwork

    def __init__(self, config: SeLaConfig, data: DataInfo) -> None:
        super().__init__(config, data)
        clusters = config.clusters_per_head
        if max(clusters) > data.num_samples:
            problem = f"{max(clusters)} exceeds the number of images ({data.num_samples})"
            raise ConfigError("--num-clusters", problem, "Lower --num-clusters.")
        options = backbone_options(config, data)
        self.network = MultiHeadNetwork(
            config.backbone, clusters, rotation=config.rotation, seed=config.seed, **options
        )
        self.loss = MultiHeadCrossEntropy()
        times: tuple[float, ...] = ()
        if not config.labels_from:
            times = compute_optimization_times(config.optimization_schedule, config.epochs, config.num_optimizations)
        self.labels = SelfLabels(data.num_samples, clusters, times=times, refresh=config.refresh)
        self.equal_buffers = tuple(f"labels.{name}" for name in self.labels.buffer_names)
        self.labels.assign_random_labels(np.arange(data.num_samples), config.seed)
        self._records: list[dict[str, Any]] = []
        self._warned: set[tuple[int, str]] = set()

    def attach(self, inputs: MethodInputs) -> None:
        """Load the pseudo-labels of an earlier run if requested; a resumed run has them in its checkpoint."""
        if inputs.is_new and self.config.labels_from is not None:
            copy_pseudo_labels(self.labels, self.config.labels_from, inputs)

    def phases(self, rows: NDArray[np.int64]) -> tuple[Phase, ...]:
        """Return the single training phase, with one augmented view of every image per epoch."""
        return (Phase(self.config.epochs, (self._train_view(),), UniformSampler(rows, seed=self.config.seed)),)

    def on_train_start(self, state: TrainState) -> None:
        """Read the prior over cluster sizes; a resumed run restores it from its checkpoint."""
        if self.config.prior == "uniform":
            return
        for head, k in enumerate(self.config.clusters_per_head):
            self.labels.prior(head).copy_(_read_prior(self.config.prior, k))

    def on_step_start(self, state: TrainState) -> None:
        """Re-optimize the labels of each head whose update is due."""
        heads = self.labels.pop_due_heads(state.step / state.steps_per_epoch)
        if heads:
            self._optimize_labels(heads, state)

    def training_step(self, batch: Batch) -> StepOutput:
        """Compute the mean cross-entropy of the heads, plus that of rotation prediction if enabled."""
        labels = self.labels.pseudo_labels[:, batch.sample_index]  # (h, b)
        if not self.config.rotation:
            loss = self.loss(self.network.head_logits(self.network.embed(batch.images)), labels)
            return StepOutput(loss)
        images, turns = rotate_images(batch.images)
        features = self.network.embed(images)  # (4b, d), unrotated first
        heads = self.loss(self.network.head_logits(features[: len(batch.images)]), labels)
        rotation = F.cross_entropy(self.network.rotation_logits(features).float(), turns)
        return StepOutput(heads + rotation, {"heads": heads.detach(), "rotation": rotation.detach()})

    def on_epoch_end(self, state: TrainState) -> Mapping[str, float]:
        """Return metrics of the epoch's label optimizations; after the last epoch, optimize the labels once more."""
        if state.epoch + 1 == self.config.epochs and self.labels.times:
            self._optimize_labels(tuple(range(len(self.network.heads))), state)
        records, self._records = self._records, []
        metrics = {"optimizations": float(self.labels.num_optimizations)}
        if records:
            for name in ("churn", "marginal_error", "iterations", "cost"):
                metrics[f"labels/{name}"] = float(np.mean([record[name] for record in records]))
            metrics["labels/min_count"] = min(record["min_count"] for record in records)
            metrics["labels/max_count"] = max(record["max_count"] for record in records)
            metrics["labels/empty_clusters"] = sum(record["empty_clusters"] for record in records)
        return metrics

    def extra_state(self) -> dict[str, Any]:
        """Return the records of the current epoch's label optimizations."""
        return {"records": self._records}

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state returned by ``extra_state``."""
        self._records = list(state["records"])

    def groupings(self) -> Mapping[str, Tensor]:
        """Return the pseudo-labels of each head, keyed by name."""
        return {f"head{head}": labels for head, labels in enumerate(self.labels.pseudo_labels)}

    def reuse_frozen(self) -> ReusablePart:
        """Enable caching of the frozen stages' outputs.

        Raises:
            ConfigError: training rotates images.
        """
        if self.config.rotation:
            problem = "cached feature maps cannot be rotated as --rotation requires"
            raise ConfigError("--reuse-frozen", problem, "Remove --reuse-frozen or --rotation.")
        return self.network.backbone.reuse_frozen()

    def _train_view(self) -> ViewSpec:
        of_rows = embedding_views(self.config, self.data)
        if of_rows is not None:
            return of_rows[1]
        size, recipe = self.network.input_spec.size, self.config.augmentation
        return sela_view(size, recipe, chiral=self.data.chiral, photographic=self.data.photographic)

    def _optimize_labels(self, heads: tuple[int, ...], state: TrainState) -> None:
        """Run the label pass, then optimize the labels of each head on the same features."""
        config, batch_size = self.config, self.config.batch_size
        if config.label_pass == "official":
            how = PassSettings("train", self._train_view(), "new", batch_size)
        else:
            how = PassSettings("batch-statistics", order="fixed", batch_size=batch_size, by_network=True)
        features, rows = state.local_pass(self.network.embed, None, how)
        for head in heads:
            layer = self.network.heads[head]
            record = self.labels.optimize_head(head, features, rows, layer, self.config, state)
            self._records.append(record)
            state.log("labels", record)
            for kind, warning in optimization_warnings(record, self.config.solver_tolerance).items():
                if (head, kind) not in self._warned:  # the log contains all of them
                    self._warned.add((head, kind))
                    state.warn(f"{warning}")


def _read_prior(spec: str, num_clusters: int) -> Tensor:
    """Return a head's cluster proportions from ``zipf:A``, a .npy file, or a text of blank- or comma-separated numbers.

    Raises:
        DatasetError: the file cannot be read.
        ConfigError: the values are not the proportions of ``num_clusters`` clusters.
    """
    try:
        numbers: Any = spec
        if spec.endswith(".npy"):
            numbers = np.load(spec)
        elif not spec.startswith("zipf:"):
            numbers = np.array(Path(spec).read_text().replace(",", " ").split(), dtype=np.float64)
        return build_prior(numbers, num_clusters)
    except OSError as error:
        raise DatasetError(spec, f"cannot be read: {error}", "Pass a .npy file or a text file of numbers.") from error
    except (ValueError, EOFError) as error:
        remedy = f"Pass {num_clusters} positive fractions that sum to 1."
        raise ConfigError("--prior", f"{spec}: {error}", remedy) from error
