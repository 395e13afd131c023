"""Backbones by name: all timm networks, and labelkit's small ViTs and convolutional networks, in one wrapper.

timm and the hub client are imported on first use, so that reading weights does not load them.
"""

import difflib
import fnmatch
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

from torch import Tensor, nn

from labelkit.errors import ConfigError
from labelkit.files import sha256_file
from labelkit.models.backbones.convnets import CONVNETS
from labelkit.models.backbones.vit import SMALL_VITS, build_small_vit
from labelkit.models.frozen_part import FrozenStages, bypass_modules, freeze_stages
from labelkit.models.patch_maps import compute_feature_map, reshape_to_feature_map
from labelkit.models.seeding import seeded_init
from labelkit.models.weights.files import (
    LoadReport,
    assign_weights,
    from_efficientnet_pytorch,
    from_torchvision_mobilenet,
    is_torchvision_mobilenet,
    load_weights_file,
)
from labelkit.models.weights.published import fetch_published_weights, get_center_crop_fraction, timm_config


@dataclass(frozen=True, slots=True)
class BackboneInfo:
    """Properties of a backbone: feature width, input size, normalization and pooling.

    Attributes:
        name: the requested name.
        feature_dim: width f of the pooled features.
        image_size: height and width of the input in pixels.
        in_channels: 1 or 3.
        mean: mean per channel used in training, for images in [0, 1].
        std: standard deviation per channel used in training, for images in [0, 1].
        pooling: pooling of tokens or positions to one vector: ``"token"``, ``"avg"``, ...
        num_prefix_tokens: number of class and register tokens before the patch tokens; 0 without tokens.
        depth: number of transformer blocks; 0 for other networks.
        interpolation: interpolation used to resize images, e.g. ``"bicubic"``.
        crop_pct: fraction of the resized image that the center crop keeps, in (0, 1].
    """

    name: str
    feature_dim: int
    image_size: int
    in_channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pooling: str
    num_prefix_tokens: int = 0
    depth: int = 0
    interpolation: str = "bicubic"
    crop_pct: float = 1.0


