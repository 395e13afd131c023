"""Run commands of labelkit, each in a process of its own."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Sequence

_END_SECONDS = 30


class Commands:
    """Runs commands."""

    def run(self, words: Sequence[str]) -> tuple[int, bytes]:
        """Run a command to its end.

        Args:
            words: after ``labelkit``.

        Returns:
            exit code, negative for a signal, and standard output.
        """
        process = subprocess.Popen([sys.executable, "-m", "labelkit", *words], stdout=subprocess.PIPE)
        try:
            out, _ = process.communicate()
        except BaseException:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            if process.stdout is not None:
                process.stdout.close()
            raise
        return process.returncode, out
