"""What CoTAP builds and takes over: the network of its options, and parts of an earlier stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from labelkit.data.batch import DataInfo
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import ConfigError
from labelkit.methods.backbone import backbone_options
from labelkit.methods.dense.cotap_options import CoTAPConfig
from labelkit.methods.dense.networks import DenseNetwork, FilterOptions
from labelkit.methods.dense.recipe import check_crops, take_branches
from labelkit.training.distributed import process_count


def build_dense_network(config: CoTAPConfig, data: DataInfo) -> tuple[DenseNetwork, list[str]]:
    """Build the student with the weights that the options name; and what a person should know about them."""
    options = FilterOptions(config.filter_prototypes, config.filter_kernel)
    network = DenseNetwork(
        config.backbone,
        drop_path=config.drop_path,
        object_filter=options if config.filter else None,
        projector_dims=config.projector_dims,
        image_features=config.image_features,
        **backbone_options(config, data),
        seed=config.seed,
    )
    _train_only_what_is_used(config, network)
    notes = []
    if config.projector_init == "checkpoint":
        if config.weights is not None and not network.take_projector_file(config.weights):
            notes.append(f"warning: {config.weights} holds no projection, so the projector starts from scratch")
        elif config.weights is None and config.pretrained:
            notes.append("warning: the hub's weights hold no projection, so the projector starts from scratch")
    return network, notes


def _train_only_what_is_used(config: CoTAPConfig, network: DenseNetwork) -> None:
    """Freeze what no term reaches: processes would wait for its gradient."""
    terms = (config.image_alignment, config.patch_alignment, config.image_concentration, config.patch_ranking)
    if not any(terms):
        network.requires_grad_(False)
    if network.filter is not None:
        network.filter.prototypes.requires_grad_(config.prototype_entropy > 0)


def check_dense_run(config: CoTAPConfig, network: DenseNetwork, num_objects: int) -> None:
    """Refuse options that do not fit the network, the images or the processes.

    Raises:
        ConfigError: naming the option.
    """
    check_crops(config, network)
    if config.patch_ranking and config.batch_size // process_count() < 2:
        raise ConfigError(
            "--batch-size", "a process needs two images for --patch-ranking", "Raise it, or pass --patch-ranking 0."
        )
    if config.image_concentration and config.num_neighbors >= num_objects:
        raise ConfigError(
            "--num-neighbors", f"{config.num_neighbors} neighbors among {num_objects} images", "Lower it."
        )


def neighbor_view(first: ViewSpec, number: int) -> ViewSpec:
    """Return the view of a neighbor: like a first view, but for its own mirror."""
    return replace(first, partner=True, mirror_as=number)


def take_dense_parts(
    network: DenseNetwork, target: DenseNetwork, tensors: Mapping[str, Tensor], where: str, projector: bool
) -> str | None:
    """Take the backbones, and the projectors if they are wanted, of both networks of a run of CoTAP.

    Returns:
        What was taken; ``None`` if the run is of another method.

    Raises:
        CheckpointMismatch: other backbones.
        ConfigError: other projectors.
    """
    if not take_branches(network, target, tensors, where, projector=projector):
        return None
    if not projector:
        return "both backbones; projectors and filter start anew"
    return "both backbones and projectors; the filter starts anew"
