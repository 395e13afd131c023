"""Evaluate a frozen network by the average precision of a multi-label classifier trained on top of it.

Source: ``facebookresearch/deepcluster:eval_voc_classif.py``, whose protocol SeLa follows.
"""

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.commands.common.networks import build_embedding_network
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.evaluate.options import EvaluatePresenceConfig
from labelkit.commands.evaluate.probes import EvalImages
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.loaders import EvalBatch
from labelkit.data.registry import load_dataset
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import DatasetError, DivergenceError
from labelkit.formatting import percent
from labelkit.metrics.classification import eleven_point_average_precision
from labelkit.models.backbones.convnets import AlexNet
from labelkit.models.backbones.vit import UnsupportedBackboneError
from labelkit.models.inference import BackboneNetwork, InferenceNetwork
from labelkit.models.seeding import seeded_init
from labelkit.progress import current_progress
from labelkit.training.devices import Runtime

_BIAS = 0.1


class MultiLabelClassifier(nn.Module):
    """Multi-label classifier on top of a frozen network.

    Args:
        network: frozen network, which is not changed; ``fully-connected`` copies its hidden layers and reinitializes
            them, with a standard deviation of 0.01 and a bias of 0.1.
        part: ``linear``: train one layer on the embedding; ``fully-connected``: also the hidden layers of an AlexNet.
        num_classes: number of classes, c.
        seed: random seed for the initialization.

    Shape:
        - images: ``(b, channels, h, w)``.
        - returns: ``(b, c)`` independent logits, one per class.

    Raises:
        UnsupportedBackboneError: ``fully-connected``, but the network is not an AlexNet.
    """

    def __init__(
        self, network: InferenceNetwork, part: Literal["linear", "fully-connected"], num_classes: int, *, seed: int
    ) -> None:
        super().__init__()
        wide: nn.Module = nn.Identity()
        frozen: Callable[[Tensor], Tensor] = network.embed
        if part == "fully-connected":
            net = network.backbone.net if isinstance(network, BackboneNetwork) else None
            if not isinstance(net, AlexNet) or not isinstance(network, BackboneNetwork):
                problem = "the network has no fully connected layers after its convolutions"
                remedy = "Use alexnet_sela or alexnet_small_sela as the backbone, or pass --train linear."
                raise UnsupportedBackboneError("evaluate presence", problem, remedy)
            wide = nn.Sequential(nn.Flatten(), copy.deepcopy(net.hidden))
            frozen = network.backbone.forward_features
        with seeded_init(seed):
            for layer in wide.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.normal_(layer.weight, std=0.01)
                    nn.init.constant_(layer.bias, _BIAS)
            top = nn.Linear(network.embed_dim, num_classes)
            nn.init.constant_(top.bias, _BIAS)
        self.layers = nn.Sequential(wide, top)
        self._frozen = frozen

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (b, c) for images (b, channels, h, w); the frozen part receives no gradient."""
        with torch.no_grad():
            inputs = self._frozen(images)
        logits: Tensor = self.layers(inputs.float())
        return logits


_MOMENTUM, _WEIGHT_DECAY, _MAX_GRAD_NORM = 0.9, 1e-6, 10.0
# Range of the area fraction of training crops, which are square and may be flipped; number of updates after which the
# learning rate is halved.
_SCALES, _HALVING_STEPS = (0.1, 0.5), 5_000
_RANDOM_CROPS = 10


def evaluate_presence(config: EvaluatePresenceConfig) -> CommandResult:
    """Train a multi-label classifier on a frozen network, and evaluate it on the test split.

    Raises:
        DatasetError: the dataset has no multi-label annotations.
        CheckpointError: the network cannot be loaded.
        UnsupportedBackboneError: the network has no hidden fully connected layers to train.
        DivergenceError: the loss is not finite.
    """
    from sklearn.metrics import average_precision_score

    dataset = load_dataset(config.dataset, data_root=config.data_root)
    if dataset.presence is None:
        remedy = "Choose a dataset such as voc_2007_classes, or use `labelkit evaluate linear`."
        raise DatasetError(config.dataset, "its images have at most one class each", remedy)
    model = build_embedding_network(config, dataset.in_channels)
    runtime = Runtime(device=config.device, threads=config.threads)
    network = model.network.to(runtime.device).eval().requires_grad_(False)
    names = dataset.presence_classes
    head = MultiLabelClassifier(network, config.train, len(names), seed=config.seed).to(runtime.device)
    size = network.input_spec.size
    limits: dict[str, Any] = {"num_workers": config.num_workers, "max_bad": 0.0}
    train, test = (
        EvalImages.for_network(dataset.select(dataset.rows_in_split(split)), network, runtime.device, **limits)
        for split in ("train", "test")
    )
    hflip = 0.0 if dataset.chiral else 0.5
    view = ViewSpec(size, area_range=_SCALES, aspect_range=(1.0, 1.0), hflip=hflip, interpolation="bilinear")
    _train(config, head, train, view)
    scores, presence = _score(config, head, test, view), _read_presence(test, test.rows)
    pairs = [(of[has >= 0], has[has >= 0] == 1) for of, has in zip(scores.T, presence.T, strict=True)]
    over_all = [float(average_precision_score(has, values)) if has.any() else float("nan") for values, has in pairs]
    at_eleven = [eleven_point_average_precision(*pair) for pair in pairs]
    if np.isnan(over_all).all():
        raise DatasetError(
            config.dataset, "no image in the test split has a class", "Restore the annotations of this split."
        )
    mean_ap, mean_ap_11 = float(np.nanmean(over_all)), float(np.nanmean(at_eleven))
    classes: list[dict[str, Any]] = [
        {"class": name, "with_it": int(has.sum()), "ap": ap, "ap_11": ap_11}
        for name, (_, has), ap, ap_11 in zip(names, pairs, over_all, at_eleven, strict=True)
    ]
    values: dict[str, object] = {
        "measured": f"classes in images of {config.dataset}/test",
        "train_images": len(train.rows),
        "images": len(scores),
        "mean_ap": mean_ap,
        "mean_ap_11": mean_ap_11,
        "classes": classes,
        "protocol": {
            "train": config.train,
            "split": "train",
            "eval_split": "test",
            **{name: getattr(config, name) for name in ("steps", "batch_size", "lr", "seed")},
            "crops": "random-ten",
            "weight_decay": _WEIGHT_DECAY,
            "clip_grad_norm": _MAX_GRAD_NORM,
        },
    }
    row: dict[str, Cell] = {"trained": config.train, "scored on": f"{config.dataset}/test", "images": len(scores)}
    row |= {"mean AP": percent(mean_ap), "mean AP, 11 points": percent(mean_ap_11)}
    tables = [Table.from_row("average precision in %", row)]
    if config.per_class:
        rows: list[list[Cell]] = [
            [one["class"], one["with_it"], percent(one["ap"]), percent(one["ap_11"])] for one in classes
        ]
        tables.append(Table("average precision per class in %", ["class", "images", "AP", "AP, 11 points"], rows))
    return CommandResult(values, (), tuple(tables))


def _read_presence(images: EvalImages, rows: NDArray[np.int64]) -> NDArray[np.int8]:
    assert images.bank.dataset.presence is not None
    return images.bank.dataset.presence[rows]


def _train(config: EvaluatePresenceConfig, head: MultiLabelClassifier, images: EvalImages, view: ViewSpec) -> None:
    """Train with SGD on the summed binary cross-entropies of the classes that are not ignored."""
    head.layers.train()
    optimizer = torch.optim.SGD(head.layers.parameters(), config.lr, momentum=_MOMENTUM, weight_decay=_WEIGHT_DECAY)
    with current_progress().task("train classifier", total=config.steps) as task:
        for step, batch in enumerate(itertools.islice(_repeat_batches(config, images, view), config.steps)):
            optimizer.param_groups[0]["lr"] = config.lr * 0.5 ** (step // _HALVING_STEPS)
            wanted = torch.from_numpy(_read_presence(images, batch.rows)).to(images.bank.device)
            loss = multi_label_loss(head(batch.images), wanted)
            if not torch.isfinite(loss):
                raise DivergenceError("evaluate presence", f"the loss is not finite at step {step + 1}", "Lower --lr.")
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(head.layers.parameters(), _MAX_GRAD_NORM)
            optimizer.step()
            task.advance(1)


def multi_label_loss(logits: Tensor, presence: Tensor) -> Tensor:
    """Compute the binary cross-entropy of multi-label logits, summed over classes and averaged over images.

    Args:
        logits: (b, c).
        presence: (b, c) int8: 1 = present, 0 = absent, -1 = ignored.
    """
    terms = nn.functional.binary_cross_entropy_with_logits(logits, (presence == 1).float(), reduction="none")
    return terms.masked_fill(presence < 0, 0.0).sum() / len(logits)


def _repeat_batches(config: EvaluatePresenceConfig, images: EvalImages, view: ViewSpec) -> Iterator[EvalBatch]:
    for epoch in itertools.count():
        order = keyed_generator(config.seed, "presence", epoch).permutation(images.rows)
        yield from images.load_batches(view, order, config.batch_size, seed=config.seed, epoch=epoch)


@torch.no_grad()
def _score(
    config: EvaluatePresenceConfig, head: MultiLabelClassifier, images: EvalImages, view: ViewSpec
) -> NDArray[np.float64]:
    """Return logits (n, c), summed over the crops of each image."""
    head.layers.eval()
    rows = images.rows
    slots = np.full(len(images.bank.dataset), -1, dtype=np.int64)
    slots[rows] = np.arange(len(rows))
    sums = np.zeros((len(rows), len(images.bank.dataset.presence_classes)))
    with current_progress().task("score", total=len(rows) * _RANDOM_CROPS) as task:
        for number in range(_RANDOM_CROPS):
            # negative epochs, so that these crops differ from all training crops
            for batch in images.load_batches(view, rows, config.batch_size, seed=config.seed, epoch=-1 - number):
                sums[slots[batch.rows]] += head(batch.images).double().cpu().numpy()
                task.advance(len(batch.rows))
    return sums
