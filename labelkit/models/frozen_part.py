"""Frozen first part of a network, whose outputs can be cached in place of image views.

In paired training of a ViT, the two views may need different tokens. If the teacher's keys follow the student's queries
in frozen blocks (FlipClass), the teacher's tokens from the first such block on depend on the paired student view. The
student's tokens depend on nothing else, and are cached for every block in which the teacher uses them.

The stages of a convolutional network are found without knowing its implementation: a trial pass finds the modules that
run before a stage ends. They are then replaced by identities, and a second pass from the stage's output checks that the
resulting maps are the same.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from labelkit.errors import ConfigError
from labelkit.models.backbones.vit import check_vision_transformer, embed_tokens, last_class_token, pools_class_token
from labelkit.models.weights.files import fingerprint


@dataclass(frozen=True, slots=True)
class FrozenPart:
    """Frozen first blocks of a vision transformer, whose tokens are cached for two views of an image."""

    # for the first and second view, the blocks whose input is cached, in order; the depth of the network denotes the
    # output of its last block
    blocks: tuple[tuple[int, ...], tuple[int, ...]]
    pooled: bool = False  # whether pooled features suffice, because only heads are trained

    def cache_point(self, view: int | None) -> tuple[object, ...]:
        """Return the indices of the cached blocks, and ``pooled`` if only pooled features are cached."""
        return (*(self.blocks[1][-1:] if view is None else self.blocks[view]), *(("pooled",) if self.pooled else ()))

    @torch.no_grad()
    def compute_cached(self, net: Any, images: Tensor, view: int | None) -> Tensor:
        """Compute the tokens or pooled features to cache for normalized images (b, c, h, w).

        ``view`` is 0 or 1, or ``None`` for use outside training, where keys are not updated. Returns the input tokens
        of the k blocks, (b, k, t, f), or (b, t, f) without a view; or features (b, f) if ``pooled``.
        """
        if self.pooled:
            return net.forward_head(net.forward_features(images), pre_logits=True)
        wanted = self.blocks[1][-1:] if view is None else self.blocks[view]
        tokens = embed_tokens(net, images)
        found = [tokens] if 0 in wanted else []
        for index in range(wanted[-1]):
            tokens = net.blocks[index](tokens)
            if index + 1 in wanted:
                found.append(tokens)
        kept = torch.stack(found, dim=1)
        return kept[:, 0] if view is None else kept

    def fingerprint(self, net: nn.Module) -> str:
        """Return a digest (64 hexadecimal digits) of the weights that the cached tokens depend on."""
        last = self.blocks[1][-1]
        state = net.state_dict()
        return fingerprint({name: state[name] for name in state if self.pooled or not _is_trained(name, last)})


def find_frozen_part(
    vit: nn.Module, grad_from_block: int, moved_blocks: Collection[int] = (), train_stem: bool = False
) -> FrozenPart:
    """Find the blocks of a timm ViT that stay frozen in paired training, and the tokens that can be cached.

    In ``moved_blocks``, the first view's keys follow the second view's queries. ``grad_from_block`` is the first
    trained block, or the depth of the network if there is none. ``ConfigError``: nothing is frozen, or the output of
    the frozen part varies between passes (dropout, batch statistics).
    """
    check_vision_transformer(vit)
    net: Any = vit
    depth = len(net.blocks)
    if train_stem or grad_from_block == 0:
        problem = "every block is trained, so there is no frozen part to cache"
        remedy = "Pass --grad-from-block (and --no-train-stem), or remove --reuse-frozen."
        raise ConfigError("--reuse-frozen", problem, remedy)
    for name, module in net.named_modules():
        if _is_trained(name, grad_from_block):
            continue
        rate = getattr(module, "drop_prob", None) or (isinstance(module, nn.Dropout) and module.p) or 0.0
        if rate > 0 or isinstance(module, _BatchNorm):
            kind = type(module).__name__
            problem = f"{name} in the frozen part is a {kind}, whose output varies between passes"
            raise ConfigError("--reuse-frozen", problem, "Pass a different --backbone, or remove --reuse-frozen.")
    moved = tuple(sorted({block for block in moved_blocks if block < grad_from_block}))
    if not moved and grad_from_block == depth:
        return FrozenPart(((depth,), (depth,)), pooled=True)
    return FrozenPart(((min((*moved, grad_from_block)),), (*moved, grad_from_block)))


def pool_cached_tokens(vit: Any, tokens: Tensor, part: FrozenPart) -> Tensor:
    """Compute the pooled features (b, f) from tokens cached by `FrozenPart.compute_cached` without a view."""
    made = tokens.float()
    if part.pooled:
        return made
    depth, first = len(vit.blocks), part.blocks[1][-1]
    for index in range(first, depth):
        early = index == depth - 1 and pools_class_token(vit)
        made = last_class_token(vit, made) if early else vit.blocks[index](made)
    return vit.forward_head(vit.norm(made), pre_logits=True)


def _is_trained(name: str, grad_from_block: int) -> bool:
    """Return whether a module or tensor comes after the frozen part: in a later block, or after all blocks."""
    parts = name.split(".")
    if parts[0] == "blocks":
        return len(parts) > 1 and int(parts[1]) >= grad_from_block
    return parts[0] in ("norm", "fc_norm", "head", "head_drop", "attn_pool")


# ---- stages of convolutional networks

_CONTAINERS = ("stages", "blocks", "layers", "features")
_NUMBERED = re.compile(r"[A-Za-z]+_?\d+[a-z]?")
_STEM = re.compile(r"(?i)conv|stem")


@dataclass(frozen=True, slots=True)
class FrozenStages:
    """Frozen first stages of a convolutional network, whose output maps can be cached for each view."""

    names: tuple[str, ...]  # frozen modules, in the order in which they run
    shape: tuple[int, ...]  # (c, h, w) of their output, for an image of the network's input size

    def cache_point(self, view: int | None) -> tuple[object, ...]:
        """Return the name of the last frozen stage, whose output is cached."""
        return (self.names[-1],)

    @torch.no_grad()
    def compute_cached(self, net: nn.Module, images: Tensor, view: int | None) -> Tensor:
        """Compute the output maps (b, c', h', w') of the frozen stages for images (b, c, h, w)."""
        return _run_until(net, self.names[-1], images)

    def fingerprint(self, net: nn.Module) -> str:
        """Return a digest (64 hexadecimal digits) of the weights of the frozen modules."""
        starts = tuple(f"{name}." for name in self.names)
        return fingerprint({name: tensor for name, tensor in net.state_dict().items() if name.startswith(starts)})


ReusablePart = FrozenPart | FrozenStages
"""Frozen part of a network whose outputs are computed once per view and cached in place of images."""


def stage_names(net: nn.Module) -> list[str]:
    """Return the names of a network's stages in order, such as ``layer1`` or ``blocks.0``; empty if none are found."""
    for name, child in net.named_children():
        if name in _CONTAINERS and isinstance(child, nn.Sequential | nn.ModuleList) and len(child) > 1:
            return [f"{name}.{part}" for part, module in child.named_children() if _has_parameters(module)]
    return [
        name
        for name, child in net.named_children()
        if _NUMBERED.fullmatch(name)
        and not _STEM.match(name)
        and _has_parameters(child)
        and any(True for _ in child.children())
    ]


def freeze_stages(net: nn.Module, name: str, count: int, image_shape: Sequence[int]) -> FrozenStages:
    """Freeze the first ``count`` stages of a convolutional network, including all modules before them.

    ``image_shape`` is (c, h, w). ``ConfigError``: there are fewer stages, or the network cannot be split after them.
    """
    stages = stage_names(net)
    if count > len(stages):
        listed = f"has {len(stages)} stages: {', '.join(stages)}" if stages else "has no stages"
        remedy = f"Pass at most {len(stages)}." if stages else "Remove --freeze-stages, or pass a different --backbone."
        raise ConfigError(f"--freeze-stages {count}", f"{name} {listed}", remedy)
    container = stages[0].rpartition(".")[0]
    units = [child for child, _ in net.named_children() if child != container]
    units += [f"{container}.{child}" for child, _ in net.get_submodule(container).named_children() if container]
    was_training = net.training
    net.eval()
    try:
        found = _cut(net, units, stages[count - 1], image_shape)
    finally:
        net.train(was_training)
    if found is None:
        problem = f"{name} cannot be split after {stages[count - 1]}: later layers need more than its feature maps"
        remedy = "Choose a convolutional --backbone, or pass --freeze-stages 0."
        raise ConfigError(f"--freeze-stages {count}", problem, remedy)
    for part in found.names:
        net.get_submodule(part).requires_grad_(False)
        for module in net.get_submodule(part).modules():
            if isinstance(module, _BatchNorm):
                module.keeps_statistics = True  # type: ignore[assignment] # a flag, not a module
    return found


@contextmanager
def bypass_modules(net: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Context manager that replaces the named modules of a network with identity modules."""
    with ExitStack() as stack:
        for name in names:
            parent, _, leaf = name.rpartition(".")
            modules: dict[str, nn.Module | None] = net.get_submodule(parent)._modules
            stack.callback(modules.__setitem__, leaf, modules[leaf])
            modules[leaf] = nn.Identity()
        yield


class _StopForward(Exception):  # noqa: N818 - not an error, but a way to end a pass early
    def __init__(self, maps: Tensor) -> None:
        self.maps = maps


def _run_until(net: Any, last: str, images: Tensor) -> Tensor:
    """Run images through a network up to a module, and return the output of that module."""

    def leave(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        raise _StopForward(output)

    handle = net.get_submodule(last).register_forward_hook(leave)
    try:
        net.forward_features(images)
    except _StopForward as left:
        return left.maps
    finally:
        handle.remove()
    raise AssertionError(f"{last} did not run")


@torch.no_grad()
def _cut(net: Any, units: Sequence[str], last: str, image_shape: Sequence[int]) -> FrozenStages | None:
    """Find the modules up to the end of a stage; ``None`` if the rest cannot reproduce the result from its output."""
    images = torch.randn(2, *image_shape, generator=torch.Generator().manual_seed(0))
    order: list[str] = []
    handles = [
        net.get_submodule(name).register_forward_hook(lambda *_, name=name: order.append(name)) for name in units
    ]
    try:
        whole = net.forward_features(images)
    finally:
        for handle in handles:
            handle.remove()
    if len(set(order)) < len(order) or last not in order:
        return None
    names = tuple(order[: order.index(last) + 1])
    maps = _run_until(net, last, images)
    if not isinstance(maps, Tensor) or maps.ndim != 4 or tuple(maps.shape[1:]) == tuple(image_shape):
        return None
    try:
        with bypass_modules(net, names):
            again = net.forward_features(maps)
    except (RuntimeError, TypeError, ValueError):
        return None
    if not isinstance(again, Tensor) or again.shape != whole.shape or not torch.equal(again, whole):
        return None
    return FrozenStages(names, tuple(maps.shape[1:]))


def _has_parameters(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())
