"""Evaluate a network by linear probes after each convolution, or on its embedding, trained on augmented images.

Source: ``yukimasano/self-label:eval_linear_probes.py``, after R. Zhang et al., "Split-Brain Autoencoders" (CVPR 2017):
feature maps are pooled to about 9,000 values, batch-normalized without learned scale, and classified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torchvision.transforms.functional import center_crop, five_crop, ten_crop

from labelkit.commands.common.networks import load_run
from labelkit.commands.common.results import Cell, CommandResult, Table
from labelkit.commands.common.training_data import choose_eval_images, prepare_data
from labelkit.commands.evaluate.options import EvaluateProbesConfig
from labelkit.data.datasets import ImageDataset
from labelkit.data.image_bank import ImageBank
from labelkit.data.keyed_random import keyed_generator
from labelkit.data.loaders import EvalLoader
from labelkit.data.views.recipes import classification_view
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.errors import CheckpointError, ConfigError, DatasetError
from labelkit.formatting import percent
from labelkit.models.backbones.vit import UnsupportedBackboneError
from labelkit.models.inference import InferenceNetwork
from labelkit.models.seeding import seeded_init
from labelkit.options.backbone import BackboneRunConfig
from labelkit.progress import current_progress
from labelkit.training.devices import Runtime


def compute_resize_side(size: int) -> int:
    """Return the side length to which images are resized before cropping to ``size``, such as 256 for 224."""
    return round(size * 256 / 224)


def crop_images(images: Tensor, size: int, *, multi_crop: bool, mirror: bool) -> Sequence[Tensor]:
    """Crop the center of images (b, c, s, s); with ``multi_crop``, also the corners, and with ``mirror``, flips."""
    if not multi_crop:
        return [center_crop(images, [size, size])]
    crops: Sequence[Tensor] = (ten_crop if mirror else five_crop)(images, [size, size])
    return crops


_MOMENTUM = 0.9
# Maximum number of inputs of a convolutional probe, to which feature maps are pooled (published: 9,216 to 9,600).
_MAX_VALUES = 9600
_EMBEDDING = "embedding"
_PROTOCOL = (
    "at", "augmentation", "crops", "epochs", "batch_size", "lr", "lr_drop_epochs", "weight_decay", "seed",
)  # fmt: skip


def find_probed_layers(network: nn.Module) -> dict[str, nn.ReLU]:
    """Return the ReLU after each convolution of a network, keyed by name.

    Raises:
        UnsupportedBackboneError: there is no convolution, or a convolution has no ReLU of its own (as in ResNets).
    """
    found: dict[str, nn.ReLU] = {}
    waiting, problem = "", ""
    for name, module in network.named_modules():
        if isinstance(module, nn.Conv2d):
            if waiting:
                problem = f"convolution {waiting} has no ReLU before the next one"
                break
            waiting = name
        elif isinstance(module, nn.ReLU) and waiting:
            found[name], waiting = module, ""
    if found and not waiting:
        return found
    problem = problem or (f"convolution {waiting} has no ReLU after it" if waiting else "it has no convolution")
    raise UnsupportedBackboneError(
        "evaluate probes",
        f"the network is not a plain sequence of convolutions: {problem}",
        "Use alexnet_sela, alexnet_small_sela or smallcnn as the backbone, or pass --at features.",
    )


@contextmanager
def collect_outputs(layers: Sequence[nn.Module]) -> Iterator[list[Tensor]]:
    """Collect the outputs of layers during forward passes in a list, in order of execution."""
    maps: list[Tensor] = []
    hooks = [layer.register_forward_hook(lambda module, args, output: maps.append(output)) for layer in layers]
    try:
        yield maps
    finally:
        for hook in hooks:
            hook.remove()


def choose_pooling(channels: int, side: int, max_values: int) -> tuple[int, int, int]:
    """Choose the kernel size (= stride) and padding to pool feature maps to at most ``max_values`` values.

    Returns the smallest suitable kernel, its largest padding, and the pooled side length, which is at least 1.

    For AlexNet at 224 pixels and 9,600 values, these are the published settings: 6 and 3, 4 and 0, 3 and 1, 2 and 0.
    """
    for kernel in range(1, side + 1):
        for padding in range(kernel // 2, -1, -1):
            pooled = (side + 2 * padding - kernel) // kernel + 1
            if channels * pooled**2 <= max_values:
                return kernel, padding, pooled
    return side, 0, 1


class ConvProbe(nn.Sequential):
    """Linear probe on feature maps, preceded by max pooling and batch normalization without learned scale.

    Args:
        channels: number of channels.
        side: side length of the maps.
        num_classes: number of classes, c.
        max_values: maximum number of inputs of the linear layer.

    Shape:
        - maps: ``(b, channels, side, side)``.
        - returns: ``(b, c)``.
    """

    def __init__(self, channels: int, side: int, num_classes: int, *, max_values: int) -> None:
        kernel, padding, pooled = choose_pooling(channels, side, max_values)
        linear = nn.Conv2d(channels, num_classes, pooled)  # over the whole map
        super().__init__(
            nn.MaxPool2d(kernel, kernel, padding), nn.BatchNorm2d(channels, affine=False), linear, nn.Flatten()
        )
        self.num_values = channels * pooled**2
        nn.init.xavier_uniform_(linear.weight)
        assert linear.bias is not None
        nn.init.zeros_(linear.bias)


@dataclass(frozen=True)
class EvalImages:
    """Preprocessed images for training or evaluating classifiers on a frozen network.

    Attributes:
        bank: source of the images.
        rows: int64 rows of the bank's dataset to use.
        normalize: normalization of the network.
        num_workers: number of processes that decode images.
    """

    bank: ImageBank
    rows: NDArray[np.int64]
    normalize: Normalize
    num_workers: int

    @classmethod
    def for_network(
        cls,
        images: ImageDataset,
        network: InferenceNetwork,
        device: torch.device,
        *,
        num_workers: int | None,
        max_bad: float,
    ) -> EvalImages:
        """Prepare the readable images of a dataset, resized so that they can be cropped to the network's input size."""
        spec = network.input_spec
        bank = ImageBank(images, base_size=compute_resize_side(spec.size), device=device)
        bank.check_readable(max_bad)
        return cls(bank, bank.rows, Normalize(spec.mean, spec.std), num_workers or 0)

    def select_labeled(self) -> EvalImages:
        """Return the labeled images."""
        return replace(self, rows=self.rows[self.bank.dataset.labels[self.rows] >= 0])

    def load_batches(
        self, view: ViewSpec, rows: NDArray[np.int64], size: int, *, seed: int | None = None, epoch: int = 0
    ) -> EvalLoader:
        """Load the given rows in batches; if a seed is passed, as random views."""
        return EvalLoader(
            self.bank, view, rows=rows, batch_size=size, normalize=self.normalize, num_workers=self.num_workers,
            seed=seed, epoch=epoch, join_single=seed is not None,
        )  # fmt: skip

    def get_labels(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the labels of the given rows as a tensor on the device."""
        return torch.from_numpy(self.bank.dataset.labels[rows]).to(self.bank.device)


_FeatureExtractor: TypeAlias = Callable[[Tensor], list[Tensor]]


def evaluate_probes(config: EvaluateProbesConfig) -> CommandResult:
    """Train one linear probe per convolution, all in one pass, or one on the embedding; evaluate on held-out images.

    The network, including its running statistics, is not changed. The true labels of all training images are used,
    including those that were hidden from training.

    Raises:
        CheckpointError: the folder is not a run folder, or the run has no held-out images.
        UnsupportedBackboneError: the network is not a plain sequence of convolutions.
        ConfigError: there are no labeled held-out images.
    """
    run = load_run(config.checkpoint)
    if not isinstance(run.config, BackboneRunConfig):
        remedy = "Embed images with this run, then use `labelkit evaluate linear`."
        raise CheckpointError(str(config.checkpoint), "has no held-out images", remedy)
    network = run.method.main_network()
    layers = find_probed_layers(network) if config.at == "convolutions" else {}
    changes = {"eval_split": config.split, "data_root": config.data_root or run.config.data_root}
    options = run.config.model_copy(update=changes)
    prepared = prepare_data(options)
    evaluated = choose_eval_images(options, prepared)
    if evaluated is None:
        raise ConfigError(
            "--split", "there is no held-out split with labels", "Train with --holdout, or choose another split."
        )
    runtime = Runtime(device=config.device, threads=config.threads)
    network = network.to(runtime.device).eval()
    spec, chiral, num_classes = network.input_spec, prepared.dataset.chiral, len(prepared.dataset.class_names)
    limits: dict[str, Any] = {"num_workers": config.num_workers, "max_bad": options.max_bad}
    train, test = (
        EvalImages.for_network(images, network, runtime.device, **limits).select_labeled()
        for images in (prepared.dataset, evaluated)
    )
    for one in (train, test):
        if len(one.rows) < 2:
            problem = f"has only {len(one.rows)} labeled images"
            raise DatasetError(one.bank.dataset.name, problem, "Use a dataset with more labels.")
    nothing = torch.zeros((1, spec.channels, spec.size, spec.size), device=runtime.device)
    with collect_outputs(list(layers.values())) as maps:

        def extract_features(images: Tensor) -> list[Tensor]:
            """Return the layers' feature maps, or the embedding as a 1x1 map."""
            maps.clear()
            with torch.no_grad():
                features = network.embed(images)
            return list(maps) if layers else [features.float()[:, :, None, None]]

        with seeded_init(config.seed):
            probes: list[nn.Sequential] = [
                ConvProbe(one.shape[1], one.shape[2], num_classes, max_values=_MAX_VALUES)
                if layers
                else nn.Sequential(nn.Flatten(), nn.Linear(one.shape[1], num_classes))
                for one in extract_features(nothing)
            ]
        nn.ModuleList(probes).to(runtime.device)
        view = classification_view(spec.size, config.augmentation, chiral=chiral)
        _train(config, extract_features, probes, train, view)
        scores = _score(config, extract_features, probes, test, layers or (_EMBEDDING,), spec.size, mirror=not chiral)
    best = max(scores, key=lambda score: float(score["accuracy"]))
    values: dict[str, object] = {
        "checkpoint": config.checkpoint,
        "train_images": len(train.rows),
        "images": len(test.rows),
        "best_layer": best["layer"],
        "best_accuracy": best["accuracy"],
        "probes": scores,
        "protocol": {name: getattr(config, name) for name in _PROTOCOL},
    }
    rows: list[list[Cell]] = []
    for number, score in enumerate(scores, 1):
        maps_text = f"{score['channels']} x {score['side']} x {score['side']}"
        best5 = None if score["top5_accuracy"] is None else percent(score["top5_accuracy"])
        rows.append([number, score["layer"], maps_text, score["values"], percent(score["accuracy"]), best5])
    columns = ["probe", "layer", "maps", "values", "top 1", "top 5"]
    return CommandResult(values, (), (Table("accuracy of linear probes in %", columns, rows),))


def _train(
    config: EvaluateProbesConfig,
    extract_features: _FeatureExtractor,
    probes: list[nn.Sequential],
    images: EvalImages,
    view: ViewSpec,
) -> None:
    """Train all probes at once with SGD on the sum of their losses; they do not influence each other."""
    together = nn.ModuleList(probes).train()
    optimizer = torch.optim.SGD(together.parameters(), config.lr, momentum=_MOMENTUM, weight_decay=config.weight_decay)
    steps = -(-len(images.rows) // config.batch_size)
    with current_progress().task("train probes", total=config.epochs * steps) as task:
        for epoch in range(config.epochs):
            optimizer.param_groups[0]["lr"] = config.lr * 0.1 ** sum(drop <= epoch for drop in config.lr_drop_epochs)
            order = keyed_generator(config.seed, "probes", epoch).permutation(images.rows)
            for batch in images.load_batches(view, order, config.batch_size, seed=config.seed, epoch=epoch):
                maps, wanted = extract_features(batch.images), images.get_labels(batch.rows)
                losses = [
                    nn.functional.cross_entropy(probe(one), wanted) for probe, one in zip(probes, maps, strict=True)
                ]
                optimizer.zero_grad(set_to_none=True)
                torch.stack(losses).sum().backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                task.advance(1)


@torch.no_grad()
def _score(
    config: EvaluateProbesConfig,
    extract_features: _FeatureExtractor,
    probes: list[nn.Sequential],
    images: EvalImages,
    names: Iterable[str],
    size: int,
    *,
    mirror: bool,
) -> list[dict[str, Any]]:
    """Return the accuracy of each probe (with over five classes, also top 5), averaging logits over crops."""
    view, ten = ViewSpec(compute_resize_side(size), resize_ratio=1.0), config.crops == "ten"
    nn.ModuleList(probes).eval()
    right = np.zeros((len(probes), 2), dtype=np.int64)
    shapes: list[tuple[int, int]] = []
    for batch in images.load_batches(view, images.rows, max(1, config.batch_size // 10 if ten else config.batch_size)):
        sums: list[Tensor] = []
        for crop in crop_images(batch.images, size, multi_crop=ten, mirror=mirror):
            maps = extract_features(crop)
            shapes = [(one.shape[1], one.shape[2]) for one in maps]
            found = [probe(one) for probe, one in zip(probes, maps, strict=True)]
            sums = [a + b for a, b in zip(sums, found, strict=True)] if sums else found
        wanted = images.get_labels(batch.rows)[:, None]
        for number, scores in enumerate(sums):
            best = scores.topk(min(5, scores.shape[1]), dim=1).indices == wanted
            right[number] += [int(best[:, 0].sum()), int(best.sum())]
    top5 = len(images.bank.dataset.class_names) > 5
    return [
        {
            "layer": name,
            "channels": channels,
            "side": side,
            "values": getattr(probe, "num_values", channels),
            "accuracy": one / len(images.rows),
            "top5_accuracy": five / len(images.rows) if top5 else None,
        }
        for name, (channels, side), probe, (one, five) in zip(names, shapes, probes, right.tolist(), strict=True)
    ]
