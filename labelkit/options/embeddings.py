"""Options for training on stored embeddings instead of images: store, head and augmentation."""

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import model_validator

from labelkit.options.base import field_factory, to_flag
from labelkit.options.shared import FIND_STORE, LabelsOption, find_newest_store

_ROWS = field_factory("Store")

#: Options for augmenting embeddings, which have no effect with stored views.
_AUGMENTATION_OPTIONS = ("row_noise", "row_dropout", "row_mix", "row_neighbors")

#: Options for reading and augmenting images, which do not apply to embeddings.
_IMAGE_OPTIONS = (
    "data_root", "exclude", "download", "max_bad",
    "backbone", "pretrained", "weights", "image_size", "pixel_mean", "pixel_std",
    "augmentation", "shift_px", "noise", "dropout", "views", "grad_from_block", "train_stem", "linear_probe",
    "freeze_stages", "reuse_frozen", "pretext_steps",
)  # fmt: skip


class EmbeddingInputOptions(LabelsOption):
    """Options for training a small head on stored embeddings, with weak augmentation."""

    index: Annotated[Path | None, FIND_STORE] = _ROWS(
        None,
        "Store (NAME.h5), or output folder of `labelkit start`, on whose embeddings to train a small head, instead of "
        "training on the images of --dataset. This takes seconds to minutes, needs no GPU, and uses the defaults of "
        "the preset `index`.",
        aliases=["--store"],
    )
    head_layers: int = _ROWS(
        2,
        "Number of linear layers in the head (with --index). The head's output, initially zero, is added to the "
        "embedding.",
        ge=1,
        le=3,
        before=2,
    )
    head_width: int | None = _ROWS(
        256, "Hidden width of the head (with --index); none: the embedding dimension.", ge=1, before=256
    )
    row_noise: float = _ROWS(
        0.3, "Length of the noise vector added to each unit-length embedding (with --index).", ge=0, before=0.3
    )
    row_views: Literal["auto", "on", "off"] = _ROWS(
        "auto",
        "Embeddings to train on (with --index). on: those of the views in the store (`labelkit embed --views`), one "
        "drawn at random each time; --row-noise, --row-dropout and --row-mix then have no effect. off: those of the "
        "images, augmented by these options. auto: on if the store has views, otherwise off.",
        before="auto",
    )

    #: Image options that also apply to embeddings.
    row_image_options: ClassVar[frozenset[str]] = frozenset()
    #: Other options of the method that do not apply to embeddings.
    row_excluded_options: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="before")
    @classmethod
    def _use_store_as_dataset(cls, values: Any) -> Any:
        """Set ``dataset`` to the store, which names the run and appears in messages."""
        if isinstance(values, dict) and values.get("index") not in (None, "none") and "dataset" not in values:
            return {**values, "dataset": str(find_newest_store(Path(values["index"])) or values["index"])}
        return values

    @model_validator(mode="after")
    def _rows_or_images(self) -> Self:
        fields = type(self).model_fields
        if self.index is None:
            for name in ("head_layers", "head_width", "row_views", *_AUGMENTATION_OPTIONS):
                if name in fields and getattr(self, name) != fields[name].default:
                    raise ValueError(
                        f"{to_flag(name)} applies only to training on embeddings: pass --index, or remove it"
                    )
            return self
        if str(getattr(self, "dataset", "")) != str(self.index):
            raise ValueError("--index and --dataset cannot be combined: pass either a store or images")
        for name in (*_IMAGE_OPTIONS, *self.row_excluded_options):
            if name in fields and name not in self.row_image_options and getattr(self, name) != fields[name].default:
                raise ValueError(f"{to_flag(name)} applies only to training on images: remove it, or --index")
        if self.row_views == "on" and (changed := self.overridden_option()):
            raise ValueError(f"{to_flag(changed)} has no effect with --row-views on: remove one of the two")
        if self.head_layers == 1 and self.head_width != EmbeddingInputOptions.model_fields["head_width"].default:
            raise ValueError("--head-width has no effect with --head-layers 1, which has no hidden layer")
        return self

    def overridden_option(self) -> str | None:
        """Return the first augmentation option with a non-default value, or ``None``."""
        fields = type(self).model_fields
        names = [name for name in _AUGMENTATION_OPTIONS if name in fields]
        return next((name for name in names if getattr(self, name) != fields[name].default), None)


class StrongEmbeddingInputOptions(EmbeddingInputOptions):
    """Options for training a small head on stored embeddings, with weak and strong augmentation."""

    row_dropout: float = _ROWS(
        0.1, "Fraction of the values of each embedding to set to 0 (with --index).", ge=0, lt=1, before=0.1
    )
    row_mix: float = _ROWS(
        0.9,
        "Maximum weight with which a nearest neighbor is mixed into an embedding (with --index).",
        ge=0,
        le=1,
        before=0.9,
    )
    row_neighbors: int = _ROWS(
        10, "Number of nearest neighbors from which --row-mix draws (with --index).", ge=1, before=10
    )
