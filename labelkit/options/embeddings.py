"""Options for training on the rows of a store instead of images: store, head, and augmentation of rows."""

from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from labelkit.options.base import flag, panel
from labelkit.options.shared import LabelsOption

_ROWS = panel("Store")

#: Options for augmentations that stored views replace.
_OF_CHANGES = ("row_noise", "row_dropout", "row_mix", "row_neighbors")

#: Options for reading and augmenting images, which do not apply to rows.
_OF_IMAGES = (
    "data_root", "exclude", "download", "max_bad", "strict",
    "backbone", "pretrained", "weights", "image_size", "pixel_mean", "pixel_std",
    "augmentation", "shift_px", "noise", "dropout", "views", "grad_from_block", "train_stem", "linear_probe",
    "freeze_stages", "reuse_frozen", "pretext_steps",
)  # fmt: skip


class RowOptions(LabelsOption):
    """Options for methods that can train a small network on stored embeddings, with weak augmentation."""

    index: Path | None = _ROWS(
        None,
        "Store (NAME.h5) on whose embeddings a small head is trained. This takes only seconds, needs no GPU, and "
        "uses the defaults of the preset `index`. Without this option, training uses the images of --dataset.",
        aliases=["--store"],
    )
    head_layers: int = _ROWS(
        2,
        "Number of linear layers of the head (with --index). The head's output is added to the embedding and is "
        "initially zero.",
        ge=1,
        le=3,
        before=2,
    )
    head_width: int | None = _ROWS(
        256, "Hidden width of the head (with --index); none: the embedding dimension.", ge=1, before=256
    )
    row_noise: float = _ROWS(
        0.3, "Length of the random step that moves an embedding on the unit sphere (with --index).", ge=0, before=0.3
    )
    row_views: Literal["auto", "on", "off"] = _ROWS(
        "auto",
        "What to train on (with --index). on: a stored view of the image (`labelkit embed --views`), drawn at random "
        "each time; --row-noise, --row-dropout and --row-mix then have no effect. off: the embedding, augmented by "
        "these three options. auto: on if the store has views, otherwise off.",
        before="auto",
    )

    #: Options of images that nevertheless apply to rows.
    row_uses: ClassVar[frozenset[str]] = frozenset()
    #: Further options of this method that do not apply to rows.
    row_refuses: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _is_called_after_store(cls, values: Any) -> Any:
        """Name the run after the store, also in messages."""
        if isinstance(values, dict) and values.get("index") not in (None, "none") and "dataset" not in values:
            return {**values, "dataset": str(values["index"])}
        return values

    @model_validator(mode="after")
    def _rows_or_images(self) -> Self:
        if self.index is None:
            for name in ("head_layers", "head_width", "row_views", *_OF_CHANGES):
                field = type(self).model_fields.get(name)
                if field is not None and getattr(self, name) != field.default:
                    raise ValueError(f"{flag(name)} requires --index, but training uses images: remove it")
            return self
        if str(getattr(self, "dataset", "")) != str(self.index):
            raise ValueError("--index and --dataset cannot be combined: pass either a store or images")
        for name in (*_OF_IMAGES, *self.row_refuses):
            fields = type(self).model_fields
            if name in fields and name not in self.row_uses and getattr(self, name) != fields[name].default:
                raise ValueError(f"{flag(name)} has no effect with --index, which contains no images: remove it")
        if self.row_views == "on" and (changed := self.overridden_option()):
            raise ValueError(f"{flag(changed)} has no effect with --row-views on: remove one of the two")
        if self.head_layers == 1 and self.head_width != RowOptions.model_fields["head_width"].default:
            raise ValueError("--head-width has no effect with --head-layers 1, which has no hidden layer")
        return self

    def overridden_option(self) -> str | None:
        """Return the first explicitly set option that stored views would override, or ``None``."""
        fields = type(self).model_fields
        asked = (name for name in _OF_CHANGES if name in fields and getattr(self, name) != fields[name].default)
        return next(asked, None)


class StrongRowOptions(RowOptions):
    """Options for methods that can train on stored embeddings with weak and strong augmentation."""

    row_dropout: float = _ROWS(
        0.1, "Fraction of an embedding's values that are set to 0 (with --index).", ge=0, lt=1, before=0.1
    )
    row_mix: float = _ROWS(
        0.9,
        "Maximum weight of a nearest neighbor that is mixed into an embedding (with --index).",
        ge=0,
        le=1,
        before=0.9,
    )
    row_neighbors: int = _ROWS(
        10, "Number of nearest neighbors that --row-mix draws from (with --index).", ge=1, before=10
    )
