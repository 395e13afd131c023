"""What the methods share whose student follows cosines and whose target follows the student: phases, groups, parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.samplers import Stream, StreamSampler
from labelkit.data.views.spec import Pairing, ViewSpec
from labelkit.errors import ConfigError
from labelkit.methods.dense.networks import TokenNetwork
from labelkit.methods.dense.options import SlowTargetConfig
from labelkit.training.checkpoint import load_model_state
from labelkit.training.distributed import process_count
from labelkit.training.method import Phase
from labelkit.training.schedules import CosineSchedule
from labelkit.training.timing import GroupRates, Pace

_BRANCHES = ("network.", "teacher.module.")


def target_decay(config: SlowTargetConfig) -> CosineSchedule:
    """Decay of the target by the step of the run."""
    return CosineSchedule(config.ema_start, config.ema_end, config.steps)


def cosine_pace(config: SlowTargetConfig) -> Pace:
    """The one phase of a run, without its images."""
    return Pace(
        config.num_epochs,
        min(config.eval_every_steps, config.steps) * config.batch_size,
        steps=config.steps,
        lr=CosineSchedule(config.lr, config.lr_final, config.steps, config.lr_warmup_steps),
        weight_decay=CosineSchedule(config.weight_decay, config.weight_decay_final, config.steps),
    )


def mixed_phase(
    config: SlowTargetConfig,
    rows: NDArray[np.int64],
    num_objects: int,
    views: tuple[ViewSpec, ...],
    pairing: Pairing | None = None,
) -> Phase:
    """Both sets again and again, in shares that every process gets alike.

    Args:
        config: the options.
        rows: that can be read.
        num_objects: rows of images of one object, which come first.
        views: of each image.
        pairing: what second views show.
    """
    pace, objects = cosine_pace(config), config.objects_per_batch
    streams = [
        Stream("objects", rows[rows < num_objects], objects),
        Stream("scenes", rows[rows >= num_objects], config.batch_size - objects),
    ]
    return Phase(
        pace.epochs,
        views,
        StreamSampler(streams, steps=pace.draws // config.batch_size, seed=config.seed),
        steps=pace.steps,
        lr=pace.lr,
        weight_decay=pace.weight_decay,
        pairing=pairing,
    )


def backbone_and_head_rates(config: SlowTargetConfig) -> GroupRates:
    """Backbone, and what stands on it."""
    return {"backbone": {"lr_scale": 1.0}, "head": {"lr_scale": 1.0}}


def backbone_and_head_groups(
    method: nn.Module, config: SlowTargetConfig, *, never_decayed: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield backbone and head, with and without weight decay.

    Args:
        method: the student is ``network``.
        config: the options.
        never_decayed: end of the names of parameters without weight decay, beside biases and one-dimensional ones.
    """
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in method.named_parameters():
        if parameter.requires_grad:
            is_decayed = parameter.ndim >= 2 and not (never_decayed and name.endswith(never_decayed))
            groups.setdefault((name.startswith("network.backbone."), is_decayed), []).append(parameter)
    rates = backbone_and_head_rates(config)
    for (is_backbone, is_decayed), parameters in groups.items():
        yield {
            "params": parameters,
            "weight_decay": config.weight_decay if is_decayed else 0.0,
            "is_decayed": is_decayed,
            **rates["backbone" if is_backbone else "head"],
        }


def check_crops(config: SlowTargetConfig, network: TokenNetwork) -> None:
    """Refuse small views that are no whole patches, and shares of a batch that processes cannot have alike.

    Raises:
        ConfigError: naming the option.
    """
    patch = network.patch_size
    if config.local_size % patch:
        raise ConfigError(
            "--local-size",
            f"{config.local_size} pixels are no multiple of the patches of {config.backbone} ({patch} pixels)",
            f"Try {max(config.local_size // patch, 1) * patch}.",
        )
    processes, objects = process_count(), config.objects_per_batch
    for name, count in (("--batch-size", objects), ("--batch-size", config.batch_size)):
        if count % processes:
            raise ConfigError(
                name, f"{count} cannot be shared by {processes} processes", "Every one needs as many of each kind."
            )


def take_branches(
    network: TokenNetwork, target: TokenNetwork, tensors: Mapping[str, Tensor], where: str, *, projector: bool
) -> bool:
    """Take the backbones, and the projectors if they are wanted, of both networks of a run of one of these methods.

    What else both networks have starts equal in both.

    Returns:
        whether the run is one of these.

    Raises:
        CheckpointMismatch: other backbones.
        ConfigError: other projectors.
    """
    if not all(any(name.startswith(f"{branch}projector.") for name in tensors) for branch in _BRANCHES):
        return False
    target.load_state_dict(network.state_dict())
    for branch, module in zip(_BRANCHES, (network, target), strict=True):
        own = {name.removeprefix(branch): value for name, value in tensors.items() if name.startswith(branch)}
        layers = {name.removeprefix("projector."): v for name, v in own.items() if name.startswith("projector.")}
        kept = {name.removeprefix("backbone."): v for name, v in own.items() if name.startswith("backbone.")}
        load_model_state(module.backbone, kept, where)
        if projector:
            module.take_projector(layers, where)
    return True
