"""The searches of snowball and LMCS as options say, in training and on a store (``discover snowball | lmcs``).

Needs no torch, so that a search on a store starts at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from numpy.typing import ArrayLike

from labelkit.methods.few_labels.critical_samples import CriticalDiscovery, discover_critical
from labelkit.methods.few_labels.pseudo_label_selection import Count, Discovery
from labelkit.methods.few_labels.search_options import ConfidentSearchOptions, CriticalSearchOptions
from labelkit.methods.few_labels.snowball_search import Score, Select, discover_confident


def search_confident(
    config: ConfidentSearchOptions,
    features: ArrayLike | Sequence[ArrayLike],
    labels: ArrayLike,
    count: Count,
    rounds: int = 1,
    *,
    select: Select,
    score: Score = "distance",
    seed: int,
    num_classes: int,
    original: ArrayLike | None = None,
    class_names: Sequence[str],
) -> Discovery:
    """Run :func:`labelkit.methods.few_labels.snowball_search.discover_confident` as options say."""
    return discover_confident(
        features,
        labels,
        count,
        rounds,
        select=select,
        far_factor=config.far_factor,
        fusion=config.fusion,
        score=score,
        seed=seed,
        num_classes=num_classes,
        original=original,
        balance=config.balance,
        missing_class=config.missing_class,
        class_names=class_names,
    )


def search_critical(
    config: CriticalSearchOptions,
    features: ArrayLike,
    labels: ArrayLike,
    count: Count,
    rounds: int = 1,
    *,
    num_classes: int,
    original: ArrayLike | None = None,
    class_names: Sequence[str],
) -> CriticalDiscovery:
    """Run :func:`labelkit.methods.few_labels.critical_samples.discover_critical` as options say."""
    return discover_critical(
        features,
        labels,
        count,
        rounds,
        beta=None if config.beta == "auto" else config.beta,
        label_rule=config.label_rule,
        criterion=config.criterion,
        confine=config.confine,
        confine_cap=config.confine_cap,
        num_classes=num_classes,
        original=original,
        balance=config.balance,
        missing_class=config.missing_class,
        class_names=class_names,
    )
