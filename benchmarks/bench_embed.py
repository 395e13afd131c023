"""Time ``embed`` against the bare network on decoded tensors, and reuse of an older store against a full run."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from labelkit.commands.common.networks import build_embedding_network
from labelkit.commands.embed.embed import embed_images
from labelkit.data.loaders import EvalLoader
from labelkit.data.registry import load_dataset
from labelkit.data.views.spec import Normalize
from labelkit.options.embed import EmbedConfig
from labelkit.store.embeddings import open_store
from PIL import Image

from benchmarks.measure import Row, Wanted, compare, own_cache, seconds, with_check

SEEDS = {"images": 0, "weights": 0}
NUM_IMAGES, NUM_CLASSES, SIDE = 512, 8, 32
BATCH_SIZE = 64
REPETITIONS = 3
NUM_NEW = 5


def write_images(folder: Path) -> None:
    """Write class folders of random images, alternately PNG and JPEG."""
    generator = np.random.default_rng(SEEDS["images"])
    for i in range(NUM_IMAGES):
        place = folder / f"class{i % NUM_CLASSES}"
        place.mkdir(parents=True, exist_ok=True)
        coarse = Image.fromarray(generator.integers(0, 256, (4, 4, 3), dtype=np.uint8))
        image = coarse.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        image.save(place / f"{i:04}.{'png' if i // NUM_CLASSES % 2 else 'jpg'}")


def rows() -> Iterator[Row]:
    """Compare images per second."""
    with own_cache() as folder:
        yield _row(folder)
        yield _reuse_row(folder)


def _row(folder: Path) -> Row:
    write_images(folder / "images")
    configs = (
        EmbedConfig(
            dataset=str(folder / "images"),
            backbone="vit_mini_p4_32",
            random_weights=True,
            seed=SEEDS["weights"],
            batch_size=BATCH_SIZE,
            device="cpu",
            out=folder / f"{number}.h5",
        )
        for number in itertools.count()
    )
    first = next(configs)
    embed_images(first)

    model = build_embedding_network(first, 3)
    spec = model.network.input_spec
    loader = EvalLoader(
        load_dataset(first.dataset, data_root=first.data_root, download=False),
        model.view,
        batch_size=BATCH_SIZE,
        normalize=Normalize(spec.mean, spec.std),
        channels=3,
    )
    decoded = [batch.images for batch in loader]

    def bare() -> torch.Tensor:
        with torch.inference_mode():
            return torch.cat([model.network.embed(images) for images in decoded])

    row = compare(
        f"embed {NUM_IMAGES} files {SIDE}x{SIDE}, vit_mini_p4_32: images/s / bare loop on decoded tensors",
        seconds(lambda: embed_images(next(configs))),
        seconds(bare),
        wanted=Wanted(">=", 0.9),
        repetitions=REPETITIONS,
    )
    stored = np.asarray(open_store(first.out).embeddings)
    return with_check(row, "embeddings", bool(np.array_equal(stored, bare().numpy())))


def _reuse_row(folder: Path) -> Row:
    """Time ``--reuse`` with an old store that lacks one image in a hundred."""
    images = sorted((folder / "images").rglob("*.*"))
    new = images[:: len(images) // NUM_NEW][:NUM_NEW]
    (folder / "new").mkdir()
    for number, image in enumerate(new):
        image.rename(folder / "new" / f"{number}{image.suffix}")
    numbers = itertools.count()

    def config(**options: object) -> EmbedConfig:
        out = folder / f"reuse-{next(numbers)}.h5"
        common = {"dataset": str(folder / "images"), "backbone": "vit_mini_p4_32", "random_weights": True}
        return EmbedConfig.model_validate(
            {**common, "seed": SEEDS["weights"], "batch_size": BATCH_SIZE, "device": "cpu", "out": out, **options}
        )

    old = config()
    embed_images(old)
    for number, image in enumerate(new):
        (folder / "new" / f"{number}{image.suffix}").rename(image)
    added, scratch = config(reuse=str(old.out)), config()
    row = compare(
        f"embed {NUM_IMAGES} files with vit_mini_p4_32, {NUM_NEW} new: --reuse, times as fast / all anew",
        seconds(lambda: embed_images(config(reuse=str(old.out)))),
        seconds(lambda: embed_images(config())),
        wanted=Wanted(""),
        repetitions=3,
    )
    embed_images(added)
    embed_images(scratch)
    one, two = (np.asarray(open_store(made.out).embeddings) for made in (added, scratch))
    return with_check(row, "embeddings", bool(np.allclose(one, two, rtol=1e-3, atol=1e-4)))
