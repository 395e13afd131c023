"""Weights files from other programs: read as untrusted input, matched by name, identified by content.

``.safetensors`` files are read only by their library; ``.pt`` and ``.pth`` files are pickles and are read only by
``torch.load(weights_only=True)``.
"""

import argparse
import hashlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from labelkit.errors import CheckpointDamaged, CheckpointError, CheckpointMismatch, CheckpointRefused
from labelkit.files import open_regular_file

PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt", ".tar")
HARMLESS: list[Any] = [argparse.Namespace]
"""Classes that are allowed in a torch file besides tensors, and ignored: DINO and iBOT store command-line options."""

_MAX_DEPTH = 8

_RESAVE = (
    "If you trust the file, save only its tensors: "
    "safetensors.torch.save_file(network.state_dict(), 'weights.safetensors')."
)
# Names of the copy to use if a file has several: the averaged one, which is better, but for MoCo the query encoder.
_PREFERRED = ("teacher", "ema", "state_dict_ema", "model_ema", "encoder_q", "base_encoder")
_PREFERRED_STARTS = ("teacher_", "ema_")
# The averaged copies in BYOL, MoCo and similar methods; the trained copy is used instead, as published.
_FOLLOWING = re.compile(r"(target|momentum|key)(_|$)|.+_(momentum|k)$")
_SHOWN = 5
# Names of the projection head in self-supervised networks.
_HEADS = ("head.mlp.", "projection_head.")


@dataclass(frozen=True, slots=True)
class LoadReport:
    """Names of the tensors that were loaded, missing or unexpected when loading weights from a file.

    Attributes:
        loaded: names in the network that were set.
        missing: names of optional tensors that the file lacks (batch counters).
        unexpected: names in the file without a counterpart in the network, such as old classifiers.
        prefix: prefix that was removed from the names in the file, e.g. ``"module.backbone."``.
    """

    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    prefix: str


def load_weights_file(path: str | Path, lists: dict[str, list[Any]] | None = None) -> dict[str, Tensor]:
    """Read all tensors of a weights file into CPU memory, with dotted names for nested dictionaries.

    Args:
        path: ``.safetensors``, or a torch file (``.pt``, ``.pth``, ``.bin``, ``.ckpt``, ``.tar``).
        lists: filled with the lists of strings or integers in a torch file.

    Returns:
        CPU tensors by name, as stored; values are not checked here.

    Raises:
        CheckpointError: the file is missing, not regular, has another suffix, or contains no tensors.
        CheckpointDamaged: the file is corrupt.
        CheckpointRefused: the file contains more than tensors.
    """
    path = Path(path)
    try:
        with open_regular_file(path):
            pass
    except OSError as error:
        remedy = "Check the path of the weights file and its permissions."
        raise CheckpointError(str(path), f"cannot be read: {error.strerror}", remedy) from error
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            state = load_file(path, device="cpu")
        except (SafetensorError, ValueError, KeyError, OSError) as error:
            raise CheckpointDamaged(str(path), f"cannot be read: {error}", "Download the file again.") from error
    elif path.suffix in PICKLE_SUFFIXES:
        state = _read_pickle(path, {} if lists is None else lists)
    else:
        known = ", ".join((".safetensors", *PICKLE_SUFFIXES))
        raise CheckpointError(str(path), f"has an unknown type ({path.suffix or 'no suffix'})", f"Use one of: {known}.")
    if not state:
        raise CheckpointError(str(path), "contains no named tensors", "Pass a file that contains a state dict.")
    return state


