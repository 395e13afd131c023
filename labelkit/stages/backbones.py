"""Count what networks cost, and hold the counts against published sizes; no weights are needed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from labelkit.config.presets import shipped_presets
from labelkit.data.center_crop import resized_side
from labelkit.errors import ConfigError
from labelkit.models.backbones import BackboneInfo, build_backbone, list_backbones
from labelkit.models.convnets import CONVNETS
from labelkit.models.counting import NetworkCounts, count_network
from labelkit.models.figures import NO_FIGURE, PREPARATIONS, Figure, Preparation, agrees, figures_of
from labelkit.models.published import BEST_FIRST, describe_published, embedding_size
from labelkit.models.vit import SMALL_VITS
from labelkit.reading import read_bytes
from labelkit.stages.progress import current_progress
from labelkit.stages.result import Cell, SimpleResult, Table

_MAX_BYTES = 1 << 18
_NAMED = re.compile(r"backbone:? +\"?([A-Za-z0-9_.]+)")
_COLUMNS = (
    "name", "parameters", "multiply-adds (M)", "image side (pixels)", "features", "resized to (pixels)",
    "interpolation", "mean", "std",
)  # fmt: skip
_HELD = ("name", "number", "published", "counted", "agrees", "source", "difference")
_PREPARED = ("name", "resized to", "crop", "interpolation", "mean", "std", "source", "what we do otherwise")


@dataclass(frozen=True)
class Held:
    """A published size beside our count.

    Attributes:
        figure: what was published.
        expected: by the name of a number, what we count with the differences that the figure names.
    """

    figure: Figure
    expected: dict[str, int]


@dataclass(frozen=True)
class CountedBackbone:
    """A network, what it costs, and what was published of it.

    Attributes:
        info: how images are prepared, as `labelkit embed` does.
        counts: at this size.
        published: sizes.
        preparation: by the authors of the weights, if it is known.
    """

    info: BackboneInfo
    counts: NetworkCounts
    published: tuple[Held, ...]
    preparation: Preparation | None

    @property
    def resize(self) -> int:
        """Pixels of the shorter side before the center crop."""
        return resized_side(self.info.image_size, 1 / self.info.crop_pct)

    def to_json(self) -> dict[str, object]:
        """Return everything."""
        info = self.info
        weights, license_name = describe_published(info.name)
        return {
            "name": info.name,
            "weights": weights,
            "license": license_name,
            "parameters": self.counts.parameters,
            "multiply_adds": self.counts.multiply_adds,
            "image_size": info.image_size,
            "features": info.feature_dim,
            "pooling": info.pooling,
            "resize": self.resize,
            "interpolation": info.interpolation,
            "mean": list(info.mean),
            "std": list(info.std),
            "published": [
                {
                    "source": held.figure.source,
                    "number": number,
                    "published": text,
                    "counted": held.expected[number],
                    "agrees": agrees(held.expected[number], text),
                    "difference": held.figure.difference(number),
                }
                for held in self.published
                for number, text in held.figure.printed().items()
            ],
            "not_published": NO_FIGURE.get(info.name, ""),
            "published_preparation": None if self.preparation is None else _prepared(self.preparation),
        }


def used_backbones() -> list[str]:
    """List labelkit's own networks, then those of timm that a preset or ``--backbone auto`` names."""
    own = [*SMALL_VITS, *CONVNETS]
    tagged = set(list_backbones())
    known = tagged | {name.split(".", 1)[0] for name in tagged}
    folder = shipped_presets()
    files = [] if folder is None else sorted(folder.glob("*/*.yaml"))
    words = {word.rstrip(".") for path in files for word in _NAMED.findall(read_bytes(path, _MAX_BYTES).decode())}
    named = (words | set(BEST_FIRST)) & known - set(own)
    # a name with the tag of its weights beside the bare name would say the same again
    return own + sorted(name for name in named if "." not in name or name.split(".", 1)[0] not in named)


def count_backbone(name: str) -> CountedBackbone:
    """Count parameters and multiply-adds of a network for one color image of the size that is embedded.

    Raises:
        ConfigError: it cannot be built, or gives no features.
    """
    info, counts = _count(name, embedding_size(name))
    others: dict[int | None, NetworkCounts] = {None: counts, info.image_size: counts}
    published = []
    for figure in figures_of(name):
        if figure.image_size not in others:
            others[figure.image_size] = _count(name, figure.image_size)[1]
        published.append(Held(figure, figure.expected(others[figure.image_size])))
    preparation = next((one for one in PREPARATIONS if one.network == name), None)
    return CountedBackbone(info, counts, tuple(published), preparation)


def count_backbones(names: Sequence[str]) -> SimpleResult:
    """Count networks, and show how images are prepared for them, beside what was published.

    Args:
        names: as `list_backbones` has them.

    Raises:
        ConfigError: one cannot be built, or gives no features.
    """
    found = []
    with current_progress().task("count", total=len(names)) as task:
        for name in names:
            found.append(count_backbone(name))
            task.advance()
    shown = (
        Table("", _COLUMNS, [_row(one) for one in found]),
        Table("published sizes; counted with their classifier and the difference", _HELD, _held_rows(found)),
        Table("published preparation of images", _PREPARED, _prepared_rows(found)),
    )
    values: dict[str, object] = {"backbones": [one.to_json() for one in found]}
    return SimpleResult(values, shown=tuple(table for table in shown if table.rows))


def _count(name: str, size: int | None) -> tuple[BackboneInfo, NetworkCounts]:
    with torch.device("meta"):  # neither memory nor time for weights
        backbone = build_backbone(name, image_size=size)
    info = backbone.info
    try:
        return info, count_network(backbone, (info.in_channels, info.image_size, info.image_size))
    except NotImplementedError as error:
        raise ConfigError("--pattern", f"{name} gives no features of an image: {error}", "Leave it out.") from error


def _prepared(one: Preparation) -> dict[str, object]:
    return {
        "source": one.source,
        "resize": one.resize,
        "image_size": one.crop,
        "interpolation": one.interpolation,
        "mean": list(one.mean),
        "std": list(one.std),
        "difference": one.why,
    }


def _row(one: CountedBackbone) -> tuple[Cell, ...]:
    info, counts = one.info, one.counts
    work = f"{counts.multiply_adds / 1e6:,.1f}"
    colors = (_colors(info.mean), _colors(info.std))
    return (
        info.name, f"{counts.parameters:,}", work, info.image_size, info.feature_dim, one.resize, info.interpolation,
        *colors,
    )  # fmt: skip


def _held_rows(found: Sequence[CountedBackbone]) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = []
    for one in found:
        for held in one.published:
            for number, text in held.figure.printed().items():
                count = held.expected[number]
                kept = (one.info.name, number.replace("_", "-"), text, f"{count:,}", agrees(count, text))
                rows.append((*kept, held.figure.source, held.figure.difference(number)))
        if not one.published and one.info.name in NO_FIGURE:
            rows.append((one.info.name, None, None, None, None, "", NO_FIGURE[one.info.name]))
    return rows


def _prepared_rows(found: Sequence[CountedBackbone]) -> list[tuple[Cell, ...]]:
    given = [(one.info.name, one.preparation) for one in found if one.preparation is not None]
    return [
        (name, one.resize, one.crop, one.interpolation, _colors(one.mean), _colors(one.std), one.source, one.why)
        for name, one in given
    ]


def _colors(values: Sequence[float]) -> str:
    """Return one number if the colors share it, else three."""
    return " ".join(f"{value:.4g}" for value in dict.fromkeys(values))
