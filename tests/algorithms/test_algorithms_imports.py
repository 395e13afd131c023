import subprocess
import sys
from types import ModuleType

import labelkit.algorithms
import labelkit.store
import pytest


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("labelkit.algorithms, labelkit.metrics", "'torch', 'scipy', 'sklearn', 'faiss'"),
        ("labelkit.pipelines.start.run, labelkit.models.weights.published", "'torch', 'torchvision', 'timm'"),
    ],
)
def test_importing_loads_nothing_heavy(modules: str, heavy: str) -> None:
    script = f"import sys, {modules}; print(*{{{heavy}}} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n", "")


@pytest.mark.parametrize("package", [labelkit.algorithms, labelkit.store])
def test_every_public_name_is_there(package: ModuleType) -> None:
    for name in package.__all__:
        assert callable(getattr(package, name))
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        getattr(package, "no_such_" + "name")
