from __future__ import annotations

import subprocess
import sys

import labelkit.algorithms


def test_importing_algorithms_and_metrics_loads_nothing_heavy() -> None:
    script = (
        "import sys, labelkit.algorithms, labelkit.metrics; "
        "print(*{'torch', 'scipy', 'sklearn', 'faiss'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


def test_every_public_name_is_there() -> None:
    for name in labelkit.algorithms.__all__:
        assert callable(getattr(labelkit.algorithms, name))
