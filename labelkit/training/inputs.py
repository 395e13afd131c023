"""Inputs that a run passes to its method and its monitor before the first step; only the monitor gets true labels."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import ImageSource
from labelkit.data.image_bank import ImageBank


@dataclass(frozen=True)
class HeldOutImages:
    """Held-out images and their labels for evaluation."""

    bank: ImageBank  # the held-out images, and no others
    labels: NDArray[np.int64]  # (m,) int64 class of each row of its dataset, -1 = unknown

    @property
    def known(self) -> NDArray[np.int64]:
        """Return the rows (m,) that can be read and whose class is known."""
        return self.bank.rows[self.labels[self.bank.rows] >= 0]


@dataclass(frozen=True)
class RunInputs:
    """Inputs that a run provides to its method besides the options and ``DataInfo``."""

    dataset_name: str  # name of the dataset of the training images
    sample_ids: tuple[str, ...]  # (n,) names of the images
    source: ImageSource  # reads the images as they are stored
    # computes the identity of the image listing, without scenes if there are also images of one object
    digest: Callable[[], str]
    # computes a digest of the image files of rows; all files are read first
    images_digest: Callable[[NDArray[np.int64]], str]
    folder: Path  # folder of the run; it need not exist yet
    is_new: bool  # nothing was trained yet; a resumed run takes its state from its checkpoint
    writes: bool  # files may be written; a dry run writes none
    show_message: Callable[[str], None]  # shows a message to the user
    # returns the (n,) int64 class of each row, hidden or not, -1 = unknown, for the option named in the call: for
    # comparison with labels that nobody has. No method calls it on its own.
    truth: Callable[[str], NDArray[np.int64]]


@dataclass(frozen=True)
class MonitorInputs:
    """Inputs that a run provides to its monitor besides the options and ``DataInfo``."""

    rows: NDArray[np.int64]  # (m,) int64, rows of the training set that can be read
    truth: NDArray[np.int64]  # (n,) int64 class of each row of the training set, -1 = unknown
    sample_ids: tuple[str, ...]  # (n,) names of the images
    held_out: HeldOutImages | None = None  # images to evaluate on; ``None`` if there are none
    # writes a text file of the run atomically, from its name and text
    write_text: Callable[[str, str], None] = lambda name, text: None

    @property
    def known(self) -> NDArray[np.int64]:
        """Return the rows (m,) whose class is known."""
        return self.rows[self.truth[self.rows] >= 0]
