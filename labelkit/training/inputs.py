"""Inputs that a run passes to its method and its monitor before training; only the monitor gets the true labels."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from labelkit.data.datasets import ImageSource
from labelkit.data.image_bank import ImageBank


@dataclass(frozen=True)
class HeldOutImages:
    """Held-out images for evaluation, with their labels."""

    bank: ImageBank  # only the held-out images
    labels: NDArray[np.int64]  # (m,) int64 class of each row in the bank's dataset, -1 = unknown

    @property
    def known_rows(self) -> NDArray[np.int64]:
        """Return the rows (m,) of the readable images whose class is known."""
        return self.bank.rows[self.labels[self.bank.rows] >= 0]


@dataclass(frozen=True)
class MethodInputs:
    """Inputs that a run provides to its method in addition to the options and ``DataInfo``."""

    dataset_name: str  # name of the training dataset
    sample_ids: tuple[str, ...]  # (n,) names of the images
    source: ImageSource  # reads the encoded images
    # computes the digest of the image listing, without scenes if there are also object-centric images
    digest: Callable[[], str]
    # computes a digest of the image files in the given rows; all files are read first
    images_digest: Callable[[NDArray[np.int64]], str]
    folder: Path  # run folder, which need not exist yet
    is_new: bool  # whether the run is new; a resumed run takes its state from a checkpoint
    writes: bool  # whether files may be written; a dry run writes none
    # returns the (n,) int64 class of each row, even if hidden, -1 = unknown, given the option that requests it, for
    # comparisons with oracle labels. No method calls it otherwise.
    truth: Callable[[str], NDArray[np.int64]]


@dataclass(frozen=True)
class MonitorInputs:
    """Inputs that a run provides to its monitor in addition to the options and ``DataInfo``."""

    rows: NDArray[np.int64]  # (m,) int64, rows of the readable training images
    truth: NDArray[np.int64]  # (n,) int64 class of each row of the training set, -1 = unknown
    sample_ids: tuple[str, ...]  # (n,) names of the images
    held_out: HeldOutImages | None = None  # images to evaluate on; ``None`` if there are none
    # writes a text file to the run folder atomically, given its name and text
    write_text: Callable[[str, str], None] = lambda name, text: None

    @property
    def known_rows(self) -> NDArray[np.int64]:
        """Return the rows (m,) of the readable training images whose class is known."""
        return self.rows[self.truth[self.rows] >= 0]
