"""labelkit: learn image representations and labels with few labels or none.

Every command is also a function with its options as keyword arguments: ``labelkit.embed(dataset="photos", ...)``,
``labelkit.train.flipclass(dataset="photos")``, ``labelkit.import_(source="features.npy", ...)``. It returns the
command's output as a :class:`labelkit.Result`, and raises errors from :mod:`labelkit.errors`.
``labelkit.open_store`` opens an embedding store, and ``labelkit.load_network`` loads the network of a run. Modules are
loaded on first use.
"""

from importlib import import_module as _import_module
from os import environ as _environ

__version__ = "0.1.0"

# Libraries read these variables on import, which comes after this module; child processes inherit them. Otherwise, ONNX
# Runtime would send telemetry to its vendor and store an id of the machine in the user's cache.
for _switch in ("ORT_DISABLE_TELEMETRY", "HF_HUB_DISABLE_TELEMETRY"):
    _environ.setdefault(_switch, "1")


def __getattr__(name: str) -> object:
    """Import a command or another public name on first use."""
    if not name.startswith("_"):
        found = _import_module("labelkit.api").load_public_name(name)
        if found is not None:
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_import_module("labelkit.api").list_public_names()})
