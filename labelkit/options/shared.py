"""Options shared by several commands, as mixins: config classes inherit the options that their command takes.

Larger groups of options have their own modules: ``backbone``, ``data``, ``gate``, ``memory``, ``model``.
"""

from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, model_validator

from labelkit.files import read_json_object
from labelkit.options.base import DATA, IMAGES, LABELS, OPTION, OUTPUT, RUN, STORE, BaseConfig, field_factory

_EARLIER = field_factory("Earlier run", preset=False)

RESULT_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
"""Regular expression for result names."""


def _known_device(device: str) -> str:
    kind, _, number = device.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (device != kind and not (kind == "cuda" and number.isdecimal())):
        raise ValueError("must be one of auto, cpu, cuda, cuda:NUMBER, mps")
    return device


Device = Annotated[str, AfterValidator(_known_device)]
"""A compute device, such as ``cuda:1`` for the second GPU."""


def find_newest_store(folder: Path) -> Path | None:
    """Return the newest store with finished results in a ``labelkit start`` folder, or ``None`` if there is none."""
    try:
        rounds = read_json_object(folder / "start.json", {"rounds": list})["rounds"]
    except (OSError, ValueError):
        return None
    for entry in reversed(rounds):
        if isinstance(entry, dict):
            store = folder / str(entry.get("store"))
            result = store.with_name(f"{store.name}.results") / f"{entry.get('answer') or entry.get('groups')}.h5"
            if store.is_file() and result.is_file():
                return store
    return None


FIND_STORE = AfterValidator(lambda path: path and (find_newest_store(path) or path))
"""Replaces an output folder of ``labelkit start`` by its newest finished store."""


class IndexOption(BaseConfig):
    """Option for the store that a command reads."""

    index: Annotated[Path, FIND_STORE] = STORE(
        ...,
        "Store to read (NAME.h5), or an output folder of `labelkit start`, whose newest finished store is read.",
        aliases=["--store"],
    )


class LabelColumnOption(BaseConfig):
    """Option for the label column of a CSV file."""

    label_column: str | None = LABELS(
        None,
        "Column that contains the labels in --labels FILE, or in the CSV or Parquet files of --dataset. Default: "
        "label, class or category.",
    )


class LabelsOption(LabelColumnOption):
    """Options for commands that read labels from a file or from a result of ``labelkit label``."""

    labels: Path | None = LABELS(
        None,
        "CSV with a path and a label column, or the name of a result of `labelkit label` (newest: the last of labels, "
        "labels-2, ...). Default: the labels in the store.",
    )


class AddedLabelsOption(LabelsOption):
    """Options for commands that learn from the labels in a store and from additional labels."""

    own_labels: bool = LABELS(True, "Also use the store's own labels; labels from --labels take precedence.")


class SplitOption(BaseConfig):
    """Option that restricts a command to one split of a store."""

    split: str = OPTION("all", "Split to use, or all.")


class NormalizeOption(BaseConfig):
    """Option that normalizes embeddings to unit length."""

    normalize: bool = OPTION(True, "Normalize all embeddings to unit length first.")


class NewClassesOption(BaseConfig):
    """Option for the number of classes without labeled images."""

    new_classes: str = OPTION(
        "auto",
        "Number of classes without labeled images: a number; none; some (estimate the number); or auto "
        "(first test whether there are any).",
        pattern="^(auto|none|some|[1-9][0-9]{0,5})$",
    )

    @model_validator(mode="after")
    def _check_single_number(self) -> Self:
        if getattr(self, "num_classes", None) is not None and self.new_classes != "auto":
            raise ValueError("--num-classes (all classes) and --new-classes cannot be combined: remove one of them")
        return self


class DatasetOptions(BaseConfig):
    """Options for the dataset whose images a command reads."""

    dataset: str = DATA(
        "digits",
        "Name of a dataset (see `labelkit list datasets`), folder of images or class folders, CSV with columns "
        "path,label[,split], or archives such as shards/{000..099}.tar. An empty label means unlabeled.",
    )
    data_root: Path = DATA(
        Path("data"), "Folder that contains the registered datasets. Paths in a CSV may also be relative to it."
    )


