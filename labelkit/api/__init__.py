"""Python functions: one function per command, its result, and functions to open a store and load a network.

Names are imported on first use; users reach them as ``labelkit.embed`` or ``labelkit.open_store``.
"""

from importlib import import_module

from labelkit.commands.table import COMMANDS

_OTHERS = {
    "Network": "labelkit.api.network",
    "load_network": "labelkit.api.network",
    "Result": "labelkit.api.result",
    "Store": "labelkit.store.frame",
    "open_store": "labelkit.store.frame",
}


def public_names() -> list[str]:
    """Return the public names of the ``labelkit`` package."""
    return [*(python_name(word) for word in COMMANDS), *_OTHERS, "errors"]


def find(name: str) -> object:
    """Return the function, group or other object behind a public name of ``labelkit``, or ``None`` if there is none."""
    if name == "errors":
        return import_module("labelkit.errors")
    if name in _OTHERS:
        return getattr(import_module(_OTHERS[name]), name)
    for word, entry in COMMANDS.items():
        if python_name(word) == name:
            return import_module("labelkit.api.functions").command_object(word, entry)
    return None


def python_name(word: str) -> str:
    """Convert a command word to a Python name, such as ``ss_kmeans`` or ``import_``."""
    return "import_" if word == "import" else word.replace("-", "_")
