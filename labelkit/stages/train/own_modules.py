"""Say which modules of a user's own method no step calls: the attribute has a name that labelkit does not use."""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from labelkit.methods.spec import OwnSource
from labelkit.stages.progress import current_progress


def warn_of_unused(method: nn.Module, own: OwnSource) -> None:
    """After the first step, warn of modules whose class is in the file of the user and that nothing called.

    Args:
        method: that is about to be trained.
        own: where it comes from.
    """
    watched = {name: part for name, part in method.named_modules() if name and _file_of(part) == str(own.path)}
    called: set[str] = set()

    def note(name: str) -> Any:
        return lambda *_: called.add(name)

    hooks = [part.register_forward_pre_hook(note(name)) for name, part in watched.items()]

    def after(*_: object) -> None:
        for hook in hooks:
            hook.remove()
        for name in sorted(watched.keys() - called):
            current_progress().warning(
                f"{own.name}: the first step did not call {name!r} ({type(watched[name]).__name__}): unless a later "
                "phase does, labelkit calls its own module, by another name (guide on methods of your own)"
            )

    if watched:
        hooks.append(method.register_forward_hook(after))


def _file_of(part: nn.Module) -> str | None:
    return getattr(sys.modules.get(type(part).__module__), "__file__", None)
