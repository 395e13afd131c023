"""Network for metric learning: a convolutional backbone, optional assembly or attention, and a unit embedding."""

import difflib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labelkit.algorithms.precision import promote, without_autocast
from labelkit.data.batch import DataInfo
from labelkit.errors import ConfigError
from labelkit.methods.backbone import backbone_options
from labelkit.methods.metric.assembly import AssemblyOutput, SpatialAssembly
from labelkit.methods.metric.options import MetricLearningConfig
from labelkit.models.inference import BackboneNetwork
from labelkit.models.patch_maps import make_size_error
from labelkit.models.seeding import seeded_init

# Permuting positions right before averaging changes features only by rounding; elsewhere, by hundredths.
_NO_EFFECT = 1e-4


@dataclass(frozen=True, slots=True)
class MetricNetworkOutput:
    """Feature maps, pooled features and embeddings of a batch."""

    maps: Tensor  # (b, f, h, w), the last feature maps, after attention if there is any
    features: Tensor  # (b, f), pooled
    embeddings: Tensor  # (b, d) float32, unit rows
    attention: Tensor | None  # (b, h, w) in (0, 1), the spatial gate; ``None`` without attention
    assembly: AssemblyOutput | None = None  # weights that moved the features; ``None`` without an assembly


class MetricNetwork(BackboneNetwork):
    """A convolutional backbone with a unit-length embedding, and optionally attention or spatial assembly.

    For stored embeddings, the features are the embedding, without a linear layer. With ``freeze_bn``, the backbone's
    batch norm uses fixed running statistics; its scale and shift are trained.

    Args:
        config: backbone, embedding width, pooling, whether batch norm is frozen, and seed.
        data: properties of the training set.
        attention: builds, for the width of the last maps, a module that maps them to gated maps and a gate
            ``(b, h, w)``; its batch norm is never frozen.

    Raises:
        ConfigError: the backbone has no feature maps.
    """

    def __init__(
        self, config: MetricLearningConfig, data: DataInfo, attention: Callable[[int], nn.Module] | None = None
    ) -> None:
        super().__init__(config.backbone, seed=config.seed, **backbone_options(config, data))
        self.pool, self.freeze_bn = config.pool, config.freeze_bn
        self._of_rows = data.row_dim is not None
        #: shape (f, h, w) of the last maps; a stored embedding is one position
        self.map_shape = (self.backbone.info.feature_dim, 1, 1)
        if not self._of_rows:
            shape = tuple(self._run_on_noise().shape[1:])
            if len(shape) != 3:
                problem = f"{config.backbone} has no feature maps (its features have shape {shape} for each image)"
                remedy = "Choose a convolutional network, e.g. resnet18, googlenet or smallcnn."
                raise ConfigError("--backbone", problem, remedy)
            self.map_shape = shape
        width = self.map_shape[0]
        self.layer = "backbone" if self._of_rows else "projection"
        self.embed_dim = width if self._of_rows else config.embed_dim
        self.projection: nn.Module = nn.Identity()
        if not self._of_rows:
            with seeded_init(config.seed + 1):
                linear = nn.Linear(width, self.embed_dim)
                nn.init.kaiming_normal_(linear.weight, mode="fan_out")
                nn.init.zeros_(linear.bias)
            self.projection = linear
        self.assembly: SpatialAssembly | None = None
        self._seen: AssemblyOutput | None = None
        self.attention: nn.Module | None = None
        if attention is not None:
            with seeded_init(config.seed + 2):
                self.attention = attention(width)

    @torch.no_grad()
    def _run_on_noise(self) -> Tensor:
        """Return the last maps of two noise images, in evaluation mode."""
        info, was_training = self.backbone.info, self.backbone.training
        generator = torch.Generator().manual_seed(0)
        images = torch.randn(2, info.in_channels, info.image_size, info.image_size, generator=generator)
        self.backbone.eval()
        maps = self._maps(images)
        self.backbone.train(was_training)
        return maps

    def insert_assembly(self, before: str, *, width: int = 64, diagonal: float = 0.9, seed: int = 0) -> None:
        """Insert a spatial assembly module before a stage of the backbone, e.g. ``layer4``.

        It is initialized with a separate seed, so that the initial weights of the other layers do not change.

        Raises:
            ConfigError: the stage does not exist, its input has no maps or too many positions, or the layers after it
                ignore the positions of features, so that an assembly would have no effect.
        """
        name, stages = self.backbone.info.name, dict(self.backbone.net.named_modules())
        stages.pop("", None)
        if before not in stages:
            near = difflib.get_close_matches(before, stages, n=1, cutoff=0.5)
            guess = f"Did you mean {near[0]}? " if near else ""
            names = ", ".join(stage for stage, _ in self.backbone.net.named_children())
            remedy = f"{guess}Choose a stage (or a part of one): {names}."
            raise ConfigError("--san-before", f"{name} has no stage {before!r}", remedy)
        frozen = () if self.backbone.frozen is None else self.backbone.frozen.names
        if any(before == stage or before.startswith(f"{stage}.") for stage in frozen):
            problem = f"this stage is frozen (frozen stages: {', '.join(frozen)})"
            raise ConfigError(f"--san-before {before}", problem, "Choose a later stage, or lower --freeze-stages.")
        plain, seen = self._features_with(stages[before], lambda maps: maps)
        if len(seen) != 1 or len(seen[0]) != 4:
            problem = f"{before} of {name} must be called exactly once per forward pass, with feature maps"
            remedy = "Choose a stage whose input is feature maps, e.g. layer4 of resnet18."
            raise ConfigError("--san-before", problem, remedy)
        _, channels, *grid = seen[0]
        try:
            with seeded_init(seed):
                assembly = SpatialAssembly(channels, (grid[0], grid[1]), width=width, diagonal=diagonal)
        except ValueError as error:
            problem = f"{before} of {name} has {grid[0]} x {grid[1]} positions: {error}"
            raise ConfigError("--san-before", problem, "Choose a later stage or smaller images.") from error
        order = torch.randperm(grid[0] * grid[1], generator=torch.Generator().manual_seed(1))
        moved, _ = self._features_with(stages[before], lambda maps: maps.flatten(2)[:, :, order].reshape(maps.shape))
        if float((plain - moved).norm(dim=1).max()) < _NO_EFFECT:
            problem = f"after {before} of {name}, all positions are averaged, so an assembly has no effect"
            remedy = "Choose an earlier stage, followed by a convolution larger than 1x1 or a strided pool."
            raise ConfigError("--san-before", problem, remedy)
        self.assembly = assembly
        stages[before].register_forward_pre_hook(self._assemble)

    def _assemble(self, stage: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
        assert self.assembly is not None
        if self.assembly.bypassed:
            return None
        moved, self._seen = self.assembly(inputs[0])
        return (moved, *inputs[1:])

    @contextmanager
    def without_assembly(self) -> Iterator[None]:
        """Context manager that disables the assembly, to measure its effect."""
        assert self.assembly is not None
        self.assembly.bypassed = True
        try:
            yield
        finally:
            self.assembly.bypassed = False

    def _features_with(
        self, stage: nn.Module, change: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, list[tuple[int, ...]]]:
        """Return unit features (2, f) of noise images after changing a stage's input maps, and the shapes of these."""
        seen: list[tuple[int, ...]] = []

        def change_input(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
            if not isinstance(inputs[0], Tensor):
                return None
            seen.append(tuple(inputs[0].shape))
            return (change(inputs[0]), *inputs[1:])

        hook = stage.register_forward_pre_hook(change_input)
        maps = self._run_on_noise()
        hook.remove()
        return F.normalize(self.pool_maps(maps), dim=1), seen

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode, keeping frozen batch norm in evaluation mode."""
        super().train(mode)
        if self.freeze_bn:
            for layer in self.backbone.modules():
                if isinstance(layer, _BatchNorm):
                    layer.eval()
        return self

    @property
    def identity(self) -> dict[str, str]:
        """Return the backbone, layer and pooling that identify the embedding."""
        return {"name": self.backbone.info.name, "layer": self.layer, "pooling": self.pool}

    def new_modules(self) -> list[nn.Module]:
        """Return the embedding and attention modules, which are randomly initialized."""
        found: list[nn.Module] = [] if self.layer == "backbone" else [self.projection]
        return found if self.attention is None else [*found, self.attention]

    def _maps(self, images: Tensor) -> Tensor:
        maps: Tensor = self.backbone.forward_features(images)
        return maps[:, :, None, None] if self._of_rows else maps

    def pool_maps(self, maps: Tensor) -> Tensor:
        """Pool maps (b, f, h, w) to features (b, f)."""
        average, largest = maps.mean(dim=(2, 3)), maps.amax(dim=(2, 3))
        return {"avg": average, "max": largest, "avg+max": average + largest}[self.pool]

    def forward(self, images: Tensor) -> MetricNetworkOutput:
        """Compute maps, features, embeddings and attention of images (b, c, h, w)."""
        self._seen = None
        maps, gate = self._maps(images), None
        # not kept, since it holds the autograd graph of the batch
        seen, self._seen = self._seen, None
        if self.attention is not None:
            maps, gate = self.attention(maps)
        features = self.pool_maps(maps)
        projected = self.projection(features)
        with without_autocast(projected):
            return MetricNetworkOutput(maps, features, F.normalize(promote(projected), dim=1), gate, seen)

    def embed(self, images: Tensor) -> Tensor:
        """Return the unit embeddings (b, d) of images."""
        return self.forward(images).embeddings

    def patch_features(self, images: Tensor) -> Tensor:
        """Return the final feature maps (b, rows, cols, f) before pooling: the output of assembly and attention."""
        side = self.backbone.info.image_size
        if self.assembly is not None and tuple(images.shape[-2:]) != (side, side):
            problem = f"differ from the assembly's {side} x {side} pixels"
            raise make_size_error(self.backbone.info.name, images, problem)
        return self.forward(images).maps.permute(0, 2, 3, 1)

    def embed_with_patches(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the unit embeddings and last maps of images, computed in one pass."""
        output = self.forward(images)
        return output.embeddings, output.maps.permute(0, 2, 3, 1)

    @property
    def patch_identity(self) -> dict[str, str]:
        """Return the name of the backbone, with ``maps`` as the layer."""
        return {"name": self.backbone.info.name, "layer": "maps"}

    def features(self, images: Tensor) -> Tensor:
        """Return the L2-normalized pooled features (b, f), which the first clustering can use."""
        return F.normalize(promote(self.forward(images).features), dim=1)
