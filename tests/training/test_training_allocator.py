"""Large blocks that are freed stay with the process."""

import subprocess
import sys

import pytest

# Pages of a block that is freed and taken again are mapped anew, unless the C library keeps them.
_FAULTS = """
import resource, sys
import torch
from labelkit.training.devices import keep_freed_memory
if sys.argv[1] == "kept":
    keep_freed_memory()
torch.ones(1 << 24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(40):
    torch.ones(1 << 24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc has the setting")
def test_blocks_taken_again_are_not_mapped_anew() -> None:
    faults = {
        how: int(subprocess.run([sys.executable, "-c", _FAULTS, how], capture_output=True, check=True).stdout)
        for how in ("mapped", "kept")
    }

    assert faults["kept"] < faults["mapped"] / 2  # the heap may grow at first