def assign_weights(
    state: Mapping[str, Tensor],
    model: nn.Module,
    *,
    where: str = "weights",
    convert: Callable[[dict[str, Tensor]], Mapping[str, Tensor]] | None = None,
) -> LoadReport:
    """Assign all parameters and buffers of ``model`` from ``state``, or change nothing and raise an error.

    The prefix of the network's names in the file (such as ``module.``, ``state_dict.`` or
    ``teacher.backbone.``) is inferred: it is the prefix that matches the most names. If the
    file has an averaged and a plain copy, the averaged one is used, except for MoCo and BYOL,
    which use the average only for training.

    Args:
        state: tensors by name.
        model: the network; every name of its state dict is required, except batch counters.
        where: name of the file, for messages.
        convert: converts names and shapes of a known foreign layout; tried, on the names without
            prefix, only if the plain names do not match.

    Returns:
        Report of the loaded and unused tensors.

    Raises:
        CheckpointMismatch: required tensors are missing or have another shape or type, the file has
            additional blocks, or two copies in it match equally well; the message lists the first few names.
        CheckpointDamaged: a required tensor has values that are not finite.
    """
    target = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    prefix = _find_prefix(state, target, where)
    cleaned = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    left_over = [name for name in state if not name.startswith(prefix)]
    missing, mismatched = _faults(cleaned, target)
    if convert is not None and (missing or mismatched):
        try:
            cleaned = dict(convert(dict(cleaned)))
        except (KeyError, ValueError, RuntimeError, IndexError, AttributeError, AssertionError) as error:
            problem = f"the weights do not match the network, and their layout is unknown ({error})"
            raise CheckpointMismatch(where, problem, _remedy(model)) from error
        missing, mismatched = _faults(cleaned, target)
    optional = tuple(name for name in missing if name.endswith("num_batches_tracked"))
    needed = [name for name in missing if name not in optional]
    if needed or mismatched:
        raise CheckpointMismatch(where, _describe(needed, mismatched, cleaned, target), _remedy(model))
    if further := _further_blocks(cleaned, target):
        problem = f"the weights contain {len(further)} blocks that the network lacks ({_abbreviate(further)})"
        raise CheckpointMismatch(where, problem, _remedy(model))

    ready = {
        name: _convert_tensor(cleaned[name], value, name, where) for name, value in target.items() if name in cleaned
    }
    with torch.no_grad():
        for name, value in ready.items():
            target[name].copy_(value)
    return LoadReport(
        loaded=tuple(ready),
        missing=optional,
        unexpected=(*(name for name in cleaned if name not in target), *left_over),
        prefix=prefix,
    )


