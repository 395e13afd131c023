"""Every error that a user can cause, each with the exit code of the command that meets it.

    LabelkitError(where, problem, remedy)
    ├── ConfigError            2   an option, a preset or a config file
    │   └── OutputExistsError      the output already exists
    ├── InputError             3   an input
    │   ├── DatasetError           images, labels, splits
    │   │   ├── DatasetAbsent, DatasetIncomplete
    │   ├── StoreError             an embedding store or a result
    │   │   ├── NotAStore, VersionError, Refused, Damaged, Mismatch
    │   └── CheckpointError        a run folder or a weights file
    │       └── (the same kinds, prefixed by Checkpoint)
    ├── DivergenceError        4   training failed numerically
    ├── ResourceError          5   disk full, no permission, folder vanished, no such device
    ├── BusyError              6   another run is writing this output
    └── GateError             10   a required threshold is not met

``Interrupted`` is not an error: it carries a signal (exit 130 or 143) up to the command line.
Only ``labelkit.cli.main`` turns these into exit codes. Programming mistakes raise a
``ValueError`` or ``TypeError`` instead.
"""

import errno


class LabelkitError(Exception):
    """Base class of errors that users can cause, with a location, the problem and a remedy.

    Args:
        where: file, option or row, e.g. ``cub.h5:/labels``.
        problem: what was found and what was expected.
        remedy: what to do next; may be empty only if the problem already says it.
    """

    exit_code = 1
    result: object = None
    """The ``labelkit.Result`` that a Python function had before it raised this error; None if it had none."""

    def __init__(self, where: str, problem: str, remedy: str = "") -> None:
        self.where = where
        self.problem = problem
        self.remedy = remedy
        super().__init__(where, problem, remedy)

    def __str__(self) -> str:
        """Return ``where: problem. remedy`` on one line or several."""
        text = f"{self.where}: {self.problem}" if self.where else self.problem
        if self.remedy:
            # a list of faults already ends with a line break
            text = f"{text}{self.remedy}" if text.endswith("\n") else f"{text.rstrip('.')}. {self.remedy}"
        return text

    def to_json(self) -> dict[str, object]:
        """Return the error's class name, location, problem and remedy as a dictionary."""
        return {"error": type(self).__name__, "where": self.where, "problem": self.problem, "remedy": self.remedy}


class ConfigError(LabelkitError):
    """Raised for an option, preset or config file that cannot be used."""

    exit_code = 2


class OutputExistsError(ConfigError):
    """Raised for an output (file, folder, store or result) that already exists and must not be replaced."""


class InputError(LabelkitError):
    """Raised for an input that cannot be used."""

    exit_code = 3


class DatasetError(InputError):
    """Raised for images, labels or splits that cannot be used."""


class DatasetAbsent(DatasetError):  # noqa: N818 - named by what a listing calls it
    """Raised for a registered dataset that has no files on this machine."""


class DatasetIncomplete(DatasetError):  # noqa: N818 - named by what a listing calls it
    """Raised for a registered dataset that is incomplete or not in the expected layout."""


class StoreError(InputError):
    """Raised for an embedding store or a result that cannot be used."""


class NotAStore(StoreError):  # noqa: N818 - named by the file format
    """Raised for a file that is not an embedding store."""


class VersionError(StoreError):
    """Raised for a store that was written by a newer labelkit or needs a feature this version lacks."""


class Refused(StoreError):  # noqa: N818 - named by the file format
    """Raised for a store or output with values or structure that a store must not have."""


class Damaged(StoreError):  # noqa: N818 - named by the file format
    """Raised for a store whose bytes differ from what was written."""


class Mismatch(StoreError):  # noqa: N818 - named by the file format
    """Raised for two files that do not belong together, judging by their rows, model or digest."""


class CheckpointError(InputError):
    """Raised for a run folder or weights file that cannot be used."""


class CheckpointDamaged(CheckpointError):  # noqa: N818 - named as for stores
    """Raised for a checkpoint whose bytes differ from what was written."""


class CheckpointMismatch(CheckpointError):  # noqa: N818 - named as for stores
    """Raised for a checkpoint of a different method, shape or configuration."""


class CheckpointRefused(CheckpointError):  # noqa: N818 - named as for stores
    """Raised for a weights file that contains more than tensors."""


class DivergenceError(LabelkitError):
    """Raised if training fails: values are not finite, the loss explodes, or the features collapse."""

    exit_code = 4


class ResourceError(LabelkitError):
    """Raised for an unavailable resource: a full disk, no permission, a folder that vanished or a missing device."""

    exit_code = 5


class BusyError(LabelkitError):
    """Raised for an output that another run is currently writing."""

    exit_code = 6


class GateError(LabelkitError):
    """Raised for a score that misses its required threshold."""

    exit_code = 10


BROKEN_PIPE_SIGNAL = 13
"""Number of SIGPIPE, which Windows does not name."""


class Interrupted(BaseException):
    """Raised when a signal interrupts the command; ``exit_code`` is 128 plus the signal number."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        self.exit_code = 128 + signum
        super().__init__(signum)


def output_exists(
    where: object, *options: str, state: str = "", instead: str = "", note: str = "", replaceable: bool = True
) -> OutputExistsError:
    """Build the error for an output that already exists, worded the same way for all commands.

    Args:
        where: the file, folder, store or result.
        options: the options that can name another output; default: ``--out``.
        state: description of the existing output, as in "and has other content".
        instead: another possible remedy, as in "--resume to go on with that run".
        note: a last sentence.
        replaceable: whether ``--overwrite`` would replace it.
    """
    ways = [instead] if instead else []
    ways += ["--overwrite to replace it"] if replaceable else []
    ways += [f"another {option}" for option in options or ("--out",)]
    listed = ways[0] if len(ways) == 1 else f"{', '.join(ways[:-1])}, or {ways[-1]}"
    return OutputExistsError(str(where), f"already exists {state}".rstrip(), f"Pass {listed}. {note}".rstrip())


def resource_error(error: OSError, where: str) -> ResourceError:
    """Convert an ``OSError`` raised while writing into an error with a remedy for the user."""
    remedies = {
        errno.ENOSPC: (
            "the disk is full",
            "Free some space or choose another location, then run the same command again.",
        ),
        errno.EDQUOT: ("the disk quota is used up", "Free some space or choose another location."),
        errno.EACCES: ("no permission to write here", "Choose another location or change the permissions."),
        errno.EPERM: ("the system does not allow this", "Choose another location or change the permissions."),
        errno.EROFS: ("the file system is read-only", "Choose another place."),
        errno.ENOENT: ("the folder does not exist or has disappeared", "Create it and run the same command again."),
        errno.EISDIR: ("is a folder, but a file must be written there", "Choose another name."),
        errno.ENOTDIR: ("a part of this path is a file, not a folder", "Choose another place."),
        errno.ENAMETOOLONG: ("the name is longer than this system allows", "Choose a shorter name."),
        errno.EFBIG: ("the file would be larger than this system allows", "Choose another place."),
        errno.EIO: ("the disk reported an error", "Check the disk; files that were complete before are still there."),
    }
    problem, remedy = remedies.get(error.errno or 0, (error.strerror or str(error), "See the system message."))
    return ResourceError(where, problem, remedy)
