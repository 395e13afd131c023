"""``python -m labelkit``: the same program as ``labelkit``."""

# The C module behind ``signal``, which loads so slowly that Ctrl-C may come first.
import _signal  # type: ignore[import-not-found]  # part of CPython

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C ends the process without a traceback while Python loads

from labelkit.cli.process import exit_process, prepare_streams
from labelkit.errors import Interrupted


def run() -> None:
    """Run the console script ``labelkit``, setting up the standard streams before any file is opened."""
    prepare_streams()
    try:
        from labelkit.cli.main import main

        code = main()
    except Interrupted as interrupted:  # raised outside ``main``
        code = interrupted.exit_code
    exit_process(code)


if __name__ == "__main__":
    run()
