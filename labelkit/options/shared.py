"""Options that several commands take: each is declared here once, with its panel.

A config class takes an option by naming its mixin among its bases. A larger group of options lies in a file of its
own: ``backbone``, ``data``, ``retired``, ``gate``, ``index``, ``memory``, ``model``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from labelkit.options.base import StageConfig, option

STORE = option("Store", preset=False, aliases=("--store",))
"""Of every field ``index``: a store is called a store, and an index is a structure of fast search."""


def _known_device(device: str) -> str:
    kind, _, number = device.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (device != kind and not (kind == "cuda" and number.isdecimal())):
        raise ValueError("must be one of auto, cpu, cuda, cuda:NUMBER, mps")
    return device


Device = Annotated[str, AfterValidator(_known_device)]
"""A device to compute on; one of several GPUs has a number, from 0."""


class IndexOption(StageConfig):
    """Option for the store that a command reads."""

    index: Path = Field(..., description="Store to read, NAME.h5.", json_schema_extra=STORE)


class LabelColumnOption(StageConfig):
    """Option for the column of a CSV file that holds labels."""

    label_column: str | None = Field(
        None,
        description="Column with the labels in --labels FILE, or in the CSV, Parquet or .json files of --dataset; "
        "default: label, class or category.",
        json_schema_extra=option("Labels", preset=False),
    )


class LabelsOption(LabelColumnOption):
    """Options of commands that read labels from a file or from a result of ``labelkit label``."""

    labels: Path | None = Field(
        None,
        description="CSV with a path and a label column, or a result from `labelkit label`: its name, or "
        "OTHER.h5.results/NAME.h5 if it belongs to another store. Default: the labels in the store.",
        json_schema_extra=option("Labels", preset=False),
    )


class AddedLabelsOption(LabelsOption):
    """Options of commands that learn from the labels of the store and from additional ones."""

    own_labels: bool = Field(
        True,
        description="Also use the store's own labels; labels from --labels take precedence.",
        json_schema_extra=option("Labels", preset=False),
    )


class SplitOption(StageConfig):
    """Option that restricts a command to one split of a store."""

    comes_last: ClassVar[bool] = True

    split: str = Field("all", description="Split to use, or all.")


class NormalizeOption(StageConfig):
    """Option that scales embeddings to unit length."""

    comes_last: ClassVar[bool] = True

    normalize: bool = Field(True, description="Scale every embedding to unit length first.")


class NewClassesOption(StageConfig):
    """Option of commands that discover classes without labels."""

    new_classes: str = Field(
        "auto",
        pattern="^(auto|none|some|[1-9][0-9]{0,5})$",
        description="Classes without labels: auto (test whether there are any such classes), none, some (estimate "
        "their number), or their number.",
    )

    @model_validator(mode="after")
    def _the_number_is_given_once(self) -> Self:
        if getattr(self, "num_classes", None) is not None and self.new_classes != "auto":
            raise ValueError("--num-classes counts all classes, --new-classes only new classes: remove one of them")
        return self


class DatasetOptions(StageConfig):
    """Options for the data set whose images a command reads."""

    dataset: str = Field(
        "digits",
        description="A registered name (`labelkit list datasets`), a folder of class folders, a flat folder, "
        "a CSV with columns path,label[,split], or archives such as shards/{000..099}.tar. An empty label means "
        "unlabeled.",
        json_schema_extra=option("Data"),
    )
    data_root: Path = Field(
        Path("data"), description="Folder with the named data sets.", json_schema_extra=option("Data")
    )


class ListingOptions(StageConfig):
    """Options for listing images in folders or files."""

    exclude: tuple[str, ...] = Field(
        (),
        description="Skip images and folders whose name matches one of these comma-separated patterns, such as "
        "'thumbs,*_mask.png'. A pattern with / is matched against the path within the data set.",
        json_schema_extra={**option("Data"), "before": []},
    )
    follow_links: bool = Field(
        False,
        description="Follow symbolic links to folders.",
        json_schema_extra={**option("Data"), "before": False},
    )
    max_pixels: float = Field(
        250e6,
        gt=0,
        description="Maximum image size, width times height. Images above 64 megapixels are reduced by a factor of 2, "
        "4, ... before the network sees them.",
        json_schema_extra={**option("Data"), "before": 250e6},
    )

    def listing(self) -> dict[str, Any]:
        """Return these options as keyword arguments of ``load_dataset``."""
        return {name: getattr(self, name) for name in ListingOptions.model_fields}


class SheetOption(StageConfig):
    """Option of commands that draw a contact sheet of images."""

    comes_last: ClassVar[bool] = True

    columns: int = Field(
        10, ge=1, le=100, description="Images per row of the contact sheet.", json_schema_extra=option("Images")
    )


class MaxImagesOption(StageConfig):
    """Option that limits the number of images that a command uses."""

    max_images: int | None = Field(
        None,
        ge=1,
        description="Maximum images per split, drawn by --seed.",
        json_schema_extra=option("Data"),
    )


class EvalSplitOption(StageConfig):
    """Option of commands that train on one split and score another."""

    eval_split: str = Field(
        "auto", description="Split to evaluate on; auto: val, else test.", json_schema_extra=option("Data")
    )


PICTURES: Final = 6
"""Images on a sheet of judged masks or boxes."""


class ScoresOutOptions(StageConfig):
    """Options of commands that write their scores and draw a few images."""

    constants: ClassVar[Mapping[str, object]] = {"num_pictures": PICTURES}

    out: Path | None = Field(
        None,
        description="Also write scores, protocol, network and data as JSON.",
        json_schema_extra=option("Output", preset=False, makes="json"),
    )


class StoredImagesOptions(StageConfig):
    """Options of commands that reread the images of a store, for instance to draw them."""

    comes_last: ClassVar[bool] = True

    dataset: str | None = Field(
        None,
        description="Data set with the images, if they have moved since `labelkit embed`.",
        json_schema_extra=option("Images"),
    )
    data_root: Path = Field(
        Path("data"),
        description="Folder with the named data sets for --dataset.",
        json_schema_extra=option("Images"),
    )


class CheckpointOptions(StageConfig):
    """Options for the checkpoint of a run."""

    checkpoint: Path | None = Field(
        None,
        description="Run folder from `labelkit train`, or a checkpoint in it.",
        json_schema_extra=option("Model"),
    )
    which: Literal["last", "best"] = Field(
        "last",
        description="Checkpoint to use from a run folder: the last checkpoint, or the checkpoint with the lowest loss.",
        json_schema_extra=option("Model"),
    )


class HeldOutOptions(StageConfig):
    """Options of commands that evaluate a run on images it was not trained on."""

    comes_last: ClassVar[bool] = True

    which: Literal["last", "best"] = Field(
        "last",
        description="Checkpoint to use from a run folder: the last checkpoint, or the checkpoint with the lowest loss.",
        json_schema_extra={"panel": "Store", "preset": False},
    )
    split: str = Field("auto", description="Split to score; auto: test or val, if the data set has either.")


class DeviceOption(StageConfig):
    """Option for the compute device."""

    comes_last: ClassVar[bool] = True

    device: Device = Field(
        "auto",
        description="Compute device: auto (a GPU if available), cpu, cuda, cuda:1 (the second GPU), mps.",
        json_schema_extra=option("Run"),
    )


class WorkersOption(StageConfig):
    """Option for the number of workers that read images."""

    comes_last: ClassVar[bool] = True

    num_workers: int | None = Field(
        None,
        ge=0,
        le=256,
        description="Number of worker processes that decode images. Default: one per core, at most 8, if /dev/shm "
        "has room; none for images in memory or fewer than 500.",
        json_schema_extra=option("Run"),
    )


class PrecisionOptions(WorkersOption):
    """Options for the precision and data loading of commands that train a network."""

    comes_last: ClassVar[bool] = True

    precision: Literal["float32", "bf16", "fp16"] = Field(
        "float32", description="Floating-point precision of the network.", json_schema_extra=option("Run")
    )


class ThreadsOption(StageConfig):
    """Option for the number of CPU threads of torch."""

    comes_last: ClassVar[bool] = True

    threads: int | None = Field(
        None, ge=1, description="Number of CPU threads; default: torch's choice.", json_schema_extra=option("Run")
    )


class ResamplesOptions(StageConfig):
    """Options for bootstrap confidence intervals of scores."""

    comes_last: ClassVar[bool] = True

    bootstrap: int = Field(1000, ge=0, description="Number of bootstrap resamples for the 95 % intervals; 0: none.")
    seed: int = Field(0, ge=0, description="Random seed for the bootstrap.")


class PerClassOption(StageConfig):
    """Option to show scores per class."""

    comes_last: ClassVar[bool] = True

    per_class: bool = Field(False, description="Also show the scores per class.")


class TableOption(StageConfig):
    """Option to write results as a CSV table."""

    csv: Path | None = Field(
        None,
        description="CSV to write; default: INDEX.RESULT.csv next to the store.",
        json_schema_extra=option("Output", preset=False, makes="csv"),
    )


class StoreOutOption(StageConfig):
    """Option for the store that a command writes."""

    comes_last: ClassVar[bool] = True

    out: Path = Field(
        ..., description="Store to write, NAME.h5.", json_schema_extra=option("Output", preset=False, makes="store")
    )


class ShardsOptions(StageConfig):
    """Options of commands that write a store in one or several files."""

    comes_last: ClassVar[bool] = True
    constants: ClassVar[Mapping[str, object]] = {"shard_rows": None}

    shards: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Number of files to split the store into, in NAME.h5.shards; NAME.h5 is their index. Default: "
        "one file.",
        json_schema_extra=option("Output", preset=False),
    )


class OverwriteOption(StageConfig):
    """Option to overwrite existing output files."""

    comes_last: ClassVar[bool] = True

    overwrite: bool = Field(
        False, description="Replace existing files.", json_schema_extra=option("Output", preset=False)
    )
