"""A server of ``labelkit label --serve`` as a process of its own."""

import re
import signal
import subprocess
import sys
from pathlib import Path


class Serving:
    """A server as a process of its own."""

    def __init__(self, index: Path, *options: str) -> None:
        words = [sys.executable, "-m", "labelkit", "label", "--index", str(index), "--serve", "--no-open", *options]
        self.process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        told = ""
        while "http://" not in told:
            line = self.process.stderr.readline()
            assert line, told
            told += line
        found = re.search(r"http://\S+", told)
        assert found is not None
        self.link = found[0]

    def stop(self, signum: int = signal.SIGINT) -> int:
        self.process.send_signal(signum)
        code = self.process.wait(20)
        assert self.process.stderr is not None
        self.process.stderr.close()
        return code
