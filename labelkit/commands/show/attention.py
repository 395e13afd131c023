"""Attention maps of a trained run: teacher before and after its keys move, and student, on the views of training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from labelkit.algorithms.attention import carry_map, map_correlation, map_entropy
from labelkit.commands.common.networks import TrainedRun, load_run
from labelkit.commands.common.results import Cell, SimpleResult, Table
from labelkit.commands.show.images import (
    as_pixels,
    class_name,
    shown_images,
    training_views,
)
from labelkit.commands.show.options import ShowAttentionConfig
from labelkit.data.batch import Batch
from labelkit.data.views.spec import ViewSpec
from labelkit.errors import CheckpointError
from labelkit.methods.metric.tac_ccl_options import TACCCLConfig
from labelkit.models.attention import BlockAttention, attention_maps
from labelkit.models.backbones.registry import Backbone
from labelkit.models.backbones.vit import UnsupportedBackboneError, check_vision_transformer
from labelkit.models.paired_attention import check_blocks
from labelkit.progress import current_progress
from labelkit.training.devices import Runtime
from labelkit.training.method import Method

# Side that maps are enlarged to; the picture shows them at about 170 pixels.
_MAP_SIDE = 224
_NOTE = (
    "Attention of the class token to the patches, blue to yellow: least to most in the maps of one image and block, "
    "as multiples of even attention below.\nentropy: of its spread, 1 = even; r: correlation with the student's map, "
    "place by place; E, prior: energies of the update's step."
)


@dataclass(frozen=True)
class _Sample:
    """One image in two views."""

    name: str
    row: int | None
    label: str | None
    batch: Batch


#: What is told of one image and block; NaN where it is not defined, None where there is no update.
_Numbers = dict[str, float | None]
_SHOWN = (
    "entropy_teacher", "entropy_updated", "entropy_student", "correlation", "correlation_updated",
    "energy_align_before", "energy_align_after", "update_rel",
)  # fmt: skip


def show_attention(config: ShowAttentionConfig) -> SimpleResult:
    """Draw the attention maps of teacher and student for a few images, and report their statistics.

    The views are those of the method's training, drawn anew by the seed. The run is only read.

    Raises:
        ConfigError: a block, row or number of images that is not there, or a picture that is and may not be replaced.
        CheckpointError: the run cannot be used, or its network has no attention to show.
        DatasetError: the images are not there or cannot be read.
    """
    run = load_run(config.checkpoint, config.which)
    if isinstance(run.config, TACCCLConfig):
        from labelkit.commands.show.gates import show_gates  # for this method alone

        return show_gates(config, run)
    backbone = _vision_transformer(run)
    moving = run.method.key_update()
    update, aligned = moving if moving is not None else (None, ())
    depth = backbone.info.depth
    blocks = check_blocks(config.block if config.block is not None else {*aligned, depth - 1}, depth, "--block")
    runtime = Runtime(device=config.device)
    net = backbone.net.to(runtime.device)
    described: list[dict[str, object]] = []
    cells: list[list[Cell]] = []
    drawn: list[list[Any]] = []
    samples = _samples(config, run, runtime)
    with current_progress().task("attention", total=len(samples)) as task:
        for sample in samples:
            weak, strong = sample.batch.views
            try:
                # One image at a time: the numbers of a block are means over what runs together.
                maps = attention_maps(net, weak, strong, blocks=blocks, update=update, align_blocks=aligned)
            except UnsupportedBackboneError as error:
                raise _no_attention(run, error) from error
            numbers = {block: _numbers(seen, sample.batch) for block, seen in maps.items()}
            described.append(_describe(sample, numbers, aligned))
            cells += [_cells(sample, block, of_block) for block, of_block in numbers.items()]
            drawn.append(_draw(run.method, sample, maps, numbers, aligned))
            task.advance()
    from labelkit.commands.common.images.plots import write_panels  # matplotlib takes a second to load

    write_panels(config.out, _headings(blocks, has_update=bool(aligned)), drawn, note=_NOTE)
    values: dict[str, object] = {
        "picture": config.out,
        "checkpoint": run.source,
        "method": run.config.command[1],
        "backbone": backbone.info.name,
        "depth": depth,
        "heads": int(backbone.net.blocks[0].attn.num_heads),  # type: ignore[index,union-attr] # checked: a timm ViT
        "update": None if update is None else asdict(update),
        "aligned_blocks": list(aligned),
        "blocks": list(blocks),
        "seed": config.seed,
        "images": described,
    }
    columns = ["image", "label", "block", "entropy", "after", "student", "r", "r after", "E", "E after", "update"]
    shown = (
        Table(
            "teacher, teacher after the update, student: entropy; r: correlation with the student",
            columns,
            cells,
        ),
    )
    return SimpleResult(values, (config.out,), shown)


def _vision_transformer(run: TrainedRun) -> Backbone:
    """The run's backbone.

    Raises:
        CheckpointError: it is none with attention.
    """
    backbone = getattr(run.method.network, "backbone", None)
    if not isinstance(backbone, Backbone):
        raise CheckpointError(
            str(run.folder), "its network has no backbone with attention", "Pass a run whose backbone is a ViT."
        )
    try:
        check_vision_transformer(backbone.net)
    except UnsupportedBackboneError as error:
        raise _no_attention(run, error) from error
    return backbone


def _no_attention(run: TrainedRun, error: UnsupportedBackboneError) -> CheckpointError:
    return CheckpointError(
        str(run.folder),
        f"attention maps are not available for its backbone {run.method.network.identity['name']}: {error.problem}",
        "Pass a run whose backbone is a plain ViT with a class token, such as vit_base_patch16_224.dino.",
    )


# --- images and views ----------------------------------------------------------------------------


def _samples(config: ShowAttentionConfig, run: TrainedRun, runtime: Runtime) -> list[_Sample]:
    """Read the chosen images and make their views.

    Raises:
        ConfigError, DatasetError: there is no such image, or it cannot be read.
    """
    views = _view_specs(run.method)
    samples = []
    for name, dataset, row in shown_images(config, run):
        batch = training_views(run, views, dataset, np.array([row]), config.seed, runtime.device)
        samples.append(_Sample(name, None if config.image else row, class_name(dataset, row), batch))
    return samples


def _view_specs(method: Method[Any]) -> tuple[ViewSpec, ViewSpec]:
    """What teacher and student see in training; augmentation that grows, at its full strength."""
    phase = method.phases(np.arange(method.data.num_samples))[-1]
    views = phase.views(method.config.epochs - 1) if callable(phase.views) else phase.views
    return (views[0], views[1]) if len(views) > 1 else (method.eval_view(), views[0])


# --- numbers -------------------------------------------------------------------------------------


def _numbers(seen: BlockAttention, batch: Batch) -> _Numbers:
    """Measure one image in one block, on the mean over heads."""
    teacher, student = seen.teacher.mean(dim=1), seen.student.mean(dim=1)  # (1, rows, columns)
    at_teacher, visible = carry_map(student, batch.geometry[1].matrices, batch.geometry[0].matrices)
    updated = None if seen.updated is None else seen.updated.mean(dim=1)
    log = {name: float(value) for name, value in seen.log.items()}
    has_update = updated is not None
    return {
        "entropy_teacher": float(map_entropy(teacher)),
        "entropy_updated": None if updated is None else float(map_entropy(updated)),
        "entropy_student": float(map_entropy(student)),
        "correlation": float(map_correlation(teacher, at_teacher, visible)),
        "correlation_updated": None if updated is None else float(map_correlation(updated, at_teacher, visible)),
        "patch_share_teacher": float(teacher.sum()),
        "patch_share_student": float(student.sum()),
        "energy_align_before": log["energy_align_before"],
        "energy_align_after": log["energy_align_after"] if has_update else None,
        "energy_prior_before": log["energy_prior_before"],
        "energy_prior_after": log["energy_prior_after"] if has_update else None,
        "update_rel": log["update_rel"] if has_update else None,
        "attn_to_query_entropy": log["attn_to_query_entropy"],
    }


def _describe(sample: _Sample, numbers: dict[int, _Numbers], aligned: tuple[int, ...]) -> dict[str, object]:
    """One image for ``--json``."""
    blocks = [{"block": block, "aligned": block in aligned, **found} for block, found in numbers.items()]
    return {"image": sample.name, "row": sample.row, "label": sample.label, "blocks": blocks}


def _cells(sample: _Sample, block: int, numbers: _Numbers) -> list[Cell]:
    return [sample.name, sample.label, block, *(numbers[name] for name in _SHOWN)]


# --- the picture ---------------------------------------------------------------------------------


def _headings(blocks: Sequence[int], *, has_update: bool) -> list[str]:
    headings = ["teacher's view", "student's view"]
    for block in blocks:
        kinds = ("teacher before", "teacher after", "student") if has_update else ("teacher", "student")
        headings += [f"block {block}\n{kind}" for kind in kinds]
    return headings


def _draw(
    method: Method[Any],
    sample: _Sample,
    maps: dict[int, BlockAttention],
    numbers: dict[int, _Numbers],
    aligned: tuple[int, ...],
) -> list[Any]:
    """Row of the picture: the means over heads."""
    from labelkit.commands.common.images.plots import Panel  # matplotlib takes a second to load

    weak, strong = (as_pixels(view, method) for view in sample.batch.views)
    row = [Panel(weak, lines=(sample.name, *([sample.label] if sample.label is not None else []))), Panel(strong)]
    for block, seen in maps.items():
        kinds = [seen.teacher, seen.student] if seen.updated is None else [seen.teacher, seen.updated, seen.student]
        means = [found.mean(dim=1) for found in kinds]
        shown = [_enlarged(found) for found in means]
        limits = (float(min(heat.min() for heat in shown)), float(max(heat.max() for heat in shown)))
        lines = _lines(numbers[block], [_span(found) for found in means], moves=block in aligned)
        views = [weak] * (len(shown) - 1) + [strong]
        row += [Panel(view, heat, limits, text) for view, heat, text in zip(views, shown, lines, strict=True)]
    return row


def _lines(numbers: _Numbers, spans: Sequence[str], *, moves: bool) -> list[tuple[str, ...]]:
    """What stands below the maps of one block."""
    said = {name: _number(value) for name, value in numbers.items()}
    before = f"entropy {said['entropy_teacher']}, r {said['correlation']}"
    student = f"entropy {said['entropy_student']}"
    energies = f"E {said['energy_align_before']}, prior {said['energy_prior_before']}"
    if numbers["entropy_updated"] is None:
        return [(before, spans[0], energies), (student, spans[1])]
    after = f"entropy {said['entropy_updated']}, r {said['correlation_updated']}"
    if not moves:
        return [(before, spans[0], energies), (after, spans[1], "no update in this block"), (student, spans[2])]
    step = (
        after,
        f"E {said['energy_align_before']} → {said['energy_align_after']}",
        f"prior {said['energy_prior_before']} → {said['energy_prior_after']}",
    )
    return [(before, spans[0]), step, (student, spans[2])]


def _span(found: Tensor) -> str:
    """The least and the most of a map in multiples of its mean: colors alone would make any map look strong."""
    relative = found / found.mean()
    return f"{float(relative.min()):.2f} to {float(relative.max()):.2f} x even"


def _number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"  # noqa: RUF001 - a dash, as in tables
    return f"{value:.3f}" if abs(value) < 10 else f"{value:.4g}"


def _enlarged(found: Tensor) -> NDArray[np.float32]:
    """One map (1, h, w), bilinear, with the side of the picture."""
    enlarged = F.interpolate(found[:, None], size=(_MAP_SIDE, _MAP_SIDE), mode="bilinear", align_corners=False)
    values: NDArray[np.float32] = enlarged[0, 0].float().cpu().numpy()
    return values
