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


def list_public_names() -> list[str]:
    """List the names that ``import labelkit`` makes available: commands, classes and functions."""
    return [*(to_python_name(word) for word in COMMANDS), *_OTHERS, "errors"]


def load_public_name(name: str) -> object:
    """Import and return the object with a public name, such as a command's function; ``None`` for an unknown name."""
    if name == "errors":
        return import_module("labelkit.errors")
    if name in _OTHERS:
        return getattr(import_module(_OTHERS[name]), name)
    for word, entry in COMMANDS.items():
        if to_python_name(word) == name:
            functions = import_module("labelkit.api.functions")
            is_group = isinstance(entry, Group)
            return functions.CommandGroup(word, entry) if is_group else functions.build_command_function((word,), entry)
    return None


def to_python_name(word: str) -> str:
    """Convert a word of a command to a Python name: ``ss-kmeans`` to ``ss_kmeans``, and ``import`` to ``import_``."""
    return "import_" if word == "import" else word.replace("-", "_")