class Backbone(nn.Module):
    """A network without a classifier that maps images to pooled features.

    Shape:
        - images: ``(b, c, h, w)`` float, normalized with ``info.mean`` and ``info.std``.
        - returns: ``(b, f)`` float, not normalized: the class token or the average, after the
          final norm, as the network was trained.

    Attributes:
        net: the timm network.
        info: see `BackboneInfo`.
        source: origin of the weights: ``"random"``, a hub file, or the name of a file.
        weights_sha256: digest of the weights file; empty for random weights.
        load_report: names of loaded and unused tensors; ``None`` for random weights.
        frozen: frozen stages; ``None``: no stage is frozen.
    """

    def __init__(self, net: nn.Module, info: BackboneInfo) -> None:
        super().__init__()
        self.net = net
        self.info = info
        self.source = "random"
        self.weights_sha256 = ""
        self.load_report: LoadReport | None = None
        self.frozen: FrozenStages | None = None
        self._reuses = False
        # collects the inputs of the head for `run_with_patches`
        self._kept: list[Any] | None = None

    def freeze_stages(self, count: int) -> None:
        """Freeze the first stages of the network and keep their normalization in evaluation mode.

        Args:
            count: number of stages; see `labelkit.models.frozen_part.freeze_stages`.

        Raises:
            ConfigError: there are fewer stages, or the network cannot be cut there.
        """
        side = self.info.image_size
        self.frozen = freeze_stages(self.net, self.info.name, count, (self.info.in_channels, side, side))
        self.train(self.training)

    def reuse_frozen(self) -> FrozenStages:
        """Make forward passes accept cached outputs of the frozen stages, and return these stages.

        Raises:
            ConfigError: no stage is frozen.
        """
        if self.frozen is None:
            problem = "every stage is trained, so there is no frozen part to cache"
            raise ConfigError("--reuse-frozen", problem, "Pass --freeze-stages, or remove --reuse-frozen.")
        self._reuses = True
        return self.frozen

    def train(self, mode: bool = True) -> Self:
        """Set training or evaluation mode, keeping frozen stages in evaluation mode."""
        super().train(mode)
        for name in () if self.frozen is None else self.frozen.names:
            self.net.get_submodule(name).eval()
        return self

    def forward_features(self, images: Tensor) -> Any:
        """Return the feature maps (b, f, h, w) or tokens (b, t, f) before the network's head.

        Args:
            images: (b, c, h, w); after ``reuse_frozen`` also cached outputs of the frozen stages.
        """
        net: Any = self.net
        if self._reuses and self.frozen is not None and tuple(images.shape[1:]) == self.frozen.shape:
            with bypass_modules(net, self.frozen.names):
                return net.forward_features(images.float())
        return net.forward_features(images)

    def forward(self, images: Tensor) -> Tensor:
        """Return the pooled features (b, f) of images."""
        net: Any = self.net
        maps = self.forward_features(images)
        if self._kept is not None:
            self._kept.append(maps)
        return net.forward_head(maps, pre_logits=True)

    def run_with_patches(self, images: Tensor, forward: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
        """Return ``forward(images)`` and the patch features of the images, computed in a single pass.

        Args:
            images: as for ``forward`` of the backbone.
            forward: function that calls the backbone once.

        Raises:
            UnsupportedBackboneError: the network has no feature map.
        """
        kept: list[Any] = []
        self._kept = kept
        try:
            result = forward(images)
        finally:
            self._kept = None
        (maps,) = kept
        return result, reshape_to_feature_map(self.net, maps, images, self.info.name)

    def patch_features(self, images: Tensor) -> Tensor:
        """Return the feature vectors (b, rows, cols, w) of all patches or map positions.

        These are the patch tokens after the last norm, or the last feature maps.

        Args:
            images: as for ``forward``, of any size that the network accepts.

        Raises:
            UnsupportedBackboneError: the network has no feature map.
            ConfigError: the network does not accept images of this size.
        """
        return compute_feature_map(self.net, images, self.info.name)

    def load_weights(self, path: Path, source: str = "") -> LoadReport:
        """Load all weights from a file, whose layout is converted if timm knows it.

        Args:
            path: see `labelkit.models.weights.files.load_weights_file`.
            source: recorded origin of the weights; default: the name of the file.

        Raises:
            CheckpointError: the file cannot be read or does not match; nothing was changed.
        """
        self.load_report = self.replace_weights(load_weights_file(path), str(path))
        self.source = source or path.name
        self.weights_sha256 = sha256_file(path)
        return self.load_report

    def replace_weights(self, state: Mapping[str, Tensor], where: str) -> LoadReport:
        """Load all weights from a state dict without recording their source.

        Args:
            state: tensors by name.
            where: name of the file, for messages.

        Raises:
            CheckpointError: they do not match; nothing was changed.
        """
        return assign_weights(state, self.net, where=where, convert=partial(_convert, net=self.net))


def build_backbone(
    name: str,
    *,
    pretrained: bool = False,
    weights: Path | None = None,
    image_size: int | None = None,
    in_channels: int = 3,
    seed: int | None = None,
    **options: Any,
) -> Backbone:
    """Build a backbone by name with random weights, published weights or weights from a file.

    Args:
        name: one of `list_backbones`; timm names with or without a weight tag.
        pretrained: whether to use published weights: from the cache of the Hugging Face hub, an installed weights
            package (`labelkit.models.weights.published`), or the hub itself, in this order.
        weights: weights file to use instead; see `labelkit.models.weights.files.load_weights_file`.
        image_size: height and width in pixels; by default those of the published network.
        in_channels: 1 or 3; three-channel weights are summed for one channel.
        seed: seed of the random weights; ``None`` draws from torch's global generator.
        options: further constructor options for a timm network or one of our ViTs, such as ``drop_path_rate``.

    Returns:
        The backbone on the CPU, in training mode.

    Raises:
        ConfigError: the name or tag is unknown, the image size or number of channels is not supported,
            there are no published weights, or both ``pretrained`` and ``weights`` are set.
        CheckpointError: the weights cannot be downloaded or read, or do not match; nothing hangs offline.
    """
    if pretrained and weights is not None:
        problem = "both a weights file and published weights were requested"
        raise ConfigError("weights", problem, "Pass either weights or pretrained.")
    with nullcontext() if seed is None else seeded_init(seed):
        own = _build_own(name, image_size, in_channels, options)
        net, info, cfg = own or _build_timm(name, image_size, in_channels, options)
    backbone = Backbone(net, info)
    if pretrained:
        backbone.load_weights(*fetch_published_weights(name, cfg))
    elif weights is not None:
        backbone.load_weights(Path(weights))
    return backbone


def list_backbones(pattern: str | None = None) -> list[str]:
    """List the names that `build_backbone` accepts: labelkit's own first, then timm's with weight tags.

    Args:
        pattern: shell pattern such as ``"vit_*dino*"``, or a part of the name; ``None`` for all names.
    """
    from timm.models import list_models

    names = [*SMALL_VITS, *CONVNETS, *list_models(include_tags=True)]
    if not pattern:
        return names
    wanted = pattern if any(sign in pattern for sign in "*?[") else f"*{pattern}*"
    return [name for name in names if fnmatch.fnmatchcase(name, wanted)]


def _build_own(
    name: str, image_size: int | None, in_channels: int, options: Mapping[str, Any]
) -> tuple[nn.Module, BackboneInfo, Mapping[str, Any]] | None:
    net: Any
    facts: dict[str, Any]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    if name in CONVNETS:
        shape, url = CONVNETS[name], CONVNETS[name].url
        size = image_size or shape.image_size
        net = shape.build(size, in_channels)
        facts = {"feature_dim": net.num_features, "pooling": shape.pooling, "crop_pct": shape.crop_pct}
        mean, std = shape.mean, shape.std
    elif name in SMALL_VITS:
        vit, url = SMALL_VITS[name], ""
        size = image_size or vit["img_size"]
        _check_patches(name, size, vit["patch_size"])
        net = build_small_vit(name, image_size=size, in_channels=in_channels, **options)
        facts = {"feature_dim": vit["embed_dim"], "pooling": "token", "num_prefix_tokens": 1, "depth": vit["depth"]}
        mean = std = (0.5, 0.5, 0.5)
    else:
        return None
    mean, std = _per_channel(mean, in_channels), _per_channel(std, in_channels)
    return net, BackboneInfo(name, image_size=size, in_channels=in_channels, mean=mean, std=std, **facts), {"url": url}


def _build_timm(
    name: str, image_size: int | None, in_channels: int, given: Mapping[str, Any]
) -> tuple[nn.Module, BackboneInfo, Mapping[str, Any]]:
    import timm

    _check_name(name)
    cfg = timm_config(name)
    size = image_size or cfg.get("input_size", (3, 224, 224))[-1]
    options: dict[str, Any] = dict(given)
    # Only networks with position embeddings are built for a fixed size.
    if image_size is not None and cfg.get("fixed_input_size", False):
        options["img_size"] = image_size
    try:
        net: Any = timm.create_model(name, pretrained=False, num_classes=0, in_chans=in_channels, **options)
    except (AssertionError, ValueError, RuntimeError, TypeError) as error:
        problem = f"{name} cannot be built for {size} pixels and {in_channels} channels: {error}"
        raise ConfigError("backbone", problem, "Choose another size or another backbone.") from error
    patches = getattr(net, "patch_embed", None)
    patch_size = getattr(patches, "patch_size", None)
    if "img_size" in options and isinstance(patch_size, tuple):
        _check_patches(name, size, patch_size[0])
    blocks: Any = getattr(net, "blocks", None)
    is_list = isinstance(blocks, nn.Sequential | nn.ModuleList)
    is_transformer = is_list and all(hasattr(block, "attn") for block in blocks)  # elsewhere, blocks are stages
    info = BackboneInfo(
        name=name,
        feature_dim=int(getattr(net, "head_hidden_size", None) or net.num_features),
        image_size=int(size),
        in_channels=in_channels,
        mean=_per_channel(cfg.get("mean", (0.5, 0.5, 0.5)), in_channels),
        std=_per_channel(cfg.get("std", (0.5, 0.5, 0.5)), in_channels),
        num_prefix_tokens=int(getattr(net, "num_prefix_tokens", 0)),
        depth=len(blocks) if is_transformer else 0,
        interpolation=str(cfg.get("interpolation") or "bicubic"),
        crop_pct=get_center_crop_fraction(name) or float(cfg.get("crop_pct") or 1.0),
        pooling=_get_pooling(net),
    )
    return net, info, cfg


def _get_pooling(net: Any) -> str:
    """Return timm's name for the pooling, which convolutional networks store in a module."""
    pool = getattr(net, "global_pool", None)
    if isinstance(pool, str):
        return pool or "none"
    for module in net.modules():
        if isinstance(getattr(module, "pool_type", None), str):
            return str(module.pool_type) or "none"
    return "avg"


def _check_name(name: str) -> None:
    """Raise an error for names and tags that timm does not have, suggesting similar ones."""
    from timm.models import is_model, list_models

    architecture = name.split(".", 1)[0]
    if not is_model(architecture):
        known = [*SMALL_VITS, *CONVNETS, *list_models()]
        near = difflib.get_close_matches(architecture, known, n=3, cutoff=0.5)
        remedy = f"Did you mean {' or '.join(f'`{other}`' for other in near)}?" if near else ""
        raise ConfigError("backbone", f"unknown backbone {name!r}", f"{remedy} See `labelkit list backbones`.".lstrip())
    if name != architecture:
        tagged = list_models(f"{architecture}.*", include_tags=True)
        if name not in tagged:
            remedy = f"Choose one of: {', '.join(tagged)}." if tagged else f"Use {architecture} alone."
            raise ConfigError("backbone", f"{architecture} has no weights named {name.split('.', 1)[1]!r}", remedy)


def _check_patches(name: str, image_size: int, patch_size: int) -> None:
    if image_size % patch_size:
        problem = f"{image_size} pixels are not a multiple of the patch size of {name} ({patch_size} pixels)"
        raise ConfigError("image_size", problem, f"Try {max(image_size // patch_size, 1) * patch_size}.")


def _per_channel(values: tuple[float, ...], in_channels: int) -> tuple[float, ...]:
    """Return one value per channel; for grayscale images, the average over the colors."""
    if len(values) == in_channels:
        return tuple(float(value) for value in values)
    return (sum(values) / len(values),) * in_channels


def _convert(state: dict[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Convert weights of another layout, image size or number of channels for a network, as far as timm supports it."""
    import inspect

    from timm.models import adapt_input_conv

    is_efficient = hasattr(net, "conv_stem")  # the class of EfficientNets and MobileNets
    if is_efficient and "_conv_stem.weight" in state:
        state = from_efficientnet_pytorch(state, net)
    elif is_efficient and is_torchvision_mobilenet(state):
        state = from_torchvision_mobilenet(state, net)
    filter_fn = getattr(sys.modules[type(net).__module__], "checkpoint_filter_fn", None)
    if filter_fn is not None:
        options = {"adapt_layer_scale": True} if "adapt_layer_scale" in inspect.signature(filter_fn).parameters else {}
        state = dict(filter_fn(state, net, **options))
    convs = (getattr(net, "pretrained_cfg", None) or {}).get("first_conv") or "patch_embed.proj"
    target = net.state_dict()
    for name in (f"{conv}.weight" for conv in ([convs] if isinstance(convs, str) else convs)):
        if name in state and name in target and state[name].shape[1] == 3 and target[name].shape[1] == 1:
            state[name] = adapt_input_conv(1, state[name])
    return state
