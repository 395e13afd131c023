"""Options of ``labelkit label``."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator
from pydantic.config import JsonDict

from labelkit.options.index import IndexConfig
from labelkit.options.retired import RESULT_NAME
from labelkit.options.shared import StoredImagesOptions

_STORE: JsonDict = {"panel": "Store", "preset": False}
_IMAGES: JsonDict = {"panel": "Images"}
_LABELS: JsonDict = {"panel": "Labels", "preset": False}
_OUTPUT: JsonDict = {"panel": "Output", "preset": False}
_SET: JsonDict = {"panel": "For other programs", "preset": False}
_SERVE: JsonDict = {"panel": "In the browser", "preset": False}

SET_FILES = {"coco": ".json", "atlas": ".parquet"}
"""Formats of ``--export`` that are one file; the others are a folder."""


class LabelConfig(StoredImagesOptions, IndexConfig):
    """Options of ``labelkit label``."""

    command: ClassVar[tuple[str, ...]] = ("label",)

    result: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Name of the result, saved next to the store; default: labels-N for round N.",
        json_schema_extra=_STORE,
    )
    from_: Path | None = Field(
        None,
        description="CSV with a path column and a label column. Other columns, and rows with an empty label, "
        "are ignored. Without this option, --csv writes the existing labels.",
        json_schema_extra=_LABELS,
    )
    label_column: str | None = Field(
        None,
        description="Column of the --from CSV that holds the labels; default: label, class or category.",
        json_schema_extra=_LABELS,
    )
    labels: Path | None = Field(
        None,
        description="Earlier result from `labelkit label` to add to; default: start from the store's labels that "
        "training may use.",
        json_schema_extra=_LABELS,
    )
    own_labels: bool = Field(
        True, description="Start from the labels of the store, unless --labels is set.", json_schema_extra=_LABELS
    )
    conflicts: Literal["error", "new", "old"] = Field(
        "error",
        description="Handling of images that already have another label: stop with an error, take the new label, or "
        "keep the old one.",
        json_schema_extra=_LABELS,
    )
    by: str = Field("", description="Name of the annotator, stored with the labels.", json_schema_extra=_LABELS)
    csv: Path | None = Field(
        None,
        description="Also write all images, with these labels if they have any, to a CSV that `train --dataset` reads.",
        json_schema_extra={**_OUTPUT, "makes": "csv"},
    )
    dataset: str | None = Field(
        None,
        description="Data set with the images (for --csv, --export or --serve), if they have moved since `labelkit "
        "embed`.",
        json_schema_extra=_IMAGES,
    )

    export: Literal["imagefolder", "huggingface", "fiftyone", "coco", "atlas"] | None = Field(
        None,
        description="Also export the labels for another program. imagefolder: a folder per class, with labeled "
        "images only; huggingface: images and metadata.csv; fiftyone: data/ and labels.json; coco: .json with "
        "one box around the whole image; atlas: .parquet with label, confidence and map position (needs "
        "pyarrow).",
        json_schema_extra=_SET,
    )
    out: Path | None = Field(
        None,
        description="Folder to create for --export, or file for coco (.json) and atlas (.parquet).",
        json_schema_extra={**_SET, "makes": "folder"},
    )
    link: bool = Field(
        False,
        description="Make symbolic links to the images instead of copies (with --export to a folder).",
        json_schema_extra=_SET,
    )

    serve: bool = Field(
        False,
        description="Label in the browser: serve a local page with groups and images, and save each action at "
        "once as a round of the result. Continues the newest result made this way. Needs starlette and uvicorn.",
        json_schema_extra=_SERVE,
    )
    grouping: str | None = Field(
        None,
        pattern=RESULT_NAME,
        description="Result from cluster or discover whose groups are shown (with --serve or --export atlas); "
        "default: the same choice as in `labelkit report`.",
        json_schema_extra=_SERVE,
    )
    open: bool = Field(True, description="Open the page in the browser (with --serve).", json_schema_extra=_SERVE)
    host: str = Field(
        "127.0.0.1",
        description="Address to listen on (with --serve). At any address other than the default, everyone on the "
        "network who has the link can see all images and change labels. Traffic is not encrypted: put a TLS proxy in "
        "front.",
        json_schema_extra=_SERVE,
    )
    port: int = Field(
        0, ge=0, le=65_535, description="Port to listen on (with --serve); 0: any free port.", json_schema_extra=_SERVE
    )

    @model_validator(mode="after")
    def _something_to_do(self) -> LabelConfig:
        if self.serve:
            for name in ("csv", "export", "out", "link"):
                if name in self.model_fields_set:
                    raise ValueError(f"--serve cannot be combined with --{name}: write labels afterward")
            return self
        told = [name for name in ("open", "host", "port") if name in self.model_fields_set]
        if told:
            raise ValueError(f"--{told[0]} requires --serve")
        if self.grouping is not None and self.export != "atlas":
            raise ValueError("--grouping requires --serve or --export atlas")
        if self.from_ is None and self.csv is None and self.export is None:
            raise ValueError("pass --from FILE (labels to read), --csv or --export (labels to write), or --serve")
        if self.from_ is None and self.result is not None:
            raise ValueError("--result requires --from; pass an existing result as --labels")
        if self.labels is not None and not self.own_labels:
            raise ValueError("--no-own-labels cannot be combined with --labels")
        return self

    @model_validator(mode="after")
    def _set_is_whole(self) -> LabelConfig:
        if (self.export is None) != (self.out is None):
            raise ValueError("--export and --out require each other")
        suffix = SET_FILES.get(self.export or "")
        if self.out is not None and suffix is not None and self.out.suffix.lower() != suffix:
            raise ValueError(f"--export {self.export} writes a file: --out must end in {suffix}")
        if self.link and (self.export is None or suffix is not None):
            raise ValueError("--link requires --export imagefolder, huggingface or fiftyone")
        return self
