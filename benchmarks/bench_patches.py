"""Time ``embed --dense`` against the same forward pass without writing, and patch search against one product."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from labelkit.commands.common.networks import build_embedding_network
from labelkit.commands.embed.embed import embed_images
from labelkit.commands.retrieve.patches import find_nearest_in_blocks
from labelkit.data.loaders import EvalLoader
from labelkit.data.registry import load_dataset
from labelkit.data.views.spec import Normalize
from labelkit.options.embed import EmbedConfig
from labelkit.store.embeddings import open_store
from labelkit.store.patches import open_patches

from benchmarks.bench_embed import BATCH_SIZE, write_images
from benchmarks.measure import Row, Wanted, compare, own_cache, seconds, with_check

SEEDS = {"weights": 0, "patches": 0}
BLOCK_ROWS, NUM_BLOCKS, DIM, K = 65_536, 4, 384, 10
REPETITIONS = 3


def rows() -> Iterator[Row]:
    """Compare images per second, then patches per second."""
    with own_cache() as folder:
        yield _embedding(folder)
    yield _search()


def _embedding(folder: Path) -> Row:
    write_images(folder / "images")
    configs = (
        EmbedConfig(
            dataset=str(folder / "images"),
            backbone="vit_mini_p4_32",
            random_weights=True,
            seed=SEEDS["weights"],
            batch_size=BATCH_SIZE,
            dense=True,
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
            return torch.cat([model.network.embed_with_patches(images)[1] for images in decoded])

    row = compare(
        "embed --dense, 512 files 32x32, vit_mini_p4_32, 64 patches: images/s / bare loop on decoded tensors",
        seconds(lambda: embed_images(next(configs))),
        seconds(bare),
        wanted=Wanted(">=", 0.8),
        repetitions=REPETITIONS,
    )
    store = open_store(first.out)
    stored = np.concatenate([block.features for block in open_patches(store).iterate_blocks()])
    return with_check(row, "patches", bool(np.array_equal(stored, bare().half().flatten(0, 2).numpy())))


def _search() -> Row:
    generator = np.random.default_rng(SEEDS["patches"])
    blocks = [generator.normal(size=(BLOCK_ROWS, DIM)).astype(np.float16) for _ in range(NUM_BLOCKS)]
    query = generator.normal(size=DIM).astype(np.float32)

    def ours() -> list[int]:
        every = np.ones(BLOCK_ROWS, dtype=np.bool_)
        parts = ((block, number * BLOCK_ROWS, every) for number, block in enumerate(blocks))
        return find_nearest_in_blocks(query, parts, K)[1].tolist()

    def peer() -> list[int]:
        column = torch.from_numpy(query)[:, None]
        scores = []
        for block in blocks:
            held = torch.nn.functional.normalize(torch.from_numpy(block).float(), dim=1)
            scores.append(torch.mm(held, column)[:, 0])
        return torch.cat(scores).topk(K).indices.tolist()

    row = compare(
        f"patch search, {NUM_BLOCKS * BLOCK_ROWS:,} patches of {DIM}: rate / torch.mm of normalized blocks, top k",
        seconds(ours),
        seconds(peer),
        wanted=Wanted(""),
        repetitions=REPETITIONS,
    )
    return with_check(row, "hits", ours() == peer())