class ListingOptions(BaseConfig):
    """Options for listing images in folders or files."""

    exclude: tuple[str, ...] = DATA(
        (),
        "Skip images and folders whose name matches one of these comma-separated patterns, such as "
        "'thumbs,*_mask.png'. A pattern with / is matched against the path within the dataset.",
        before=[],
    )

    def listing_kwargs(self) -> dict[str, Any]:
        """Return these options as keyword arguments for ``load_dataset``."""
        return {name: getattr(self, name) for name in ListingOptions.model_fields}


class MaxImagesOption(BaseConfig):
    """Option that limits the number of images that a command uses."""

    max_images: int | None = DATA(None, "Maximum number of images per split, drawn at random with --seed.", ge=1)


class EvalSplitOption(BaseConfig):
    """Option for the evaluation split of commands that train on one split and evaluate on another."""

    eval_split: str = DATA("auto", "Split to evaluate on; auto: val if it exists, otherwise test.")


IMAGES_PER_SHEET: Final = 6
"""Number of images on a contact sheet of predicted masks or boxes."""


class StoredImagesOptions(BaseConfig):
    """Options for finding the images of a store again, for instance to display them."""

    dataset: str | None = IMAGES(None, "Dataset that contains the images, if they were moved after `labelkit embed`.")
    data_root: Path = IMAGES(Path("data"), "Folder that contains the registered datasets for --dataset.")


class DeviceOption(BaseConfig):
    """Option for the compute device."""

    device: Device = RUN("auto", "Compute device: auto (a GPU if available), cpu, cuda, cuda:1 (the second GPU), mps.")


class WorkersOption(BaseConfig):
    """Option for the number of data-loading workers."""

    num_workers: int | None = RUN(
        None,
        "Number of worker processes that decode images. Default: 0 for images in memory and for fewer than 500 "
        "images, otherwise one per core, up to 8, if /dev/shm has enough space.",
        ge=0,
        le=256,
    )


class PrecisionOptions(WorkersOption):
    """Options for the precision and data loading of commands that train a network."""

    precision: Literal["float32", "bf16", "fp16"] = RUN("float32", "Floating-point precision of the network.")


class ThreadsOption(BaseConfig):
    """Option for the number of CPU threads."""

    threads: int | None = RUN(None, "Number of CPU threads. Default: PyTorch's default.", ge=1)


class BootstrapOptions(BaseConfig):
    """Options for bootstrap confidence intervals."""

    bootstrap: int = OPTION(1000, "Number of bootstrap resamples for 95% confidence intervals; 0: no intervals.", ge=0)
    seed: int = OPTION(0, "Random seed for the bootstrap.", ge=0)


class PerClassOption(BaseConfig):
    """Option to show per-class scores."""

    per_class: bool = OPTION(False, "Also show per-class scores.")


class TableOption(BaseConfig):
    """Option to write results as a CSV table."""

    csv: Path | None = OUTPUT(None, "CSV to write. Default: INDEX.RESULT.csv next to the store.", makes="csv")


class StoreOutOption(BaseConfig):
    """Option for the store that a command writes."""

    out: Path = OUTPUT(..., "Store to write, NAME.h5.", makes="store")


class ShardsOption(BaseConfig):
    """Option for the number of files into which a store is split."""

    shards: int | None = OUTPUT(
        None,
        "Number of files to split the store into, in NAME.h5.shards; NAME.h5 is their index. Default: one file.",
        ge=1,
        le=10_000,
    )


class OverwriteOption(BaseConfig):
    """Option to overwrite existing output files."""

    overwrite: bool = OUTPUT(False, "Overwrite existing output files.")


class PreviousOptions(BaseConfig):
    """Options for keeping the group ids of an earlier run."""

    previous: Path | None = _EARLIER(
        None,
        "Store from an earlier run, often with fewer images. Groups found again keep their ids; new groups get unused "
        "ids.",
    )
    previous_result: str | None = _EARLIER(
        None, "Result in --previous whose ids are kept. Default: the name of the new result.", pattern=RESULT_NAME
    )

    @model_validator(mode="after")
    def _check_previous_store(self) -> Self:
        if self.previous_result is not None and self.previous is None:
            raise ValueError("--previous-result requires --previous STORE")
        return self


class NamedResultConfig(IndexOption):
    """Options for commands that read a store and save a named result next to it."""

    result: str | None = OUTPUT(
        None, "Name of the result, saved next to the store. Default: the command's name.", pattern=RESULT_NAME
    )
    overwrite: bool = OUTPUT(False, "Overwrite any existing result with this name, including its files.")
