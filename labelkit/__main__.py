"""``python -m labelkit`` is ``labelkit``."""

# The C module below ``signal``: that one takes longer to load than people take to change their mind.
import _signal  # type: ignore[import-not-found]  # of CPython itself

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C ends the process without a traceback while Python loads

import gc
import sys

from labelkit.cli.process import end, prepare
from labelkit.errors import Interrupted


def _answer(arguments: list[str]) -> int:
    from labelkit.cli.common_rows import HELP_NAMES
    from labelkit.cli.quick_help import quick_help

    if arguments and arguments[-1] in HELP_NAMES:
        gc.disable()  # the process ends before there is anything worth collecting
    text = quick_help(arguments)
    if text is not None:
        from labelkit.cli.console import write

        write(text)
        return 0
    from labelkit.cli.main import main

    return main(arguments)


def run() -> None:
    """Be the console script ``labelkit``; the streams come before all that opens files."""
    prepare()
    try:
        code = _answer(sys.argv[1:])
    except Interrupted as interrupted:  # between two lines of ours
        code = interrupted.exit_code
    end(code)


if __name__ == "__main__":
    run()
