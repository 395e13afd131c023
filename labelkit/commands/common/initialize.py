"""Initialize a method's weights from another run or a file."""

from pathlib import Path
from typing import Any

from labelkit.data.center_crop import compute_resized_side
from labelkit.errors import CheckpointError, CheckpointMismatch
from labelkit.formatting import join_first_few
from labelkit.models.backbones.registry import list_backbones
from labelkit.models.inference import InferenceNetwork
from labelkit.models.weights.published import HUB_SCHEME, PACKAGE_SCHEME, timm_config
from labelkit.options.training import RunConfig
from labelkit.progress import current_progress
from labelkit.training.checkpoint import MODEL, load_checkpoint, load_model_state
from labelkit.training.method import Method

_BACKBONE = "network.backbone."


def initialize_weights(method: Method[Any], source: Path) -> None:
    """Initialize the weights of a method from a run folder or a weights file.

    The whole network is loaded from a run of the same method with the same classes; from any other run or a file, only
    the backbone. A message reports what was loaded.

    Raises:
        CheckpointError: the source has no usable weights.
        CheckpointMismatch: the names or shapes of the tensors differ.
    """
    backbone = getattr(method.network, "backbone", None)
    if backbone is None:
        raise CheckpointError(str(source), "this method has no backbone to load weights into", "Remove --init-from.")
    if not source.is_dir():
        backbone.load_weights(source)
        method.on_backbone_loaded()
        report_loaded_weights(method.network)
        return
    checkpoint = load_checkpoint(source, show_message=current_progress().warning)
    if checkpoint is None:
        raise CheckpointError(str(source), "contains no checkpoint", "Pass the --out folder of a `labelkit train` run.")
    tensors = checkpoint.tensors(MODEL)
    where = str(checkpoint.folder)
    try:
        load_model_state(method, tensors, where)
        taken: str | None = "the whole network"
    except CheckpointMismatch:
        taken = method.load_matching_tensors(tensors, where)
    if taken is None:
        kept = {n.removeprefix(_BACKBONE): value for n, value in tensors.items() if n.startswith(_BACKBONE)}
        load_model_state(backbone, kept, where)
        method.on_backbone_loaded()
        taken = "the backbone (the heads are trained from scratch)"
    current_progress().message(f"loaded from {checkpoint.folder}: {taken}")


def remove_weight_sources(config: RunConfig) -> RunConfig:
    """Return the options without sources of initial weights, for a network whose checkpoint is loaded later."""
    sources: dict[str, object] = {"pretrained": False, "weights": None, "init_from": None}
    return config.model_copy(update={key: value for key, value in sources.items() if key in type(config).model_fields})


def report_loaded_weights(network: InferenceNetwork) -> None:
    """Report which tensors of a weights file were loaded, missing or unused, and how images are preprocessed."""
    backbone = getattr(network, "backbone", None)
    report = getattr(backbone, "load_report", None)
    if backbone is None or report is None:
        return
    text = f"weights from {backbone.source}: {len(report.loaded)} tensors loaded"
    if report.prefix:
        text += f", with the prefix {report.prefix!r} removed from their names"
    for kind, names in (("missing in the file", report.missing), ("unused", report.unexpected)):
        if names:
            text += f"; {kind}: {join_first_few(names)}"
    if not backbone.source.startswith((HUB_SCHEME, PACKAGE_SCHEME)):
        name, spec = backbone.info.name, network.input_spec
        tag = timm_config(name).get("tag") if "." not in name else ""
        like = f"{name}.{tag}" if tag else name
        mean, std = (", ".join(f"{value:.4g}" for value in values) for values in (spec.mean, spec.std))
        text += f"; images are preprocessed as for {like} (resized to "
        text += f"{compute_resized_side(spec.size, spec.resize_ratio)}, cropped to {spec.size}; mean {mean}; std {std})"
        parts = {part for tensor in (report.prefix, *report.unexpected) for part in tensor.split(".")}
        dino = list_backbones(f"{name}.*dino") if parts & {"teacher", "student"} else []
        text += f"; for DINO's preprocessing, pass --backbone {dino[0]}" if dino else ""
    current_progress().message(text)
