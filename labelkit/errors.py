"""All errors that users can cause, with the exit code of the command that raises them.

    LabelkitError(where, problem, remedy)
    ├── ConfigError            2   an option, preset or config file
    │   └── OutputExistsError      the output already exists
    ├── InputError             3   an input
    │   ├── DatasetError           images, labels, splits
    │   │   ├── DatasetAbsent, DatasetIncomplete
    │   ├── StoreError             an embedding store or a result
    │   │   ├── NotAStore, VersionError, Refused, Damaged, Mismatch
    │   └── CheckpointError        a run folder or a weights file
    │       └── (the same kinds, prefixed by Checkpoint)
    ├── DivergenceError        4   training failed numerically
    ├── ResourceError          5   disk full, no permission, missing folder or device
    ├── BusyError              6   another run is writing to the same output
    └── GateError             10   a score violates its limit

``Interrupted`` is not an error: it carries a signal (exit code 130 or 143) to the command line. Only
``labelkit.cli.main`` converts errors to exit codes. Programming errors raise a ``ValueError`` or ``TypeError``
instead.
"""

import errno


class LabelkitError(Exception):
    """Base class of errors that users can cause, with a location, the problem and a remedy.

    Args:
        where: file, option or row, such as ``cub.h5:/labels``.
        problem: what was found, and what was expected.
        remedy: what the user can do; may be empty if it is clear from the problem.
    """

    exit_code = 1
    result: object = None
    """The ``labelkit.Result`` from before a Python function raised this error, or None if there is none."""

    def __init__(self, where: str, problem: str, remedy: str = "") -> None:
        self.where = where
        self.problem = problem
        self.remedy = remedy
        super().__init__(where, problem, remedy)

    def __str__(self) -> str:
        text = f"{self.where}: {self.problem}" if self.where else self.problem
        if self.remedy:
            # a list of problems ends with a line break
            text = f"{text}{self.remedy}" if text.endswith("\n") else f"{text.rstrip('.')}. {self.remedy}"
        return text

    def to_json(self) -> dict[str, object]:
        """Return the error's class name, location, problem and remedy as a dictionary."""
        return {"error": type(self).__name__, "where": self.where, "problem": self.problem, "remedy": self.remedy}


class ConfigError(LabelkitError):
    """Raised for an invalid option, preset or config file."""

    exit_code = 2


class OutputExistsError(ConfigError):
    """Raised if an output (file, folder, store or result) already exists and must not be overwritten."""


class InputError(LabelkitError):
    """Raised for an unusable input."""

    exit_code = 3


class DatasetError(InputError):
    """Raised for unusable images, labels or splits."""


class DatasetAbsent(DatasetError):  # noqa: N818 - named by what a listing calls it
    """Raised for a registered dataset that is not on this machine."""


class DatasetIncomplete(DatasetError):  # noqa: N818 - named by what a listing calls it
    """Raised for a registered dataset that is incomplete or has an unexpected layout."""


class StoreError(InputError):
    """Raised for an unusable embedding store or result."""


class NotAStore(StoreError):  # noqa: N818 - named by the file format
    """Raised for a file that is not an embedding store."""


class VersionError(StoreError):
    """Raised for a store from a newer version of labelkit, or with a feature that this version does not support."""


class Refused(StoreError):  # noqa: N818 - named by the file format
    """Raised for a store or output with invalid values or structure."""


class Damaged(StoreError):  # noqa: N818 - named by the file format
    """Raised for a corrupt store, whose content does not match its digest."""


class Mismatch(StoreError):  # noqa: N818 - named by the file format
    """Raised for two files that do not match in their rows, model or digest."""


class CheckpointError(InputError):
    """Raised for an unusable run folder or weights file."""


class CheckpointDamaged(CheckpointError):  # noqa: N818 - named as for stores
    """Raised for a corrupt checkpoint."""


class CheckpointMismatch(CheckpointError):  # noqa: N818 - named as for stores
    """Raised for a checkpoint with a different method, shape or configuration."""


class CheckpointRefused(CheckpointError):  # noqa: N818 - named as for stores
    """Raised for a weights file that contains more than tensors."""


class DivergenceError(LabelkitError):
    """Raised if training fails due to non-finite values, an exploding loss, or collapsed features."""

    exit_code = 4


class ResourceError(LabelkitError):
    """Raised for an unavailable resource: a full disk, no permission, a missing folder or a missing device."""

    exit_code = 5


class BusyError(LabelkitError):
    """Raised if another run is writing to the same output."""

    exit_code = 6


class GateError(LabelkitError):
    """Raised if a score violates its limit."""

    exit_code = 10


BROKEN_PIPE_SIGNAL = 13
"""Number of SIGPIPE, which Python does not define on Windows."""


class Interrupted(BaseException):
    """Raised when a signal interrupts the command; ``exit_code`` is 128 plus the signal number.

    ``resumable`` is whether ``train --resume`` can continue; the signal may come before the run begins.
    """

    def __init__(self, signum: int) -> None:
        self.signum = signum
        self.resumable = False
        self.exit_code = 128 + signum
        super().__init__(signum)


def output_exists_error(
    where: object, *options: str, state: str = "", instead: str = "", note: str = "", replaceable: bool = True
) -> OutputExistsError:
    """Build the error for an existing output, with the same wording for all commands.

    Args:
        where: the file, folder, store or result.
        options: options for choosing another output; default: ``--out``.
        state: description of the existing output, such as "and has different content".
        instead: additional remedy, such as "--resume to continue that run".
        note: final sentence.
        replaceable: whether ``--overwrite`` can replace the output.
    """
    ways = [instead] if instead else []
    ways += ["--overwrite to replace it"] if replaceable else []
    ways += [f"another {option}" for option in options or ("--out",)]
    listed = ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])}, or {ways[-1]}"
    return OutputExistsError(str(where), f"already exists {state}".rstrip(), f"Pass {listed}. {note}".rstrip())


def convert_os_error(error: OSError, where: str) -> ResourceError:
    """Convert an ``OSError`` from writing into an error with a remedy."""
    remedies = {
        errno.ENOSPC: (
            "the disk is full",
            "Free some space or choose another location, then run the command again.",
        ),
        errno.EDQUOT: ("the disk quota is exceeded", "Free some space or choose another location."),
        errno.EACCES: ("no permission to write here", "Change the permissions or choose another location."),
        errno.EPERM: ("the operation is not permitted", "Change the permissions or choose another location."),
        errno.EROFS: ("the file system is read-only", "Choose another location."),
        errno.ENOENT: ("the folder does not exist or has disappeared", "Create it and run the command again."),
        errno.EISDIR: ("is a folder, but the output is a file", "Choose another name."),
        errno.ENOTDIR: ("a parent of this path is a file, not a folder", "Choose another location."),
        errno.ENAMETOOLONG: ("the name is longer than this system allows", "Choose a shorter name."),
        errno.EFBIG: ("the file would be larger than this system allows", "Choose another location."),
        errno.EIO: ("the disk reported an error", "Check the disk; files that were complete are unaffected."),
    }
    problem, remedy = remedies.get(error.errno or 0, (error.strerror or str(error), "See the system message."))
    return ResourceError(where, problem, remedy)
