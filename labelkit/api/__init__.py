"""Python API: a function per command, its result, and functions to open a store and load a network.

Names are imported on first use, as ``labelkit.embed`` or ``labelkit.open_store``.
"""

from importlib import import_module

from labelkit.commands.table import COMMANDS, Group

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


def load_public_name(name: str) -> object:
    """Import the function, group or other object with a public name, or return ``None`` for an unknown name."""
    if name == "errors":
        return import_module("labelkit.errors")
    if name in _OTHERS:
        return getattr(import_module(_OTHERS[name]), name)
    for word, entry in COMMANDS.items():
        if python_name(word) == name:
            functions = import_module("labelkit.api.functions")
            is_group = isinstance(entry, Group)
            return functions.CommandGroup(word, entry) if is_group else functions.build_function((word,), entry)
    return None


def python_name(word: str) -> str:
    """Convert a command word to a Python name, such as ``ss_kmeans`` or ``import_``."""
    return "import_" if word == "import" else word.replace("-", "_")
