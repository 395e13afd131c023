"""Single image files that are read, and pictures that are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from labelkit.data.datasets import FileSource, ImageDataset
from labelkit.data.decode import BadImage
from labelkit.errors import ConfigError, DatasetError


def one_image(path: Path) -> ImageDataset:
    """Return an image file as a data set of one row, without a label.

    Raises:
        DatasetError: it does not exist or is no image.
    """
    if not path.exists():
        raise DatasetError(str(path), "does not exist", "Give an image file.")
    source = FileSource(path.parent, (path.name,))
    try:
        source.read(0).decode(3)
    except BadImage as error:
        raise DatasetError(str(path), f"cannot be read as an image: {error}", "Give a JPEG or PNG file.") from error
    return ImageDataset(
        name=path.name,
        root=path.parent,
        sample_ids=(path.name,),
        labels=np.array([-1]),
        given=np.array([False]),
        class_names=(),
        splits=np.array([-1], dtype=np.int16),
        split_names=(),
        in_channels=3,
        chiral=False,
        photographic=True,
        source=source,
    )


def check_new_picture(path: Path, *, overwrite: bool) -> None:
    """Find out before the work is done that a picture cannot be written.

    Raises:
        ConfigError: it exists and is not to be replaced, is a folder, or its folder is not there.
    """
    if path.is_dir():
        raise ConfigError("--out", f"{path} is a folder", "Give the name of a file.")
    if not path.resolve().parent.is_dir():
        raise ConfigError("--out", f"the folder of {path} does not exist", "Make it first.")
    if path.exists() and not overwrite:
        raise ConfigError("--out", f"{path} already exists", "Pass --overwrite to replace it, or another --out.")
