"""Time a training step of CoTAP, forward and backward, and its ranking loss."""

import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from labelkit.data.batch import Batch, DataInfo, ViewGeometry
from labelkit.methods.dense.cotap import CoTAP
from labelkit.methods.dense.options import CoTAPConfig
from labelkit.methods.dense.ranking_loss import cotap_loss
from labelkit.options.presets import resolve_config

from benchmarks.measure import Row, Wanted, compare

SEED = 0
SEEDS = {"seed": SEED}


def seconds_on(device: torch.device, work: Callable[[], object]) -> Callable[[], float]:
    """Return the CPU time on a CPU, which excludes other processes, or the time until a GPU has finished."""

    def timed() -> float:
        if device.type == "cpu":
            begin = time.process_time()
            work()
            return time.process_time() - begin
        torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        torch.cuda.synchronize()
        return time.perf_counter() - begin

    return timed


def random_batch(config: CoTAPConfig, size: int, device: torch.device) -> Batch:
    """Return noise instead of images, half of them with a single object; all views overlap."""
    generator = torch.Generator().manual_seed(SEED)
    sides = (size, size, *[config.local_size] * config.num_local_views, size)
    views = tuple(torch.randn(config.batch_size, 3, side, side, generator=generator).to(device) for side in sides)
    halves = (1.0, 0.8, *[0.5] * config.num_local_views, 1.0)
    boxes = [torch.tensor([[[half, 0, 0], [0, half, 0.1]]]).expand(config.batch_size, -1, -1) for half in halves]
    index = torch.arange(config.batch_size, device=device)
    return Batch(views, torch.full_like(index, -1), index, tuple(ViewGeometry(box.to(device)) for box in boxes))


def shares(name: str, preset: str, device: torch.device, **options: object) -> Row:
    """Time the ranking loss against the whole step."""
    # only the sizes of the weights matter
    overrides = {"batch_size": 32, **options}
    config = resolve_config(CoTAPConfig, preset=preset, overrides=overrides).config
    info = DataInfo(
        num_samples=config.batch_size,
        labels=np.full(config.batch_size, -1),
        class_names=(),
        class_order=(),
        num_old_classes=0,
        num_known_classes=None,
        in_channels=3,
        image_size=0,
        num_objects=config.objects_per_batch,
    )
    method = CoTAP(config, info).to(device).train()
    batch = random_batch(config, method.network.input_spec.size, device)
    n = config.roi_size**4
    scores = torch.rand(2 * config.batch_size, n, device=device, requires_grad=True)
    targets = torch.rand(2 * config.batch_size, n, device=device)

    def step() -> None:
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss = method.training_step(batch).loss
        loss.backward()

    def loss_alone() -> None:
        cotap_loss(scores, targets).mean().backward()

    return compare(
        f"CoTAP, {name}, {config.batch_size} images, n {n:,}: ranking loss / whole step",
        seconds_on(device, loss_alone),
        seconds_on(device, step),
        wanted=Wanted("<=", 0.5),
        repetitions=5,
    )


def rows() -> Iterator[Row]:
    """Yield the demo on the CPU, and the paper's network if there is a GPU."""
    yield shares("demo", "scene_objects", torch.device("cpu"))
    yield shares("demo with the paper's grid", "scene_objects", torch.device("cpu"), roi_size=7)
    if torch.cuda.is_available():
        yield shares("ViT-S/16", "imagenet_1k", torch.device("cuda"), batch_size=256)


quick_rows = rows
