"""Cache the output of a network's frozen part for augmented views before training, for reuse in several runs.

Each image is decoded once; all its views pass through the frozen part, and the output is stored in a folder next to the
run (``labelkit.store.kept_views``). If a run is killed, at most one part is lost. Values depend only on their part, so
several processes or a resumed run produce the same bytes.
"""

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from labelkit.data.image_bank import CachedViewBank, ImageBank, number_view_kinds
from labelkit.data.keyed_random import KeyedRNG
from labelkit.data.loaders import iterate_planned_views
from labelkit.data.views.spec import Normalize, ViewSpec
from labelkit.data.workers import BatchPlan
from labelkit.errors import ConfigError
from labelkit.models.frozen_part import ReusablePart
from labelkit.options.backbone import ReuseOptions
from labelkit.options.training import RunConfig
from labelkit.progress import current_progress
from labelkit.store.kept_views import CachedViewPlan, CachedViews
from labelkit.training.compute_device import default_batch_size
from labelkit.training.devices import Runtime
from labelkit.training.method import Method, Phase

_FEW = 8


@dataclass(frozen=True)
class FrozenFeatureCache:
    """Cache of the features computed by the frozen part of a network, for training the rest.

    Attributes:
        method: the method, with its initial weights.
        bank: training images.
        config: training options.
        runtime: compute device; all processes share the work.
        part: frozen part of the network.
        views: view of each kind, and its position among the method's views; the last is the evaluation view.
        kinds: kind of each of the method's views.
        followers: positions of views that are shifted copies of the previous view; if any, all geometry is cached too.
        plan: plan of the parts.
    """

    method: Method[Any]
    bank: ImageBank
    config: RunConfig
    runtime: Runtime
    part: ReusablePart
    views: tuple[tuple[ViewSpec, int | None], ...]
    kinds: tuple[int, ...]
    followers: tuple[int, ...]
    plan: CachedViewPlan

    def estimate_seconds(self) -> float:
        """Estimate how many seconds it takes to fill the cache, by timing the views of one image."""
        rows = self.plan.rows[:1]
        self.compute_features(rows)  # warm-up
        started = time.perf_counter()
        self.compute_features(rows)
        self.runtime.synchronize()
        return (time.perf_counter() - started) * len(self.plan.rows) / self.runtime.world_size

    def compute_features(self, rows: NDArray[np.int64]) -> list[NDArray[Any]]:
        """Compute the frozen features (m, v, ...) of the rows for each kind of view, followed by their geometry."""
        found = list(self._values(rows))
        return [np.concatenate([values[kind] for values in found]) for kind in range(len(self.plan.counts))]

    def build_cached_bank(self, out: Path) -> CachedViewBank:
        """Compute the frozen features missing in the cache next to the run folder, and return a bank for training.

        Raises:
            ResourceError: the disk is full, or another process does not finish its parts.
            StoreError: a value cannot be stored.
            DatasetError: an image can no longer be read.
        """
        progress, runtime = current_progress(), self.runtime
        kept = CachedViews(out.resolve().parent, self.plan)
        if runtime.is_main:
            kept.begin()
            kept.pending_parts()  # moves damaged parts aside
        runtime.barrier()
        missing = [number for number in range(self.plan.num_parts) if not kept.part_path(number).exists()]
        for warning in kept.warnings:
            progress.warning(warning)
        if missing and runtime.is_main:
            progress.message(
                f"caching frozen features of {self.plan.counts[0]} views of {len(self.plan.rows):,} images, "
                f"{self.plan.num_bytes / 2**30:.3g} GiB, about {max(1.0, self.estimate_seconds() / 60):.0f} min: "
                f"{kept.folder}"
            )
        with progress.task("frozen part", total=self.plan.num_parts) as task:
            task.skip(self.plan.num_parts - len(missing))
            for number in missing:
                if number % runtime.world_size == runtime.rank:
                    kept.write_part(number, self.compute_features(self.plan.rows_of_part(number)))
                task.advance()
        runtime.barrier()
        return CachedViewBank(self.bank, self.plan.rows, kept.open_cached_parts(), self.kinds, self.followers)

    def build_timing_bank(self) -> CachedViewBank:
        """Return a bank that reuses the frozen features of a few images for all images, to time steps without a cache.

        For methods that cluster, copies with permuted values yield about twice as many distinct images as clusters.
        """
        few = self.compute_features(self.plan.rows[:_FEW])
        number = -(-len(self.plan.rows) // len(few[0]))
        clusters = getattr(self.config, "num_clusters", None)
        others = min(number, -(-2 * clusters // len(few[0]))) if isinstance(clusters, int) else 1
        last = max(self.kinds) + 2  # geometries follow the kinds of views and the plain view
        features, geometry = few[:last], few[last:]
        made = [
            (*(np.roll(kind.reshape(*kind.shape[:2], -1), by, 2).reshape(kind.shape) for kind in features), *geometry)
            for by in range(others)
        ]
        parts = [made[place % others] for place in range(number)]
        return CachedViewBank(self.bank, self.plan.rows, parts, self.kinds, self.followers)

    def _values(self, rows: NDArray[np.int64]) -> Iterator[list[NDArray[Any]]]:
        spec = self.method.network.input_spec
        # sample by sample, so that the first samples do not depend on their total number
        draws = range(max(self.plan.counts))
        order = [kind for draw in draws for kind in range(len(self.views)) if draw < self.plan.counts[kind]]
        views = tuple(self.views[kind][0] for kind in order)
        at_once = max(1, default_batch_size(self.runtime.device) // len(views))

        def plans() -> Iterator[BatchPlan]:
            for start in range(0, len(rows), at_once):
                some = rows[start : start + at_once]
                yield BatchPlan(some, KeyedRNG(self.config.seed, 0, some), views)

        reader = None if self.bank.in_memory else self.bank.build_reader(self.config.num_workers or 0)
        was_training = self.method.training
        self.method.eval()
        places = [[n for n, of in enumerate(order) if of == kind] for kind in range(len(self.views))]
        geometry_of = places[: len(self.plan.counts) - len(self.views)]
        for plan, made, geometry in iterate_planned_views(self.bank, plans, Normalize(spec.mean, spec.std), reader):
            values = [self._read_cached(tuple(made[n] for n in own), kind, plan) for kind, own in enumerate(places)]
            yield values + [np.stack([geometry[n].on_host.numpy() for n in own], axis=1) for own in geometry_of]
        self.method.train(was_training)

    def _read_cached(self, made: tuple[Tensor, ...], kind: int, plan: BatchPlan) -> NDArray[Any]:
        """Return the values (b, v, ...) to be cached for v views (b, c, h, w) of b images."""
        images = torch.stack(made, dim=1).flatten(0, 1)
        values = []
        for some in torch.split(images, default_batch_size(self.runtime.device)):
            with self.runtime.autocast():
                values.append(self.part.compute_cached(_get_network(self.method), some, self.views[kind][1]).float())
        joined = torch.cat(values)
        found: NDArray[Any] = joined.reshape(len(plan.rows), len(made), *joined.shape[1:]).cpu().numpy()
        return found


def _get_network(method: Method[Any]) -> nn.Module:
    network: Any = method.network  # a network with a frozen part is built on a backbone
    net: nn.Module = network.backbone.net
    return net


def plan_frozen_cache(
    method: Method[Any], bank: ImageBank, config: RunConfig, runtime: Runtime, phase: Phase
) -> FrozenFeatureCache | None:
    """Plan the cache of frozen features; return ``None`` without ``--reuse-frozen``.

    Raises:
        ConfigError: nothing is frozen, the features cannot be cached, or the views change between epochs.
    """
    if not isinstance(config, ReuseOptions) or config.reuse_frozen is None:
        return None
    if config.compile:
        problem = "a compiled backbone requires images, not cached features"
        raise ConfigError("--reuse-frozen", problem, "Remove --compile.")
    part = method.reuse_frozen()
    if part is None or callable(phase.views) or phase.pairing is not None:
        problem = "the views of this method change between epochs, so they cannot be cached"
        raise ConfigError("--reuse-frozen", problem, "Remove --reuse-frozen.")
    if any(view.anchors or view.mirror_as is not None or view.box_as is not None for view in phase.views):
        problem = "the views of this method depend on each other, so they cannot be cached"
        raise ConfigError("--reuse-frozen", problem, "Remove --reuse-frozen.")
    kinds = number_view_kinds(phase.views, [part.cache_point(place) for place in range(len(phase.views))])
    firsts = [kinds.index(kind) for kind in range(max(kinds) + 1)]
    views = (*((phase.views[place], place) for place in firsts), (method.eval_view(), None))
    net = _get_network(method)
    spec = method.network.input_spec
    blank = torch.zeros((1, spec.channels, spec.size, spec.size), device=next(net.parameters()).device)
    shapes = tuple(tuple(part.compute_cached(net, blank, place).shape[1:]) for _, place in views)
    counts = (config.reuse_frozen,) * len(firsts) + (1,)
    dtypes: tuple[str, ...] = (config.reuse_dtype,) * len(views)
    followers = tuple(place for place, view in enumerate(phase.views) if view.follows is not None)
    if followers:  # the geometry of the views is needed
        shapes += tuple((3, 3) if phase.views[place].follows else (2, 3) for place in firsts)
        counts += counts[:-1]
        dtypes += ("float32",) * len(firsts)
    recipe = {
        "network": {**method.network.identity, "image_size": spec.size, "weights": part.fingerprint(net)},
        "kept": [list(part.cache_point(place)) for _, place in views],
        "views": [asdict(view) for view, _ in views],
        "normalize": [list(spec.mean), list(spec.std)],
        "listing": bank.dataset.digest(),
        "images": bank.digest(bank.rows),
        "seed": config.seed,
        "precision": config.precision,
        "device": runtime.device.type,
    }
    plan = CachedViewPlan(recipe, bank.rows, counts, shapes, dtypes)
    return FrozenFeatureCache(method, bank, config, runtime, part, views, kinds, followers, plan)
