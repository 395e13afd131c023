"""Which rows of a store the filters of ``retrieve`` let through: by label, split and path."""

from __future__ import annotations

import fnmatch

import numpy as np
from numpy.typing import NDArray

from labelkit.commands.common.embeddings import split_rows
from labelkit.commands.retrieve.options import RetrieveConfig
from labelkit.errors import ConfigError
from labelkit.store.embeddings import EmbeddingStore


def nothing_passes(store: EmbeddingStore, config: RetrieveConfig) -> ConfigError:
    """The error of filters that leave no row."""
    options = [
        flag
        for flag, value in (
            ("--label", config.label),
            ("--split", config.split),
            ("--path-pattern", config.path_pattern),
        )
        if value is not None
    ]
    return ConfigError(" and ".join(options), f"no row of {store.path} passes", "Choose others.")


def chosen_rows(store: EmbeddingStore, config: RetrieveConfig) -> NDArray[np.bool_]:
    """(n,) whether a row passes the filters."""
    chosen = np.ones(store.n, dtype=np.bool_)
    if config.label is not None:
        unknown = [name for name in config.label if name not in store.class_names]
        if unknown or store.labels is None:
            known = ", ".join(store.class_names[:20]) + (", ..." if len(store.class_names) > 20 else "")
            problem = f"{store.path} has no class {(unknown or config.label)[0]!r} (it has: {known or 'none'})"
            raise ConfigError("--label", problem, "Choose one of them.")
        chosen &= np.isin(store.labels, [store.class_names.index(name) for name in config.label])
    if config.split is not None:
        marks = np.zeros(store.n, dtype=np.bool_)
        for split in config.split:
            marks[split_rows(store, split)] = True
        chosen &= marks
    if config.path_pattern is not None:
        pattern = config.path_pattern
        chosen &= np.fromiter((fnmatch.fnmatchcase(name, pattern) for name in store.sample_ids), np.bool_, store.n)
    return chosen