def fingerprint(module_or_state: nn.Module | Mapping[str, Tensor]) -> str:
    """Return a SHA-256 digest of weights, which depends only on their names, types, shapes and values.

    The digest covers ``name NUL dtype NUL shape NUL bytes`` of every tensor, sorted by name, with types
    such as ``float32``, shapes such as ``48,3,8,8``, and little-endian bytes in C order.

    Args:
        module_or_state: a module, whose state dict is used, or tensors by name.

    Returns:
        64 hexadecimal digits.
    """
    state = module_or_state.state_dict() if isinstance(module_or_state, nn.Module) else module_or_state
    digest = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        shape = ",".join(map(str, tensor.shape))
        dtype = str(tensor.dtype).removeprefix("torch.")
        digest.update(f"{name}\0{dtype}\0{shape}\0".encode())
        plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        digest.update(plain.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _read_pickle(path: Path, lists: dict[str, list[Any]]) -> dict[str, Tensor]:
    where = str(path)
    # Any error here is caused by the file.
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(HARMLESS):
            warnings.simplefilter("ignore")
            value = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch's own message suggests trusting rejected pickles, so it is not shown
        forbidden = re.search(r"GLOBAL (\S+)", str(error))
        if forbidden is not None:
            problem = f"contains objects other than tensors, so it was not read: {forbidden[1]}"
            raise CheckpointRefused(where, problem, _RESAVE) from error
        if "TorchScript" in str(error):
            remedy = "If you trust it, save its tensors: torch.save(torch.jit.load(FILE).state_dict(), 'weights.pth')."
            raise CheckpointRefused(where, "is a TorchScript program, which labelkit does not run", remedy) from error
        raise CheckpointRefused(
            where, "is damaged, or is not a torch file of plain tensors", f"Download the file again. {_RESAVE}"
        ) from error
    found: dict[str, Tensor] = {}
    _collect(value, "", 0, found, lists)
    for name, tensor in found.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            raise CheckpointRefused(where, f"{name} is not a plain tensor ({tensor.dtype}, {tensor.layout})", _RESAVE)
    return found


def _collect(value: object, name: str, depth: int, found: dict[str, Tensor], lists: dict[str, list[Any]]) -> None:
    """Collect the tensors and lists of nested dictionaries under dotted names, ignoring other values."""
    if isinstance(value, Tensor):
        found[name] = value.detach()
    elif isinstance(value, dict) and depth < _MAX_DEPTH and all(isinstance(key, str) for key in value):
        for key, item in value.items():
            _collect(item, f"{name}.{key}" if name else key, depth + 1, found, lists)
    elif isinstance(value, list) and value and all(isinstance(item, str | int) for item in value):
        lists[name] = value


def _find_prefix(state: Mapping[str, Tensor], target: Mapping[str, Tensor], where: str) -> str:
    """Return the prefix under which the file contains most names of the network."""
    suffixes: dict[str, list[str]] = {}
    for name in target:
        suffixes.setdefault(name.rpartition(".")[2], []).append(name)
    votes: Counter[str] = Counter()
    for name in state:
        for wanted in suffixes.get(name.rpartition(".")[2], ()):
            if name == wanted or name.endswith(f".{wanted}"):
                votes[name.removesuffix(wanted)] += 1
    if not votes:
        return ""
    best = max(votes.values())
    prefixes = sorted(prefix for prefix, count in votes.items() if count == best)
    if "" in prefixes or len(prefixes) == 1:
        return "" if "" in prefixes else prefixes[0]
    chosen = _choose_copies(prefixes)
    if len(chosen) == 1:
        return chosen[0]
    problem = f"contains {len(prefixes)} copies of the network: {', '.join(map(repr, prefixes[:_SHOWN]))}"
    raise CheckpointMismatch(where, problem, "Save only the copy to load.")


def _choose_copies(prefixes: list[str]) -> list[str]:
    """Return the prefixes of the copies to use: averaged copies, otherwise those that do not track another copy."""
    averaged = [
        prefix
        for prefix in prefixes
        if any(part in _PREFERRED or part.startswith(_PREFERRED_STARTS) for part in prefix.split("."))
    ]
    return averaged or [p for p in prefixes if not any(_FOLLOWING.match(part) for part in p.split("."))]


def _faults(state: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> tuple[list[str], list[str]]:
    missing = [name for name in target if name not in state]
    mismatched = [name for name in target if name in state and state[name].shape != target[name].shape]
    return missing, mismatched


def _further_blocks(state: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> list[str]:
    """Return the blocks in a file that continue a sequence of numbered blocks of the network, such as ``layer1.2``."""

    def blocks(names: Iterable[str]) -> Iterator[tuple[str, int]]:
        # only blocks of named layers, since a sequence of layers may end in another head
        parts = ((name, part) for name in names for part in re.finditer(r"\.(\d+)(?=\.\w+\.)", name))
        return ((name[: part.start()], int(part[1])) for name, part in parts)

    last: dict[str, int] = {}
    for stage, number in blocks(target):
        last[stage] = max(last.get(stage, 0), number)
    further = (f"{stage}.{number}" for stage, number in blocks(state) if number > last.get(stage, number))
    return list(dict.fromkeys(further))


def _describe(
    missing: list[str], mismatched: list[str], state: Mapping[str, Tensor], target: Mapping[str, Tensor]
) -> str:
    parts = []
    if missing:
        parts.append(f"{len(missing)} of {len(target)} tensors are missing ({_abbreviate(missing)})")
    if mismatched:
        shapes = [f"{name} is {list(state[name].shape)}, expected {list(target[name].shape)}" for name in mismatched]
        parts.append(f"{len(mismatched)} have the wrong shape ({_abbreviate(shapes)})")
    return "; ".join(parts)


def _abbreviate(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + (", ..." if len(names) > _SHOWN else "")


def _remedy(model: nn.Module) -> str:
    return f"Pass weights for the same network ({type(model).__name__}), image size and number of channels."


def _convert_tensor(value: Tensor, target: Tensor, name: str, where: str) -> Tensor:
    """Convert ``value`` to the type of ``target``; raise an error for an incompatible type or nonfinite values."""
    if value.is_floating_point() != target.is_floating_point() or value.is_complex():
        problem = f"{name} has type {value.dtype}, expected {target.dtype}"
        raise CheckpointMismatch(where, problem, "Save the weights in their original type.")
    fitted = value.to(target.dtype)
    if fitted.is_floating_point() and not bool(torch.isfinite(fitted).all()):
        count = int((~torch.isfinite(fitted)).sum())
        raise CheckpointDamaged(where, f"{name}: {count} values are not finite", "Download the file again, or retrain.")
    return fitted


def find_projector_weights(state: Mapping[str, Tensor], where: str) -> dict[tuple[int, str], Tensor] | None:
    """Find the weights of the three-layer projection head that is stored with a self-supervised network.

    DINO, iBOT and Mugs call it ``head.mlp.{0,2,4}``, Leopart ``projection_head.{0,2,4}``. Of several copies, one is
    chosen as in ``assign_weights``; ``CheckpointMismatch``: the choice is ambiguous.

    Returns:
        Tensors by (index of the layer, ``weight`` or ``bias``); ``None`` without a projection head.
    """
    wanted = [(place, kind) for place in range(3) for kind in ("weight", "bias")]
    prefixes = []
    for head in _HEADS:
        ends = [name.removesuffix(f"{head}0.weight") for name in state if name.endswith(f"{head}0.weight")]
        prefixes += [start + head for start in ends]
    found = [p for p in prefixes if all(f"{p}{2 * place}.{kind}" in state for place, kind in wanted)]
    chosen = _choose_copies(found) if len(found) > 1 else found
    if not found:
        return None
    if len(chosen) != 1:
        problem = f"contains {len(found)} projection heads: {', '.join(map(repr, found[:_SHOWN]))}"
        raise CheckpointMismatch(where, problem, "Save only the one to load.")
    names = {key: f"{chosen[0]}{2 * key[0]}.{key[1]}" for key in wanted}
    return {
        key: _convert_tensor(state[name], torch.zeros((), dtype=torch.float32), name, where)
        for key, name in names.items()
    }


# Names of layers in efficientnet-pytorch and in timm, for blocks with and without expansion.
_EXPANDING = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
_SEPARABLE = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
_EXCITATION = {"_se_reduce": "se.conv_reduce", "_se_expand": "se.conv_expand"}
_STEM_AND_HEAD = {
    "_conv_stem": "conv_stem",
    "_bn0": "bn1",
    "_conv_head": "conv_head",
    "_bn1": "bn2",
    "_fc": "classifier",
}


def from_efficientnet_pytorch(state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Rename the weights of ``efficientnet-pytorch`` checkpoints to timm's names.

    Their blocks are numbered consecutively (``_blocks.3._expand_conv.weight``), timm's within each stage. ``net`` is
    timm's network of the same size.

    Raises:
        KeyError: a name belongs to another layout, or there are more blocks than in the network.
    """
    stages: Any = net.get_submodule("blocks")
    places = [f"blocks.{i}.{j}" for i, stage in enumerate(stages) for j in range(len(stage))]
    renamed: dict[str, Tensor] = {}
    for name, value in state.items():
        layer, _, kind = name.rpartition(".")
        if layer.startswith("_blocks."):
            _, number, layer = layer.split(".")
            if int(number) >= len(places):
                raise KeyError(f"{name}: the network has {len(places)} blocks")
            expanding = f"_blocks.{number}._expand_conv.weight" in state
            names = (_EXPANDING if expanding else _SEPARABLE) | _EXCITATION
            renamed[f"{places[int(number)]}.{names[layer]}.{kind}"] = value
        else:
            renamed[f"{_STEM_AND_HEAD[layer]}.{kind}"] = value
    return renamed


def is_torchvision_mobilenet(state: Mapping[str, Tensor]) -> bool:
    """Return whether a state dict uses torchvision's names for MobileNetV2."""
    return "features.0.0.weight" in state and "features.1.conv.0.0.weight" in state


def from_torchvision_mobilenet(state: Mapping[str, Tensor], net: nn.Module) -> dict[str, Tensor]:
    """Rename the weights of torchvision's MobileNetV2 to timm's names.

    torchvision numbers stem, blocks and head consecutively, timm numbers the blocks within each stage. In torchvision,
    a block is a list of convolutions, all but the last of which include normalization (``conv.0.0``, ``conv.0.1``).

    Args:
        state: tensors by name, such as ``features.2.conv.1.0.weight``.
        net: timm's network of the same width.

    Raises:
        KeyError: a name belongs to another layout, or there are more blocks than in the network.
    """
    stages: Any = net.get_submodule("blocks")
    places = [f"blocks.{i}.{j}" for i, stage in enumerate(stages) for j in range(len(stage))]
    head = len(places) + 1
    names = {"features.0.0": "conv_stem", "features.0.1": "bn1", "classifier.1": "classifier"}
    names |= {f"features.{head}.0": "conv_head", f"features.{head}.1": "bn2"}
    for number, place in enumerate(places, 1):
        parts = ["conv.0.0", "conv.0.1", "conv.1.0", "conv.1.1", "conv.2", "conv.3"]
        layers = ["conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3"]
        if f"features.{number}.conv.3.weight" not in state:  # the first block does not expand
            parts, layers = ["conv.0.0", "conv.0.1", "conv.1", "conv.2"], ["conv_dw", "bn1", "conv_pw", "bn2"]
        names |= {f"features.{number}.{a}": f"{place}.{b}" for a, b in zip(parts, layers, strict=True)}
    renamed = {}
    for name, value in state.items():
        layer, _, kind = name.rpartition(".")
        renamed[f"{names[layer]}.{kind}"] = value
    return renamed
