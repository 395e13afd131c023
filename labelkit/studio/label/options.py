"""Options for ``labelkit label``."""

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from labelkit.options.base import field_factory
from labelkit.options.shared import RESULT_NAME, NamedResultConfig, StoredImagesOptions

_STORE = field_factory("Store", preset=False)
_LABELS = field_factory("Labels", preset=False)
_OUTPUT = field_factory("Output", preset=False)
_IMAGES = field_factory("Images")
_SET = field_factory("Export", preset=False)
_SERVE = field_factory("In the browser", preset=False)


class LabelConfig(StoredImagesOptions, NamedResultConfig):
    """Options for ``labelkit label``."""

    command: ClassVar[tuple[str, ...]] = ("label",)

    result: str | None = _STORE(
        None, "Name of the result, saved next to the store. Default: labels-N for round N.", pattern=RESULT_NAME
    )
    from_: Path | None = _LABELS(
        None,
        "CSV with a path and a label column; other columns, and rows with an empty label, are ignored. Without this "
        "option, --csv writes the existing labels.",
    )
    label_column: str | None = _LABELS(
        None, "Column of the --from CSV that holds the labels. Default: label, class or category."
    )
    labels: Path | None = _LABELS(
        None,
        "Earlier result from `labelkit label` to add labels to; newest: the last of labels, labels-2, ... Default: "
        "start from the labels in the store that training may use.",
    )
    own_labels: bool = _LABELS(True, "Start from the labels in the store, unless --labels is set.")
    conflicts: Literal["error", "new", "old"] = _LABELS(
        "error",
        "What to do with images that already have a different label. error: stop with an error; new: use the new "
        "label; old: keep the old label.",
    )
    by: str = _LABELS("", "Name of the annotator, stored with the labels.")
    csv: Path | None = _OUTPUT(
        None,
        "Also write all images and their labels, if any, to a CSV that `labelkit train --dataset` can read.",
        makes="csv",
    )
    dataset: str | None = _IMAGES(
        None,
        "Dataset that contains the images (for --csv, --export or --serve), if they were moved after `labelkit embed`.",
    )

    export: Literal["imagefolder", "huggingface", "fiftyone", "coco"] | None = _SET(
        None,
        "Also export the labels for another program. imagefolder: a folder per class, with labeled images only; "
        "huggingface: images and metadata.csv; fiftyone: data/ and labels.json; coco: .json with one box around the "
        "whole image.",
    )
    out: Path | None = _SET(None, "Folder to create for --export, or .json file for coco.", makes="folder")
    split: str = _SET("all", "Split to export, or all (with --export).")
    predictions: str | None = _SET(
        None,
        "Result of `discover answer` whose predictions, except unsure ones, are written as labels (with --export or "
        "--csv); newest: the last of `answer`, `answer-2`, ...",
        pattern=RESULT_NAME,
    )
    link: bool = _SET(False, "Create symbolic links to the images instead of copies (with --export to a folder).")

    serve: bool = _SERVE(
        False,
        "Label in the browser: serve a local page with groups and images, and save each action immediately as a round "
        "of the result. Continues the newest result created this way. Requires starlette and uvicorn.",
    )
    grouping: str | None = _SERVE(
        None,
        "Result from `cluster` or `discover` whose groups are shown (with --serve). Default: a result with class "
        "names, preferably with confidences, otherwise clusters.",
        pattern=RESULT_NAME,
    )
    skip: Path | None = _SERVE(
        None, "CSV with a path column, whose images are suggested only if no others are left (with --serve)."
    )
    open: bool = _SERVE(True, "Open the page in the browser (with --serve).")
    host: str = _SERVE(
        "127.0.0.1",
        "Address to listen on (with --serve). At any address other than the default, everyone on the network who has "
        "the link can see all images and change labels. Traffic is not encrypted: use a TLS proxy.",
    )
    port: int = _SERVE(0, "Port to listen on (with --serve); 0: any free port.", ge=0, le=65_535)

    @model_validator(mode="after")
    def _check_something_to_do(self) -> Self:
        if self.serve:
            for name in ("csv", "export", "out", "predictions", "link"):
                if name in self.model_fields_set:
                    raise ValueError(f"--serve cannot be combined with --{name}: export labels afterward")
            return self
        unused = [name for name in ("grouping", "skip", "open", "host", "port") if name in self.model_fields_set]
        if unused:
            raise ValueError(f"--{unused[0]} requires --serve")
        if self.from_ is None and self.csv is None and self.export is None:
            raise ValueError("pass --from FILE (labels to read), --csv or --export (labels to write), or --serve")
        if self.predictions is not None and self.csv is None and self.export is None:
            raise ValueError("--predictions requires --export or --csv")
        if self.from_ is None and self.result is not None:
            raise ValueError("--result requires --from; pass an existing result as --labels")
        if self.labels is not None and not self.own_labels:
            raise ValueError("--no-own-labels cannot be combined with --labels")
        return self

    @model_validator(mode="after")
    def _check_set_options(self) -> Self:
        if (self.export is None) != (self.out is None):
            raise ValueError("--export and --out must be passed together")
        if self.out is not None and self.export == "coco" and self.out.suffix.lower() != ".json":
            raise ValueError("--export coco writes a file: --out must end in .json")
        if self.split != "all" and self.export is None:
            raise ValueError("--split requires --export")
        if self.link and self.export in (None, "coco"):
            raise ValueError("--link requires --export imagefolder, huggingface or fiftyone")
        return self
